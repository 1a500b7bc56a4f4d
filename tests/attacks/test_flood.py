"""A flood of connections that come, say something and are torn off: no process of a node ends by it.

GOSSIPQ_FLOOD_MINUTES=5 lets it go on for longer. Each process writes where it stands if it is ended by a
signal."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from struct import pack

import pytest

from attacks.test_publishing import topic_of
from attacks.test_strangers import serves
from e2e.harness import Node, Raw, Tcp
from gossipq.messages import Hello, Ping, Resolve, Show, Subscribe
from gossipq.types import META_SHARD, NODE_SHARD, partition_key
from gossipq.values import Message, Ref, Start, TopicInfo
from gossipq.wire.frames import encode
from gossipq_client import connect

MINUTES = float(os.environ.get("GOSSIPQ_FLOOD_MINUTES", "0.25"))
CROWD = 800
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300 + 120 * MINUTES)]


class Torn(Tcp):
    """A connection that is not closed: it is torn off, with all that it has not taken."""

    def close(self) -> None:
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        super().close()

    def say(self, message: Message, shard: int, request_id: int = 1) -> None:
        self.frame(encode(message, shard, request_id))


class Flood:
    """Each kind goes round on a thread of its own, over all doors of a node."""

    def __init__(self, node: Node, info: TopicInfo) -> None:
        self._node, self.rounds = node, Counter[str]()
        self._shard, self._key = info.shards[0], partition_key(info.id, 0)
        self._end_s = time.monotonic() + 60 * MINUTES

    @contextmanager
    def _greeted(self, port: int, shard: int) -> Iterator[Torn]:
        with closing(Torn(port)) as wire:
            wire.handshake()
            wire.say(Hello(b"\x01" + os.urandom(15), "flood", "1"), shard)
            yield wire

    def half(self, port: int) -> None:
        """Torn off within the greeting of ZMTP."""
        with closing(Torn(port)) as wire:
            wire.socket.sendall(Tcp.GREETING[: os.urandom(1)[0] % len(Tcp.GREETING)])

    def asking(self, port: int) -> None:
        """Gone before the answers are."""
        with self._greeted(port, META_SHARD) as wire:
            for number in range(50):
                wire.say(Resolve([f"*{number}*"]), META_SHARD, number)
                wire.say(Ping(), NODE_SHARD, number)

    def unread(self, port: int) -> None:
        """Gone while mebibytes are under way to it."""
        with self._greeted(port, self._shard) as wire:
            for number in range(20):
                wire.say(Show(Ref(self._key, 0)), self._shard, number)
            wire.socket.settimeout(0.2)
            wire.socket.recv(1 << 16)

    def reading(self, port: int) -> None:
        """The client disconnects while records are delivered to it."""
        with self._greeted(port, self._shard) as wire:
            for number in range(100):
                wire.say(Subscribe(number, "", [Start(self._key, "first")], 10, 1 << 20), self._shard)

    def endless(self, port: int) -> None:
        """Torn off within a part of a message that announced more."""
        with closing(Torn(port)) as wire:
            wire.handshake()
            for _ in range(3):
                wire.frame(bytes(1 << 20), more=True)
            wire.head(1 << 24, more=True)
            wire.socket.sendall(bytes(1 << 16))

    def crowd(self, port: int) -> None:
        """Many that say nothing, torn off together."""
        with ExitStack() as stack:
            for _ in range(CROWD):
                stack.enter_context(closing(Torn(port))).handshake()

    def run(self) -> None:
        kinds: list[Callable[[int], None]] = [
            self.half,
            self.asking,
            self.unread,
            self.reading,
            self.endless,
            self.crowd,
        ]
        threads = [threading.Thread(target=self._again, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _again(self, kind: Callable[[int], None]) -> None:
        while time.monotonic() < self._end_s:
            for step in (0, 1, 2, 40, 41, 42):
                with suppress(OSError, AssertionError):
                    kind(self._node.port + step)
                    self.rounds[f"{kind.__name__}:{step}"] += 1


def test_no_process_ends_in_a_flood_of_connections(
    make: Callable[..., Node], raw: Callable[..., Raw]
) -> None:
    node = make()
    node.environment["PYTHONFAULTHANDLER"] = "1"
    node.start()
    info = topic_of(node, raw, "flooded")
    with connect(node.endpoint) as mq:
        mq.publish("flooded", bytes(1 << 20), timeout=30)
        mq.flush(30)
    pids, flood = node.pids(), Flood(node, info)
    flood.run()
    print(f"\n{MINUTES:g} minutes: {dict(sorted(flood.rounds.items()))}")
    serves(node)
    assert node.pids() == pids, node.log()[-4_000:]
    said = node.log()
    assert "Fatal Python error" not in said
    assert "Traceback" not in said
    assert node.end(signal.SIGTERM) == 0
