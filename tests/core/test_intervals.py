"""Interval sets behave like plain sets, whatever is added, removed or asked."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from gossipq.core.storage import intervals
from gossipq.core.storage.intervals import (
    SPARSE,
    Intervals,
    RangeMap,
    StoredIntervals,
    StoredRangeMap,
    melted,
)

spans = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda t: (t[0], t[0] + t[1]))


def offsets(ranges):
    return {offset for first, end in ranges for offset in range(first, end)}


@given(st.lists(spans), spans, st.integers(0, 45))
def test_intervals_agree_with_a_set(added, asked, floor):
    ranges, model = Intervals(), set()
    for first, end in added:
        new = ranges.add(first, end)
        assert new == len(set(range(first, end)) - model)
        model |= set(range(first, end))
    assert offsets(ranges) == model
    assert ranges.total() == len(model)
    assert all(a < b for a, b in zip(ranges.ends, ranges.starts[1:], strict=False)), "neighbours melt"
    assert offsets(ranges.missing(*asked)) == set(range(*asked)) - model
    ranges.drop_below(floor)
    assert offsets(ranges) == {offset for offset in model if offset >= floor}
    assert all((offset in ranges) == (offset in model and offset >= floor) for offset in range(60))


@given(st.lists(spans), st.lists(spans, min_size=1))
def test_many_ranges_are_asked_for_at_once(added, asked):
    ranges, rising = Intervals(), Intervals()
    for each in added:
        ranges.add(*each)
    for each in asked:
        rising.add(*each)
    if rising:
        assert ranges.reaches_any(list(rising)) == any(ranges.reaches(*each) for each in rising)
    apart = list(rising)
    assert melted(apart) == apart
    pieces = [(at, at + 1) for first, end in apart for at in range(first, end)]
    assert melted(pieces) == apart
    if len(pieces) > 1 and pieces[0][1] == pieces[1][0]:
        assert melted([(pieces[0][0], pieces[0][1] + 1), *pieces[1:]]) is None


@given(st.lists(st.tuples(spans, st.booleans(), st.integers(0, 3))), spans)
def test_range_map_agrees_with_a_dict(changes, asked):
    ranges, model = RangeMap(), {}
    for (first, end), keep, value in changes:
        if first == end:
            continue
        if keep:
            ranges.set(first, end, value)
            model |= dict.fromkeys(range(first, end), value)
        else:
            assert {o: v for a, b, v in ranges.pop(first, end) for o in range(a, b)} == {
                o: model.pop(o) for o in range(first, end) if o in model
            }
    assert {o: v for a, b, v in ranges for o in range(a, b)} == model
    found = {o: v for a, b, v in ranges.overlap(*asked) for o in range(a, b)}
    assert found == {o: v for o, v in model.items() if asked[0] <= o < asked[1]}
    assert ranges.total() == len(model)


@given(st.lists(st.tuples(spans, st.integers(0, 3), st.integers(0, 60))))
def test_rows_of_intervals_follow_what_changes(changes):
    """The rows match after any sequence of adding, dropping and reading back."""
    ranges, rows = StoredIntervals(), {}
    for (first, end), what, floor in changes:
        if what == 0:
            ranges.drop_below(floor)
        elif what == 1:
            for start, stop in ranges.changes():
                rows.pop(start, None) if stop is None else rows.update({start: stop})
            assert sorted(rows.items()) == list(ranges)
            ranges = StoredIntervals()
            for row in sorted(rows.items()):
                ranges.load(*row)
        else:
            ranges.add(first, end)
        assert ranges.overlap(first, end) == Intervals(ranges.missing(first, end)).missing(first, end)


@given(st.lists(spans), st.lists(spans), st.sampled_from([0, 1, 8]))
def test_many_ranges_at_once_are_as_one_after_the_other(there, coming, sparse):
    one, many = StoredIntervals(), StoredIntervals()
    for each in there:
        one.add(*each)
        many.add(*each)
    assert one.changes() == many.changes()
    new = [gap for first, end in Intervals(list(_set(coming))) for gap in one.missing(first, end)]
    with patch.object(intervals, "SPARSE", sparse):
        assert not new or many.add_all(new) == sum(one.add(*each) for each in new)
    assert (list(one), one.total()) == (list(many), many.total())
    assert one.changes() == many.changes()


def _set(ranges):
    """A set of numbers as sorted ranges that do not touch."""
    found = Intervals()
    for each in ranges:
        found.add(*each)
    return found


@given(st.lists(st.tuples(spans, st.integers(0, 3))), st.lists(spans), st.booleans())
def test_what_is_dropped_is_just_that(there, dropped, exact):
    ranges, beside = RangeMap(), RangeMap()
    for (first, end), value in there:
        if first < end:
            ranges.set(first, end, value)
            beside.set(first, end, value)
    asked = [(first, end) for first, end, _ in ranges][::2] if exact else list(_set(dropped))
    left = ranges.drop(asked[::-1], [1, 2]) if asked else []
    for first, end in set(asked) - set(left):
        assert beside.values[beside.place(first, end)] in (1, 2)
        beside.clear(first, end)
    assert list(ranges) == list(beside)
    gone = {(first, end) for first, end, value in ranges if value in (1, 2)} & set(asked)
    assert not gone or len(ranges) > SPARSE * len(asked)


@given(st.lists(st.tuples(spans, st.integers(0, 3))), spans)
def test_what_is_cut_lies_in_one_range(there, part):
    ranges, beside = RangeMap(), RangeMap()
    for (first, end), value in there:
        if first < end:
            ranges.set(first, end, value)
            beside.set(first, end, value)
    at = ranges.around(*part)
    within = [low <= part[0] < high and part[1] <= high for low, high, _ in ranges]
    assert at == (within.index(True) if any(within) else -1)
    if at >= 0 and part[0] < part[1]:
        ranges.cut(at, *part)
        beside.clear(*part)
    assert list(ranges) == list(beside)


@given(st.lists(st.tuples(spans, st.integers(0, 3), st.integers(0, 9))))
def test_rows_of_a_range_map_follow_what_changes(changes):
    ranges, rows = StoredRangeMap(), {}
    for (first, end), what, value in changes:
        if what == 0:
            ranges.pop(first, end)
        elif what == 1:
            for start, row in ranges.changes():
                rows.pop(start, None) if row is None else rows.update({start: row})
            assert sorted(rows.items()) == [(start, (stop, each)) for start, stop, each in ranges]
            ranges = StoredRangeMap()
            for start, (stop, each) in sorted(rows.items()):
                ranges.load(start, stop, each)
        elif first < end:
            ranges.set(first, end, value)


@given(
    st.lists(st.tuples(spans, st.integers(0, 3))), st.lists(spans), st.sampled_from([None, 9]), st.booleans()
)
def test_what_is_carved_lies_in_what_fits(there, parts, instead, exact):
    ranges, beside = RangeMap(), RangeMap()
    for (first, end), value in there:
        if first < end:
            ranges.set(first, end, value)
            beside.set(first, end, value)
    asked = [(first, end) for first, end, _ in ranges][::2] if exact else list(_set(parts))
    if not asked:
        return
    found = ranges.carve(asked, lambda value: value != 3, instead)
    had = [beside.overlap(*each) for each in asked]
    fits = all(
        len(some) == 1 and some[0][:2] == each and some[0][2] != 3
        for some, each in zip(had, asked, strict=True)
    )
    assert not found or fits
    assert found or not fits or len(ranges) > SPARSE * len(asked)
    if found:
        assert [(*each, value) for value, some in found for each in some] == [some[0] for some in had]
        for each in asked:
            beside.set(*each, instead) if instead is not None else beside.clear(*each)
    assert list(ranges) == list(beside)


@given(st.lists(st.tuples(spans, st.integers(0, 3))), st.lists(spans), st.booleans())
def test_many_ranges_are_set_and_cleared_as_one_by_one(there, parts, clear):
    many, one = StoredRangeMap(), StoredRangeMap()
    for (first, end), value in there:
        if first < end:
            many.set(first, end, value)
            one.set(first, end, value)
    asked = list(_set(parts))
    if asked:
        many.clear_all(asked) if clear else many.set_all(asked, 9)
        for each in asked:
            one.clear(*each) if clear else one.set(*each, 9)
    assert list(many) == list(one)
    assert many.changes() == one.changes()
    rows = list(many)
    assert all(
        many.begins([row[:2] for row in rows[:count]], 9) == all(row[2] == 9 for row in rows[:count])
        for count in range(len(rows))
    )
