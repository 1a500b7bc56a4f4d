"""Ranges against sets: whatever is added, removed or asked, the two agree."""

from hypothesis import given
from hypothesis import strategies as st

from gossipq.core.storage.intervals import Intervals, RangeMap

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
