"""Encrypted ports, attacked over real sockets. The port for nodes admits only keys on the roster,
and disconnects nodes that leave it. Callers without encryption or with a wrong key get no answer.
"""

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec
import pytest
import zmq

from gossipq import limits
from gossipq.endpoints import door_of
from gossipq.values import Member
from gossipq_node.adapters import curve
from gossipq_node.adapters.zmq_mailbox import ZmqMailbox
from gossipq_node.ports import Incoming
from gossipq_node.settings import NodeKeys
from gossipq_node.trust import door_secrets
from ports import settled_port

SECRET = b"what the nodes of the cluster know"
OLD, NEW = b"the old secret of it\n", b"the new secret of it\n"
PATIENCE_S = 30.0
HELD_S = 0.3  #: the I/O thread of libzmq finds no descriptor meanwhile; nothing tells when it has looked
SOON_MS = 400  #: time in which a message that must not come would come
ROUND_TRIP_S = 0.4  #: between hosts that are as far from each other as any two
ROUNDS = 100  #: with three sockets each it takes fewer than a context may have before they are taken away


def keys(secret: bytes = SECRET) -> NodeKeys:
    mine, doors = curve.new_secret(), door_secrets(secret)
    public = b"".join(map(curve.public_of, doors))
    return NodeKeys(mine, curve.public_of(mine), public, doors[0], assumes=True)


class Seat:
    """A process of a node with keys of its own, at a port of its own."""

    def __init__(
        self, ends: ExitStack, of: NodeKeys | None = None, doors: bool = False, port: int = 0
    ) -> None:
        self.port, self.keys = port or settled_port(doors=True), of or keys()
        self.clients = f"tcp://127.0.0.1:{self.port}"
        self.peers = f"tcp://127.0.0.1:{self.port + limits.PEER_PORT_STEP}"
        self.mailbox = ZmqMailbox(
            self.clients if doors else "",
            self.peers,
            keys=self.keys,
            doors=[door_of(self.clients)] if doors else (),
        )
        self._closed = False
        ends.callback(self.close)
        self.row = Member(
            str(self.port), str(self.port), self.clients, 1, key=self.keys.public, encrypts=True
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.mailbox.close()

    def hears(self, *others: "Seat") -> list[Incoming]:
        """The messages that arrive while the others also turn."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if came := self.mailbox.receive(20):
                return came
            for other in others:
                other.mailbox.receive(5)
                other.mailbox.gone()
            self.mailbox.gone()
        return []

    def silent(self, *others: "Seat") -> bool:
        end = time.monotonic() + SOON_MS / 1000
        heard = list[Incoming]()
        while time.monotonic() < end and not heard:
            heard = self.mailbox.receive(20)
            for other in others:
                other.mailbox.receive(5)
        return not heard


@pytest.fixture
def seat() -> Iterator[Callable[..., Seat]]:
    with ExitStack() as ends:
        yield lambda of=None, doors=False, port=0: Seat(ends, of, doors, port)


def meet(*seats: Seat) -> None:
    for each in seats:
        each.mailbox.admit([other.row for other in seats])


def test_who_is_on_the_roster_comes_in_and_who_leaves_it_is_hung_up_on(seat: Callable[..., Seat]) -> None:
    ada, bob = seat(), seat()
    bob.mailbox.admit([ada.row, bob.row])
    ada.mailbox.admit([ada.row])
    bob.mailbox.send(ada.peers, b"early")
    assert ada.silent(bob), "it is not on the roster yet"
    meet(ada, bob)
    came = hears(ada, bob, b"early")
    assert (came.control, came.key) == (b"early", bob.keys.public)
    ada.mailbox.admit([ada.row])
    bob.mailbox.send(ada.peers, b"late")
    assert ada.silent(bob), "its connection is gone, and it gets no other"
    meet(ada, bob)
    assert hears(ada, bob, b"again").control == b"again"


@contextmanager
def slow_wire(port: int, to: int, delay_s: float) -> Iterator[None]:
    """Connects `port` to `to` with a delay each way, for one connection."""
    server = socket.create_server(("127.0.0.1", port))

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                threading.Timer(delay_s, target.sendall, [data]).start()

    def accept() -> None:
        with suppress(OSError):
            near, far = server.accept()[0], socket.create_connection(("127.0.0.1", to))
            ends.extend((near, far))
            for way in ((near, far), (far, near)):
                threading.Thread(target=carry, args=way, daemon=True).start()

    ends = [server]
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        for end in ends:
            end.close()


def test_nodes_meet_though_the_way_is_long(seat: Callable[..., Seat]) -> None:
    """A handshake needs enough time, or a distant node would never be reached."""
    ada, bob = seat(), seat()
    far = msgspec.structs.replace(ada.row, endpoint=f"tcp://127.0.0.1:{settled_port(doors=True)}")
    port = int(far.endpoint.rpartition(":")[2]) + limits.PEER_PORT_STEP
    meet(ada, bob)
    bob.mailbox.admit([far, bob.row])
    with slow_wire(port, ada.port + limits.PEER_PORT_STEP, ROUND_TRIP_S / 2):
        bob.mailbox.send(f"tcp://127.0.0.1:{port}", b"from afar")
        assert ada.hears(bob), "by the first connection"
        bob.close()


def test_what_a_node_has_sent_before_it_left_is_not_heard_after(seat: Callable[..., Seat]) -> None:
    ada, bob = seat(), seat()
    meet(ada, bob)
    bob.mailbox.send(ada.peers, b"first")
    assert ada.hears(bob)
    bob.mailbox.send(ada.peers, b"on its way")
    time.sleep(0.1)
    ada.mailbox.admit([ada.row])
    assert ada.silent(bob)


def test_a_node_may_come_by_its_next_key(seat: Callable[..., Seat]) -> None:
    ada, bob = seat(), seat()
    row = Member("bob", "bob", bob.clients, 1, key=keys().public, next_key=bob.keys.public, encrypts=True)
    bob.mailbox.admit([ada.row, bob.row])
    ada.mailbox.admit([ada.row, row])
    bob.mailbox.send(ada.peers, b"x")
    assert ada.hears(bob)


def test_who_has_another_secret_is_not_spoken_to(seat: Callable[..., Seat]) -> None:
    ada, eve = seat(), seat(keys(b"what somebody guesses about it"))
    meet(ada, eve)
    eve.mailbox.send(ada.peers, b"x")
    ada.mailbox.send(eve.peers, b"a secret of ours")
    assert ada.silent(eve)
    assert eve.silent(ada)


def test_nodes_meet_while_the_secret_is_replaced(seat: Callable[..., Seat]) -> None:
    ada, bob = seat(keys(OLD + NEW)), seat(keys(NEW + OLD))
    eve = seat(keys(OLD))
    meet(ada, bob, eve)
    for one, other in ((ada, bob), (bob, ada), (ada, eve), (eve, ada)):
        reaches(one, other)
    eve.mailbox.send(bob.peers, b"x")
    assert bob.silent(eve), "it does not know the new secret"


def test_who_is_dialled_changes_its_key(seat: Callable[..., Seat]) -> None:
    ada, bob = seat(keys(OLD + NEW)), seat(keys(OLD + NEW))
    meet(ada, bob)
    reaches(bob, ada)
    ada.close()
    again = seat(keys(NEW + OLD), port=ada.port)
    meet(again, bob)
    reaches(bob, again)


def test_a_door_that_never_opens_is_dialled_again_and_again(seat: Callable[..., Seat]) -> None:
    """By each key in turn, at once: no name of libzmq's is taken twice, and nothing is left that would keep
    the process from ending."""
    ada, bob = seat(keys(b"what is known to nobody else")), seat(keys(OLD + NEW))
    meet(ada, bob)
    for _ in range(ROUNDS):
        bob.mailbox.send(ada.peers, b"x")
        (address,) = bob.mailbox._dealers
        bob.mailbox._disconnect(address)
    bob.close()


@pytest.mark.parametrize(("spare", "held_s"), [(0, 0), (1, 0), (2, 0), (3, HELD_S), (4, 0), (5, 0)])
def test_a_node_without_a_descriptor_left_dials_when_it_has_one_again(
    seat: Callable[..., Seat], spare: int, held_s: float
) -> None:
    """A socket that was half made would keep the process from ending. libzmq gives up a connection for which
    its own thread finds no descriptor, and reports nothing."""
    ada, bob = seat(keys(OLD)), seat(keys(OLD + NEW))
    meet(ada, bob)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, most))
    try:
        held = list[int]()
        with suppress(OSError):
            while len(held) < limit:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for each in held[len(held) - spare :]:
            os.close(each)
        said = bob.mailbox.send(ada.peers, b"early")
        assert said == (bob.mailbox.dropped == 0)
        assert not said or spare, "no descriptor is left"
        time.sleep(held_s)
    finally:
        for each in held[: len(held) - spare]:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    reaches(bob, ada)
    bob.close()


def hears(other: Seat, one: Seat, word: bytes) -> Incoming:
    """Send `word` until it arrives, as nodes do: a message is lost when its handshake fails."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        one.mailbox.send(other.peers, word)
        one.mailbox.receive(5)
        if came := other.mailbox.receive(50):
            return came[0]
    raise AssertionError(f"{word!r} never arrives")


def reaches(one: Seat, other: Seat) -> None:
    hears(other, one, b"x")
    while not other.silent(one):
        pass


@pytest.mark.parametrize("step", [limits.PEER_PORT_STEP, limits.DOOR_PORT_STEP])
def test_who_does_not_encrypt_is_not_heard(seat: Callable[..., Seat], step: int) -> None:
    ada = seat(doors=True)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(f"tcp://127.0.0.1:{ada.port + step}")
        stranger.send_multipart([b"control"])
        assert ada.silent()


def test_clients_come_in_encrypted_with_any_key_of_their_own(seat: Callable[..., Seat]) -> None:
    ada = seat(doors=True)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.curve_serverkey = ada.keys.door
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.connect(door_of(ada.clients))
        client.send_multipart([b"control"])
        (came,) = ada.hears()
        assert ada.mailbox.from_client(came.origin)
        assert ada.mailbox.encrypted(came.origin)
        assert not came.key
        ada.mailbox.reply(came.origin, b"answer")
        assert client.poll(PATIENCE_S * 1000)
        assert client.recv() == b"answer"


def test_a_key_that_is_good_at_the_door_for_clients_is_none_at_that_for_nodes(
    seat: Callable[..., Seat],
) -> None:
    ada = seat(doors=True)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.curve_serverkey = ada.keys.door
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.connect(ada.peers)
        client.send_multipart([b"control"])
        assert ada.silent()


def test_what_is_said_to_a_node_that_encrypts_is_encrypted_from_when_that_is_known(
    seat: Callable[..., Seat],
) -> None:
    """A roll: the row of a node says so when it has started again."""
    ada = seat()
    clear = NodeKeys(ada.keys.secret, ada.keys.public, ada.keys.door)
    old = seat(clear)
    row = Member("old", "old", old.clients, 1, key=clear.public, encrypts=False)
    for each in (ada, old):
        each.mailbox.admit([ada.row, row])
    old.mailbox.send(ada.peers, b"from the old")
    assert ada.hears(old)
    ada.mailbox.send(old.peers, b"to the old")
    assert old.hears(ada)


def test_a_forwarded_client_is_answered_by_the_door_that_it_came_in_by(seat: Callable[..., Seat]) -> None:
    front, worker = seat(doors=True), seat(doors=True)
    meet(front, worker)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.curve_serverkey = front.keys.door
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.connect(door_of(front.clients))
        client.send_multipart([b"control"])
        (came,) = front.hears()
        front.mailbox.send(worker.clients, b"greeting")
        (greeting,) = worker.hears(front)
        worker.mailbox.reply(greeting.origin, b"proof")
        (proof,) = front.hears(worker)
        assert front.mailbox.forward(proof.origin, came)
        (forwarded,) = worker.hears(front)
        assert worker.mailbox.encrypted(forwarded.origin)
        worker.mailbox.reply(forwarded.origin, b"answer")
        end = time.monotonic() + PATIENCE_S
        while not client.poll(20):
            assert time.monotonic() < end
            front.mailbox.receive(10)
        assert client.recv() == b"answer"
