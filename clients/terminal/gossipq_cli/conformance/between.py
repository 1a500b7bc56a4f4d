"""Servers between a client and the nodes, or in place of a node.

They test the client with bad frames, unreachable leaders, another version, and large numbers.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TypeVar

import msgspec
import zmq

from gossipq.errors import GossipqError, NotLeader
from gossipq.messages import (
    Ack,
    Acked,
    Confirm,
    Deliver,
    DeliverPlain,
    Hello,
    Ping,
    Pong,
    Publish,
    PublishPlain,
    RefusedMessage,
    Resolve,
    Subscribe,
    Subscribed,
    Topics,
    Welcome,
)
from gossipq.types import NODE_SHARD
from gossipq.values import Delivered, Message, PlainDelivered, Run, TopicConfig, TopicInfo
from gossipq.wire import batch, frames
from gossipq.wire.frames import HEADER

POLL_MS = 20
NOWHERE = "tcp://127.0.0.1:9"  #: the port of the obsolete service "discard"
HIGH_TOPIC = 100_000  #: an id whose partition keys exceed 2^32
HIGH_OFFSET = (1 << 53) - 9
SHAM_SHARD = 3

Frames = list[bytes]


class Server(threading.Thread):
    """A ROUTER on a port of its own. The results of `answer` go back to the sender."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._sockets = zmq.Context()
        self._front = self._sockets.socket(zmq.ROUTER)
        self._front.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            if self._front.poll(POLL_MS):
                name, *said = self._front.recv_multipart()
                self._hear(name, said)
            self._idle()

    def _hear(self, name: bytes, said: Frames) -> None:
        raise NotImplementedError

    def _idle(self) -> None:
        pass

    def end(self) -> None:
        self._over.set()
        self.join()
        self._sockets.destroy(linger=0)


class Tap(Server):
    """Forwards messages between clients and a frontdoor, and counts their verbs.

    `change` converts the frames of an answer to those for the client.
    """

    def __init__(self, server: str, change: Callable[[Frames], list[Frames]] = lambda said: [said]) -> None:
        super().__init__()
        self._server, self._change = server, change
        self._ways: dict[bytes, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self.verbs: Counter[int] = Counter()  #: from and to clients

    def run(self) -> None:
        while not self._over.is_set():
            ready = dict(self._poller.poll(POLL_MS))
            if self._front in ready:
                name, *said = self._front.recv_multipart()
                self._hear(name, said)
            for name, way in self._ways.items():
                while way in ready and way.poll(0):
                    self._answer(name, way.recv_multipart())

    def _hear(self, name: bytes, said: Frames) -> None:
        if name not in self._ways:
            self._ways[name] = way = self._sockets.socket(zmq.DEALER)
            way.connect(self._server)
            self._poller.register(way, zmq.POLLIN)
        self._count(said)
        self._ways[name].send_multipart(said)

    def _answer(self, name: bytes, said: Frames) -> None:
        self._count(said)
        for each in self._change(said):
            self._front.send_multipart([name, *each])

    def _count(self, said: Frames) -> None:
        if len(said[0]) >= HEADER.size:
            self.verbs[said[0][3]] += 1


class CutOff(Tap):
    """Stands for a node that the others cannot hear: it answers, and leads no shard."""

    def __init__(self, server: str) -> None:
        super().__init__(server, without_routes)

    def _hear(self, name: bytes, said: Frames) -> None:
        header = frames.peek(said[0])
        if header.verb == Hello.verb or header.shard == NODE_SHARD:
            super()._hear(name, said)
        else:
            refused = RefusedMessage(NotLeader.code, f"this node does not lead shard {header.shard}")
            self._front.send_multipart([name, frames.encode(refused, header.shard, header.request_id)])


def without_routes(said: Frames) -> list[Frames]:
    """Replace the leaders' addresses by unreachable ones."""
    try:
        header, message = frames.decode(said[0])
    except GossipqError:
        return [said]
    if isinstance(message, Welcome):
        routes = [msgspec.structs.replace(route, endpoint=NOWHERE) for route in message.routes]
        message = msgspec.structs.replace(message, routes=routes)
    elif isinstance(message, Confirm | Subscribed):
        message = msgspec.structs.replace(message, direct=message.direct and NOWHERE)
    elif isinstance(message, RefusedMessage):
        message = msgspec.structs.replace(message, endpoint=message.endpoint and NOWHERE)
    else:
        return [said]
    return [[frames.encode(message, header.shard, header.request_id, header.term), *said[1:]]]


class Spoiler:
    """Puts invalid frames, and answers to unknown requests, around each answer."""

    def __init__(self, seed: int = 7) -> None:
        self._dice = Random(seed)

    def __call__(self, said: Frames) -> list[Frames]:
        return [self._spoilt(said), said, self._spoilt(said)]

    def _spoilt(self, said: Frames) -> Frames:
        dice, frame = self._dice, bytearray(said[0])
        if len(frame) < HEADER.size:
            return [b""]
        frame[8:16] = (1 << 60 | dice.getrandbits(32)).to_bytes(8, "little")
        frame[16:24] = bytes(8)
        kinds = [
            [b""],
            [bytes(frame[: dice.randrange(HEADER.size)])],
            [bytes(frame[: HEADER.size])],
            [b"HTTP/1.1 400 Bad Request\r\n\r\n and more"],
            [bytes((*frame[:2], 9, *frame[3:]))],
            [bytes((*frame[:3], 250, *frame[4:]))],
            [bytes(frame[: dice.randrange(HEADER.size, len(frame) + 1)])],
            [bytes(frame[: HEADER.size]) + b"\xdd\xff\xff\xff\xff"],
            [bytes(frame[: HEADER.size]) + b"\x91" * 200],
            [bytes((*frame[:3], 46, *frame[4 : HEADER.size])) + b"\x92\x01\x00", b"\xdd\xff\xff\xff\xff"],
            [bytes((*frame[:3], 36, *frame[4 : HEADER.size])) + b"\x93\x01\x91\x90\x00", b"GQB\x01"],
            [bytes(frame), b"", b"", b""],
        ]
        return dice.choice(kinds)


class OtherVersion(Server):
    """A node of another release, which answers each message in its own version."""

    def _hear(self, name: bytes, said: Frames) -> None:
        header = bytearray(said[0][: HEADER.size])
        header[2], header[3] = 9, RefusedMessage.verb
        self._front.send_multipart([name, bytes(header) + b"\x92\xadwrong_version\xa0"])


class Sham(Server):
    """A node with one topic, one partition and one record, with the highest possible numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions: list[int] = []  #: as in PUBLISH
        self.acked: list[tuple[int, int, int]] = []

    def _hear(self, name: bytes, said: Frames) -> None:
        header, message = frames.decode(said[0])
        for answer, body in self._answers(header, message):
            request_id = 0 if isinstance(answer, Confirm | Deliver | DeliverPlain) else header.request_id
            frame = frames.encode(answer, header.shard, request_id, 0 if header.shard == NODE_SHARD else 1)
            self._front.send_multipart([name, frame, *body])

    def _answers(self, header: frames.Header, message: Message) -> Iterator[tuple[Message, Frames]]:
        key = HIGH_TOPIC * 65_536
        match message:
            case Hello():
                yield Welcome("sham", bytes(16), "0", 1 << 25, 5_000, 1_000), []
            case Ping():
                yield Pong(), []
            case Resolve():
                yield Topics([TopicInfo(HIGH_TOPIC, message.names[0], 1, TopicConfig(), [SHAM_SHARD])]), []
            case Publish(partition=partition) | PublishPlain(partition=partition):
                self.partitions.append(partition)
                row = header.request_id, HIGH_OFFSET, 1, False
                yield Confirm([row], runs=[(header.request_id, [Run(1, HIGH_OFFSET)])]), []
            case Subscribe(subscription=number, plain=plain):
                yield Subscribed(number, 30_000, []), []
                if plain:
                    record = PlainDelivered(key, HIGH_OFFSET, 1, b"x", b"", {}, b"", "", HIGH_OFFSET)
                    yield DeliverPlain(number, 30_000), [msgspec.msgpack.encode([record])]
                else:
                    body = bytes(batch.seal([b"x"], publish_ms=HIGH_OFFSET))
                    part = Delivered(key, HIGH_OFFSET, 1, 1, len(body), len(body))
                    yield Deliver(number, [part], 30_000), [body]
            case Ack(ranges=ranges):
                self.acked += [(each[0], each[1], each[2]) for each in ranges]
                yield Acked(), []
            case _:
                yield Acked(), []


Stands = TypeVar("Stands", bound=Server)


@contextmanager
def standing(server: Stands) -> Iterator[Stands]:
    """Run the server during the block."""
    server.start()
    try:
        yield server
    finally:
        server.end()
