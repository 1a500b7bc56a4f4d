"""All attacks at once on three nodes under honest load, for GOSSIPQ_SIEGE_MINUTES: make siege MINUTES=10.

It reports what honest publishers waited before and meanwhile, what was lost, and which workers started
again."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from chaos.runs import SEED, finish, percentile
from e2e.cluster import Cluster, cluster
from e2e.harness import Raw, Tcp
from e2e.load import Load
from gossipq import limits
from gossipq.messages import (
    CreateTopic,
    Hello,
    Nack,
    Publish,
    Resolve,
    SetMember,
    SetOptions,
    Show,
    Subscribe,
)
from gossipq.operator_messages import Clients, ListClients
from gossipq.peer_messages import Bundle, Snapshot, View, VoteRequest
from gossipq.types import META_SHARD, partition_key
from gossipq.values import Lead, Member, Ref, Start, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire.frames import encode
from gossipq_client import GossipqError, connect

MINUTES = float(os.environ.get("GOSSIPQ_SIEGE_MINUTES", "0"))
USUAL_S, PUBLISH_EVERY_S = 30.0, 0.02
LARGE = "siege-large"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900 + 120 * MINUTES),
    pytest.mark.skipif(not MINUTES, reason="make siege runs it"),
]


class Siege:
    """Each attack goes round on a thread of its own, against one node after the other."""

    def __init__(self, nodes: Cluster) -> None:
        self._nodes, self.rounds = nodes, Counter[str]()
        with connect(nodes.servers) as mq:
            mq.publish(LARGE, bytes(2 << 20)).result(30)
            (info,) = mq.topics(LARGE)
            self._shard, self._key = info.shards[0], partition_key(info.id, 0)
            self._cluster = mq.admin.status().cluster
        self._copies = [status.copy for status in nodes.statuses()]
        self._over = threading.Event()

    def _ports(self, step: int) -> Iterator[int]:
        for member in self._nodes.members:
            yield member.port + step

    @contextmanager
    def _raw(self, port: int, shard: int = META_SHARD, unread: int = 0) -> Iterator[Raw]:
        with zmq.Context() as context:
            client = Raw(context, f"tcp://127.0.0.1:{port}", *([unread] if unread else []))
            try:
                yield client.hello(shard, b"\x01" + os.urandom(15))
            finally:
                client.close()

    def strangers(self, port: int) -> None:
        high, copy = limits.NUMBER_MAX, self._copies[0]
        said = [
            VoteRequest(copy, high, high, high, transfer=True),
            Snapshot(copy, high, 1, bytes(8), 1, [copy], [], [], 0, "state"),
            View(
                limits.ROSTER_VERSION_MAX,
                [Member("dead.beef", "x", "tcp://127.0.0.1:1", 1)],
                [Lead(0, high, copy)],
            ),
        ]
        with zmq.Context() as context, closing(Raw(context, f"tcp://127.0.0.1:{port + 40}")) as peer:
            for to in self._copies:
                for each in said:
                    peer.send(encode(Bundle(self._cluster, copy, to, [encode(each, 0, 0, high)])))

    def operators(self, port: int) -> None:
        with self._raw(port) as client:
            client.ask(SetMember(self._nodes.members[0].name, "leaving"), META_SHARD)
            client.ask(SetOptions({"cluster.replace_ms": "1"}), META_SHARD)

    def thieves(self, port: int) -> None:
        with self._raw(port) as client:
            found = client.ask(ListClients(), META_SHARD)
            for row in found.rows if isinstance(found, Clients) else []:
                client.ask(Hello(row.session, "thief", "1"), META_SHARD)
            forged = bytes(batches.seal([b"x"], producer=os.urandom(16), sequence=1))
            client.ask(Publish(self._key), self._shard, forged)

    def crowds(self, port: int) -> None:
        with ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(closing(Tcp(port).handshake()))
            self._over.wait(5)

    def endless(self, port: int) -> None:
        with closing(Tcp(port).handshake()) as wire:
            for _ in range(200):
                wire.frame(bytes(1 << 20), more=True)

    def unread(self, port: int) -> None:
        with self._raw(port, self._shard, 1) as client:
            for number in range(60):
                client.say(Show(Ref(self._key, 0)), self._shard, number)
            self._over.wait(1)

    def topics(self, port: int) -> None:
        with self._raw(port) as client:
            for _ in range(3):
                name = f"flood-{os.urandom(4).hex()}"
                client.say(CreateTopic(name, TopicOptions(partitions=200)), META_SHARD, 1)
            self._over.wait(2)

    def questions(self, port: int) -> None:
        with self._raw(port, self._shard) as client:
            client.say(Resolve([f"*{at}*" for at in range(30_000)]), META_SHARD, 1)
            client.say(Nack(1, [(self._key, 2 * at, 2 * at + 1) for at in range(30_000)]), self._shard, 2)
            self._over.wait(0.5)

    def readers(self, port: int) -> None:
        with self._raw(port, self._shard) as client:
            for number in range(300):
                client.say(Subscribe(number, "", [Start(self._key)], 1_000, 1 << 20), self._shard)
                client.say(Subscribe(number, os.urandom(4).hex(), [Start(self._key)], 1, 1), self._shard)

    @contextmanager
    def going(self) -> Iterator[None]:
        attacks: dict[Callable[[int], None], tuple[int, ...]] = {
            self.strangers: (0, 1),
            self.operators: (1,),
            self.thieves: (1, 2),
            self.crowds: (0, 1),
            self.endless: (1, 2),
            self.unread: (1, 2),
            self.topics: (1,),
            self.questions: (1, 2),
            self.readers: (1, 2),
        }
        threads = [threading.Thread(target=self._again, args=each) for each in attacks.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _again(self, attack: Callable[[int], None], steps: tuple[int, ...]) -> None:
        while not self._over.is_set():
            for step in steps:
                for port in self._ports(step):
                    if not self._over.is_set():
                        with suppress(OSError, AssertionError, zmq.ZMQError):
                            attack(port)
                        self.rounds[attack.__name__] += 1
                        self._over.wait(0.1)


def waits_ms(nodes: Cluster, seconds: float) -> list[int]:
    """What one honest publisher waited for each of its confirms, one after the other."""
    found: list[int] = []
    end = time.monotonic() + seconds
    with connect(nodes.servers) as mq:
        while time.monotonic() < end:
            started_s = time.monotonic()
            with suppress(GossipqError):
                mq.publish("honest", b"x").result(60)
            found.append(int((time.monotonic() - started_s) * 1_000))
            time.sleep(PUBLISH_EVERY_S)
    return found


def restarts(nodes: Cluster) -> int:
    return sum(worker.restarts for status in nodes.statuses() for worker in status.workers)


def test_all_attacks_at_once(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as nodes:
        nodes.wait_healthy(3, patience_s=90)
        load = Load(nodes.servers, SEED, publishers=1, pause_s=0.02)
        load.prepare()
        siege = Siege(nodes)
        with load.running():
            load.wait_going()
            usual = waits_ms(nodes, USUAL_S)
            with siege.going():
                under = waits_ms(nodes, 60 * MINUTES)
            again = restarts(nodes)
        found, whole = finish(nodes, load)
        p99 = percentile(usual, 0.99), percentile(under, 0.99)
        print(f"\n{MINUTES:g} minutes: {found}, {whole} replicas whole, {again} workers started again")
        print(
            f"an honest publish, p50 and p99: {percentile(usual, 0.5)} and {p99[0]} ms before, "
            f"{percentile(under, 0.5)} and {p99[1]} ms meanwhile; {dict(siege.rounds)}"
        )
        assert found.clean, found
        assert (whole, again) == (3, 0)
        assert "Traceback" not in nodes.logs()
