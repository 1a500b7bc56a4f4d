"""Random lives of clients that publish the result of each record in one step with its ack. Whatever
is interrupted, lost, forbidden or restarted, each record has one result.
"""

from collections import Counter

import pytest

from client.test_true_consuming import PATIENCE_MS, PUBLISHING_MS, Life
from client.true_parties import User, places
from client.true_shards import UNRAISABLE, lives, stored
from gossipq.types import Now, partition_key, partition_of
from gossipq.values import TopicInfo, TopicOptions
from gossipq_client.session.held import Held, Piece
from gossipq_client.values.terms import publish_options


class Stepper(User):
    def __init__(self, life: "StepLife", name: str) -> None:
        super().__init__(life, name)
        self.results = self.hand.session.publishing.learn(life.results)

    def settle(self, piece: Piece) -> None:
        for _, offset in places(piece):
            self.repeat(lambda at=offset: self.publish(piece.held, at))
        self.cluster.acked.update(places(piece))

    def publish(self, held: Held, offset: int) -> None:
        """Unless it was done before it was interrupted."""
        if held.is_lost(offset) or not held.open_ranges(offset, offset + 1):
            return
        writer = self.results.writer_in(held.part.shard, partition_of(held.partition))
        assert writer is not None
        self.hand.session.publishing.step(
            writer,
            publish_options(lambda: Now(self.cluster.now_ms, 1_000_000)),
            held.value(offset),
            held.part.number,
            [(held.partition, offset, offset + 1)],
            lambda flight: self.consuming.stepped(held, offset, flight.error),
        )


class StepLife(Life):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        options = TopicOptions(partitions=len(self.info.shards), beside="t")
        self.results = self.worker.topic("results", options)
        self.user, self.parties, self.operates = Stepper, [], 0  # who requeues a record gets a second result
        self.revokes = self.random.choice((0, 0.02))
        self.join()

    def step(self) -> None:
        super().step()
        if self.random.random() < self.revokes:
            self.forbids = not self.forbids


@UNRAISABLE
@pytest.mark.parametrize("seed", lives(3))
def test_each_record_has_one_result(seed: int) -> None:
    life = StepLife(seed)
    for _ in range(life.random.choice((1, 3))):
        life.publish()
    life.run(PUBLISHING_MS)
    life.loses = life.crashes = life.interrupts = life.revokes = 0
    life.forbids = False
    life.run(PATIENCE_MS, lambda: life.done)
    assert life.done
    assert values(life, life.results) == values(life, life.info)


def values(life: Life, topic: TopicInfo) -> Counter[bytes]:
    keys, found = {partition_key(topic.id, at) for at in range(len(topic.shards))}, stored(life.shards)
    return Counter(value for (partition, _), value in found.items() if partition in keys)
