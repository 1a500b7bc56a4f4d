"""The contract of Mailbox, over the fake and over ZeroMQ, and what only ZeroMQ can do wrong."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest
import zmq

import waiting
from contracts.memory import MemoryMailbox, MemoryNetwork
from gossipq import limits
from gossipq.errors import ConfigError
from gossipq.messages import RefusedMessage
from gossipq.types import Origin
from gossipq.wire.frames import decode
from gossipq_node.adapters import curve, zmq_mailbox
from gossipq_node.adapters.zmq_mailbox import ZmqMailbox
from gossipq_node.ports import Incoming, Mailbox
from gossipq_node.settings import NodeKeys
from ports import settled_port
from slow_line import SlowLine

WAIT_MS = 30_000


class ZmqClient:
    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVTIMEO, WAIT_MS)
        self.socket.connect(endpoint)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def receive(self) -> list[bytes]:
        return self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close()


class World:
    """Makes mailboxes and clients of one kind, on endpoints of its own."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self._path = kind, path
        self._network, self._context = MemoryNetwork(), zmq.Context()
        self._open: list = []

    def endpoint(self, name: str) -> str:
        return f"ipc://{self._path}/{name}"

    def mailbox(self, clients: str = "", peers: str = "") -> Mailbox:
        names = [self.endpoint(name) if name else "" for name in (clients, peers)]
        mailbox = MemoryMailbox(self._network, *names) if self.kind == "memory" else ZmqMailbox(*names)
        self._open.append(mailbox)
        return mailbox

    def client(self, name: str):
        endpoint = self.endpoint(name)
        client = (
            self._network.client(endpoint) if self.kind == "memory" else ZmqClient(self._context, endpoint)
        )
        if self.kind == "zmq":
            self._open.append(client)
        return client

    def close(self) -> None:
        for thing in self._open:
            thing.close()
        self._context.term()


@pytest.fixture(params=["memory", "zmq"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    yield world
    world.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[World]:
    world = World("zmq", tmp_path)
    yield world
    world.close()


def take(mailbox: Mailbox, count: int) -> list[Incoming]:
    """`count` messages, over as many turns as they need."""
    taken: list[Incoming] = []
    end = time.monotonic() + WAIT_MS / 1000
    while len(taken) < count:
        taken += mailbox.receive(WAIT_MS)
        assert len(taken) >= count or time.monotonic() < end, f"{len(taken)} of {count} messages came"
    return taken


def until(mailbox: Mailbox, done) -> list[Incoming]:
    """Turns until `done()`."""
    taken: list[Incoming] = []
    end = time.monotonic() + WAIT_MS / 1000
    while not done():
        assert time.monotonic() < end
        taken += mailbox.receive(10)
    return taken


def test_a_message_comes_with_an_origin_that_can_be_answered(world: World) -> None:
    mailbox, client = world.mailbox("clients"), world.client("clients")
    client.send(b"control")
    client.send(b"control", b"batch")
    client.send(b"control", b"")
    arrived = take(mailbox, 3)
    assert [(message.control, message.batch) for message in arrived] == [
        (b"control", b""),
        (b"control", b"batch"),
        (b"control", b""),
    ]
    assert len({message.origin for message in arrived}) == 1
    origin = arrived[0].origin
    assert mailbox.reply(origin, b"one")
    assert mailbox.reply(origin, b"two", b"batch")
    assert mailbox.reply(origin, b"three", [b"ba", bytearray(b"t"), memoryview(b"ch")])
    assert mailbox.reply(origin, b"four", [b"batch"])
    assert mailbox.reply(origin, b"five", [])
    replies = [client.receive() for _ in range(5)]
    assert replies == [[b"one"], [b"two", b"batch"], [b"three", b"batch"], [b"four", b"batch"], [b"five"]]


def test_the_envelope_of_a_forwarded_message_comes_back(world: World) -> None:
    mailbox, frontdoor = world.mailbox("clients"), world.client("clients")
    frontdoor.send(b"client id", b"", b"control")
    frontdoor.send(b"client id", b"", b"control", b"batch")
    arrived = take(mailbox, 2)
    assert [(message.control, message.batch) for message in arrived] == [
        (b"control", b""),
        (b"control", b"batch"),
    ]
    mailbox.reply(arrived[0].origin, b"answer", b"batch")
    assert frontdoor.receive() == [b"client id", b"", b"answer", b"batch"]


def test_two_clients_are_two_origins(world: World) -> None:
    mailbox = world.mailbox("clients")
    clients = [world.client("clients") for _ in range(2)]
    for number, client in enumerate(clients):
        client.send(b"%d" % number)
    for message in take(mailbox, 2):
        mailbox.reply(message.origin, message.control)
    assert [client.receive() for client in clients] == [[b"0"], [b"1"]]


def test_peers_come_first(world: World) -> None:
    mailbox = world.mailbox("clients", "peers")
    client, peer = world.client("clients"), world.client("peers")
    for sender, control in ((client, b"warm"), (peer, b"warm")):
        sender.send(control)
    take(mailbox, 2)
    client.send(b"client")
    peer.send(b"peer")
    if world.kind == "zmq":
        routers = mailbox._routers.values()  # both have arrived; the order of two sockets is what is asked
        waiting.until(lambda: [each.get(zmq.EVENTS) & zmq.POLLIN for each in routers] == [zmq.POLLIN] * 2)
    assert [message.control for message in take(mailbox, 2)] == [b"peer", b"client"]


def test_a_turn_is_bounded_in_messages_and_in_bytes(world: World) -> None:
    mailbox, client = world.mailbox("clients"), world.client("clients")
    for _ in range(limits.TURN_MESSAGES_MAX + 10):
        client.send(b"c")
    for _ in range(8):
        client.send(b"c", bytes(limits.MIB))
    count = limits.TURN_MESSAGES_MAX + 18
    turns: list[list[Incoming]] = []
    while count:
        turns.append(mailbox.receive(WAIT_MS))
        count -= len(turns[-1])
    assert max(map(len, turns)) <= limits.TURN_MESSAGES_MAX
    assert max(sum(len(m.batch) for m in turn) for turn in turns) <= limits.TURN_BYTES_MAX + limits.MIB


def test_a_peer_is_written_to_and_answers(world: World) -> None:
    here, there = world.mailbox(peers="here"), world.mailbox(peers="there")
    assert here.send(world.endpoint("there"), b"question", b"batch")
    assert here.send(world.endpoint("there"), b"again")
    asked = take(there, 2)
    assert [(message.control, message.batch) for message in asked] == [
        (b"question", b"batch"),
        (b"again", b""),
    ]
    for message in asked:
        there.reply(message.origin, b"answer", b"batch")
    answers = take(here, 2)
    assert {(message.control, message.batch) for message in answers} == {(b"answer", b"batch")}
    assert len({message.origin for message in answers}) == 1
    assert here.reply(answers[0].origin, b"thanks")
    assert take(there, 1)[0].control == b"thanks"


def test_an_answer_to_a_client_that_is_gone_is_counted(world: World) -> None:
    mailbox, client = world.mailbox("clients"), world.client("clients")
    client.send(b"hello")
    origin = take(mailbox, 1)[0].origin
    client.close()
    until(mailbox, lambda: not mailbox.reply(origin, b"answer"))
    assert mailbox.dropped == 1


def test_messages_of_too_many_frames_are_counted_and_the_rest_goes_on(world: World) -> None:
    mailbox, client = world.mailbox("clients"), world.client("clients")
    for frames in ([b"1", b"2", b"3"], [b"1", b"2", b"3", b"4"], [b"x"] * 50, [b"1", b"", b"3", b"4", b"5"]):
        client.send(*frames)
    client.send(b"good")
    assert [
        message.control for message in until(mailbox, lambda: mailbox.bad_frames == 4) or take(mailbox, 1)
    ] == [b"good"]


# --- ZeroMQ alone -------------------------------------------------------------------------------------------


def test_a_bad_message_is_answered(real: World) -> None:
    mailbox, client = real.mailbox("clients"), real.client("clients")
    client.send(b"1", b"2", b"3")
    until(mailbox, lambda: mailbox.bad_frames)
    _, answer = decode(client.receive()[0])
    assert isinstance(answer, RefusedMessage)
    assert answer.code == "protocol"


def test_a_wait_ends_with_the_timeout_or_a_readable_descriptor(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    mailbox = ZmqMailbox(f"ipc://{tmp_path}/clients", wake=(reader,))
    assert mailbox.receive(0) == []
    os.write(writer, b"x")
    assert mailbox.receive(None) == []
    os.read(reader, 1)
    os.close(writer)
    assert mailbox.receive(None) == []  # its end counts as readable
    mailbox.close()
    os.close(reader)


def test_forwarded_answers_go_straight_to_the_client(real: World) -> None:
    door, worker, client = real.mailbox("door", "inside"), real.mailbox("worker"), real.client("door")
    client.send(b"question", b"batch")
    (message,) = take(door, 1)
    assert door.forward(greeted(door, worker, real.endpoint("worker")), message)
    (forwarded,) = take(worker, 1)
    assert (forwarded.control, forwarded.batch) == (b"question", b"batch")
    worker.reply(forwarded.origin, b"answer")
    worker.reply(forwarded.origin, b"answer", b"batch")
    assert until(door, lambda: door.relayed == 2) == []
    assert [client.receive(), client.receive()] == [[b"answer"], [b"answer", b"batch"]]


def test_an_envelope_is_not_forwarded_twice(real: World) -> None:
    door, client = real.mailbox("door"), real.client("door")
    client.send(b"somebody else", b"", b"question")
    (message,) = take(door, 1)
    worker = real.mailbox("worker")
    assert not door.forward(greeted(door, worker, real.endpoint("worker")), message)
    assert door.bad_frames == 1


def test_only_a_peer_to_which_a_client_was_forwarded_answers_that_client(real: World) -> None:
    door, worker, client = real.mailbox("door"), real.mailbox("worker"), real.client("door")
    client.send(b"question")
    (message,) = take(door, 1)
    assert isinstance(door, ZmqMailbox)
    door.send(real.endpoint("worker"), b"greeting")
    (greeting,) = take(worker, 1)
    forged = (*greeting.origin, b"".join(message.origin), b"")
    worker.reply(forged, b"forged")
    until(door, lambda: door.bad_frames == 1)
    assert door.relayed == 0


def greeted(mailbox: Mailbox, peer: Mailbox, endpoint: str) -> Origin:
    """The connection to a peer that has answered."""
    mailbox.send(endpoint, b"greeting")
    (greeting,) = take(peer, 1)
    peer.reply(greeting.origin, b"proof")
    return take(mailbox, 1)[0].origin


@pytest.mark.parametrize("waits", [False, True], ids=["after the end was noticed", "before"])
def test_nothing_but_a_new_greeting_reaches_whoever_listens_at_the_address_of_a_peer_that_ended(
    waits: bool, tmp_path: Path
) -> None:
    """libzmq would send it what was meant for the former one."""
    with ExitStack() as ends:
        here = ZmqMailbox()
        ends.callback(here.close)
        for endpoint in (f"tcp://127.0.0.1:{settled_port()}", f"ipc://{tmp_path}/there"):
            there = ZmqMailbox(peers=endpoint)
            connection = greeted(here, there, endpoint)
            assert here.stands(connection)
            assert here.reply(connection, b"record")
            take(there, 1)
            there.close()
            if waits:
                until(here, lambda: not here.stands(connection))  # noqa: B023
                assert not here.reply(connection, b"record")
            for _ in range(100):
                here.reply(connection, b"record")
            impostor = ZmqMailbox(peers=endpoint)
            ends.callback(impostor.close)
            heard = list[bytes]()
            end = time.monotonic() + WAIT_MS / 1_000
            while b"greeting" not in heard:
                assert time.monotonic() < end
                here.reply(connection, b"record")
                here.send(endpoint, b"greeting")
                here.receive(10)
                heard += [message.control for message in impostor.receive(50)]
            assert b"record" not in heard
            assert not here.stands(connection)


def test_who_came_by_which_door(world: World) -> None:
    mailbox = world.mailbox("clients", "peers")
    world.client("clients").send(b"client")
    world.client("peers").send(b"peer")
    assert {message.control: mailbox.from_peer(message.origin) for message in take(mailbox, 2)} == {
        b"client": False,
        b"peer": True,
    }


def test_a_peer_that_does_not_read_costs_a_bounded_queue(
    real: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_mailbox, "PEER_QUEUE", 10)
    here = real.mailbox(peers="here")
    sent = 0
    while here.send(real.endpoint("nowhere"), b"x"):
        sent += 1
    assert (sent, here.dropped) == (10, 1)
    waiting.until(lambda: here.receive(10) or here.send(real.endpoint("nowhere"), b"x"))


def test_an_address_that_nobody_uses_any_more_is_let_go(real: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_mailbox, "IDLE_S", 0.2)
    there, away = real.endpoint("there"), real.endpoint("away")
    mailbox, other = real.mailbox(), real.mailbox(peers="there")
    for endpoint in (there, away):
        mailbox.send(endpoint, b"hello")
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        mailbox.send(there, b"again")
        mailbox.receive(10)
        other.receive(10)
    assert isinstance(mailbox, ZmqMailbox)
    assert list(mailbox._dealers) == [there]
    mailbox.send(away, b"hello")
    assert set(mailbox._dealers) == {there, away}


def test_an_address_that_only_speaks_is_kept(real: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may answer to somebody for whom a message was forwarded."""
    monkeypatch.setattr(zmq_mailbox, "IDLE_S", 0.2)
    mailbox, other = real.mailbox(), real.mailbox(peers="there")
    mailbox.send(real.endpoint("there"), b"hello")
    (hello,) = other.receive(WAIT_MS)
    heard = 0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert other.reply(hello.origin, b"yes")
        heard += len(mailbox.receive(50))
    assert heard > 3


def test_who_hangs_up_or_is_away_is_not_dialled_in_a_storm_and_found_soon_when_it_is_back() -> None:
    mailbox, dialled = ZmqMailbox(), 0
    with socket.create_server(("127.0.0.1", 0)) as rude:
        port = rude.getsockname()[1]
        rude.settimeout(0.05)
        began = time.monotonic()
        while time.monotonic() < began + 2.0 or dialled < 2:
            mailbox.send(f"tcp://127.0.0.1:{port}", b"hello")
            mailbox.receive(0)
            with suppress(TimeoutError):
                rude.accept()[0].close()
                dialled += 1
        assert dialled <= 11 * (time.monotonic() - began) / 2
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        mailbox.send(f"tcp://127.0.0.1:{port}", b"hello")
        mailbox.receive(10)
    back = ZmqMailbox(peers=f"tcp://127.0.0.1:{port}")
    began = time.monotonic()
    while not back.receive(10):
        mailbox.send(f"tcp://127.0.0.1:{port}", b"hello")
        mailbox.receive(0)
    assert time.monotonic() - began < WAIT_MS / 1000
    for each in (mailbox, back):
        each.close()


@pytest.mark.parametrize("dials_encrypted", [False, True])
def test_a_node_that_encrypted_for_a_while_or_did_not_is_found_when_it_is_as_before(
    dials_encrypted: bool,
) -> None:
    """libzmq gives up for good where the other side speaks another mechanism, and takes what is sent then."""
    secret, door = curve.new_secret(), curve.new_secret()
    places = frozenset(f"tcp://127.0.0.1:{settled_port()}" for _ in range(6))
    node = NodeKeys(secret, curve.public_of(secret), curve.public_of(door), door, own=places)
    mine, others = (node, None) if dials_encrypted else (None, node)
    mailbox = ZmqMailbox(keys=mine)
    there = [ZmqMailbox(peers=place, keys=others) for place in places]
    for place in places:
        mailbox.send(place, b"hello")
    for each in (*there, mailbox) * 8:
        each.receive(20)
    for each in there:
        each.close()
    there = [ZmqMailbox(peers=place, keys=mine) for place in places]
    mailbox.receive(20)
    for place in places:
        assert mailbox.send(place, b"are you there")
    silent = set(range(len(there)))
    end = time.monotonic() + WAIT_MS / 1_000
    while silent:
        assert time.monotonic() < end, f"{len(silent)} of {len(places)} are never dialled again"
        mailbox.receive(5)
        silent -= {number for number in silent if there[number].receive(10)}
    for each in (mailbox, *there):
        each.close()


def test_a_client_that_does_not_read_costs_a_bounded_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_mailbox, "SEND_QUEUE", 10)
    world = World("zmq", tmp_path)
    mailbox, client = world.mailbox("clients"), world.client("clients")
    client.socket.set(zmq.RCVHWM, 1)
    client.send(b"hello")
    origin = take(mailbox, 1)[0].origin
    sent = 0
    while mailbox.reply(origin, b"x", bytes(limits.MIB)):
        sent += 1
        assert sent < 2_000
    assert mailbox.dropped == 1
    client.close()
    world.close()


def test_what_waits_before_a_turn_is_bounded_whatever_its_size(tmp_path: Path) -> None:
    """A client sends records beyond its window while nobody takes them: it is held back soon."""
    world = World("zmq", tmp_path)
    world.mailbox("clients")
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.set(zmq.LINGER, 0)
    client.set(zmq.SNDHWM, 1)
    client.connect(world.endpoint("clients"))
    batch, sent, most = bytes(2 * limits.MIB), 0, zmq_mailbox.RECEIVE_QUEUE
    while sent < 4 * most and client.poll(1_000, zmq.POLLOUT):
        client.send_multipart((b"control", batch))
        sent += 1
    assert sent <= most + 8, "eight for what is under way in both sockets and the kernel"
    assert most * limits.BATCH_BYTES_HARD_MAX <= 65 << 24, "about 1 GiB"
    client.close()
    context.term()
    world.close()


@pytest.mark.parametrize(
    "garbage",
    [Random(seed).randbytes(2_000) for seed in range(5)] + [b"GET / HTTP/1.1\r\n\r\n", b"\xff", b""],
)
def test_raw_bytes_do_no_harm(real: World, garbage: bytes) -> None:
    mailbox, client = real.mailbox("clients"), real.client("clients")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(real.endpoint("clients").removeprefix("ipc://"))
        raw.sendall(garbage)
        client.send(b"good")
        taken: list[bytes] = []
        # some garbage is a frame of the oldest ZeroMQ protocol, and the actor refuses it
        while b"good" not in taken:
            taken += [message.control for message in take(mailbox, 1)]
        raw.sendall(garbage[:1])


def test_a_message_that_never_ends_arrives_never(real: World) -> None:
    mailbox, client = real.mailbox("clients"), real.client("clients")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    metadata = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(real.endpoint("clients").removeprefix("ipc://"))
        raw.sendall(greeting + b"\x04" + bytes([len(metadata)]) + metadata)
        raw.sendall(b"\x01\x04part" * 1_000)
        client.send(b"good")
        assert [message.control for message in take(mailbox, 1)] == [b"good"]
        assert mailbox.receive(50) == []
    assert mailbox.receive(50) == []


def test_a_frame_that_is_too_long_ends_the_connection_only(
    real: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 1_000)
    mailbox = real.mailbox("clients")
    real.client("clients").send(bytes(1_001))
    good = real.client("clients")
    good.send(bytes(1_000))
    assert [len(message.control) for message in take(mailbox, 1)] == [1_000]


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        endpoint = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(ConfigError, match="is taken by another program") as refused:
            ZmqMailbox(endpoint)
    assert "--bind" in refused.value.hint


@pytest.mark.parametrize(
    "endpoint", ["tcp://192.0.2.1:7700", "tcp://no-such-host.invalid:7700", "nonsense://x"]
)
def test_an_address_that_is_not_ours_is_a_clear_error(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        ZmqMailbox(endpoint)


def gone(mailbox: Mailbox, count: int) -> list:
    """So many connections that end, and whoever else is told of with them."""
    found: list = []

    def enough() -> bool:
        found.extend(mailbox.gone())
        return len(found) >= count

    until(mailbox, enough)
    return found


def test_a_connection_that_ends_is_told_of_once(world: World) -> None:
    mailbox = world.mailbox("clients")
    ada, bob = world.client("clients"), world.client("clients")
    ada.send(b"ada")
    (adas,) = take(mailbox, 1)
    bob.send(b"bob")
    take(mailbox, 1)
    assert mailbox.gone() == []
    ada.close()
    assert gone(mailbox, 1) == [adas.origin]
    bob.send(b"bob")
    take(mailbox, 1)
    assert mailbox.gone() == []


def test_a_descriptor_that_the_next_connection_has_ends_nobody_else(real: World) -> None:
    """The monitor is read when the next ones have come and spoken already."""
    mailbox = real.mailbox("clients")
    origins, living = [], []
    for _ in range(20):
        client = real.client("clients")
        client.send(b"hello")
        (message,) = take(mailbox, 1)  # does not look at the monitor
        origins.append(message.origin)
        client.close()
    for _ in range(20):
        living.append(real.client("clients"))
        living[-1].send(b"hello")
    alive = {message.origin for message in take(mailbox, 20)}
    assert sorted(gone(mailbox, 20)) == sorted(origins)
    for client in living:
        client.close()
    assert set(gone(mailbox, 20)) == alive, "also those whose descriptor was in doubt"


def test_what_has_come_from_who_is_gone_is_there_and_so_is_the_news(real: World) -> None:
    mailbox = real.mailbox("clients")
    client = real.client("clients")
    client.socket.set(zmq.LINGER, WAIT_MS)
    client.send(b"last words")
    client.close()
    (message,) = take(mailbox, 1)
    assert gone(mailbox, 1) == [message.origin]


def test_a_message_that_is_under_way_moves_until_its_line_takes_no_more() -> None:
    context, port = zmq.Context(), settled_port()
    mailbox = ZmqMailbox(f"tcp://127.0.0.1:{port}")
    with SlowLine(port, 200_000) as line:
        client = ZmqClient(context, line.endpoint)
        client.send(b"hello")
        (hello,) = waiting.until(lambda: mailbox.receive(50))
        assert not mailbox.moving(hello.origin)
        client.send(bytes(1_000_000))

        def moving() -> bool:
            assert mailbox.receive(20) == []
            mailbox.gone()
            return mailbox.moving(hello.origin)

        waiting.until(moving)
        line.open.clear()
        waiting.until(lambda: not moving())
        line.bytes_s = 20_000_000
        line.open.set()
        waiting.until(lambda: mailbox.receive(50))
        waiting.until(lambda: not mailbox.gone() and not mailbox.moving(hello.origin))
        client.close()
    mailbox.close()
    context.term()
