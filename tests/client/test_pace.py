"""The credit follows the consumer: about a second of its work waits here, the rest is for others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.hand import Hand
from gossipq.messages import Credit, Nack, Share, Subscribe
from gossipq.values import Range
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.held import Held
from gossipq_client.session.pace import CREDIT_MAX, CREDIT_MIN, CREDIT_START, LOOK_MS, STUCK_MS, Pace

BYTES = 1_000_000
STEPS = ("take", "share", "ack", "iterate", "hear")


def settled(per_record_ms: float) -> int:
    """The target of a consumer that takes that long for each record while records always wait."""
    pace, now_ms = Pace(), 0.0
    pace.waits(0)
    for _ in range(200_000):
        now_ms += per_record_ms
        pace.took(1, int(now_ms))
        if now_ms > 60_000:
            break
    return pace.target


@pytest.mark.parametrize(
    ("per_record_ms", "records"), [(5_000, CREDIT_MIN), (50, 20), (10, 100), (1, 1_000), (0.01, CREDIT_MAX)]
)
def test_about_a_second_of_work(per_record_ms: float, records: int) -> None:
    assert records * 0.7 <= settled(per_record_ms) <= records * 1.4


def test_to_wait_for_records_is_not_to_be_slow() -> None:
    pace = Pace()
    for second in range(100):
        pace.waits(second * 1_000)
        pace.took(10, second * 1_000 + 1)
    assert pace.target > 1_000


def test_who_is_stuck_with_one_is_slow() -> None:
    pace = Pace()
    pace.waits(0)
    assert not pace.look(STUCK_MS - 1)
    assert pace.look(STUCK_MS)
    assert pace.target == CREDIT_MIN


class Consumer:
    """Takes one record after the other; its leader delivers as much as the credit allows."""

    def __init__(self, shards: tuple[int, ...] = (3,)) -> None:
        self.hand = Hand()
        self.subscription: Subscription = self.hand.subscribe(
            shards=shards, credit=(CREDIT_START, BYTES), follows=True
        )
        self.part: Part = self.subscription.parts[0]
        self.loan, self.offset = CREDIT_START, 0
        self.given_back: list[tuple[int, int]] = []
        self.claimed: list[Range] = []

    def hear(self) -> None:
        for sent in self.hand.flush():
            if isinstance(sent.body, Credit):
                self.loan += sent.body.records
            elif isinstance(sent.body, Subscribe):
                self.loan = sent.body.credit_records
                self.claimed += sent.body.holding or []
            elif isinstance(sent.body, Nack):
                self.given_back += [(first, end) for _, first, end in sent.body.ranges]
        if self.loan:
            self.hand.deliver(self.part, self.offset, self.loan)
            self.offset, self.loan = self.offset + self.loan, 0

    def work(self, seconds: float, per_record_ms: int) -> int:
        """Records that were begun with."""
        consuming, end_ms, count = self.hand.session.consuming, self.hand.now_ms + seconds * 1_000, 0
        while self.hand.now_ms < end_ms:
            self.hear()
            (piece,) = consuming.take(self.subscription, 1)
            self.hand.pass_ms(per_record_ms)
            consuming.ack(piece.held, piece.first, piece.end)
            count += 1
        return count


def test_a_slow_consumer_holds_a_second_of_work_and_gives_nothing_back() -> None:
    consumer = Consumer()
    consumer.work(30, 50)
    for _ in range(20):
        consumer.work(1, 50)
        assert consumer.subscription.untaken_records <= 2 * 20
    assert consumer.given_back == [], "there was never far too much"


def test_a_fast_consumer_holds_thousands_and_gives_them_to_others_when_it_becomes_slow() -> None:
    consumer = Consumer()
    for _ in range(100):
        consumer.hear()
        consumer.hand.session.consuming.take(consumer.subscription, 10_000)
        consumer.hand.pass_ms(1)
    consumer.hear()
    assert consumer.subscription.untaken_records > 2_000
    consumer.work(STUCK_MS / 1_000 + 4, STUCK_MS)
    assert consumer.subscription.untaken_records <= LOOK_MS
    assert sum(end - first for first, end in consumer.given_back) > 1_000
    assert consumer.claimed == [], "what went back a moment ago would be taken for held, till its lease ends"


def held_back(consumer: Consumer) -> list[tuple[int, int]]:
    consumer.given_back.clear()
    consumer.hear()
    return consumer.given_back


def test_what_nobody_has_started_on_goes_to_one_that_has_nothing_to_do() -> None:
    consumer = Consumer()
    consuming = consumer.hand.session.consuming
    consumer.hear()
    (begun,) = consuming.take(consumer.subscription, 1)
    consumer.hand.tell(Share(consumer.part.number, 10), 3)
    assert held_back(consumer) == [(10, CREDIT_START)]
    assert consumer.loan == 0, "a loan would bring it some of them again"
    consumer.hand.tell(Share(consumer.part.number, 1), 3)
    assert held_back(consumer) == [(1, 10)], "what is begun stays"
    consuming.ack(begun.held, 0, 1)
    assert consuming.front(consumer.subscription) is None or consumer.offset > CREDIT_START


def test_who_has_started_on_all_of_it_keeps_all_of_it() -> None:
    consumer = Consumer()
    consumer.hear()
    consumer.hand.session.consuming.take(consumer.subscription, CREDIT_START)
    consumer.hand.tell(Share(consumer.part.number, 1), 3)
    assert held_back(consumer) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 40))))
def test_no_record_is_begun_and_given_back(steps: list[tuple[str, int]]) -> None:
    """Whatever happens in between, even while a slice is taken record by record."""
    consumer = Consumer()
    consuming, subscription = consumer.hand.session.consuming, consumer.subscription
    begun: list[int] = []
    open_ranges: list[tuple[Held, int]] = []
    for kind, count in [("hear", 1), *steps]:
        if kind == "take":  # under the lock
            for piece in consuming.take(subscription, count):
                begun += range(piece.first, piece.end)
                open_ranges += [(piece.held, offset) for offset in range(piece.first, piece.end)]
        elif kind == "iterate" and (held := consuming.front(subscription)) is not None:
            first = held.taken
            for offset in range(first, min(first + count, held.end)):
                held.taken = offset + 1
                if offset == first + count // 2:
                    consumer.hand.tell(Share(consumer.part.number, count), 3)
                if offset >= held.end:
                    held.taken = offset
                    break
                begun.append(offset)
                open_ranges.append((held, offset))
            consuming.took(subscription, held, held.taken - first)
        elif kind == "share":
            consumer.hand.tell(Share(consumer.part.number, count), 3)
        elif kind == "ack":
            for held, offset in open_ranges[:count]:
                consuming.ack(held, offset, offset + 1)
            del open_ranges[:count]
        consumer.hear()
        given = {offset for first, end in consumer.given_back for offset in range(first, end)}
        assert not given & set(begun)
        assert len(begun) == len(set(begun))
        untaken = sum(held.untaken for held in subscription.ready)
        assert subscription.untaken_records == untaken
        assert len(given) + len(begun) + untaken == consumer.offset, "and none is forgotten"
