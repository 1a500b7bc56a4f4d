"""Random lives of credit. Records of all sizes wait at several leaders; the user fetches many or
few, and pauses; messages take time. Wherever credit was before, records that wait at any leader
come to a consumer that fetches.
"""

import random
from collections import deque
from collections.abc import Sequence

import pytest

from client.hand import Hand, Sent
from gossipq import limits
from gossipq.messages import (
    Ack,
    Acked,
    Credit,
    Deliver,
    Nack,
    ReadyMessage,
    Recall,
    Recalled,
    Subscribe,
    Subscribed,
)
from gossipq.values import Delivered
from gossipq.wire import batch as wire
from gossipq_client.session.credit import Part

LARGE = limits.CREDIT_BYTES // 2 - 1
SIZES: Sequence[tuple[Sequence[int], int]] = (
    ((10,), 3_000),
    ((1_000,), 3_000),
    ((10, LARGE), 60),
    ((LARGE,), 30),
)
TURNS, EMPTY_FETCHES, ROUNDS_MAX = 60, 5, 500


class Leader:
    """Delivers waiting records against credit, as `gossipq.core.delivery.selector` does."""

    def __init__(self, hand: Hand, part: Part) -> None:
        self.hand, self.part = hand, part
        self.records, self.bytes = part.lent_records, part.lent_bytes
        self.waiting: list[int] = []  #: bytes that each record is charged
        self.sizes: list[int] = []  #: sizes of the delivered records, by offset
        self.told_ready = False
        self.mail: deque[Sent] = deque()

    def serve(self) -> None:
        while self.waiting and self.records > 0 and self.bytes > 0:
            size = self.waiting[0]
            same = next((at for at, each in enumerate(self.waiting) if each != size), len(self.waiting))
            self.hand_out(min(same, self.records, max(1, self.bytes // size)), size)
        if self.waiting and not self.told_ready:
            self.told_ready = True
            self.hand.tell(ReadyMessage(self.part.number), self.part.shard)

    def hand_out(self, count: int, size: int) -> None:
        (partition,) = self.part.starts
        raw = bytes(wire.seal([b"v"] * count))
        self.records -= count
        self.bytes -= count * size
        del self.waiting[:count]
        piece = Delivered(partition, len(self.sizes), count, 1, len(raw), count * size)
        self.sizes += [size] * count
        self.hand.tell(Deliver(self.part.number, [piece], 30_000), self.part.shard, batch=raw)

    def hear(self) -> None:
        sent = self.mail.popleft()
        match sent.body:
            case Credit(records=records, bytes=size):
                self.records += records
                self.bytes += size
                self.told_ready = False
            case Recall():
                records, size = max(0, self.records), max(0, self.bytes)
                self.records -= records
                self.bytes -= size
                self.hand.answer(sent, Recalled(self.part.number, records, size))
            case Subscribe(credit_records=records, credit_bytes=size):
                self.records, self.bytes, self.told_ready = records, size, False
                self.hand.answer(sent, Subscribed(self.part.number, 30_000, []))
            case Ack():
                self.hand.answer(sent, Acked())
            case Nack(ranges=ranges):
                self.waiting += [
                    self.sizes[offset] for _, first, end in ranges for offset in range(first, end)
                ]
                self.hand.answer(sent, Acked())


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hand = Hand()
        credit = self.random.choice((2, 100)), limits.CREDIT_BYTES
        self.subscription = self.hand.subscribe(shards=(1, 2, 3, 4), credit=credit)
        self.leaders = [Leader(self.hand, part) for part in self.subscription.parts]
        self.sizes, self.most = self.random.choice(SIZES)

    def exchange(self, rounds: int = ROUNDS_MAX) -> None:
        """Exchanges messages until none is left, or for that many rounds."""
        for _ in range(rounds):
            sent = self.hand.flush()
            for leader in self.leaders:
                leader.mail += [each for each in sent if each.header.shard == leader.part.shard]
                while leader.mail and self.random.random() < 0.7:
                    leader.hear()
                leader.serve()
            if not sent and not any(leader.mail for leader in self.leaders):
                return
        assert rounds < ROUNDS_MAX, "they talk without end, and nobody gets anything"

    def publish(self) -> None:
        leader = self.random.choice(self.leaders)
        leader.waiting += [self.random.choice(self.sizes)] * self.random.choice((1, 30, self.most))
        leader.serve()

    def pause(self) -> None:
        self.hand.session.consuming.pause(self.subscription)
        self.exchange(1)

    def fetch(self, count: int, rounds: int = ROUNDS_MAX) -> int:
        consuming = self.hand.session.consuming
        pieces = consuming.fetch(self.subscription, count, None)
        self.exchange(rounds)
        pieces = pieces or consuming.take(self.subscription, count)
        for piece in pieces:
            consuming.ack(piece.held, piece.first, piece.end)
        consuming.fetched(self.subscription, bool(pieces), None)
        self.exchange(rounds)
        return sum(piece.end - piece.first for piece in pieces)

    def fetch_some(self) -> None:
        self.fetch(self.random.choice((1, 20, 400, 1_000)), self.random.choice((1, 3, ROUNDS_MAX)))


@pytest.mark.parametrize("seed", range(60))
def test_what_waits_anywhere_comes_to_who_fetches(seed: int) -> None:
    life = Life(seed)
    for _ in range(TURNS):
        life.random.choice(
            (life.publish, life.publish, life.fetch_some, life.fetch_some, life.fetch_some, life.pause)
        )()
    empty = 0
    while empty < EMPTY_FETCHES:
        empty = 0 if life.fetch(1_000) else empty + 1
    for leader in life.leaders:
        assert not leader.waiting
        assert (leader.records, leader.bytes) == (leader.part.lent_records, leader.part.lent_bytes), (
            "both know the same loan"
        )
        assert leader.records == 0, "nobody fetches"
    assert not life.subscription.ready
