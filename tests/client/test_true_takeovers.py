"""Random lives of producers and consumers during takeovers: three copies of a shard fall, stand
still and come back, and clients learn of it late. A confirmed record is stored once, at the place
in its receipt. In the end all are acked, and no call waits for ever.
"""

from collections import Counter
from collections.abc import Callable, Collection

import pytest

from client.hand import HOME
from client.test_true_publishing import check
from client.true_parties import Fetcher, Producer, User
from client.true_shards import UNRAISABLE, Cluster, lives, stored
from core.fleet import FallibleFleet
from gossipq.core.effects import Effects
from gossipq.core.shard import Shard
from gossipq.messages import Publish
from gossipq.types import topic_id_of
from gossipq.values import Route, TopicConfig, TopicInfo
from gossipq.wire import batch as batches

SHARD = 1
COPIES = "abc"
BUSY_MS = 3_000
PATIENCE_MS = 120_000


def endpoint_of(name: str) -> str:
    return f"tcp://{name}:2"


class Copies(Cluster):
    """Three nodes with a copy of one shard each, and their clients."""

    def start(self) -> None:
        self.fleet = FallibleFleet(SHARD, COPIES, self.hear)
        self.partition = self.fleet.topic()
        self.info = TopicInfo(topic_id_of(self.partition), "orders", 1, TopicConfig(), [SHARD])
        self.back_ms: dict[str, int] = {}  #: by copy: until when it stands still
        self.known: list[Route] = []  #: what nodes tell of leaders
        self.knows_ms = 0  #: when they look again

    def routes(self) -> list[Route]:
        return [Route(0, 0, ""), *self.known]

    def alive(self) -> list[str]:
        return [endpoint_of(name) for name in COPIES if name not in self.fleet.away]

    def hear(self, name: str, heard: list[Effects]) -> None:
        for effects in heard:
            self.send(self.fleet.shards[name], effects, endpoint_of(name))

    def work(self, ms: int) -> None:
        self.fleet.pass_time(ms)
        for name in [name for name, back_ms in self.back_ms.items() if self.now_ms >= back_ms]:
            del self.back_ms[name]
        self.fleet.away = set(self.back_ms)
        for party in self.parties:
            for (endpoint, _), lane in party.there.items():
                name = endpoint[6:7]
                if name in self.fleet.away or endpoint == HOME:
                    continue  # it waits in the socket
                for origin, sent in lane.take(self.now_ms):
                    seat, request_id = self.fleet.seats[name], sent.header.request_id
                    if isinstance(sent.body, Publish):
                        info = batches.check(sent.raw)
                        seat.publish(origin, request_id, party.client, sent.body, info, sent.raw)
                    else:
                        seat.step(origin, request_id, party.client, sent.body)
        self.fleet.turns(*COPIES)
        if self.now_ms >= self.knows_ms:
            self.knows_ms = self.now_ms + self.random.choice((20, 200, 1_000))
            self._look()

    def _look(self) -> None:
        leading = [each for each in self.fleet.shards.values() if each.leading]
        if leading:
            shard = max(leading, key=lambda each: each.term)
            self.known = [Route(SHARD, shard.term, endpoint_of(shard.replica.me))]

    def fault(self) -> None:
        """Of one copy, or of its connections."""
        name = self.random.choice(COPIES)
        if self.random.random() < 0.7 and self.fleet.serving:
            name = self.fleet.led.name
        match self.random.randrange(3):
            case 0:
                self.fleet.start_over(name)
                for party in self.parties:
                    party.reconnect(endpoint_of(name))
            case 1 if not self.back_ms:
                self.back_ms[name] = self.now_ms + self.random.choice((300, 1_500, 5_000))
            case _:
                for party in self.parties:
                    party.reconnect(endpoint_of(name))

    @property
    def shards(self) -> Collection[Shard]:
        return [self.fleet.leader]


class Life(Copies):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.slow_ms = dict.fromkeys(self.slow_ms, 0)
        self.names = ("orders",)
        self.faults = self.random.choice((0.005, 0.02))
        self.interrupts = self.random.choice((0, 0, 0.02))
        for name in ("ada", "bob"):
            producer = Producer(self, name)
            producer.publishing.learn(self.info)
            self.parties.append(producer)
        for name in ("eve", "joe"):
            self.parties.append(self.random.choice((User, Fetcher))(self, name))

    def work_ms(self, count: int) -> int:
        return self.random.choice((0,) * 20 + (5, 500))

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not until():
            self.step()
            if self.random.random() < self.faults:
                self.fault()

    @property
    def done(self) -> bool:
        if not self.fleet.serving or any(each.waits for each in self.parties if isinstance(each, Producer)):
            return False
        ledger = self.fleet.leader.ledger
        cursors, end = ledger.cursors.get(self.partition, {}), ledger.partitions[self.partition].next
        return [each.state.cursor for each in cursors.values()] == [end] and all(
            each.subscription.finished for each in self.parties if isinstance(each, User)
        )


@UNRAISABLE
@pytest.mark.parametrize("seed", lives(3))
def test_what_is_confirmed_is_there_once_and_acked(seed: int) -> None:
    life = Life(seed)
    life.run(BUSY_MS)
    life.faults = life.interrupts = 0
    life.publishes = False
    life.run(PATIENCE_MS, lambda: life.done)
    assert life.done
    found = stored(life.shards)
    times = Counter(found.values())
    for producer in life.parties:
        if isinstance(producer, Producer):
            for value, flight, index in producer.published:
                check(value, flight, index, found, times, {life.partition})
