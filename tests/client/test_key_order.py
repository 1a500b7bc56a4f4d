"""Key-ordered groups: those of one key one after the other, over all workers, also when one of them fails."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.hand import HOME, LEADER, Hand
from gossipq.messages import Acked, Credit, Nack, Started, Subscribe
from gossipq.types import Now
from gossipq_client.handlers.lanes import Lanes
from gossipq_client.session.credit import Part
from gossipq_client.session.held import Held
from gossipq_client.session.renewal import rebuild
from gossipq_client.values import outcomes

PARTITION = 9 << 16
FAILED = outcomes.failed("1s", "no")


@pytest.fixture
def hand() -> Hand:
    return Hand()


def ordered(hand: Hand, credit: int = 100) -> tuple[Part, Lanes]:
    subscription = hand.subscribe(credit=(credit, 100_000), mode="key_ordered")
    return subscription.parts[0], Lanes(hand.session.consuming, subscription)


def drain(lanes: Lanes) -> list[int]:
    found = []
    while (item := lanes.take()) is not None:
        found.append(item[1])
    return found


def held(part: Part) -> Held:
    return next(iter(part.outstanding))


def nacks(hand: Hand) -> list[Nack]:
    return [each.body for each in hand.sent(Nack) if isinstance(each.body, Nack)]


class TestFailures:
    def test_later_records_of_the_key_go_back_uncounted_before_it(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 6, keys=[b"a", b"b", b"a", b"c", b"a", b"b"])
        hand.session.consuming.take(part.subscription, 2)
        hand.session.consuming.nack(held(part), 0, 1, FAILED)
        given_back, failed = nacks(hand)
        assert (given_back.ranges, given_back.failed, given_back.delay_ms) == (
            [(PARTITION, 2, 3), (PARTITION, 4, 5)],
            False,
            0,
        )
        assert (failed.ranges, failed.failed, failed.delay_ms) == ([(PARTITION, 0, 1)], True, 1_000)
        assert [(piece.first, piece.end) for piece in pieces_at(hand, part, 9)] == [(3, 4), (5, 6)]

    def test_also_those_that_were_sent_before_the_leader_has_answered(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 1, keys=[b"a"])
        hand.session.consuming.take(part.subscription, 1)
        hand.session.consuming.nack(held(part), 0, 1, FAILED)
        (asked,) = hand.sent(Nack)
        hand.deliver(part, 1, 3, keys=[b"a", b"b", b"a"])
        (later,) = hand.sent(Nack)
        assert later.body == Nack(part.number, [(PARTITION, 1, 2), (PARTITION, 3, 4)], 0, False)
        hand.answer(asked, Acked())
        hand.answer(later, Acked())
        hand.deliver(part, 0, 2, attempt=2, keys=[b"a", b"a"])
        assert [(p.first, p.end) for p in pieces_at(hand, part, 9)] == [(2, 3), (0, 2)]
        assert part.barred == {}

    def test_also_those_that_come_after_an_interrupt_before_the_leader_has_answered(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 1, keys=[b"a"])
        hand.session.consuming.take(part.subscription, 1)
        hand.session.consuming.nack(held(part), 0, 1, FAILED)
        rebuild(hand.session, Now(hand.now_ms, 1_000_000 + hand.now_ms))
        hand.up(HOME)
        hand.up(LEADER)
        hand.accept([each for each in hand.held_back if isinstance(each.body, Subscribe)])
        (again,) = hand.sent(Nack)
        hand.deliver(part, 1, 1, keys=[b"a"])
        (later,) = hand.sent(Nack)
        assert later.body == Nack(part.number, [(PARTITION, 1, 2)], 0, False)
        hand.answer(again, Acked())
        hand.answer(later, Acked())
        assert part.barred == {}

    def test_what_is_behind_a_failure_that_was_interrupted_comes_again_with_it(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 4, keys=[b"a", b"b", b"a", b"b"])
        hand.session.consuming.take(part.subscription, 2)
        held(part).finish(0, 1)  # the half of a `nack` that was done
        rebuild(hand.session, Now(hand.now_ms, 1_000_000 + hand.now_ms))
        hand.up(HOME)
        hand.up(LEADER)
        (again,) = [each.body for each in hand.held_back if isinstance(each.body, Subscribe)]
        assert again.holding == [(PARTITION, 1, 2)]
        assert not hand.session.consuming.take(part.subscription, 9)

    def test_a_pause_in_the_middle_loses_no_order(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 3, keys=[b"a"] * 3)
        hand.session.consuming.take(part.subscription, 1)
        hand.session.consuming.pause(part.subscription)
        hand.session.consuming.resume(part.subscription)
        hand.deliver(part, 3, 1, keys=[b"a"])
        assert [each.ranges for each in nacks(hand)] == [[(PARTITION, 1, 3)], [(PARTITION, 3, 4)]]

    def test_a_dead_letter_holds_back_nobody(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 2, keys=[b"a", b"a"])
        hand.session.consuming.take(part.subscription, 1)
        hand.session.consuming.nack(held(part), 0, 1, outcomes.rejected("bad"))
        assert len(nacks(hand)) == 1
        assert len(pieces_at(hand, part, 9)) == 1

    def test_records_without_a_key_and_other_modes_are_left_alone(self, hand: Hand) -> None:
        part, _ = ordered(hand)
        hand.deliver(part, 0, 3)
        hand.session.consuming.take(part.subscription, 1)
        hand.session.consuming.nack(held(part), 0, 1, FAILED)
        assert len(nacks(hand)) == 1
        shared = hand.subscribe().parts[0]
        hand.deliver(shared, 0, 3, keys=[b"a"] * 3)
        hand.session.consuming.nack(held(shared), 0, 1, FAILED)
        hand.session.consuming.flush()
        assert len(nacks(hand)) == 1


def pieces_at(hand: Hand, part: Part, count: int) -> list:
    return hand.session.consuming.take(part.subscription, count)


class TestLanes:
    def test_one_of_a_key_at_a_time(self, hand: Hand) -> None:
        part, lanes = ordered(hand)
        hand.deliver(part, 0, 6, keys=[b"a", b"a", b"b", b"a", b"c", b"b"])
        assert drain(lanes) == [0, 2, 4]
        assert not lanes.empty
        lanes.done(held(part), 2)
        assert drain(lanes) == [5]
        lanes.done(held(part), 0)
        assert drain(lanes) == [1]
        lanes.done(held(part), 1)
        lanes.done(held(part), 5)
        assert drain(lanes) == [3]
        assert lanes.empty

    def test_a_failure_empties_its_lane(self, hand: Hand) -> None:
        part, lanes = ordered(hand)
        hand.deliver(part, 0, 4, keys=[b"a", b"a", b"b", b"a"])
        assert drain(lanes) == [0, 2]
        hand.session.consuming.nack(held(part), 0, 1, FAILED)
        lanes.done(held(part), 0)
        assert drain(lanes) == []
        assert lanes.empty

    def test_other_modes_do_not_wait(self, hand: Hand) -> None:
        subscription = hand.subscribe()
        hand.deliver(subscription.parts[0], 0, 4, keys=[b"a"] * 4)
        assert drain(Lanes(hand.session.consuming, subscription)) == [0, 1, 2, 3]

    def test_no_more_waits_than_was_lent(self, hand: Hand) -> None:
        part, lanes = ordered(hand, credit=4)
        hand.deliver(part, 0, 4, keys=[b"a"] * 4)
        assert drain(lanes) == [0]
        hand.deliver(part, 4, 3, keys=[b"a", b"b", b"b"])
        assert drain(lanes) == []
        hand.flush()
        hand.deliver(part, 7, 1)
        assert not lanes.more
        assert hand.flush(Credit) == []
        lanes.done(held(part), 0)
        assert drain(lanes) == [1, 5]
        lanes.done(held(part), 1)
        assert drain(lanes) == [2, 7]

    def test_what_waits_goes_back_at_the_end(self, hand: Hand) -> None:
        part, lanes = ordered(hand)
        hand.deliver(part, 0, 3, keys=[b"a", b"a", b"b"])
        item = lanes.take()
        assert item is not None
        assert lanes.take() is not None
        lanes.done(*item)
        lanes.give_back()
        assert [each.ranges for each in nacks(hand)] == [[(PARTITION, 1, 2)]]
        assert lanes.empty

    def test_a_later_attempt_is_told_of_when_it_begins(self, hand: Hand) -> None:
        part, lanes = ordered(hand)
        hand.deliver(part, 0, 2, attempt=3, keys=[b"a", b"a"])
        assert drain(lanes) == [0]
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, [(PARTITION, 0, 1)])]
        lanes.done(held(part), 0)
        assert drain(lanes) == [1]
        assert [each.body for each in hand.sent(Started)] == [Started(part.number, [(PARTITION, 1, 2)])]


class Leader:
    """Plays the leader of a key-ordered group with one consumer: delivers in order, takes
    records back, answers late.
    """

    def __init__(self, hand: Hand, part: Part, keys: list[bytes], chance: random.Random) -> None:
        self.hand, self.part, self.keys, self.chance = hand, part, keys, chance
        self.ready = list(range(len(keys)))
        self.attempts = [0] * len(keys)
        self.unanswered: list = []

    def hand_out(self) -> None:
        """Neighbours as one slice, as the credit allows."""
        while self.ready and self.chance.random() < 0.7:
            first = self.ready.pop(0)
            self.attempts[first] += 1
            self.hand.deliver(self.part, first, 1, self.attempts[first], keys=[self.keys[first]])

    def listen(self) -> None:
        """Reads what was sent; answers late."""
        self.unanswered += self.hand.sent(Nack)
        while self.unanswered and self.chance.random() < 0.6:
            sent = self.unanswered.pop(0)
            self.ready = sorted([*self.ready, *(at for _, a, b in sent.body.ranges for at in range(a, b))])
            self.hand.answer(sent, Acked())


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=25),
    st.integers(0, 2**32),
    st.integers(1, 5),
)
def test_whatever_fails_each_key_ends_in_order(keys: list[bytes], seed: int, workers: int) -> None:
    chance, hand = random.Random(seed), Hand()
    part, lanes = ordered(hand)
    leader = Leader(hand, part, keys, chance)
    running: list[tuple[Held, int]] = []
    done: list[int] = []
    for _ in range(3_000):
        leader.hand_out()
        while len(running) < workers and (item := lanes.take()) is not None:
            assert keys[item[1]] not in [keys[offset] for _, offset in running], "two of one key at a time"
            running.append(item)
        if running:
            item = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.3:
                hand.session.consuming.nack(item[0], item[1], item[1] + 1, FAILED)
            else:
                done.append(item[1])
                hand.session.consuming.ack(item[0], item[1], item[1] + 1)
            lanes.done(*item)
        leader.listen()
        if len(done) == len(keys):
            break
    for key in set(keys):
        assert [at for at in done if keys[at] == key] == [at for at, each in enumerate(keys) if each == key]
