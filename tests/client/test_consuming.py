"""Consumers: credit, acks, leases, records given back, and lost connections."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.hand import CREDIT, HOME, LEADER, SHARD, Hand, Sent
from gossipq.errors import BadBatch, BadRequest, Internal, LeaseLost, TopicFull, UnknownTopic
from gossipq.limits import MOVED_RANGES_MAX
from gossipq.messages import (
    Ack,
    Acked,
    AtEnd,
    Bye,
    Credit,
    Deliver,
    Extend,
    Hello,
    Nack,
    Ping,
    ReadyMessage,
    Recall,
    Recalled,
    RefusedMessage,
    Resolve,
    Started,
    Subscribe,
    Subscribed,
    Topics,
    Unsubscribe,
)
from gossipq.types import Now
from gossipq.values import Delivered, GroupOptions, Start, TopicConfig, TopicInfo
from gossipq.wire import batch as wire
from gossipq_client.session import settlement
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.deliveries import Consuming
from gossipq_client.session.held import Held, Ranges, merge, subtract
from gossipq_client.session.pace import CREDIT_START
from gossipq_client.session.packer import WINDOW_BATCHES
from gossipq_client.session.renewal import rebuild
from gossipq_client.session.settlement import ACK_LINGER_MS
from gossipq_client.session.stretch import Reading
from gossipq_client.session.subscriptions import HAND_MS, SUBSCRIBE_AGAIN_MAX_MS, SUBSCRIBE_AGAIN_MS
from gossipq_client.values import outcomes

Kind = TypeVar("Kind")
LEASE_MS = 30_000


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 8)), max_size=40))
def test_what_is_done_is_known_in_any_order(acks: list[tuple[int, int]]) -> None:
    part: Any = None
    batch: Any = SimpleNamespace(info=SimpleNamespace(columns=0))
    mine, done = Held(part, 1 << 16, 0, 0, 40, batch, 1), set[int]()
    for first, count in acks:
        end = min(40, first + count)
        fresh = [at for low, high in mine.finish(first, end) for at in range(low, high)]
        assert fresh == [at for at in range(first, end) if at not in done]
        done.update(range(first, end))
        assert mine.left == 40 - len(done)
        assert {at for low, high in mine.done for at in range(low, high)} == done
        assert all(one[1] < other[0] for one, other in pairwise(mine.done))


@pytest.fixture
def hand() -> Hand:
    return Hand()


def take(hand: Hand, subscription: Subscription, count: int = 1_000) -> list[bytes]:
    return [value for piece in hand.session.consuming.take(subscription, count) for value in piece.values()]


def bodies(hand: Hand, kind: type[Kind]) -> list[Kind]:
    return [each.body for each in hand.flush(kind)]


def test_a_reader_whose_fetch_is_broken_off_finds_what_came_in_the_next_one(hand: Hand) -> None:
    subscription = hand.subscribe(group="")
    hand.deliver(subscription.parts[0], 0, 3)
    hand.session.consuming.break_off(subscription, None)
    assert take(hand, subscription) == [b"0", b"1", b"2"]


def held(part: Part) -> Held:
    return next(iter(part.outstanding))


class TestCredit:
    def test_it_is_split_over_the_shards_and_lent_again_as_records_are_taken(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2, 3, 4))
        assert [(part.lent_records, part.lent_bytes) for part in subscription.parts] == [(25, 25_000)] * 4
        part = subscription.parts[0]
        hand.deliver(part, 0, 20)
        assert bodies(hand, Credit) == []
        assert len(take(hand, subscription, 5)) == 5
        assert bodies(hand, Credit) == []
        take(hand, subscription, 15)
        assert bodies(hand, Credit) == [Credit(part.number, 20, 200)]
        assert subscription.free()[0] == 0

    def test_loans_and_records_here_never_exceed_it(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2, 3), credit=(10, 1_000))
        first, second, _ = subscription.parts
        hand.deliver(first, 0, 4)
        hand.deliver(second, 0, 3)
        for _ in range(20):
            take(hand, subscription, 2)
            hand.flush()
            lent = sum(part.lent_records for part in subscription.parts)
            assert lent + sum(part.untaken_records for part in subscription.parts) <= 10

    def test_less_credit_than_shards_moves_to_where_records_wait(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2, 3), credit=(1, 1_000))
        first, _, third = subscription.parts
        assert [part.lent_records for part in subscription.parts] == [1, 0, 0]
        hand.tell(ReadyMessage(third.number), 3)
        (asked,) = hand.sent(Recall)
        assert asked.body == Recall(first.number)
        hand.answer(asked, Recalled(first.number, 1, 1_000))
        assert bodies(hand, Credit) == [Credit(third.number, 1, 1_000)]
        assert (first.lent_records, third.lent_records) == (0, 1)

    def test_a_hungry_part_is_not_forgotten_while_a_recall_is_under_way(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2, 3), credit=(1, 1_000))
        first, second, third = subscription.parts
        hand.tell(ReadyMessage(second.number), 2)
        hand.tell(ReadyMessage(third.number), 3)
        (asked,) = hand.sent(Recall)
        hand.answer(asked, Recalled(first.number, 1, 1_000))
        hand.flush()
        hand.deliver(second, 0, 1)
        assert bodies(hand, Recall) == []
        take(hand, subscription)
        (again,) = hand.flush(Recall)
        assert again.body == Recall(second.number)
        hand.answer(again, Recalled(second.number, 0, 990))
        assert bodies(hand, Credit) == [Credit(third.number, 1, 1_000)]

    def test_a_leader_that_asked_before_its_credit_came_is_not_hungry(self, hand: Hand) -> None:
        """It was taken for hungry although it had credit, so nobody got its share, for ever."""
        subscription = hand.subscribe(shards=(1, 2), credit=(10, 1_000))
        first, second = subscription.parts
        hand.deliver(first, 0, 5)
        take(hand, subscription)
        assert len(bodies(hand, Credit)) == 1
        hand.tell(ReadyMessage(first.number), 1)  # it was sent before that credit arrived
        hand.deliver(second, 0, 5)
        hand.tell(ReadyMessage(second.number), 2)
        (asked,) = hand.flush(Recall)
        assert asked.body == Recall(first.number)

    def test_nothing_is_lent_to_a_part_while_it_is_recalled(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2), credit=(1, 1_000))
        first, second = subscription.parts
        hand.tell(ReadyMessage(second.number), 2)
        (asked,) = hand.sent(Recall)
        hand.deliver(first, 0, 1)
        take(hand, subscription)
        assert bodies(hand, Credit) == []
        hand.answer(asked, Recalled(first.number, 0, 990))
        assert (first.lent_records, first.lent_bytes) == (0, 0)
        assert bodies(hand, Credit) == [Credit(second.number, 1, 1_000)]

    def test_recalled_after_a_delivery_that_crossed_it(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2), credit=(2, 2_000))
        first, second = subscription.parts
        hand.deliver(second, 0, 1)
        hand.tell(ReadyMessage(second.number), 2)
        (asked,) = hand.sent(Recall)
        hand.deliver(first, 0, 1)
        hand.answer(asked, Recalled(first.number, 0, 990))
        assert subscription.free()[0] >= 0
        assert len(take(hand, subscription)) == 2

    def test_a_fetch_lends_what_it_asks_and_ahead_in_a_streak(self, hand: Hand) -> None:
        subscription, consuming = hand.subscribe(credit=(10, 1_000)), hand.session.consuming
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        assert len(consuming.fetch(subscription, 10, None)[0]) == 10
        consuming.fetched(subscription, True, None)
        assert bodies(hand, Credit) == []
        assert consuming.fetch(subscription, 10, None) == []
        (credit,) = bodies(hand, Credit)
        assert credit.records == CREDIT_START

    def test_what_comes_behind_the_end_of_a_fetch_goes_to_others(self, hand: Hand) -> None:
        """The record was on its way when the fetch returned empty. While no fetch runs here,
        other consumers wait for it.
        """
        subscription, consuming = hand.subscribe(credit=(10, 1_000)), hand.session.consuming
        part = subscription.parts[0]
        assert consuming.fetch(subscription, 10, None) == []
        consuming.fetched(subscription, False, None)
        hand.deliver(part, 0, 1)
        assert bodies(hand, Nack) == [Nack(part.number, [(9 << 16, 0, 1)], 0, False)]
        assert take(hand, subscription) == []


class TestAcks:
    def test_neighbours_travel_as_one_range(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        hand.deliver(part, 10, 10)
        take(hand, subscription)
        first, second = part.outstanding
        for offset in (0, 1, 2, 4):
            hand.session.consuming.ack(first, offset, offset + 1)
        hand.session.consuming.ack(second, 10, 20)
        hand.session.consuming.ack(first, 5, 10)
        hand.session.consuming.ack(first, 0, 3)
        (ack,) = bodies(hand, Ack)
        assert [(low, high) for _, low, high in ack.ranges] == [(0, 3), (4, 20)]
        assert list(part.outstanding) == [first]
        hand.session.consuming.ack(first, 3, 4)
        assert not part.outstanding

    def test_they_linger_a_few_milliseconds(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 1)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 1)
        assert hand.session.deadline_ms() == hand.now_ms + 5
        hand.pass_ms(4)
        assert hand.sent(Ack) == []
        hand.pass_ms(1)
        assert len(hand.sent(Ack)) == 1

    def test_unanswered_ones_go_again_behind_the_subscription(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 3)
        hand.flush()
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        again = hand.held_back
        assert [type(each.body) for each in again] == [Subscribe]
        hand.accept(again)
        (ack,) = hand.sent(Ack)
        hand.answer(ack, Acked())
        assert hand.session.settled

    def test_a_leader_that_forgot_the_session_hears_all_of_it_again(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 5)
        (ack,) = hand.flush(Ack)
        hand.refuse(ack, "bad_request", hint="say HELLO first")
        again = hand.welcome()
        assert [type(each.body) for each in again] == [Subscribe]
        hand.accept(again)
        assert len(hand.sent(Ack)) == 1

    def test_late_acks_are_warned_of(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 5)
        (ack,) = hand.flush(Ack)
        hand.answer(ack, Acked([(9 << 16, 2, 3)]))
        assert "1 record, from offset 2 of" in hand.session.consuming.warnings[0]


class TestLeases:
    def test_what_is_in_hand_is_extended_at_half_its_lease(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 3, 5)
        hand.pass_ms(LEASE_MS // 2 - 1)
        assert hand.sent(Extend) == []
        hand.pass_ms(1)
        (asked,) = hand.sent(Extend)
        assert asked.body == Extend(part.number, [(9 << 16, 0, 3), (9 << 16, 5, 10)], LEASE_MS)
        hand.answer(asked, Acked([(9 << 16, 5, 6)]))
        assert (held(part).is_lost(5), held(part).is_lost(6)) == (True, False)
        hand.pass_ms(HAND_MS)
        assert hand.session.consuming.deadline_ms() == hand.now_ms + LEASE_MS // 2 - HAND_MS

    def test_more_time_for_one_takes_none_from_the_others(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 3)
        take(hand, subscription)
        assert hand.session.consuming.extend(held(part), 1, 100_000) is not None
        assert hand.sent(Extend)[0].body == Extend(part.number, [(9 << 16, 1, 2)], 100_000)
        asked = []
        for _ in range(9):
            hand.pass_ms(LEASE_MS // 2)
            asked += [each.body.ranges for each in hand.sent(Extend) if isinstance(each.body, Extend)]
        partition = 9 << 16
        assert asked == [[(partition, 0, 1), (partition, 2, 3)]] * 5 + [[(partition, 0, 3)]] * 4

    def test_what_nobody_touches_goes_back_uncounted_and_the_loan_with_it(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        take(hand, subscription, 4)
        hand.flush()
        hand.pass_ms(1)
        hand.pass_ms(LEASE_MS // 2)
        sent = hand.sent()
        (nack,) = [each.body for each in sent if isinstance(each.body, Nack)]
        assert nack == Nack(part.number, [(9 << 16, 4, 10)], 0, False)
        (again,) = [each.body for each in sent if isinstance(each.body, Subscribe)]
        assert (again.subscription, again.credit_records) == (part.number, 0)
        (extend,) = [each.body for each in sent if isinstance(each.body, Extend)]
        assert extend.ranges == [(9 << 16, 0, 4)]
        hand.session.consuming.resume(subscription)
        assert [credit.records for credit in bodies(hand, Credit)] == [100]

    def test_a_slow_user_who_moves_on_keeps_the_rest(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 10)
        for _ in range(9):
            hand.pass_ms(LEASE_MS // 3)
            front = hand.session.consuming.front(subscription)
            assert front is not None
            front.taken += 1
            hand.session.consuming.took(subscription, front, 1)
        assert hand.sent(Nack) == []

    def test_readers_have_none(self, hand: Hand) -> None:
        subscription = hand.subscribe(group="")
        part = subscription.parts[0]
        hand.deliver(part, 0, 10, lease_ms=0)
        hand.pass_ms(10 * LEASE_MS)
        assert hand.sent(Extend) == hand.sent(Nack) == []
        assert len(take(hand, subscription)) == 10


class TestRepeats:
    def test_a_leader_that_repeats_itself_is_heard_once(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        assert len(take(hand, subscription, 5)) == 5
        hand.session.consuming.ack(held(part), 0, 2)
        hand.deliver(part, 0, 12, attempt=2)
        assert take(hand, subscription) == [b"5", b"6", b"7", b"8", b"9", b"10", b"11"], "0 and 1 are acked"
        assert bodies(hand, Ack) == [Ack(part.number, [(9 << 16, 0, 2)])]

    def test_what_is_acked_and_not_answered_is_not_shown_again(self, hand: Hand) -> None:
        """Its leader fell, and the next one did not know the ack when it delivered the record
        again; the answer decides.
        """
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 4)
        (ack,) = hand.flush(Ack)
        hand.deliver(part, 0, 7, attempt=2)
        assert take(hand, subscription) == [b"5", b"6"]
        assert bodies(hand, Ack) == []
        hand.answer(ack, Acked([(9 << 16, 2, 3)]))
        assert take(hand, subscription) == [b"2"], "its ack is not stored"
        assert [each.open_ranges(0, 9) for each in part.outstanding] == [[(4, 5)], [(2, 3)], [(5, 7)]]
        assert not part.aside

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("outcome", [outcomes.failed(0.05, "why"), outcomes.GIVEN_BACK])
    def test_what_failed_is_not_shown_before_its_pause(
        self, hand: Hand, outcome: outcomes.Outcome, lost: bool
    ) -> None:
        """A leader that did not know of the failure delivers the record again; then the failure
        counts for the new delivery.
        """
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 3)
        take(hand, subscription)
        hand.session.consuming.nack(held(part), 1, 2, outcome)
        (nack,) = hand.flush(Nack)
        hand.deliver(part, 1, 1, attempt=2)
        assert take(hand, subscription) == []
        hand.answer(nack, Acked([(9 << 16, 1, 2)] if lost else []))
        assert take(hand, subscription) == ([b"1"] if lost else [])
        back = [Nack(part.number, [(9 << 16, 1, 2)], 0, False)] if outcome.failed and not lost else []
        said = hand.flush(Nack)
        assert [each.body for each in said] == back, "it may be no copy, and would be here for a lease"
        for each in said:
            hand.answer(each, Acked())
        hand.deliver(part, 1, 1, attempt=3)
        assert take(hand, subscription) == ([] if lost else [b"1"]), "now it is meant"

    def test_an_answer_costs_as_much_for_each_copy_that_waits_for_it_however_many_there_are(
        self, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Failed records came again, one by one, before the answer: at 1,000 records
        this once took half a second.
        """
        subscription, count, looked = hand.subscribe(), 200, list[int]()
        part = subscription.parts[0]
        for at in range(0, 2 * count, 2):
            hand.deliver(part, at, 1)
        take(hand, subscription)
        for each in list(part.outstanding):
            hand.session.consuming.nack(each, each.first, each.end, outcomes.failed(0.05, "why"))
        (nack,) = [each for each in hand.flush() if isinstance(each.body, Nack)]
        for at in range(0, 2 * count, 2):
            hand.deliver(part, at, 1, attempt=2)
        assert len(part.aside) == count

        def subtract(ranges: Ranges, taken: Ranges) -> Ranges:
            looked.append(len(taken))
            return arithmetic(ranges, taken)

        arithmetic = settlement.subtract
        monkeypatch.setattr(settlement, "subtract", subtract)
        hand.answer(nack, Acked())
        assert not part.aside
        assert sum(looked) <= 6 * count

    def test_what_waits_for_an_answer_is_held_and_the_end_waits_for_it(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 1)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 1)
        (ack,) = hand.flush(Ack)
        hand.deliver(part, 0, 1, attempt=2)
        hand.pass_ms(LEASE_MS // 2)
        assert hand.sent(Extend)[0].body == Extend(part.number, [(9 << 16, 0, 1)], LEASE_MS)
        hand.session.consuming.close(subscription)
        assert not hand.sent(Unsubscribe)
        hand.answer(ack, Acked([(9 << 16, 0, 1)]))
        (nack,) = hand.sent(Nack)
        assert nack.body == Nack(part.number, [(9 << 16, 0, 1)], 0, False), "others get it"
        hand.answer(nack, Acked())
        assert hand.sent(Unsubscribe)

    @pytest.mark.parametrize("end", [Consuming.pause, Consuming.close])
    def test_what_is_acked_or_worked_on_does_not_go_back_in_a_pause(
        self, hand: Hand, end: Callable[[Consuming, Subscription], None]
    ) -> None:
        """Its leader fell, and the next one delivered again what is here: only the
        rest goes to other consumers.
        """
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 2)
        end(hand.session.consuming, subscription)
        hand.sent()
        hand.deliver(part, 0, 7, attempt=2)
        said = [each.body for each in hand.flush()]
        assert Nack(part.number, [(9 << 16, 5, 7)], 0, False) in said
        assert Ack(part.number, [(9 << 16, 0, 2)]) in said
        assert len([each for each in said if isinstance(each, Ack | Nack)]) == 2
        assert held(part).open_ranges(0, 5) == [(2, 5)]

    def test_what_came_back_from_others_after_a_late_ack_is_shown(self, hand: Hand) -> None:
        """A caller that waits for acks learned that this one is not stored, and
        may have undone the work.
        """
        subscription, place = hand.subscribe(), (9 << 16, [(2, 3)])
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        consuming.ack(held(part), 0, 5)
        (ack,) = hand.flush(Ack)
        hand.answer(ack, Acked([(9 << 16, 2, 4)]))
        assert consuming.too_late(part, *place) == [(2, 3)]
        hand.deliver(part, 2, 2, attempt=2)
        assert take(hand, subscription) == [b"2", b"3"]
        assert bodies(hand, Ack) == []
        consuming.ack(held(part), 2, 4)
        (ack,) = hand.flush(Ack)
        hand.answer(ack, Acked())
        assert consuming.too_late(part, *place) == []

    def test_one_delivery_of_many_that_came_before_is_compared_with_what_is_here_once(
        self, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each record by itself, as those come that failed alone; one of them twice, one acked, one here."""
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 100)
        assert len(take(hand, subscription)) == 100
        hand.session.consuming.nack(held(part), 2, 99, outcomes.failed(0.05, "why"))
        hand.session.consuming.ack(held(part), 0, 1)
        said = hand.flush()
        assert len([each for each in said if isinstance(each.body, Ack)]) == 1
        hand.answer(*(each for each in said if isinstance(each.body, Nack)), Acked())
        looks: list[Part] = []
        look = hand.session.consuming._unanswered
        monkeypatch.setattr(hand.session.consuming, "_unanswered", lambda of: looks.append(of) or look(of))
        raw = [bytes(wire.seal([b"%d" % at])) for at in [*range(100), 50]]
        sizes = map(len, raw)
        slices = [Delivered(9 << 16, at, 1, 2, next(sizes), 10) for at in [*range(100), 50]]
        hand.tell(Deliver(part.number, slices, LEASE_MS), part.shard, batch=b"".join(raw))
        assert take(hand, subscription) == [b"%d" % at for at in range(2, 99)], (
            "0 is acked, 1 and 99 are here"
        )
        assert len(looks) == 1

    def test_what_was_given_back_comes_again(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 3)
        take(hand, subscription)
        hand.session.consuming.nack(held(part), 1, 2, outcomes.failed(0.05, "why"))
        hand.session.consuming.flush()
        (nack,) = hand.sent(Nack)
        assert nack.body == Nack(part.number, [(9 << 16, 1, 2)], 50, True, "why")
        hand.answer(nack, Acked())
        hand.deliver(part, 1, 1, attempt=2)
        assert take(hand, subscription) == [b"1"]

    def test_what_failed_alike_is_told_together(self, hand: Hand) -> None:
        part = hand.subscribe().parts[0]
        hand.deliver(part, 0, 10)
        take(hand, part.subscription)
        consuming, mine, again = hand.session.consuming, held(part), outcomes.failed(None, "why")
        for offset in (1, 2, 7):
            consuming.nack(mine, offset, offset + 1, again)
        consuming.nack(mine, 4, 5, outcomes.rejected("bad"))
        assert not hand.sent(Nack)
        hand.pass_ms(ACK_LINGER_MS)
        told = [each.body for each in hand.sent(Nack)]
        assert told == [
            Nack(part.number, [(9 << 16, 1, 3), (9 << 16, 7, 8)], -1, True, "why"),
            Nack(part.number, [(9 << 16, 4, 5)], -1, True, "bad", "rejected"),
        ]
        consuming.flush()
        assert not hand.sent(Nack)

    def test_one_failure_message_has_as_many_ranges_as_a_node_takes(self, hand: Hand) -> None:
        part = hand.subscribe(credit=(4 * MOVED_RANGES_MAX, 1 << 20)).parts[0]
        hand.deliver(part, 0, 3 * MOVED_RANGES_MAX)
        take(hand, part.subscription)
        for offset in range(0, 3 * MOVED_RANGES_MAX, 2):
            hand.session.consuming.nack(held(part), offset, offset + 1, outcomes.failed(None, "why"))
        hand.session.consuming.flush()
        counts = [len(each.body.ranges) for each in hand.sent(Nack) if isinstance(each.body, Nack)]
        assert counts == [MOVED_RANGES_MAX, MOVED_RANGES_MAX // 2]

    def test_a_failure_that_waits_to_be_told_is_held_at_the_next_leader_and_told_once(
        self, hand: Hand
    ) -> None:
        part = hand.subscribe().parts[0]
        hand.deliver(part, 0, 3)
        take(hand, part.subscription)
        hand.session.consuming.nack(held(part), 1, 2, outcomes.failed(None, "why"))
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        (again,) = hand.held_back
        assert isinstance(again.body, Subscribe)
        assert again.body.holding == [(9 << 16, 0, 3)]
        hand.accept([again])
        hand.session.consuming.flush()
        assert len(hand.sent(Nack)) == 1

    def test_what_is_open_for_a_topic_that_the_next_leader_has_no_more_is_answered(self, hand: Hand) -> None:
        """The topic was removed while its leader changed: no close waits for that."""
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 5)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 2)
        assert len(bodies(hand, Ack)) == 1
        hand.session.disconnected(LEADER)
        hand.up(LEADER, term=2)
        (again,) = hand.held_back
        gone = RefusedMessage(UnknownTopic.code, "no")
        hand.answer(again, gone, term=2)
        assert isinstance(subscription.error, UnknownTopic)
        hand.session.consuming.close(subscription)
        hand.session.farewell()
        hand.session.pump_all()
        asked = []
        while some := [each for each in hand.sent() if each.header.request_id]:
            asked += some
            for each in some:
                hand.answer(each, gone, term=2)
        assert {type(each.body) for each in asked} == {Subscribe, Ack, Nack, Unsubscribe}
        assert hand.session.settled

    def test_a_failure_that_waits_is_told_once_after_a_torn_step(self, hand: Hand) -> None:
        part = hand.subscribe().parts[0]
        hand.deliver(part, 0, 3)
        take(hand, part.subscription)
        hand.session.consuming.nack(held(part), 1, 2, outcomes.failed(None, "why"))
        rebuild(hand.session, Now(hand.now_ms, 1_000_000 + hand.now_ms))
        hand.up(HOME)
        hand.up(LEADER)
        (again,) = [each for each in hand.held_back if isinstance(each.body, Subscribe)]
        assert isinstance(again.body, Subscribe)
        assert again.body.holding == [(9 << 16, 0, 3)]
        hand.accept([again])
        hand.session.consuming.flush()
        assert len(hand.sent(Nack)) == 1

    def test_a_keeper_leaves_acks_that_are_not_due_unless_their_consumer_waits(self, hand: Hand) -> None:
        part = hand.subscribe().parts[0]
        hand.deliver(part, 0, 3)
        take(hand, part.subscription)
        hand.session.consuming.ack(held(part), 0, 1)
        hand.session.consuming.flush(lingering=True)
        assert not hand.sent(Ack)
        hand.session.advance(Now(hand.now_ms + ACK_LINGER_MS, 1_000_000))
        hand.session.consuming.flush(lingering=True)
        assert len(hand.sent(Ack)) == 1
        part.subscription.mode = "exclusive"
        hand.session.consuming.ack(held(part), 1, 2)
        hand.session.consuming.flush(lingering=True)
        assert len(hand.sent(Ack)) == 1

    def test_a_reader_goes_on_where_it_was(self, hand: Hand) -> None:
        subscription = hand.subscribe(group="")
        part = subscription.parts[0]
        hand.deliver(part, 0, 10, lease_ms=0)
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        (again,) = hand.held_back
        assert isinstance(again.body, Subscribe)
        assert (again.body.starts[0].kind, again.body.starts[0].value) == ("offset", 10)
        assert again.body.credit_records == 90
        hand.accept([again])
        hand.deliver(part, 8, 4, lease_ms=0)
        assert take(hand, subscription) == [b"%d" % at for at in range(12)]

    def test_a_reader_that_got_nothing_yet_goes_on_where_it_began(self, hand: Hand) -> None:
        hand.session.links.lane(SHARD)
        hand.up(LEADER)
        subscription = Subscription("", ("new", 0), (10, 1_000), GroupOptions())
        hand.session.consuming.cover(subscription, [TopicInfo(9, "t", 1, TopicConfig(), [SHARD])])
        (asked,) = hand.sent(Subscribe)
        hand.answer(asked, Subscribed(1, 0, [(9 << 16, 17, 17)]))
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        (again,) = hand.held_back
        assert isinstance(again.body, Subscribe)
        assert (again.body.starts[0].kind, again.body.starts[0].value) == ("offset", 17)

    def test_a_reader_begins_at_an_offset_for_each_partition(self, hand: Hand) -> None:
        for shard in (1, 2):
            hand.session.links.lane(shard)
        hand.up(LEADER)
        subscription = Subscription(
            "", ("first", 0), (10, 1_000), GroupOptions(), offsets={"t": {0: 7, 2: 0}}
        )

        def starts(topic: TopicInfo) -> dict[int, tuple[str, int]]:
            hand.session.consuming.cover(subscription, [topic])
            asked = [each.body for each in hand.sent(Subscribe)]
            return {
                start.partition & 0xFFFF: (start.kind, start.value)
                for body in asked
                if isinstance(body, Subscribe)
                for start in body.starts
            }

        info = TopicInfo(9, "t", 1, TopicConfig(3), [1, 2, 1])
        assert starts(info) == {0: ("offset", 7), 1: ("first", 0), 2: ("offset", 0)}
        anew = TopicInfo(10, "t", 1, TopicConfig(), [1])
        assert starts(anew) == {0: ("first", 0)}, "another topic, though of that name"
        assert subscription.error is None

    def test_a_partition_that_is_not_there_is_not_passed_over_in_silence(self, hand: Hand) -> None:
        subscription = Subscription("", ("first", 0), (10, 1_000), GroupOptions(), offsets={"t": {1: 7}})
        hand.session.consuming.cover(subscription, [TopicInfo(9, "t", 1, TopicConfig(), [SHARD])])
        assert isinstance(subscription.error, BadRequest)
        assert "start= names partition 1 of t" in str(subscription.error)

    def test_a_failure_that_was_not_answered_is_still_held_for_its_leader(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 3)
        take(hand, subscription)
        hand.session.consuming.nack(held(part), 1, 2, outcomes.failed(None, "why"))
        hand.sent()
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        (again,) = hand.held_back
        assert isinstance(again.body, Subscribe)
        assert again.body.holding == [(9 << 16, 0, 3)]
        hand.accept([again])
        assert len(hand.sent(Nack)) == 1

    def test_a_broken_batch_goes_back_as_failed(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.tell(Deliver(part.number, [Delivered(9 << 16, 0, 1, 1, 8, 10)], LEASE_MS), batch=b"12345678")
        (nack,) = hand.sent(Nack)
        assert isinstance(nack.body, Nack)
        assert nack.body.failed
        assert hand.session.consuming.warnings
        assert subscription.free()[0] + part.lent_records == 100

    def test_a_reader_says_what_it_passes_over(self, hand: Hand) -> None:
        subscription = hand.subscribe(group="")
        part = subscription.parts[0]
        hand.tell(Deliver(part.number, [Delivered(9 << 16, 3, 2, 1, 8, 10)], 0), batch=b"12345678")
        (warning,) = hand.session.consuming.warnings
        assert warning.startswith("records 3 to 4 of t/0 cannot be opened: batch of 8 bytes")
        assert warning.endswith("; they are passed over")
        assert subscription.error is None

    def test_who_reads_a_whole_range_gets_all_of_it_or_an_error(self, hand: Hand) -> None:
        """An export took these records for removed by an operator."""
        info = hand.subscribe(group="").topics[9]
        reading = Reading(hand.session.consuming, info, {9 << 16: (3, 5)})
        hand.accept(hand.sent(Subscribe))
        part = reading.subscription.parts[0]
        hand.tell(Deliver(part.number, [Delivered(9 << 16, 3, 2, 1, 8, 10)], 0), batch=b"12345678")
        assert reading.ready
        with pytest.raises(BadBatch, match=r"records 3 to 4 of t/0 cannot be opened: batch of 8 bytes"):
            reading.take()

    def test_sizes_that_do_not_fit_are_a_bad_frame(self, hand: Hand) -> None:
        part = hand.subscribe().parts[0]
        hand.tell(Deliver(part.number, [Delivered(9 << 16, 0, 1, 1, 9, 10)], LEASE_MS), batch=b"12345678")
        hand.tell(Deliver(part.number, [], LEASE_MS))
        assert hand.session.bad_frames == 2


class TestModes:
    def test_what_a_subscription_says_of_itself(self, hand: Hand) -> None:
        for shard in (1, 2):
            hand.session.links.lane(shard)
        hand.up(LEADER)
        subscription = Subscription(
            "g",
            ("first", 0),
            (1, 9),
            GroupOptions("exclusive"),
            routes=["eu.*"],
            acks=False,
        )
        hand.session.consuming.cover(subscription, [TopicInfo(9, "t", 1, TopicConfig(2), [2, 1])])
        for each in hand.sent(Subscribe):
            assert isinstance(each.body, Subscribe)
            assert (each.body.routes, each.body.ack, each.body.shards) == (["eu.*"], False, [1, 2])

    def test_an_exclusive_consumer_is_lent_the_next_when_the_one_in_hand_is_done(self, hand: Hand) -> None:
        subscription = hand.subscribe(credit=(1, 1_000), mode="exclusive")
        part, consuming = subscription.parts[0], hand.session.consuming
        for offset in range(3):
            hand.deliver(part, offset, 1)
            assert take(hand, subscription) == [b"%d" % offset]
            assert hand.flush() == []
            if offset == 1:
                consuming.nack(held(part), offset, offset + 1, outcomes.failed("1h", ""))
            else:
                consuming.ack(held(part), offset, offset + 1)
            assert [type(each.body) for each in hand.flush()] == [Nack if offset == 1 else Ack, Credit]

    def test_the_mode_of_a_group_is_learnt_from_its_leader(self, hand: Hand) -> None:
        hand.session.links.lane(SHARD)
        hand.up(LEADER)
        subscription = Subscription("g", ("first", 0), (10, 1_000), GroupOptions())
        hand.session.consuming.cover(subscription, [TopicInfo(9, "t", 1, TopicConfig(), [SHARD])])
        (asked,) = hand.sent(Subscribe)
        assert not subscription.key_ordered
        hand.answer(asked, Subscribed(1, LEASE_MS, [], "", "key_ordered"))
        assert subscription.key_ordered

    def test_at_most_once_is_never_acked_nor_given_back(self, hand: Hand) -> None:
        subscription = hand.subscribe(acks=False)
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 10, attempt=2, lease_ms=0)
        front = consuming.front(subscription)
        assert front is not None
        assert len(take(hand, subscription, 4)) == 4
        consuming.ack(front, 0, 1)
        consuming.nack(front, 1, 2, outcomes.failed(None, "no"))
        assert consuming.extend(front, 2, 9) is None
        hand.tell(Deliver(part.number, [Delivered(9 << 16, 20, 1, 1, 8, 10)], 0), batch=b"12345678")
        hand.pass_ms(10 * LEASE_MS)
        consuming.close(subscription)
        assert {type(each.body) for each in hand.flush()} <= {Subscribe, Unsubscribe, Hello, Ping, Credit}


class TestAttempts:
    def test_the_first_costs_nothing_and_later_ones_are_told_of_as_they_begin(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        take(hand, subscription)
        hand.session.consuming.ack(held(part), 0, 10)
        assert hand.sent(Started) == []
        hand.deliver(part, 20, 10, attempt=3)
        assert hand.sent(Started) == []
        take(hand, subscription, 4)
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, [(9 << 16, 20, 24)])]

    def test_one_that_may_have_killed_a_consumer_before_is_told_of_as_it_begins(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 20, 10, again=True)
        take(hand, subscription, 4)
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, [(9 << 16, 20, 24)])]

    @pytest.mark.parametrize("attempt", [1, 2])
    def test_one_in_hand_for_a_while_is_told_of_once(self, hand: Hand, attempt: int) -> None:
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        for first in range(0, 60, 10):
            hand.deliver(part, first, 1, attempt=attempt)
            (piece,) = consuming.take(subscription, 1)
            if first == 20:
                consuming.ack(piece.held, first, first + 1)
            elif first == 30:
                consuming.nack(piece.held, first, first + 1, outcomes.failed(None, "no"))
        hand.pass_ms(HAND_MS)
        assert hand.sent(Started) == [], "they may be done in a moment"
        hand.pass_ms(HAND_MS)
        begun = [(9 << 16, first, first + 1) for first in (0, 10, 40, 50)]
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, begun)]
        hand.pass_ms(HAND_MS)
        assert hand.sent(Started) == []

    def test_what_a_loop_begins_with_later_is_told_of_too(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 10)
        slice_ = consuming.front(subscription)
        assert slice_ is not None
        for offset in range(3):
            slice_.taken = offset + 1
            assert part not in consuming.hands, "a loop that finds it there says nothing"
            consuming.begin(slice_, offset, offset + 1)
            assert consuming.unminded
            hand.pass_ms(HAND_MS)
            assert not consuming.unminded
            hand.pass_ms(HAND_MS)
            begun = [(9 << 16, offset, offset + 1)]
            assert [each.body for each in hand.sent(Started)] == [Started(part.number, begun)]

    def test_what_goes_back_from_user_code_has_been_an_attempt(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 10)
        take(hand, subscription, 4)
        consuming.nack(held(part), 1, 6)
        assert [each.body for each in hand.sent()] == [
            Started(part.number, [(9 << 16, 1, 4)]),
            Nack(part.number, [(9 << 16, 1, 6)], 0, False),
        ]

    def test_a_new_leader_is_told_of_what_is_in_hand(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        take(hand, subscription, 4)
        hand.pass_ms(HAND_MS)
        hand.pass_ms(HAND_MS)
        assert len(hand.sent(Started)) == 1
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        hand.accept(hand.held_back)
        hand.pass_ms(HAND_MS)
        hand.pass_ms(HAND_MS)
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, [(9 << 16, 0, 4)])]

    def test_a_leader_that_did_not_know_the_subscription_is_told_when_it_does(self, hand: Hand) -> None:
        """It refuses a STARTED that comes before its SUBSCRIBED."""
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 10)
        take(hand, subscription, 4)
        hand.pass_ms(HAND_MS)
        hand.pass_ms(HAND_MS)
        hand.session.disconnected(LEADER)
        hand.sent()
        hand.up(LEADER)
        asked = [each for each in hand.held_back if isinstance(each.body, Subscribe)]
        hand.pass_ms(HAND_MS)
        hand.pass_ms(HAND_MS)
        hand.sent()
        hand.accept(asked)
        hand.pass_ms(HAND_MS)
        hand.pass_ms(HAND_MS)
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, [(9 << 16, 0, 4)])]

    def test_a_lost_way_is_no_reason_to_wait(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 10, attempt=2)
        hand.session.disconnected(LEADER)
        assert len(take(hand, subscription)) == 10
        assert hand.sent(Started) == []

    def test_a_lease_of_its_own_is_extended_by_its_own_length(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 2)
        hand.deliver(part, 5, 1, lease_ms=1_000)
        take(hand, subscription)
        hand.pass_ms(500)
        (asked,) = hand.sent(Extend)
        assert asked.body == Extend(part.number, [(9 << 16, 5, 6)], 1_000)


class TestSteps:
    def test_a_step_that_is_done_was_the_ack(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 1)
        take(hand, subscription)
        consuming.stepped(held(part), 0, None)
        assert not part.outstanding
        assert bodies(hand, Ack) == []

    def test_one_that_was_refused_is_a_failure_and_a_lost_lease_is_lost(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 2)
        take(hand, subscription)
        mine = held(part)
        consuming.stepped(mine, 0, TopicFull("no room"))
        consuming.flush()
        (nack,) = hand.sent(Nack)
        assert nack.body == Nack(part.number, [(9 << 16, 0, 1)], -1, True, "TopicFull: no room")
        consuming.stepped(mine, 1, LeaseLost("late"))
        assert (hand.sent(Nack), mine.is_lost(1), part.outstanding) == ([], True, {})


class TestEnds:
    def test_at_end_when_all_parts_are_and_nothing_waits_here(self, hand: Hand) -> None:
        subscription = hand.subscribe(shards=(1, 2))
        first, second = subscription.parts
        hand.tell(AtEnd(first.number, [(9 << 16, 5, 5)]), 1)
        assert not subscription.finished
        hand.deliver(first, 0, 5)
        hand.tell(AtEnd(second.number, []), 2)
        assert not subscription.finished
        take(hand, subscription)
        assert subscription.finished
        hand.deliver(first, 5, 1)
        take(hand, subscription)
        assert not subscription.finished

    def test_close_gives_back_and_waits_for_what_is_in_hand(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 10)
        take(hand, subscription, 4)
        consuming.close(subscription)
        assert [type(each.body) for each in hand.flush()] == [Nack, Subscribe]
        hand.deliver(part, 10, 5)
        assert [each.body for each in hand.sent(Nack)] == [Nack(part.number, [(9 << 16, 10, 15)], 0, False)]
        consuming.ack(held(part), 0, 4)
        (ack,) = hand.flush()
        assert isinstance(ack.body, Ack)
        for message in list(hand.session.calls.unanswered()):
            assert isinstance(message, Ack | Nack), "until all of it is answered the subscription lives"
        for call in list(hand.session.calls._sent.values()):
            hand.session.calls.answered(call.request_id, Acked())
        assert [type(each.body) for each in hand.sent()] == [Unsubscribe]
        assert hand.session.deadline_ms() > hand.now_ms
        assert consuming.deadline_ms() is None

    def test_a_refused_ack_is_remembered_until_its_record_is_stored(self, hand: Hand) -> None:
        part, consuming = hand.subscribe().parts[0], hand.session.consuming
        hand.deliver(part, 0, 10)
        take(hand, part.subscription, 10)
        consuming.ack(held(part), 0, 4)
        (ack,) = hand.flush()
        hand.refuse(ack, "internal")
        assert consuming.told(part, 9 << 16, [(0, 10)])
        assert type(consuming.refused_ack(part, 9 << 16, [(3, 4)])) is Internal
        assert consuming.refused_ack(part, 9 << 16, [(4, 5)]) is None
        hand.deliver(part, 2, 1, attempt=2)
        take(hand, part.subscription, 1)
        consuming.ack(list(part.outstanding)[-1], 2, 3)
        (ack,) = hand.flush()
        hand.answer(ack, Acked())
        assert consuming.refused_ack(part, 9 << 16, [(2, 3)]) is None
        assert consuming.refused_ack(part, 9 << 16, [(1, 4)]) is not None

    def test_a_farewell_gives_back_what_is_in_hand(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 10, attempt=2)
        take(hand, subscription, 4)
        hand.session.consuming.ack(held(subscription.parts[0]), 0, 2)
        hand.sent()
        hand.session.farewell()
        sent = [each.body for each in hand.sent()]
        number = subscription.parts[0].number
        assert sent[:2] == [
            Started(number, [(9 << 16, 2, 4)]),
            Nack(number, [(9 << 16, 2, 10)], 0, False),
        ], "two of them have begun, which makes an attempt of it"
        assert [type(each) for each in sent[2:]] == [Ack, Bye, Bye]

    @pytest.mark.parametrize("taken", [1, 2])
    def test_who_waits_for_the_end_waits_for_what_still_arrives_and_not_for_the_user(
        self, hand: Hand, taken: int
    ) -> None:
        """The loan stands until the subscription ends: what was given back comes once more. Of two records
        taken one is acked."""
        subscription = hand.subscribe()
        part, consuming = subscription.parts[0], hand.session.consuming
        hand.deliver(part, 0, 3)
        take(hand, subscription, taken)
        consuming.ack(held(part), 0, 1)
        (ack,) = hand.flush(Ack)
        consuming.close(subscription)
        (given,) = hand.sent(Nack)
        passed = hand.session.mark()
        hand.answer(given, Acked())
        hand.deliver(part, 2, 1, attempt=2)
        (again,) = hand.sent(Nack)
        hand.answer(ack, Acked())
        if taken == 2:
            assert passed(), "the user has one of them"
            return
        assert not passed(), "the subscription lives"
        hand.answer(again, Acked())
        assert not passed()
        (end,) = hand.sent(Unsubscribe)
        hand.answer(end, Acked())
        assert passed()

    def test_close_with_nothing_in_hand(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.session.consuming.close(subscription)
        assert [type(each.body) for each in hand.flush()] == [Unsubscribe]


class TestTopics:
    def test_patterns_are_looked_up_again(self, hand: Hand) -> None:
        subscription = Subscription("g", ("first", 0), (10, 1_000), hand.subscribe().options, names=["a.*"])
        hand.session.subscribe(subscription)
        (asked,) = hand.welcome()
        assert asked.body == Resolve(["a.*"], False)
        hand.answer(asked, Topics([]))
        hand.pass_ms(3_000)
        (asked,) = hand.sent(Resolve)
        hand.answer(asked, Topics([TopicInfo(11, "a.b", 1, TopicConfig(2), [SHARD, SHARD])]))
        (joined,) = hand.sent(Subscribe)
        assert isinstance(joined.body, Subscribe)
        assert [start.partition for start in joined.body.starts] == [11 << 16, (11 << 16) + 1]
        hand.pass_ms(3_000)
        (asked,) = hand.sent(Resolve)
        hand.answer(asked, Topics([TopicInfo(11, "a.b", 1, TopicConfig(2), [SHARD, SHARD])]))
        assert hand.sent(Subscribe) == []

    def test_a_virtual_topic_holds_nothing(self, hand: Hand) -> None:
        hand.subscribe()
        virtual = TopicInfo(11, "a.all", 1, TopicConfig(virtual=["a.b", "a.c"]), [])
        for name, error in (("a.all", "bad_request"), ("a.*", None)):
            subscription = Subscription("g", ("first", 0), (10, 1_000), GroupOptions(), names=[name])
            hand.session.subscribe(subscription)
            (asked,) = hand.welcome() or hand.sent(Resolve)
            hand.answer(asked, Topics([virtual]))
            assert (subscription.error.code if subscription.error else None) == error
        assert hand.sent(Subscribe) == []

    def test_a_refused_subscription_says_so(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.session.disconnected(LEADER)
        hand.up(LEADER)
        (asked,) = hand.held_back
        hand.refuse(asked, "busy", retry_after_ms=20)
        hand.pass_ms(20)
        (asked,) = hand.sent(Subscribe)
        hand.refuse(asked, "offset_out_of_range")
        assert subscription.error is not None
        assert subscription.error.code == "offset_out_of_range"


def test_range_arithmetic() -> None:
    assert subtract([(0, 10)], [[2, 3], [5, 7]]) == [(0, 2), (3, 5), (7, 10)]
    assert subtract([(0, 10)], [[0, 10]]) == []
    assert merge([(1, 5, 9), (1, 0, 5), (2, 9, 10), (1, 3, 4)]) == [(1, 0, 9), (2, 9, 10)]
    assert WINDOW_BATCHES < 128


def test_what_a_subscription_costs_does_not_grow_with_those_that_have_nothing_to_do(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exchange looked at all parts: a client that took up 10,000 topics one by one did not end."""
    subscription = Subscription("g", ("first", 0), CREDIT, GroupOptions(), True, [])
    hand.session.links.lane(SHARD)
    hand.up(LEADER)
    topics = [TopicInfo(at, f"t{at}", 1, TopicConfig(), [SHARD]) for at in range(1, 1_001)]
    hand.session.consuming.cover(subscription, topics)
    hand.accept(hand.sent(Subscribe))
    looked, listen = list[int](), Consuming._listen
    monkeypatch.setattr(Consuming, "_listen", lambda room, part: looked.append(1) or listen(room, part))
    hand.pass_ms(100)
    looked.clear()
    for _ in range(60):
        hand.session.tick()
        hand.session.deadline_ms()
        hand.now_ms += 1
        hand.session.advance(Now(hand.now_ms, 1_000_000 + hand.now_ms))
    assert len(looked) <= 2_000
    looked.clear()
    hand.session.disconnected(LEADER)
    hand.up(LEADER)
    again = hand.held_back
    assert len(again) == 1_000, "a new way is used at once"


class TestADeliveryThatAClaimOvertook:
    """The leader does not find its records in the claim, and gives them to another consumer."""

    @pytest.fixture
    def claimed(self, hand: Hand) -> tuple[Hand, Subscription, Sent]:
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 2)
        hand.session.disconnected(LEADER)
        hand.session.connected(LEADER)
        hand.welcome()
        (asked,) = [each for each in hand.held_back if isinstance(each.body, Subscribe)]
        assert asked.body.holding == [(9 << 16, 0, 2)]
        return hand, subscription, asked

    def test_is_ignored_until_the_claim_is_answered(self, claimed: tuple[Hand, Subscription, Sent]) -> None:
        hand, subscription, asked = claimed
        hand.deliver(subscription.parts[0], 2, 2)
        assert subscription.untaken_records == 2
        hand.accept([asked])
        hand.deliver(subscription.parts[0], 2, 2)
        assert subscription.untaken_records == 4

    def test_is_ignored_if_it_comes_late_by_another_way(
        self, claimed: tuple[Hand, Subscription, Sent]
    ) -> None:
        """It was forwarded by a frontdoor, and the claim went to the leader directly."""
        hand, subscription, asked = claimed
        hand.accept([asked])
        hand.leader = HOME
        hand.deliver(subscription.parts[0], 2, 2)
        assert subscription.untaken_records == 2

    def test_is_taken_without_acks_because_no_other_consumer_gets_it(self, hand: Hand) -> None:
        subscription = hand.subscribe(acks=False)
        hand.session.disconnected(LEADER)
        hand.session.connected(LEADER)
        hand.welcome()
        hand.deliver(subscription.parts[0], 0, 2)
        assert subscription.untaken_records == 2


class TestASubscribeWithoutAnAnswer:
    """A frontdoor that is full may have dropped it, or its answer."""

    @staticmethod
    def asked(hand: Hand, ms: int) -> list[Subscribe]:
        hand.pass_ms(ms)
        return [each.body for each in hand.sent(Subscribe) if isinstance(each.body, Subscribe)]

    @staticmethod
    def reconnect(hand: Hand) -> list[Sent]:
        hand.session.disconnected(LEADER)
        hand.session.connected(LEADER)
        hand.welcome()
        return [each for each in hand.held_back if isinstance(each.body, Subscribe)]

    def test_is_sent_again_with_its_claim_and_only_its_own_answer_counts(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        part = subscription.parts[0]
        hand.deliver(part, 0, 2)
        (first,) = self.reconnect(hand)
        assert self.asked(hand, SUBSCRIBE_AGAIN_MS - 1) == []
        hand.deliver(part, 2, 2)
        hand.pass_ms(1)
        (again,) = hand.sent(Subscribe)
        assert again.body == first.body
        hand.accept([first])
        hand.deliver(part, 2, 2)
        assert subscription.untaken_records == 2, "the second claim gives back what the first one allowed"
        hand.accept([again])
        hand.deliver(part, 2, 2)
        assert subscription.untaken_records == 4
        assert self.asked(hand, 2 * SUBSCRIBE_AGAIN_MS) == []

    def test_is_sent_again_less_and_less_often(self, hand: Hand) -> None:
        hand.subscribe()
        self.reconnect(hand)
        waits_ms = [SUBSCRIBE_AGAIN_MS * 2**times for times in range(4)]
        for wait_ms in [*waits_ms, SUBSCRIBE_AGAIN_MAX_MS, SUBSCRIBE_AGAIN_MAX_MS]:
            assert self.asked(hand, wait_ms - 1) == []
            assert len(self.asked(hand, 1)) == 1

    def test_is_sent_again_by_a_client_that_waits_for_nothing_else(self, hand: Hand) -> None:
        hand.subscribe()
        self.reconnect(hand)
        hand.sent()
        assert hand.session.consuming.deadline_ms() == hand.now_ms + SUBSCRIBE_AGAIN_MS

    def test_waits_for_a_connection_and_wakes_nobody_meanwhile(self, hand: Hand) -> None:
        hand.subscribe()
        self.reconnect(hand)
        hand.session.disconnected(LEADER)
        assert self.asked(hand, SUBSCRIBE_AGAIN_MS) == []
        assert hand.session.consuming.deadline_ms() is None

    def test_that_changes_credit_is_sent_again_and_claims_nothing(self, hand: Hand) -> None:
        """Its records are given back at the same time, and a claim would take them back."""
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 2)
        hand.session.consuming.pause(subscription)
        assert [each.body.holding for each in hand.sent(Subscribe)] == [None]
        assert [each.holding for each in self.asked(hand, SUBSCRIBE_AGAIN_MS)] == [None]

    def test_of_a_reader_goes_on_behind_what_came(self, hand: Hand) -> None:
        subscription = hand.subscribe(group="")
        self.reconnect(hand)
        hand.deliver(subscription.parts[0], 0, 2)
        (again,) = self.asked(hand, SUBSCRIBE_AGAIN_MS)
        assert (again.holding, again.starts) == (None, [Start(9 << 16, "offset", 2)])
        assert subscription.untaken_records == 2

    def test_a_pause_before_the_answer_keeps_the_claim(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 2)
        self.reconnect(hand)
        hand.session.consuming.pause(subscription)
        (again,) = hand.sent(Subscribe)
        assert again.body.holding == [(9 << 16, 0, 2)], "the NACK of these is behind it"
        hand.deliver(subscription.parts[0], 2, 2)
        assert subscription.untaken_records == 0
        hand.accept([again])
        assert len(hand.sent(Nack)) == 1
