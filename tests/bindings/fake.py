"""A fake node: it answers like a node, except to messages for which a test gives the answer."""

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from struct import pack
from types import TracebackType
from typing import Any

import zmq
from msgspec import msgpack

from gossipq.wire.frames import HEADER

SHARE, STARTED = 31, 45
HELLO, WELCOME, PING, PONG, REFUSED, RESET, PUBLISH, CONFIRM, PUBLISH_PLAIN = 1, 2, 3, 4, 6, 7, 16, 17, 18
SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, DELIVER, ACK, ACKED, NACK = 32, 33, 34, 36, 37, 38, 39
DELIVER_PLAIN, RESOLVE, TOPICS = 46, 64, 65
SHARD, TOPIC = 1, 3
HEADERS = 0x20000  #: the column
PARTITION = TOPIC * 65536
Said = tuple[int, int, int, list[Any], list[bytes]]  #: verb, shard, request, fields, frames behind them
Answer = tuple[int, list[Any]] | tuple[int, list[Any], bytes] | list[bytes] | None


def column(*entries: bytes) -> bytes:
    data, ends = b"".join(entries), [0]
    for each in entries:
        ends.append(ends[-1] + len(each))
    return padded(pack(f"<{len(ends)}i", *ends)) + padded(data)


def padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 8)


def batch(*headers: bytes) -> bytes:
    """Sealed records of these headers, whatever they are."""
    rest = column(*headers) + column(*[b"v"] * len(headers))
    body = pack("<II16xQqIHH", 56 + len(rest), len(headers), 0, 1, HEADERS, 0, 0) + rest
    return b"GQB\x01" + pack("<I", zlib.crc32(body)) + body


class FakeNode(threading.Thread):
    """`answer` gets each message. It returns (verb, fields, [body]) or frames to send, None for
    silence, or NotImplemented for a node's usual answer. `shards` are the shards of the topic's
    partitions. `delay_s` delays each answer.
    """

    def __init__(
        self,
        answer: Callable[["FakeNode", Said], Any] = lambda node, said: NotImplemented,
        leaders: int = 0,
        shards: tuple[int, ...] = (SHARD,),
        delay_s: float = 0.0,
    ) -> None:
        super().__init__(daemon=True)
        self._sockets = zmq.Context()
        self._router = self._sockets.socket(zmq.ROUTER)
        self._router.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        #: addresses of its own for more leaders
        self.leaders = [
            f"tcp://127.0.0.{2 + i}:{self._router.bind_to_random_port(f'tcp://127.0.0.{2 + i}')}"
            for i in range(leaders)
        ]
        self._answer, self.said, self._over = answer, list[Said](), threading.Event()
        self._peer, self._offset = b"", 0
        self._shards, self._delay_s = shards, delay_s
        self._under_way = deque[tuple[float, list[bytes]]]()

    def __enter__(self) -> "FakeNode":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()
        self._sockets.destroy(0)

    def verbs(self) -> list[int]:
        return [verb for verb, *_ in self.said]

    def run(self) -> None:
        while not self._over.is_set():
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                self._router.send_multipart(self._under_way.popleft()[1])
            if not self._router.poll(20):
                continue
            self._peer, control, *body = self._router.recv_multipart()
            _, _, verb, shard, _, request, _ = HEADER.unpack_from(control)
            said = verb, shard, request, msgpack.decode(control[HEADER.size :]), body
            self.said.append(said)
            answer = self._answer(self, said)
            if answer is NotImplemented:
                answer = self.due(said)
            if isinstance(answer, list):
                self._send(*answer)
            elif answer is not None:
                number = 0 if answer[0] in (CONFIRM, DELIVER, DELIVER_PLAIN) else request
                self.say(shard, number, *answer)

    def say(self, shard: int, request: int, verb: int, fields: Any, *body: bytes) -> None:
        head = HEADER.pack(b"GQ", 2, verb, shard, 0, request, 0)
        self._send(head + msgpack.encode(fields), *body)

    def _send(self, *frames: bytes) -> None:
        message = [self._peer, *frames]
        if self._delay_s or threading.current_thread() is not self:  # a socket is for one thread
            self._under_way.append((time.monotonic() + self._delay_s, message))
        else:
            self._router.send_multipart(message)

    def subscribed(self, said: Said, *headers: bytes, plain: bool = False) -> None:
        """A SUBSCRIBE is answered, and records of these headers are delivered."""
        _, _, request, fields, _ = said
        self.say(SHARD, request, SUBSCRIBED, [fields[0], 30000, []])
        self.deliver(fields[0], *headers, plain=plain)

    def deliver(self, number: int, *headers: bytes, plain: bool = False, attempt: int = 1) -> None:
        """Records of these headers from offset 0 on, to the subscription of this number."""
        count = len(headers)
        if plain:
            rows = [[PARTITION, offset, attempt, b"v", b"", {}, b"", "", 0] for offset in range(count)]
            self.say(SHARD, 0, DELIVER_PLAIN, [number, 30000], msgpack.encode(rows))
            return
        body = batch(*headers)
        slices = [[PARTITION, 0, count, attempt, len(body), len(body)]]
        self.say(SHARD, 0, DELIVER, [number, slices, 30000], body)

    def raw(self, verb: int, *frames: bytes) -> None:
        """A message whose fields are these bytes."""
        head = HEADER.pack(b"GQ", 2, verb, SHARD, 0, 0, 0)
        self._send(head + frames[0], *frames[1:])

    def due(self, said: Said) -> Answer:
        verb, _, request, fields, _ = said
        match verb:
            case 1:
                return WELCOME, ["n", b"c" * 16, "0.2.0", 1 << 25, 5000, 1000, [], 1]
            case 3:
                return PONG, []
            case 64:
                return TOPICS, [[[TOPIC, fields[0][0], 1, [1], [*self._shards]]], ""]
            case 16 | 18:
                self._offset += 1
                run = [1, self._offset - 1, 0, 0, False]
                return CONFIRM, [[[request, self._offset - 1, 1, False]], 1 << 25, "", [[request, [run]]]]
            case 32:
                return SUBSCRIBED, [fields[0], 30000, []]
            case 34:
                return PONG, []
            case 37 | 39:
                return ACKED, [[]]
        return None
