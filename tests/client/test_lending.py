"""Random lives of a loan: records of all sizes wait at several leaders, the user fetches now many and now few. Whatever was
lent where before, what waits at any leader comes to who fetches."""

import random
from collections.abc import Sequence

import pytest

from client.hand import Hand, Sent
from gossipq import limits
from gossipq.messages import Ack, Acked, Credit, Deliver, Ready, Recall, Recalled, Subscribe
from gossipq.values import Delivered
from gossipq.wire import batch as wire
from gossipq_client.credit import Part

LARGE = limits.CREDIT_BYTES // 2 - 1
TURNS, EMPTY_FETCHES, ROUNDS_MAX = 60, 5, 500


class Leader:
    """Hands out what waits against credit, as `gossipq.core.serving` does."""

    def __init__(self, hand: Hand, part: Part) -> None:
        self.hand, self.part = hand, part
        self.records, self.bytes = part.lent_records, part.lent_bytes
        self.waiting: list[int] = []  #: bytes that each record is charged
        self.next = 0
        self.told_ready = False

    def serve(self) -> None:
        while self.waiting and self.records > 0 and self.bytes > 0:
            size = self.waiting[0]
            same = next((at for at, each in enumerate(self.waiting) if each != size), len(self.waiting))
            self.hand_out(min(same, self.records, max(1, self.bytes // size)), size)
        if self.waiting and not self.told_ready:
            self.told_ready = True
            self.hand.tell(Ready(self.part.number), self.part.shard)

    def hand_out(self, count: int, size: int) -> None:
        (partition,) = self.part.starts
        raw = bytes(wire.seal([b"v"] * count))
        self.records -= count
        self.bytes -= count * size
        del self.waiting[:count]
        piece = Delivered(partition, self.next, count, 1, len(raw), count * size)
        self.next += count
        self.hand.tell(Deliver(self.part.number, [piece], 30_000), self.part.shard, batch=raw)

    def hear(self, sent: Sent) -> None:
        if isinstance(sent.body, Credit):
            self.records += sent.body.records
            self.bytes += sent.body.bytes
            self.told_ready = False
        elif isinstance(sent.body, Recall):
            records, size = max(0, self.records), max(0, self.bytes)
            self.records -= records
            self.bytes -= size
            self.hand.answer(sent, Recalled(self.part.number, records, size))
        elif isinstance(sent.body, Ack):
            self.hand.answer(sent, Acked())


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hand = Hand()
        self.subscription = self.hand.subscribe(shards=(1, 2, 3, 4), credit=(self.random.choice((2, 100)), limits.CREDIT_BYTES))
        self.leaders = [Leader(self.hand, part) for part in self.subscription.parts]
        many: tuple[Sequence[int], int] = self.random.choice(
            (((10,), 3_000), ((1_000,), 3_000), ((10, LARGE), 60), ((LARGE,), 30))
        )
        self.sizes, self.most = many

    def exchange(self) -> None:
        for _ in range(ROUNDS_MAX):
            sent = self.hand.flush()
            if not sent:
                return
            for each in sent:
                assert not isinstance(each.body, Subscribe), "nobody was paused"
                for leader in self.leaders:
                    if leader.part.shard == each.header.shard:
                        leader.hear(each)
            for leader in self.leaders:
                leader.serve()
        raise AssertionError("they talk without end, and nobody gets anything")

    def publish(self) -> None:
        leader = self.random.choice(self.leaders)
        leader.waiting += [self.random.choice(self.sizes)] * self.random.choice((1, 30, self.most))
        leader.serve()

    def fetch(self, count: int) -> int:
        consuming = self.hand.session.consuming
        pieces = consuming.fetch(self.subscription, count)
        self.exchange()
        pieces = pieces or consuming.take(self.subscription, count)
        for piece in pieces:
            consuming.ack(piece.held, piece.first, piece.end)
        consuming.fetched(self.subscription, bool(pieces))
        self.exchange()
        return sum(piece.end - piece.first for piece in pieces)


@pytest.mark.parametrize("seed", range(60))
def test_what_waits_anywhere_comes_to_who_fetches(seed: int) -> None:
    life = Life(seed)
    for _ in range(TURNS):
        life.random.choice((life.publish, lambda: life.fetch(life.random.choice((1, 20, 400, 1_000)))))()
        for leader in life.leaders:
            part = leader.part
            assert (leader.records, leader.bytes) == (part.lent_records, part.lent_bytes), "both know the same loan"
    empty = 0
    while empty < EMPTY_FETCHES:
        empty = 0 if life.fetch(1_000) else empty + 1
    assert [len(leader.waiting) for leader in life.leaders] == [0] * len(life.leaders)
    assert not life.subscription.ready
