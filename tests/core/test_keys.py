"""What waits behind a key of a key-ordered group, in memory and on disk."""

from itertools import takewhile
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.test_corners import calls_of
from gossipq.core.delivery.consumers import KEY_ORDERED, DeliveryTurn, PartitionView
from gossipq.core.delivery.key_order import KeyOrder
from gossipq.core.delivery.keys import UNBOUNDED, KeyRuns, Keys
from gossipq.core.delivery.window import WaitingRecords
from gossipq.core.ledger import key_lane
from gossipq.core.storage import RangeMap

KEY = 3
LANE = key_lane(KEY)


def test_a_record_that_failed_goes_on_before_those_on_disk_behind_it() -> None:
    """It came back while a later one was held: it waits in memory, and the first of all goes first."""
    state = SimpleNamespace(config=SimpleNamespace(mode=KEY_ORDERED))
    group: Any = SimpleNamespace(id=7, state=state, run_of_key=1)
    cursor: Any = SimpleNamespace(state=SimpleNamespace(cursor=0))
    ledger: Any = None
    view, key_order = PartitionView(group, 1 << 16, cursor), KeyOrder(ledger, DeliveryTurn())
    assert view.keys is not None
    view.keys.failed(KEY, 8)
    view.keys.parked(KEY, 11)
    view.window.move(8, 9, WaitingRecords(LANE, 1))
    key_order.unblock_key(view, KEY)
    assert (list(view.window.ready), view.draining) == ([(8, 9, 1)], {})
    view.window.move(8, 9, None)
    view.keys.done(KEY, 8)
    key_order.unblock_key(view, KEY)
    assert view.draining == {LANE: 11}


A, B = (b"a", 1), (b"b", 1)


def test_a_key_that_failed_costs_no_call_for_each_record_of_other_keys() -> None:
    keys = Keys()
    keys.failed(KEY, 8)
    others = range(KEY + 1, KEY + 1_001)
    assert calls_of(lambda: keys.done_many(others, 9)) < 10
    assert not keys.opens(KEY, 9)
    keys.done_many([KEY + 1, KEY, KEY], 7)
    assert keys.opens(KEY, 9)


def test_a_key_belongs_to_one_consumer_while_it_holds_records_of_it() -> None:
    keys = Keys()
    keys.hold([1, 2, 0, 1], 10, A)
    assert keys.allowed([0, 3, 1], 14, B, {}) == 2
    assert keys.allowed([0, 3, 1], 14, A, {}) == 2, "one at a time, also to it"
    assert keys.allowed([0, 3, 1, 3], 14, A, {}, runs=UNBOUNDED) == 4
    assert keys.allowed([1], 9, A, {}, runs=UNBOUNDED) == 0  # while it has a later one
    assert keys.allowed([3, 3, 3, 4], 14, A, {}, KeyRuns(2, 9)) == 2, "two of each key"
    assert keys.allowed([3, 3, 4, 4], 14, A, {}, KeyRuns(9, 3)) == 3, "the second 1, 0 and 3"
    keys.release(10, 13)
    assert keys.allowed([2, 1], 14, B, {}) == 1
    keys.release(0, 99)
    assert keys.allowed([2, 1], 14, B, {}) == 2


def test_what_failed_or_waits_keeps_what_comes_later_back() -> None:
    keys, waiting = Keys(), RangeMap[int]()
    keys.failed(1, 10)
    keys.parked(2, 20)
    waiting.set(30, 31, 0)
    assert [keys.allowed([1], at, A, {}) for at in (10, 11)] == [1, 0]
    assert [keys.allowed([2], at, A, {}) for at in (19, 20)] == [1, 0]
    assert [keys.allowed([3], at, A, {3: waiting}) for at in (30, 31)] == [1, 0]
    assert keys.trim(15) == [1]
    assert keys.allowed([1], 16, A, {}) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 30), st.lists(st.integers(0, 4), min_size=1, max_size=8))
    )
)
def test_a_key_is_free_when_none_of_its_records_is_in_flight(
    steps: list[tuple[bool, int, list[int]]],
) -> None:
    keys, held = Keys(), dict[int, int]()
    for takes, first, hashes in steps:
        end = first + len(hashes)
        if takes:
            keys.hold(hashes, first, A)
            held |= dict(zip(range(first, end), hashes, strict=True))
        else:
            keys.release(first, end)
            held = {at: key for at, key in held.items() if not first <= at < end}
        for key in range(5):
            free = not key or key not in held.values()
            assert keys.opens(key, 0) == free
            assert bool(keys.allowed([key], 100, B, {})) == free
            assert keys.allowed([key], 100, A, {}, runs=UNBOUNDED) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, None]),
            st.integers(0, 40),
            st.lists(st.integers(0, 4), min_size=1, max_size=8),
        )
    ),
    st.integers(0, 3),
)
@example([(A, 3, [1, 0]), (A, 4, [0, 3, 3]), (A, 5, [3])], 0)  # what came back, and new ones behind it
def test_what_is_allowed_is_what_the_rule_says(
    steps: list[tuple[tuple[bytes, int] | None, int, list[int]]], free_max: int
) -> None:
    """Of each key: whose its records in flight are, and the highest that was since it was free."""
    keys, held = Keys(), dict[int, int]()
    owners, last = dict[int, tuple[bytes, int]](), dict[int, int]()

    def release(first: int, end: int) -> None:
        for at in range(first, end):
            held.pop(at, None)
        for key in owners.keys() - held.values():
            del owners[key], last[key]

    with patch("gossipq.core.delivery.keys.FREE_KEYS_MAX", free_max):
        for owner, first, hashes in steps:
            end = first + len(hashes)
            for each in (A, B):
                free = [
                    not key or key not in owners or (owners[key] == each and at >= last[key])
                    for at, key in enumerate(hashes, first)
                ]
                allowed = len(list(takewhile(bool, free)))
                assert keys.allowed(hashes, first, each, {}, runs=UNBOUNDED) == allowed
                alone = [not key or key not in [*owners, *hashes[:at]] for at, key in enumerate(hashes)]
                assert keys.allowed(hashes, first, each, {}) == len(list(takewhile(bool, alone)))
            if owner is None:
                keys.release(first, end)
                release(first, end)
                continue
            keys.hold(hashes, first, owner)
            release(first, end)
            for at, key in enumerate(hashes, first):
                held[at] = key
                if key:
                    owners[key], last[key] = owner, max(at, last.get(key, -1))
