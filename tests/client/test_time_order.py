"""Reading partitions in the order of publish time: the order itself, by properties, and a reader of a real
node."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.hand import LEADER, Hand
from gossipq.errors import BadRequest
from gossipq.messages import AtEnd, Deliver, Subscribe
from gossipq.values import Delivered, GroupOptions, TopicConfig, TopicInfo
from gossipq.wire import batch as wire
from gossipq_client.session import reading
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.time_order import TimeOrder

LATE_AFTER_MS = 100
PARTITIONS = (0, 1, 2)


def walked(arrivals, late_after_ms=LATE_AFTER_MS):
    """(left at, publish time, partition, number, late) of all, by a reader that looks each millisecond.
    `arrivals`: (arrives at, publish time, partition), in order."""
    order, left, coming = TimeOrder(late_after_ms), [], deque(enumerate(arrivals))
    now_ms = 0
    while coming or order:
        while coming and coming[0][1][0] <= now_ms:
            number, (_, publish_ms, partition) = coming.popleft()
            order.add(partition, publish_ms, (publish_ms, partition, number), now_ms)
        while (found := order.next(PARTITIONS, now_ms)) is not None:
            left.append((now_ms, *found[0], found[1]))
        due_ms = order.due_ms(PARTITIONS)
        assert (due_ms is None) == (not order)
        assert due_ms is None or due_ms > now_ms, "it sleeps until it has something to do"
        nexts = [at for at in (due_ms, coming[0][1][0] if coming else None) if at is not None]
        now_ms = min(nexts, default=now_ms)
    return left


@st.composite
def lives(draw, lag_ms_max):
    """Records with rising publish times within each partition; each arrives some time after it was published,
    behind those of its partition."""
    found = []
    for partition in PARTITIONS:
        publish_ms = arrives_ms = 0
        for _ in range(draw(st.integers(0, 12))):
            publish_ms += draw(st.integers(0, 60))
            arrives_ms = max(arrives_ms, publish_ms + draw(st.integers(0, lag_ms_max)))
            found.append((arrives_ms, publish_ms, partition))
    return sorted(found)


@given(lives(lag_ms_max=5 * LATE_AFTER_MS))
@settings(max_examples=300, deadline=None)
def test_everything_comes_once_and_what_is_not_late_is_in_order(arrivals):
    left = walked(arrivals)
    assert sorted(number for _, _, _, number, _ in left) == list(range(len(arrivals)))
    for partition in PARTITIONS:
        numbers = [number for _, _, of, number, _ in left if of == partition]
        assert numbers == sorted(numbers), "each partition keeps its order"
    highest = 0
    for _, publish_ms, _, _, late in left:
        assert late == (publish_ms < highest), "what is late says so, and nothing else"
        highest = max(highest, publish_ms)


@given(lives(lag_ms_max=LATE_AFTER_MS))
@settings(max_examples=300, deadline=None)
def test_what_comes_within_the_bound_is_in_order(arrivals):
    assert not any(late for *_, late in walked(arrivals))


@given(lives(lag_ms_max=3 * LATE_AFTER_MS))
@settings(max_examples=300, deadline=None)
def test_nothing_waits_longer_than_the_bound_for_each_partition(arrivals):
    for left_ms, _, _, number, _ in walked(arrivals):
        ahead = [each for each in arrivals if each[1] <= arrivals[number][1]]
        newest_ms = max(each[0] for each in ahead)
        assert left_ms <= max(newest_ms, arrivals[number][0]) + len(PARTITIONS) * LATE_AFTER_MS


def test_a_partition_that_has_just_run_dry_is_waited_for_though_the_others_are_old():
    order = TimeOrder(LATE_AFTER_MS)
    order.add(0, 1, "first", 0)
    order.add(1, 2, "second", 0)
    assert order.next((0, 1), 5_000) == ("first", False)
    assert order.next((0, 1), 5_099) is None
    order.add(0, 1, "third", 5_099)
    assert order.next((0, 1), 5_099) == ("third", False)
    assert order.next((0, 1), 5_199) == ("second", False)


def test_partitions_that_bring_nothing_more_are_not_waited_for():
    order = TimeOrder(LATE_AFTER_MS)
    order.add(0, 1, "first", 0)
    assert order.next((), 0) == ("first", False)
    assert order.due_ms(()) is None


class Reader:
    """A reader of three partitions in two shards."""

    def __init__(self, credit=(30, 30_000)) -> None:
        self.hand = Hand()
        self.state = Subscription(
            "", ("first", 0), credit, GroupOptions(), True, ["t"], late_after_ms=LATE_AFTER_MS
        )
        for shard in (1, 2):
            self.hand.session.links.lane(shard)
        self.hand.up(LEADER)
        topic = TopicInfo(9, "t", 1, TopicConfig(3), [1, 2, 1])
        self.hand.session.consuming.cover(self.state, [topic])
        self.hand.accept(self.hand.sent(Subscribe))

    def part(self, partition: int) -> Part:
        return next(each for each in self.state.parts if min(each.starts) & 0xFFFF == partition)

    def deliver(self, partition: int, offset: int, values: list[bytes], publish_ms: int) -> None:
        part, raw = self.part(partition), bytes(wire.seal(values, publish_ms=publish_ms))
        piece = Delivered(min(part.starts), offset, len(values), 1, len(raw), 10 * len(values))
        self.hand.tell(Deliver(part.number, [piece], 0), part.shard, batch=raw)

    def take(self) -> list[bytes]:
        pieces = self.hand.session.consuming.take(self.state, 1_000)
        return [value for piece in pieces for value in piece.values()]


def test_a_reader_has_a_loan_at_each_partition():
    reader = Reader()
    assert [part.lent_records for part in reader.state.parts] == [10, 10, 10]
    assert len({part.number for part in reader.state.parts}) == 3


def test_a_reader_gets_what_was_published_first_and_ends_with_all_of_them():
    reader = Reader()
    reader.deliver(0, 0, [b"b", b"c"], 20)
    assert reader.take() == []
    reader.deliver(1, 0, [b"a"], 10)
    reader.deliver(2, 0, [b"d"], 30)
    assert reader.take() == [b"a"], "partition 1 may bring something before 20"
    for part in reader.state.parts:
        assert not reader.state.finished
        ends = [(key, 5, 5) for key in part.starts]
        reader.hand.tell(AtEnd(part.number, ends), part.shard)
    assert reader.take() == [b"b", b"c", b"d"]
    assert reader.state.finished


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "size"}, "order='size'"),
        ({"late_after": "1s"}, "late_after= without an order"),
        ({"order": "fair"}, "a group has the orders"),
    ],
)
def test_what_makes_no_sense_is_refused(options, says):
    with pytest.raises(BadRequest, match=says):
        reading("orders", **options)
