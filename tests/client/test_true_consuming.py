"""Random lives of consumers: users are fast and slow, stand still, fail, join late, lose their connections;
a shard may be slow to make a group. Whatever was published is acked in the end, and every consumer hears of
the end."""

from collections import deque
from collections.abc import Callable

import pytest

from client.true_shards import Cluster, Party
from gossipq import limits
from gossipq.types import partition_key
from gossipq.values import GroupOptions, TopicInfo, TopicOptions
from gossipq_client.session.credit import Subscription
from gossipq_client.session.held import Piece
from gossipq_client.session.pace import CREDIT_START
from gossipq_client.values import failed
from gossipq_client.values.terms import key_column

PUBLISHING_MS = 4_000
PATIENCE_MS = 240_000  #: leases end meanwhile, several times


class User(Party):
    """Consumes a group."""

    def __init__(self, life: "Life", name: str) -> None:
        super().__init__(life, name)
        self.life = life
        options, credit = GroupOptions(life.mode, lease_ms=5_000), (CREDIT_START, limits.CREDIT_BYTES)
        self.subscription = Subscription(
            "g", ("first", 0), credit, options, True, ["t"], follows=life.random.random() < 0.8
        )
        self.consuming = self.hand.session.consuming
        self.in_hand: deque[Piece] = deque()
        self.free_ms = 0  #: when the user is through with what it does
        self.consuming.cover(self.subscription, [life.info])

    def act(self) -> None:
        """Takes what it can in its time, acks or fails what it took before."""
        if self.life.now_ms < self.free_ms:
            return
        while self.in_hand:
            piece = self.in_hand.popleft()
            if self.random.random() < self.life.fails:
                outcome = failed(self.random.choice((0, 0.05)), "no luck")
                self.consuming.nack(piece.held, piece.first, piece.end, outcome)
            else:
                self.consuming.ack(piece.held, piece.first, piece.end)
        count = self.random.choice((1, 1, 1, 5, 40))
        self.consuming.resume(self.subscription)
        self.in_hand += self.consuming.take(self.subscription, count)
        if self.in_hand:
            self.free_ms = self.life.now_ms + self.life.work_ms(count)


class Life(Cluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.info: TopicInfo = self.worker.topic("t", TopicOptions(partitions=self.random.choice((2, 3, 6))))
        self.mode = self.random.choice(("shared", "shared", "key_ordered"))
        self.loses, self.crashes = self.random.choice((0, 0, 0.002)), self.random.choice((0, 0, 0.001))
        self.fails = self.random.choice((0, 0, 0, 0.1))
        self.parties.append(User(self, "ada"))
        self.late_ms = self.random.choice((0, 300, 2_000, PUBLISHING_MS + PATIENCE_MS))
        self.pace = self.random.choice((0.1, 1, 10, 50))  #: milliseconds of a record
        self.stop_ms = self.random.choice((0, PUBLISHING_MS))

    def work_ms(self, count: int) -> int:
        """Of so many records; now and then users change their pace, or stand still."""
        if self.random.random() < 0.03:
            self.pace = self.random.choice((0.1, 1, 10, 50))
        return int(self.pace * count) + self.random.choice((0,) * 299 + (2_500, 6_000))

    def publish(self) -> None:
        at = self.random.randrange(len(self.info.shards))
        count, size = self.random.choice((1, 1, 10, 60, 300)), self.random.choice((1, 10, 1_000))
        keyed = count if self.mode == "key_ordered" else 0
        keys = [b"%d" % self.random.randrange(20) for _ in range(keyed)]
        columns = {"keys": keys, "fixed": key_column(keys)} if keys else {}
        partition, values = partition_key(self.info.id, at), [b"v" * size] * count
        self.worker.publish(partition, values, shard=self.info.shards[at], **columns)

    @property
    def done(self) -> bool:
        return all(
            cursors[group].state.cursor == shard.ledger.partitions[partition].next
            for shard in self.worker.shards.values()
            for partition, cursors in shard.ledger.cursors.items()
            for group in cursors
        ) and all(party.subscription.finished for party in self.parties if isinstance(party, User))

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not until():
            self.step()
            if self.late_ms and self.now_ms >= self.late_ms:
                self.late_ms = 0
                self.parties.append(User(self, "bob"))
            if self.now_ms < self.stop_ms and self.random.random() < 0.02:
                self.publish()
            for party in self.parties:
                if self.random.random() < self.loses:
                    party.reconnect()
            if self.random.random() < self.crashes:
                self.crash()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_published_is_acked_and_nobody_waits_for_ever(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.random.choice((1, 5, 20))):
        life.publish()
    life.run(PUBLISHING_MS)
    life.loses = life.crashes = 0
    life.run(PATIENCE_MS, lambda: life.done)
    assert life.done
