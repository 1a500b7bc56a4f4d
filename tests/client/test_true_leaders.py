"""Random lives of client sessions with the real shards, without sockets and clocks: users are fast and slow,
stand still, fail, join late, lose their connections; what is said takes its time, and a shard may be slow to
make a group. Whatever was published is acked in the end, and every consumer hears of the end."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from client.hand import LEADER, Hand, Sent
from core.harness import FakeWorker
from gossipq import limits
from gossipq.core.delivery import Delivery
from gossipq.core.effects import Effects
from gossipq.core.requests.consume import Client
from gossipq.messages import Deliver, Hello, Ping
from gossipq.types import NODE_SHARD, Origin, ShardId, partition_key
from gossipq.values import Delivered, GroupOptions, Message, TopicInfo, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire import frames
from gossipq_client.session.credit import Subscription
from gossipq_client.session.deliveries import Consuming
from gossipq_client.session.held import Piece
from gossipq_client.session.pace import CREDIT_START
from gossipq_client.values import failed
from gossipq_client.values.terms import key_column

SHARDS = 4
PUBLISHING_MS = 4_000
PATIENCE_MS = 240_000  #: leases end meanwhile, several times
QUIET_MS = 3_000


class Lane:
    """What is on its way in one direction, in order."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Any]] = deque()

    def put(self, at_ms: int, item: Any) -> None:
        last = self._items[-1][0] if self._items else 0
        self._items.append((max(at_ms, last), item))

    def take(self, now_ms: int) -> list[Any]:
        found = []
        while self._items and self._items[0][0] <= now_ms:
            found.append(self._items.popleft()[1])
        return found


class User:
    """A session that consumes a group, and what its user does."""

    def __init__(self, life: "Life", name: str) -> None:
        self.life, self.random = life, life.random
        self.hand = Hand(session=name.encode().ljust(16, b"."))
        self.client = Client(self.hand.session.links.session, name)
        self.origin: Origin = (name.encode(), b"1")
        self.there = {shard: Lane() for shard in range(SHARDS)}
        self.back = {shard: Lane() for shard in range(SHARDS)}
        options = GroupOptions(life.mode, lease_ms=5_000)
        credit = (CREDIT_START, limits.CREDIT_BYTES)
        self.subscription = Subscription(
            "g", ("first", 0), credit, options, True, ["t"], follows=life.random.random() < 0.8
        )
        self.consuming: Consuming = self.hand.session.consuming
        self.in_hand: deque[Piece] = deque()
        self.free_ms = 0  #: when the user is through with what it does
        for shard in range(SHARDS):
            self.hand.session.links.lane(shard)
        self.hand.up(LEADER)
        self.hand.pass_ms(life.now_ms)
        self.consuming.cover(self.subscription, [life.info])

    def say(self) -> None:
        self.consuming.flush()
        for sent in self.hand.sent():
            if sent.header.shard == NODE_SHARD or isinstance(sent.body, Hello | Ping):
                if isinstance(sent.body, Hello):
                    self.hand.answer(sent, self.hand.greeting())
                continue
            shard = sent.header.shard
            self.there[shard].put(self.life.now_ms + self.life.lag_ms(shard), (self.origin, sent))

    def reconnect(self) -> None:
        """What was on its way to it is gone."""
        self.back = {shard: Lane() for shard in range(SHARDS)}
        self.hand.session.disconnected(LEADER)
        self.origin = self.origin[0], b"%d" % self.life.now_ms
        self.hand.sent()
        self.hand.session.connected(LEADER)

    def hear(self) -> None:
        for lane in self.back.values():
            for message in lane.take(self.life.now_ms):
                self.hand.session.arrived(LEADER, message)

    def work(self) -> None:
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


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.worker = FakeWorker(SHARDS)
        self.now_ms = 0
        self.info: TopicInfo = self.worker.topic("t", TopicOptions(partitions=self.random.choice((2, 3, 6))))
        self.mode = self.random.choice(("shared", "shared", "key_ordered"))
        self.loses = self.random.choice((0, 0, 0.002))
        self.fails = self.random.choice((0, 0, 0, 0.1))
        self.slow = {shard: self.random.choice((0, 0, 0, 400, 1_500)) for shard in range(SHARDS)}
        self.published = 0
        self.worker.send = self.send  # type: ignore[method-assign]
        self.users = [User(self, "ada")]
        self.late_ms = self.random.choice((0, 300, 2_000, PUBLISHING_MS + PATIENCE_MS))
        self.pace = self.random.choice((0.1, 1, 10, 50))
        self.stop_ms = self.random.choice((0, PUBLISHING_MS))

    def lag_ms(self, shard: ShardId) -> int:
        """How long a message is under way; a slow shard stands still at first."""
        return max(self.random.randrange(3), self.slow[shard] - self.now_ms)

    def work_ms(self, count: int) -> int:
        """Of so many records; now and then users change their pace, or stand still."""
        if self.random.random() < 0.03:
            self.pace = self.random.choice((0.1, 1, 10, 50))
        return int(self.pace * count) + self.random.choice((0,) * 299 + (2_500, 6_000))

    def send(self, shard: Any, effects: Effects) -> None:
        """What the sender of a worker does with the effects of a turn, in its order."""
        users = {user.origin: user for user in self.users}

        def tell(origin: Origin, message: Message, request_id: int = 0, body: Sequence[bytes] = ()) -> None:
            if (user := users.get(origin)) is not None:
                control = frames.encode(message, shard.id, request_id, 1)
                user.back[shard.id].put(self.now_ms + self.lag_ms(shard.id), [control, *body])

        for origin, request_id, message in effects.replies:
            tell(origin, message, request_id)
        for delivery in effects.deliveries:
            slices, bodies = self._slices(shard, delivery)
            tell(
                delivery.origin,
                Deliver(delivery.subscription, slices, delivery.lease_ms),
                0,
                [b"".join(bodies)],
            )
        for origin, notice in effects.notices:
            tell(origin, notice)

    @staticmethod
    def _slices(shard: Any, delivery: Delivery) -> tuple[list[Delivered], list[bytes]]:
        slices, bodies = [], []
        for part in delivery.parts:
            body, _ = shard.body(part.index)
            batch, base = batches.Batch(body), part.offset - part.first
            runs = [(first - base, end - base) for first, end in part.ranges or [(part.offset, part.end)]]
            bodies.append(bytes(batch.pick(runs) if part.ranges else batch.cut(part.first, part.count)))
            name = part.partition, part.offset, part.count, part.attempt
            slices.append(Delivered(*name, len(bodies[-1]), part.charge, part.ranges))
        return slices, bodies

    def publish(self) -> None:
        at = self.random.randrange(len(self.info.shards))
        count = self.random.choice((1, 1, 10, 60, 300))
        size = self.random.choice((1, 10, 1_000))
        partition = partition_key(self.info.id, at)
        keyed = count if self.mode == "key_ordered" else 0
        keys = [b"%d" % self.random.randrange(20) for _ in range(keyed)]
        columns = {"keys": keys, "fixed": key_column(keys)} if keys else {}
        self.worker.publish(partition, [b"v" * size] * count, shard=self.info.shards[at], **columns)
        self.published += count

    def step(self) -> None:
        ms = self.random.choice((1, 1, 2, 5, 15))
        self.now_ms += ms
        self.worker.advance(ms)
        if self.late_ms and self.now_ms >= self.late_ms:
            self.late_ms = 0
            self.users.append(User(self, "bob"))
        steps: list[Callable[[], None]] = []
        for user in self.users:
            user.hand.pass_ms(ms)
            user.work()
            user.say()
            for shard, lane in user.there.items():
                steps += [self._asked(shard, user, *each) for each in lane.take(self.now_ms)]
        self.worker.turn(*steps)
        for user in self.users:
            user.hear()
            if self.random.random() < self.loses:
                user.reconnect()

    def _asked(self, shard: ShardId, user: User, origin: Origin, sent: Sent) -> Callable[[], None]:
        return lambda: self.worker.step(shard, origin, sent.header.request_id, user.client, sent.body)

    @property
    def done(self) -> bool:
        return all(
            cursors[group].state.cursor == shard.ledger.partitions[partition].next
            for shard in self.worker.shards.values()
            for partition, cursors in shard.ledger.cursors.items()
            for group in cursors
        ) and all(user.subscription.finished for user in self.users)

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not until():
            self.step()
            if self.now_ms < self.stop_ms and self.random.random() < 0.02:
                self.publish()


@pytest.mark.parametrize("seed", range(40))  # 26, 29 and 36: see CREDIT in `ConsumeRequests`
def test_what_is_published_is_acked_and_nobody_waits_for_ever(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.random.choice((1, 5, 20))):
        life.publish()
    life.run(PUBLISHING_MS)
    life.loses = 0
    life.run(PATIENCE_MS, lambda: life.done)
    assert life.done
