"""Random lives of consumers: users are fast and slow, stand still, fail, join late, lose their connections;
a shard may be slow to make a group. Whatever was published is acked in the end, and every consumer hears of
the end; records of one key are with one user at a time, in order."""

from collections import deque
from collections.abc import Callable
from functools import partial

import pytest

from client.hand import LEADER
from client.true_shards import UNRAISABLE, Cluster, Party, Place
from gossipq import limits
from gossipq.types import Offset, PartitionKey, partition_key, partition_of
from gossipq.values import GroupOptions, TopicInfo, TopicOptions
from gossipq_client.session.credit import Subscription
from gossipq_client.session.held import Piece
from gossipq_client.session.pace import CREDIT_START
from gossipq_client.values import failed
from gossipq_client.values.terms import key_column

PUBLISHING_MS = 4_000
PATIENCE_MS = 240_000  #: leases end meanwhile, several times


def places(piece: Piece) -> list[Place]:
    return [(piece.held.partition, offset) for offset in range(piece.first, piece.end)]


class User(Party):
    """Consumes a group: takes what it can in its time, acks or fails what it took before."""

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
        if self.life.now_ms >= self.free_ms:
            while self.in_hand:
                self.settle(self.in_hand[0])
                self.in_hand.popleft()
            self.take(self.random.choice((1, 1, 1, 5, 40)))

    def settle(self, piece: Piece) -> None:
        if self.random.random() < self.life.fails:
            outcome = failed(self.random.choice((0, 0.05)), "no luck")
            self.repeat(lambda: self.consuming.nack(piece.held, piece.first, piece.end, outcome))
        else:
            self.repeat(lambda: self.consuming.ack(piece.held, piece.first, piece.end))
            self.life.acked.update(places(piece))

    def take(self, count: int) -> None:
        """As a loop over messages does."""
        self.consuming.resume(self.subscription)
        self.has(self.consuming.take(self.subscription, count))

    def has(self, pieces: list[Piece]) -> None:
        self.in_hand += pieces
        if self.life.mode == "key_ordered":
            mine = {
                (piece.held.partition, at) for piece in self.in_hand for at in range(piece.first, piece.end)
            }
            self.life.check_order(mine)
        if pieces:
            self.free_ms = self.life.now_ms + self.life.work_ms(sum(map(len, pieces)))


class Fetcher(User):
    """Takes records as `fetch` does, and what it was interrupted in goes back."""

    def __init__(self, life: "Life", name: str) -> None:
        super().__init__(life, name)
        self.fetch: object = None  #: the one under way
        self.until_ms = 0

    def take(self, count: int) -> None:
        if self.fetch is None:
            self.fetch, self.until_ms = object(), self.life.now_ms + self.random.choice((0, 100, 2_000))
            pieces = self.step(lambda: self.consuming.fetch(self.subscription, count, self.fetch))
        else:
            pieces = self.step(lambda: self.consuming.take(self.subscription, count, self.fetch))
        if pieces is None:
            self.break_off()
        elif pieces or self.life.now_ms >= self.until_ms or self.subscription.finished:
            fetched = partial(self.consuming.fetched, self.subscription, bool(pieces), self.fetch)
            if self.step(lambda: fetched() or True):
                del self.subscription.fetches[self.fetch]
                self.fetch = None
                self.has(pieces)
            else:
                self.break_off()

    def break_off(self) -> None:
        fetch, self.fetch = self.fetch, None
        self.repeat(lambda: self.consuming.break_off(self.subscription, fetch))


class Life(Cluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.info: TopicInfo = self.worker.topic("t", TopicOptions(partitions=self.random.choice((2, 3, 6))))
        self.mode = self.random.choice(("shared", "shared", "key_ordered"))
        self.loses, self.crashes = self.random.choice((0, 0, 0.002)), self.random.choice((0, 0, 0.001))
        self.fails = self.random.choice((0, 0, 0, 0.1))
        self.interrupts = self.random.choice((0, 0.02))
        self.user: type[User] = self.random.choice((User, Fetcher))
        self.acked = set[Place]()
        self.published = 0
        #: by partition and key: offsets
        self.of_key: dict[tuple[PartitionKey, bytes], list[Offset]] = {}
        self.parties.append(self.user(self, "ada"))
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
        partition = partition_key(self.info.id, at)
        values = [b"%d" % (self.published + number) + b"v" * size for number in range(count)]
        self.published += count
        row = self.worker.publish(partition, values, shard=self.info.shards[at], **columns)
        assert isinstance(row, tuple)
        for offset, key in enumerate(keys, row[1]):
            self.of_key.setdefault((partition, key), []).append(offset)

    def check_order(self, mine: set[Place]) -> None:
        """Of each key that a user has, it has all that are not done, but for the last ones."""
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
                self.parties.append(self.user(self, "bob"))
            if self.now_ms < self.stop_ms and self.random.random() < 0.02:
                self.publish()
            for party in self.parties:
                if self.random.random() < self.loses:
                    party.reconnect(LEADER)
            if self.random.random() < self.crashes:
                self.crash()


@UNRAISABLE
@pytest.mark.parametrize("seed", range(40))
def test_what_is_published_is_acked_and_nobody_waits_for_ever(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.random.choice((1, 5, 20))):
        life.publish()
    life.run(PUBLISHING_MS)
    life.loses = life.crashes = life.interrupts = 0
    life.run(PATIENCE_MS, lambda: life.done)
    assert life.done
