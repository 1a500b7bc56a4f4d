"""Nodes and the Python client connect to hosts by name. A name without an answer delays only its own
connection, and a host that comes back at another address is found there."""

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from contracts.names import Names
from gossipq.resolver import AGAIN_S, Resolver, name_in, with_address
from gossipq_client.io.transport import Transport, wait
from gossipq_node.adapters import curve
from gossipq_node.adapters.named_peers import WAITING_MAX
from gossipq_node.adapters.zmq_mailbox import ZmqMailbox
from gossipq_node.settings import NodeKeys
from ports import settled_port
from waiting import until

PATIENCE_S = 30.0
SOON_S = 2.0  #: far less than a silent name server takes


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names(ada=["127.0.0.1"], bob=["127.0.0.1"])
    yield names
    names.close()


@pytest.fixture
def resolver(names: Names) -> Iterator[Resolver]:
    resolver = Resolver(names.look_up)
    yield resolver
    resolver.close()


@pytest.fixture
def here(names: Names) -> Iterator[ZmqMailbox]:
    mailbox = ZmqMailbox(look_up=names.look_up)
    yield mailbox
    mailbox.close()


@pytest.fixture
def transport(names: Names) -> Iterator[Transport]:
    transport = Transport(look_up=names.look_up)
    yield transport
    transport.close(0)


class Doors:
    """Sockets that take messages, at addresses of this host."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.open: dict[str, zmq.Socket[bytes]] = {}

    def add(self, port: int, address: str = "127.0.0.1") -> None:
        door = self.open[address] = self._context.socket(zmq.ROUTER)
        door.set(zmq.LINGER, 0)
        door.bind(f"tcp://{address}:{port}")

    def close(self, address: str = "127.0.0.1") -> None:
        self.open.pop(address).close()

    def heard(self, address: str = "127.0.0.1") -> list[bytes]:
        found = []
        while self.open[address].poll(0):
            found.append(self.open[address].recv_multipart()[1])
        return found

    def end(self) -> None:
        for door in self.open.values():
            door.close(0)
        self._context.term()


@pytest.fixture
def doors() -> Iterator[Doors]:
    doors = Doors()
    yield doors
    doors.end()


# --- looking names up


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("tcp://ada:7700", "ada"),
        (
            "tcp://gossipq-0.gossipq.default.svc.cluster.local:7701",
            "gossipq-0.gossipq.default.svc.cluster.local",
        ),
        ("tcp://127.0.0.1:7700", ""),
        ("tcp://[::1]:7700", ""),
        ("tcp://[fe80::1%eth0]:7700", ""),
        ("tcp://ada", ""),
        ("tcp://a da:7700", ""),
        ("ipc:///tmp/ada:7700", ""),
    ],
)
def test_which_endpoints_have_a_name(endpoint: str, name: str) -> None:
    assert name_in(endpoint) == name


def test_an_address_takes_the_place_of_a_name() -> None:
    assert with_address("tcp://ada:7701", "10.0.0.7") == "tcp://10.0.0.7:7701"


def answered(resolver: Resolver, name: str) -> None:
    assert wait([resolver.fd], 1_000 * PATIENCE_S)
    assert resolver.answered() == {name}


def test_a_name_is_looked_up_by_somebody_else(names: Names, resolver: Resolver) -> None:
    names.silent.add("ada")
    resolver.ask("ada", 0.0)
    resolver.ask("bob", 0.0)
    answered(resolver, "bob")
    assert resolver.address("bob") == "127.0.0.1"
    assert not resolver.address("ada")


def test_a_name_is_not_asked_for_all_the_time(names: Names, resolver: Resolver) -> None:
    for now_s in (0.0, 0.1, AGAIN_S - 0.1):
        resolver.ask("ada", now_s)
    answered(resolver, "ada")
    resolver.ask("ada", AGAIN_S)
    answered(resolver, "ada")
    assert names.asked == ["ada", "ada"]


def test_the_last_good_address_is_kept_while_nobody_knows_better(names: Names, resolver: Resolver) -> None:
    resolver.ask("ada", 0.0)
    answered(resolver, "ada")
    del names.addresses["ada"]
    resolver.ask("ada", AGAIN_S)
    answered(resolver, "ada")
    assert resolver.address("ada", "127.0.0.1", is_lost=True) == "127.0.0.1"


def test_of_several_addresses_the_next_one_is_tried_when_one_is_lost(
    names: Names, resolver: Resolver
) -> None:
    names.addresses["ada"] = ["10.0.0.1", "10.0.0.2"]
    resolver.ask("ada", 0.0)
    answered(resolver, "ada")
    assert resolver.address("ada") == "10.0.0.1"
    assert resolver.address("ada", "10.0.0.2") == "10.0.0.2"
    assert resolver.address("ada", "10.0.0.1", is_lost=True) == "10.0.0.2"
    assert resolver.address("ada", "10.0.0.2", is_lost=True) == "10.0.0.1"
    assert resolver.address("ada", "10.0.0.3") == "10.0.0.1"


# --- nodes


def turned(here: ZmqMailbox, done: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    def turn() -> object:
        here.receive(10)
        return done()

    until(turn, patience_s)


@pytest.mark.e2e
def test_a_dead_name_stops_its_own_link_alone(names: Names, here: ZmqMailbox, doors: Doors) -> None:
    port, heard = settled_port(), list[bytes]()
    doors.add(port)
    names.silent.add("bob")
    assert here.send(f"tcp://bob:{port}", b"to bob")
    assert here.send(f"tcp://ada:{port}", b"to ada")
    assert here.send(f"tcp://127.0.0.1:{port}", b"to a number")
    turned(here, lambda: heard.extend(doors.heard()) or len(heard) == 2, SOON_S)
    assert sorted(heard) == [b"to a number", b"to ada"]
    names.close()
    turned(here, lambda: doors.heard() == [b"to bob"])


@pytest.mark.e2e
def test_what_waits_for_an_address_is_bounded(names: Names, here: ZmqMailbox, doors: Doors) -> None:
    port, heard = settled_port(), list[bytes]()
    doors.add(port)
    names.silent.add("ada")
    for number in range(WAITING_MAX + 10):
        assert here.send(f"tcp://ada:{port}", b"%d" % number)
    assert here.dropped == 10
    names.close()
    turned(here, lambda: heard.extend(doors.heard()) or len(heard) == WAITING_MAX)
    assert heard == [b"%d" % number for number in range(10, WAITING_MAX + 10)]


@pytest.mark.e2e
def test_a_peer_that_comes_back_at_another_address_is_found(
    names: Names, here: ZmqMailbox, doors: Doors
) -> None:
    port = settled_port()
    endpoint = f"tcp://ada:{port}"
    doors.add(port)
    here.send(endpoint, b"first")
    turned(here, lambda: doors.heard() == [b"first"])
    doors.close()
    doors.add(port, "127.0.0.5")
    names.addresses["ada"] = ["127.0.0.5"]

    def again() -> bool:
        here.send(endpoint, b"again")
        return b"again" in doors.heard("127.0.0.5")

    turned(here, again)


@pytest.mark.e2e
def test_an_encrypted_peer_is_known_by_its_key_whatever_its_address(names: Names) -> None:
    port, secret, door = settled_port(), curve.new_secret(), curve.new_secret()
    endpoint = f"tcp://ada:{port}"
    keys = NodeKeys(secret, curve.public_of(secret), curve.public_of(door), door, own=frozenset((endpoint,)))
    with_peer = [
        ZmqMailbox(keys=keys, look_up=names.look_up),
        ZmqMailbox(peers=f"tcp://127.0.0.1:{port}", keys=keys),
    ]
    here, there = with_peer
    assert keys.encrypts
    here.send(endpoint, b"hello")
    turned(here, lambda: [came.control for came in there.receive(10)] == [b"hello"])
    for each in with_peer:
        each.close()


# --- the Python client


def came_up(transport: Transport, endpoint: str) -> Callable[[], bool]:
    return lambda: (endpoint, True) in transport.events()


@pytest.mark.e2e
def test_a_client_is_not_held_up_by_a_dead_name(names: Names, transport: Transport, doors: Doors) -> None:
    port = settled_port()
    doors.add(port)
    names.silent.add("bob")
    transport.open(f"tcp://bob:{port}")
    transport.open(f"tcp://ada:{port}")
    until(came_up(transport, f"tcp://ada:{port}"), SOON_S)
    transport.send([(f"tcp://ada:{port}", [b"hello"])])
    until(lambda: doors.heard() == [b"hello"])
    names.close()
    until(came_up(transport, f"tcp://bob:{port}"))


@pytest.mark.e2e
def test_a_client_waits_for_its_descriptors_and_hears_of_an_address(
    names: Names, transport: Transport, doors: Doors
) -> None:
    """Nothing but a readable descriptor says that a name was looked up."""
    port = settled_port()
    doors.add(port)
    endpoint, up = f"tcp://ada:{port}", False
    transport.open(endpoint)
    end = time.monotonic() + PATIENCE_S
    while not up:
        assert time.monotonic() < end
        if transport.monitor_fds.intersection(wait(transport.fds, 1_000 * PATIENCE_S)):
            up = (endpoint, True) in transport.events()


@pytest.mark.e2e
def test_where_a_name_is_not_known_nobody_takes_connections(
    names: Names, transport: Transport, doors: Doors
) -> None:
    port = settled_port()
    endpoint = f"tcp://cat:{port}"
    doors.add(port)
    transport.open(endpoint)
    until(lambda: transport.events() == [] and endpoint in transport.missed)
    names.addresses["cat"] = ["127.0.0.1"]
    until(came_up(transport, endpoint))


@pytest.mark.e2e
def test_a_client_finds_a_node_that_comes_back_at_another_address(
    names: Names, transport: Transport, doors: Doors
) -> None:
    port = settled_port()
    endpoint = f"tcp://ada:{port}"
    doors.add(port)
    transport.open(endpoint)
    until(came_up(transport, endpoint))
    doors.close()
    doors.add(port, "127.0.0.5")
    names.addresses["ada"] = ["127.0.0.5"]
    until(lambda: (endpoint, False) in transport.events())
    until(came_up(transport, endpoint))
