"""Random lives of consumers. Users are fast or slow, stand still, fail, join late, or lose their
connections; a shard may be slow to create a group. In the end all published records are acked, and
every consumer learns of the end. Records of one key are with one user at a time, in order.
"""

from collections.abc import Callable
from functools import partial

import pytest

from client.hand import LEADER
from client.true_parties import Fetcher, User
from client.true_shards import UNRAISABLE, Cluster, Place, lives
from core.harness import client
from gossipq.messages import ReplayDead, Requeue, SetGroup
from gossipq.operator_messages import PurgeTopic
from gossipq.types import Offset, PartitionKey, partition_key, partition_of
from gossipq.values import GroupOptions, Message, Ref, TopicInfo, TopicOptions
from gossipq_client.values.terms import key_column

OPERATOR = client("operator")
PUBLISHING_MS = 4_000
PATIENCE_MS = 240_000  #: leases end meanwhile, several times


class Life(Cluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.mode = self.random.choice(("shared", "shared", "key_ordered", "exclusive"))
        partitions = 1 if self.mode == "exclusive" else self.random.choice((2, 3, 6))
        self.info: TopicInfo = self.worker.topic("t", TopicOptions(partitions=partitions))
        self.loses, self.crashes = self.random.choice((0, 0, 0.002)), self.random.choice((0, 0, 0.001))
        self.fails = self.random.choice((0, 0, 0, 0.1))
        self.interrupts = self.random.choice((0, 0.02))
        self.dropped = self.random.choice((0, 0, 0.2))
        self.user: type[User] = self.random.choice((User, Fetcher))
        self.published = 0
        #: by partition and key: offsets
        self.of_key: dict[tuple[PartitionKey, bytes], list[Offset]] = {}
        self.operates = self.random.choice((0, 0, 0.005))
        self.deeds = self.pause, self.change, self.requeue, self.replay, self.purge, self.leave
        self.users = 0
        self.join()
        self.late_ms = self.random.choice((0, 300, 2_000, PUBLISHING_MS + PATIENCE_MS))
        self.pace = self.random.choice((0.1, 1, 10, 50))  #: milliseconds of a record
        self.stop_ms = self.random.choice((0, PUBLISHING_MS))

    def work_ms(self, count: int) -> int:
        """Working time for `count` records; now and then users change
        their pace, or stand still.
        """
        if self.random.random() < 0.03:
            self.pace = self.random.choice((0.1, 1, 10, 50))
        return int(self.pace * count) + self.random.choice((0,) * 299 + (2_500, 6_000))

    def publish(self) -> None:
        at = self.random.randrange(len(self.info.shards))
        count, size = self.random.choice((1, 1, 10, 60, 300)), self.random.choice((1, 10, 1_000))
        keyed = count if self.mode == "key_ordered" else 0
        keys = [b"%d" % self.random.randrange(20) for _ in range(keyed)]
        columns = {"keys": keys, "fixed": key_column(keys)} if keys else {}
        partition = partition_key(self.info.id, at)
        values = [b"%d" % (self.published + number) + b"v" * size for number in range(count)]
        self.published += count
        row = self.worker.publish(partition, values, shard=self.info.shards[at], **columns)
        assert isinstance(row, tuple)
        for offset, key in enumerate(keys, row[1]):
            self.of_key.setdefault((partition, key), []).append(offset)

    def takes(self, mine: set[Place]) -> None:
        """Of each key that a user has, it has all that are not done, but for the last ones."""
        if self.operates or not mine:  # redelivered records come after others
            return
        for (partition, _), offsets in self.of_key.items():
            while offsets and self.is_done(partition, offsets[0]):
                offsets.pop(0)
            has = [(partition, offset) in mine for offset in offsets if not self.is_done(partition, offset)]
            assert has == sorted(has, reverse=True), f"{offsets} of partition {partition}: {has}"

    def is_done(self, partition: PartitionKey, offset: Offset) -> bool:
        """Acked by a user, or dead."""
        if (partition, offset) in self.acked:
            return True
        shard = self.worker.shards[self.info.shards[partition_of(partition)]]
        cursors = shard.ledger.cursors.get(partition, {}).values()
        return any(not each.fresh(offset, offset + 1) and not each.exceptions.at(offset) for each in cursors)

    @property
    def done(self) -> bool:
        users = [each.subscription for each in self.parties if isinstance(each, User)]
        if not all(each.finished or (each.closing and not each.parts) for each in users):
            return False
        views = [
            (view, shard.ledger.partitions[view.partition].next)
            for shard in self.shards
            for group in shard.dispatch.groups.values()
            for view in group.views.values()
        ]
        return all(
            view.cursor.state.cursor == end and not view.window.reaches(0, end) and view.due_ms is None
            for view, end in views
        )

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not until():
            self.step()
            if self.late_ms and self.now_ms >= self.late_ms:
                self.late_ms = 0
                self.join()
            if self.now_ms < self.stop_ms and self.random.random() < 0.02:
                self.publish()
            for party in self.parties:
                if self.random.random() < self.loses:
                    party.reconnect(LEADER)
            if self.random.random() < self.crashes:
                self.crash()
            if self.random.random() < self.operates:
                self.random.choice(
                    (self.pause, self.change, self.requeue, self.replay, self.purge, self.leave)
                )()

    # --- what operators do, and who comes and goes

    def join(self) -> None:
        self.users += 1
        self.parties.append(self.user(self, f"user{self.users}"))

    def leave(self) -> None:
        """A user ends its subscription and acks the records it holds."""
        for user in [
            each for each in self.parties if isinstance(each, User) and not each.subscription.closing
        ][:1]:
            user.repeat(partial(user.consuming.close, user.subscription))
            self.join()

    def ask(self, number: int, message: Message) -> None:
        self.worker.ask(self.info.shards[number], OPERATOR, message)

    def any(self) -> tuple[int, PartitionKey, Offset]:
        """A partition: its number and key, and one of its offsets."""
        number = self.random.randrange(len(self.info.shards))
        key = partition_key(self.info.id, number)
        end = self.worker.shards[self.info.shards[number]].ledger.partitions[key].next
        return number, key, self.random.randrange(end + 1)

    def set_group(self, options: GroupOptions) -> None:
        for number in range(len(self.info.shards)):
            self.ask(number, SetGroup(self.info.id, "g", options))

    def pause(self) -> None:
        self.set_group(GroupOptions(paused=self.random.random() < 0.6))

    def change(self) -> None:
        self.set_group(GroupOptions(in_flight_max=self.random.choice((1, 5, 1_000)), attempts_max=1))

    def requeue(self) -> None:
        number, key, offset = self.any()
        self.ask(number, Requeue(Ref(key, offset), "g"))

    def replay(self) -> None:
        number, key, _ = self.any()
        self.ask(number, ReplayDead(key, "g"))

    def purge(self) -> None:
        number, key, offset = self.any()
        self.ask(number, PurgeTopic(key, offset))


@UNRAISABLE
@pytest.mark.parametrize("seed", lives(6))
def test_what_is_published_is_acked_and_nobody_waits_for_ever(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.random.choice((1, 5, 20))):
        life.publish()
    life.run(PUBLISHING_MS)
    if life.operates:
        life.set_group(GroupOptions(paused=False))
    life.loses = life.crashes = life.interrupts = life.operates = life.dropped = 0
    life.run(PATIENCE_MS, lambda: life.done)
    assert life.done
