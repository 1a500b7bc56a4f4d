"""Random lives of producers: records and lists, with and without ids; connections and the worker end, topics
are removed and made anew. What is confirmed is stored once and is where its receipt says; what was refused
is not there; nothing waits for ever."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from client.hand import LEADER
from client.true_shards import UNRAISABLE, Cluster, Party, Place
from core.harness import client
from gossipq.errors import NotConfirmed
from gossipq.messages import CreateTopic, DropTopic, Resolve, Topics
from gossipq.types import META_SHARD, partition_key
from gossipq.values import TopicOptions
from gossipq_client.session.calls import Call
from gossipq_client.session.packer import Flight, Topic
from gossipq_client.session.receipts import receipt_of
from gossipq_client.values.terms import Terms

PUBLISHING_MS = 4_000
PATIENCE_MS = 120_000
OPERATOR = client("operator")
NAMES = ("s", "t")


class Producer(Party):
    def __init__(self, life: "Life", name: str) -> None:
        super().__init__(life, name)
        self.life = life
        self.publishing = self.hand.session.publishing
        self.looked_up: dict[str, Call] = {}
        self.made = 0
        self.published: list[tuple[bytes, Flight, int]] = []

    def act(self) -> None:
        if self.life.publishes and self.random.random() < 0.3:
            topic = self.topic(self.random.choice(NAMES))
            if topic is not None:
                self.step(partial(self.publish, topic))
        if self.published and self.random.random() < 0.1:
            flight = self.random.choice(self.published)[1]
            self.step(partial(self.publishing.hurry, flight))
        if not self.life.publishes:
            self.publishing.seal_all()

    def topic(self, name: str) -> Topic | None:
        """If it is known by now."""
        known = self.publishing.topics.get(name)
        if known is not None:
            return known
        call = self.looked_up.pop(name, None)
        if call is None or call.error is not None:
            call = self.hand.session.calls.ask(Resolve([name], create=True), META_SHARD)
        elif isinstance(call.reply, Topics) and call.reply.topics:
            return self.publishing.learn(call.reply.topics[0])
        self.looked_up[name] = call
        return None

    def values(self, count: int) -> list[bytes]:
        self.made += count
        return [b"%d-%s" % (at, self.name.encode()) for at in range(self.made - count, self.made)]

    def publish(self, topic: Topic) -> None:
        writer = topic.writer(None, self.random.randrange(len(topic.writers)))
        if self.publishing.full(writer):
            return
        level = self.random.choice(("", "", "", "none"))
        match self.random.randrange(4):
            case 0:
                (value,) = self.values(1)
                self._note([value], *self.publishing.append(writer, value, None, b"", b"", level))
            case 1:
                (value,) = self.values(1)
                flight, index = self.publishing.append(writer, value, b"k", b"", b"", level, Terms(id=value))
                self._note([value], flight, index)
            case 2:
                values = self.values(self.random.choice((1, 3, 50)))
                size = sum(map(len, values))
                self._note(values, *self.publishing.merge(writer, values, size, b"", level))
            case _:
                values = self.values(self.random.choice((1, 3, 50)))
                ids = values if self.random.random() < 0.5 else None
                for flight in self.publishing.batches(writer, values, None, b"", b"", level, None, ids):
                    self.publishing.take(flight)
                    self._note(values, flight, 0)

    def _note(self, values: list[bytes], flight: Flight, first: int) -> None:
        self.published += [(value, flight, first + at) for at, value in enumerate(values)]

    @property
    def waits(self) -> bool:
        return not self.publishing.idle or not all(flight.done for _, flight, _ in self.published)


class Life(Cluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.publishes = True
        self.loses, self.crashes = self.random.choice((0, 0.003)), self.random.choice((0, 0.003))
        self.remakes = self.random.choice((0, 0, 0.003))
        self.interrupts = self.random.choice((0, 0.05))
        for name in NAMES:
            bytes_max = self.random.choice((0, 0, 30_000))  # then it refuses
            self.worker.topic(name, TopicOptions(partitions=2, bytes_max=bytes_max))
        self.parties += [Producer(self, "ada"), Producer(self, "bob")]

    def remake(self) -> None:
        """A topic is removed, and perhaps made anew, otherwise than before."""
        name = self.random.choice(NAMES)
        self.worker.ask(META_SHARD, OPERATOR, DropTopic(name))
        if self.random.random() < 0.7:
            options = TopicOptions(
                partitions=self.random.choice((1, 2, 3)), level=self.random.choice((None, "none"))
            )
            self.worker.ask(META_SHARD, OPERATOR, CreateTopic(name, options))

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not until():
            self.step()
            for party in self.parties:
                if self.random.random() < self.loses:
                    party.reconnect(LEADER)
            if self.random.random() < self.crashes:
                self.crash()
            if self.random.random() < self.remakes:
                self.remake()

    @property
    def producers(self) -> list[Producer]:
        return [party for party in self.parties if isinstance(party, Producer)]


@UNRAISABLE
@pytest.mark.parametrize("seed", range(40))
def test_what_is_confirmed_is_there_once_and_nothing_waits_for_ever(seed: int) -> None:
    life = Life(seed)
    life.run(PUBLISHING_MS)
    life.loses = life.crashes = life.remakes = life.interrupts = 0
    life.publishes = False
    life.run(PATIENCE_MS, lambda: not any(each.waits for each in life.producers))
    assert not any(each.waits for each in life.producers)
    stored = life.stored()
    times = Counter(stored.values())
    topics = {partition for shard in life.worker.shards.values() for partition in shard.ledger.partitions}
    for producer in life.producers:
        for value, flight, index in producer.published:
            check(value, flight, index, stored, times, topics)


def check(
    value: bytes,
    flight: Flight,
    index: int,
    stored: dict[Place, bytes],
    times: Counter[bytes],
    topics: set[int],
) -> None:
    assert times[value] <= 1, f"{value!r} is stored {times[value]} times"
    if isinstance(flight.error, NotConfirmed):
        return
    if flight.error is not None:
        assert not times[value], f"{value!r} was refused and is stored: {flight.error}"
        return
    receipt = receipt_of(flight, index)
    partition = partition_key(flight.writer.topic.info.id, flight.writer.number)
    if receipt.offset >= 0 and partition in topics:
        assert stored.get((partition, receipt.offset)) == value
