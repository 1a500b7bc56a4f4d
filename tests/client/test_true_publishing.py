"""Random lives of producers: records and lists, with and without ids. Connections and the worker
end, topics are removed and created again, rights are revoked and granted. A confirmed record is
stored once, at the place in its receipt; a refused one is not there; no call waits for ever.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from client.hand import LEADER
from client.true_parties import Producer
from client.true_shards import UNRAISABLE, Cluster, Place, lives, stored
from core.harness import client
from gossipq.errors import NotConfirmed
from gossipq.messages import CreateTopic, DropTopic
from gossipq.types import META_SHARD, partition_key
from gossipq.values import TopicOptions
from gossipq_client.session.packer import Flight
from gossipq_client.session.receipts import receipt_of

PUBLISHING_MS = 4_000
PATIENCE_MS = 120_000
OPERATOR = client("operator")
NAMES = ("s", "t")


class Life(Cluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.names = NAMES
        self.loses, self.crashes = self.random.choice((0, 0.003)), self.random.choice((0, 0.003))
        self.remakes = self.random.choice((0, 0, 0.003))
        self.interrupts = self.random.choice((0, 0.05))
        self.revokes = self.random.choice((0, 0, 0.02))
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
            if self.random.random() < self.revokes:
                self.forbids = not self.forbids

    @property
    def producers(self) -> list[Producer]:
        return [party for party in self.parties if isinstance(party, Producer)]


@UNRAISABLE
@pytest.mark.parametrize("seed", lives(6))
def test_what_is_confirmed_is_there_once_and_nothing_waits_for_ever(seed: int) -> None:
    life = Life(seed)
    life.run(PUBLISHING_MS)
    life.loses = life.crashes = life.remakes = life.interrupts = life.revokes = 0
    life.publishes = life.forbids = False
    life.run(PATIENCE_MS, lambda: not any(each.waits for each in life.producers))
    assert not any(each.waits for each in life.producers)
    found = stored(life.shards)
    times = Counter(found.values())
    topics = {partition for shard in life.worker.shards.values() for partition in shard.ledger.partitions}
    for producer in life.producers:
        for value, flight, index in producer.published:
            check(value, flight, index, found, times, topics)


def check(
    value: bytes,
    flight: Flight,
    index: int,
    found: dict[Place, bytes],
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
        assert found.get((partition, receipt.offset)) == value
