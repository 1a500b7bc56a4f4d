"""Sorted, disjoint, half-open ranges of offsets: plain (`Intervals`) or with values
(`RangeMap`).

The stored forms have one row for each range. So an ack among 10,000 holes writes two small rows,
not half a megabyte.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from operator import gt
from typing import Generic, TypeVar

from gossipq.types import Offset

V = TypeVar("V")
SPARSE = 8  #: `carve` gives up if it would scan more than this many ranges for each one given


def melted(ranges: list[tuple[Offset, Offset]]) -> list[tuple[Offset, Offset]] | None:
    """Join neighbours in rising ranges; None if some overlap."""
    if not ranges:
        return []
    gaps = [(end, first) for (_, end), (first, _) in pairwise(ranges) if end != first]
    ends, starts = [end for end, _ in gaps], [first for _, first in gaps]
    if any(map(gt, ends, starts)):
        return None
    return list(zip([ranges[0][0], *starts], [*ends, ranges[-1][1]], strict=True))


class Intervals:
    """A set of offsets as ranges. Neighbours are joined."""

    # two lists of numbers, not one of pairs: bisect searches them without a key function, and no range needs
    # a tuple of its own
    __slots__ = ("_total", "ends", "starts")

    def __init__(self, ranges: list[tuple[Offset, Offset]] | None = None) -> None:
        self.starts: list[Offset] = [first for first, _ in ranges or ()]
        self.ends: list[Offset] = [end for _, end in ranges or ()]
        self._total = sum(self.ends) - sum(self.starts)

    def __iter__(self) -> Iterator[tuple[Offset, Offset]]:
        return zip(self.starts, self.ends, strict=True)

    def __len__(self) -> int:
        return len(self.starts)

    def __contains__(self, offset: Offset) -> bool:
        at = bisect_right(self.starts, offset) - 1
        return at >= 0 and offset < self.ends[at]

    def total(self) -> int:
        """Number of offsets in the set."""
        return self._total

    def add(self, first: Offset, end: Offset) -> int:
        """Add [first, end). Returns how many offsets are new."""
        if first >= end:
            return 0
        # index of the first range that touches `first` or lies behind it
        low = bisect_left(self.ends, first)
        high = bisect_right(self.starts, end, lo=low)
        if low == high:
            self.starts.insert(low, first)
            self.ends.insert(low, end)
            self._total += end - first
            return end - first
        # the new range touches those from `low` to `high`: one range replaces them all
        covered = sum(self.ends[low:high]) - sum(self.starts[low:high])
        first, end = min(first, self.starts[low]), max(end, self.ends[high - 1])
        self.starts[low:high] = [first]
        self.ends[low:high] = [end]
        self._total += end - first - covered
        return end - first - covered

    def add_all(self, ranges: list[tuple[Offset, Offset]]) -> int:
        """Like `add` of each. The ranges must rise, and none of their offsets may be in the set."""
        low = bisect_left(self.ends, ranges[0][0])
        high = bisect_right(self.starts, ranges[-1][1], lo=low)
        # far apart: a search for each costs less than a pass over everything between them
        if high - low > SPARSE * len(ranges):
            return sum(self.add(first, end) for first, end in ranges)
        there = zip(self.starts[low:high], self.ends[low:high], strict=True)
        whole = melted(sorted([*there, *ranges]))
        assert whole is not None, "none of these offsets was in the set"
        self._replace(low, high, [first for first, _ in whole], [end for _, end in whole])
        count = sum([end - first for first, end in ranges])
        self._total += count
        return count

    def _replace(self, low: int, high: int, starts: list[Offset], ends: list[Offset]) -> None:
        self.starts[low:high] = starts
        self.ends[low:high] = ends

    def reaches(self, first: Offset, end: Offset) -> bool:
        """True if the set has at least one offset of [first, end)."""
        at = bisect_right(self.ends, first)
        return at < len(self.starts) and self.starts[at] < end

    def reaches_any(self, ranges: list[tuple[Offset, Offset]]) -> bool:
        """Like `reaches` of any of these ranges. They must rise."""
        starts, ends = self.starts, self.ends
        low = bisect_right(ends, ranges[0][0])
        high = bisect_left(starts, ranges[-1][1], lo=low)
        if low == high:
            return False
        at = [bisect_right(ends, first, low, high) for first, _ in ranges]
        found = [place < high and starts[place] < end for place, (_, end) in zip(at, ranges, strict=True)]
        return any(found)

    def overlap(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """Return the parts of [first, end) in the set."""
        found = []
        at = bisect_right(self.ends, first)
        while first < end and at < len(self.starts) and self.starts[at] < end:
            found.append((max(first, self.starts[at]), min(end, self.ends[at])))
            at += 1
        return found

    def missing(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """Return the parts of [first, end) that are not in the set."""
        gaps = []
        at = bisect_right(self.ends, first)
        while first < end and at < len(self.starts) and self.starts[at] < end:
            if self.starts[at] > first:
                gaps.append((first, self.starts[at]))
            first = max(first, self.ends[at])
            at += 1
        if first < end:
            gaps.append((first, end))
        return gaps

    def gap(self, first: Offset, end: Offset) -> tuple[Offset, Offset] | None:
        """Return the first part of [first, end) that is not in the set, or None."""
        at = bisect_right(self.ends, first)
        if at < len(self.starts) and self.starts[at] <= first:
            first, at = self.ends[at], at + 1
        if first >= end:
            return None
        return first, min(end, self.starts[at]) if at < len(self.starts) else end

    def drop_below(self, offset: Offset) -> None:
        """Remove everything below `offset`."""
        at = bisect_right(self.ends, offset)
        self._total -= sum(self.ends[:at]) - sum(self.starts[:at])
        del self.starts[:at], self.ends[:at]
        if self.starts and self.starts[0] < offset:
            self._total -= offset - self.starts[0]
            self.starts[0] = offset


class RangeMap(Generic[V]):
    """Ranges of offsets, each with a value. Neighbours stay apart, even with equal values."""

    __slots__ = ("ends", "starts", "values")

    def __init__(self) -> None:
        self.starts: list[Offset] = []
        self.ends: list[Offset] = []
        self.values: list[V] = []

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[Offset, Offset, V]]:
        return zip(self.starts, self.ends, self.values, strict=True)

    def total(self) -> int:
        return sum(self.ends) - sum(self.starts)

    def set(self, first: Offset, end: Offset, value: V) -> None:
        """Give [first, end) this value and replace older ones."""
        # records are mostly delivered in order, so most new ranges lie behind all others
        if not self.starts or first >= self.ends[-1]:
            self.starts.append(first)
            self.ends.append(end)
            self.values.append(value)
            return
        at = bisect_right(self.ends, first)
        if self.starts[at] < end:
            self.clear(first, end)
            at = bisect_left(self.starts, first)
        self.starts.insert(at, first)
        self.ends.insert(at, end)
        self.values.insert(at, value)

    def place(self, first: Offset, end: Offset) -> int:
        """Return the index of exactly the range [first, end), or -1."""
        at = bisect_left(self.starts, first)
        return at if at < len(self.starts) and self.starts[at] == first and self.ends[at] == end else -1

    def end_of_equal(self) -> Offset:
        """End of the first ranges that follow each other without a gap and have the same value."""
        starts, ends, values = self.starts, self.ends, self.values
        at = 1
        while at < len(starts) and starts[at] == ends[at - 1] and values[at] == values[0]:
            at += 1
        return ends[at - 1]

    def overlap(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset, V]]:
        """Return the parts of [first, end) that have a value."""
        found = []
        at = bisect_right(self.ends, first)
        while at < len(self.starts) and self.starts[at] < end:
            found.append((max(first, self.starts[at]), min(end, self.ends[at]), self.values[at]))
            at += 1
        return found

    def around(self, first: Offset, end: Offset) -> int:
        """Return the index of the range that contains all of [first, end), or -1."""
        at = bisect_right(self.ends, first)
        return at if at < len(self.starts) and self.starts[at] <= first and end <= self.ends[at] else -1

    def cut(self, at: int, first: Offset, end: Offset) -> None:
        """Like `clear` of [first, end), which must be inside the range at index `at`."""
        low, high = self.starts[at], self.ends[at]
        if low < first and end < high:
            self.ends[at] = first
            self.starts.insert(at + 1, end)
            self.ends.insert(at + 1, high)
            self.values.insert(at + 1, self.values[at])
        elif low < first:
            self.ends[at] = first
        elif end < high:
            self.starts[at] = end
        else:
            del self.starts[at], self.ends[at], self.values[at]

    def set_all(self, ranges: list[tuple[Offset, Offset]], value: V) -> None:
        """Like `set` of each. The ranges must rise."""
        at = bisect_right(self.ends, ranges[0][0])
        if at < len(self.starts) and self.starts[at] < ranges[-1][1]:
            for first, end in ranges:
                self.set(first, end, value)
            return
        # all lie in one gap, so one slice takes them
        self.starts[at:at], self.ends[at:at] = zip(*ranges, strict=True)
        self.values[at:at] = [value] * len(ranges)

    def begins(self, ranges: list[tuple[Offset, Offset]], value: V) -> bool:
        """True if the first ranges of this map are exactly `ranges`, all with this value."""
        count = len(ranges)
        there = zip(self.starts[:count], self.ends[:count], strict=True)
        return list(there) == ranges and self.values[:count].count(value) == count

    def drop_first(self, count: int) -> None:
        """Remove the first `count` ranges."""
        del self.starts[:count], self.ends[:count], self.values[:count]

    def carve(
        self, ranges: list[tuple[Offset, Offset]], fits: Callable[[V], bool], instead: V | None
    ) -> list[tuple[V, list[tuple[Offset, Offset]]]] | None:
        """Remove ranges, or set them to `instead`. Returns their old values, with runs of each
        value.

        `ranges` must rise, and each must lie inside one existing range whose value `fits`.
        Otherwise nothing changes and the result is None. One pass over all ranges between the first
        and the last.
        """
        low = bisect_right(self.ends, ranges[0][0])
        high = bisect_left(self.starts, ranges[-1][1], lo=low)
        if low == high or high - low > SPARSE * len(ranges):
            return None
        found: list[tuple[V, list[tuple[Offset, Offset]]]] = []
        kept: list[tuple[Offset, Offset, V]] = []
        at, last = low, None
        start, stop, value = self.starts[low], self.ends[low], self.values[low]
        for each in ranges:
            first, end = each
            while stop <= first:
                if start < stop:
                    kept.append((start, stop, value))
                at += 1
                if at == high:
                    return None
                start, stop, value = self.starts[at], self.ends[at], self.values[at]
            if first < start or end > stop or first >= end:
                return None
            # neighbours mostly share their value, so `fits` is asked once for all of them
            if value is not last:
                if not fits(value):
                    return None
                last = value
                found.append((value, []))
            found[-1][1].append(each)
            if start < first:
                kept.append((start, first, value))
            if instead is not None:
                kept.append((first, end, instead))
            start = end
        if start < stop:
            kept.append((start, stop, value))
        rest = slice(at + 1, high)
        kept += zip(self.starts[rest], self.ends[rest], self.values[rest], strict=True)
        self._put(low, high, kept)
        return found

    def _put(self, low: int, high: int, kept: list[tuple[Offset, Offset, V]]) -> None:
        """Replace the ranges from index `low` to `high`."""
        self.starts[low:high] = [first for first, _, _ in kept]
        self.ends[low:high] = [end for _, end, _ in kept]
        self.values[low:high] = [value for _, _, value in kept]

    def reaches(self, first: Offset, end: Offset) -> bool:
        """True if some offset of [first, end) has a value."""
        at = bisect_right(self.ends, first)
        return at < len(self.starts) and self.starts[at] < end

    def clear(self, first: Offset, end: Offset) -> None:
        """Remove the values of [first, end)."""
        low = bisect_right(self.ends, first)
        if low == len(self.starts) or self.starts[low] >= end:
            return
        if self.starts[low] == first and self.ends[low] == end:
            del self.starts[low], self.ends[low], self.values[low]
            return
        high = bisect_left(self.starts, end, lo=low)
        kept = []
        if self.starts[low] < first:
            kept.append((self.starts[low], first, self.values[low]))
        if self.ends[high - 1] > end:
            kept.append((end, self.ends[high - 1], self.values[high - 1]))
        self._put(low, high, kept)

    def drop(self, ranges: list[tuple[Offset, Offset]], values: Collection[V]) -> list[tuple[Offset, Offset]]:
        """Remove ranges that are exactly one of these and have one of these values. Returns the
        others.
        """
        ranges = sorted(ranges)
        low = bisect_right(self.ends, ranges[0][0])
        high = bisect_left(self.starts, ranges[-1][1], lo=low)
        if low == high or high - low > SPARSE * len(ranges):
            return ranges
        left, kept = set(ranges), list[tuple[Offset, Offset, V]]()
        there = self.starts[low:high], self.ends[low:high], self.values[low:high]
        for first, end, value in zip(*there, strict=True):
            if (first, end) in left and value in values:
                left.discard((first, end))
            else:
                kept.append((first, end, value))
        self._put(low, high, kept)
        return sorted(left)

    def pop(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset, V]]:
        """Like `overlap`, and removes these parts."""
        found = self.overlap(first, end)
        if found:
            self.clear(first, end)
        return found


class StoredIntervals(Intervals):
    """Intervals with a row on disk for each range, by its start. `changes` returns the rows to
    write.
    """

    __slots__ = ("_stored", "_touched")

    def __init__(self) -> None:
        super().__init__()
        self._stored: set[Offset] = set()
        self._touched: set[Offset] = set()

    def load(self, first: Offset, end: Offset) -> None:
        """Add a row from disk. Rows must come in order."""
        super().add(first, end)
        self._stored.add(first)

    def add(self, first: Offset, end: Offset) -> int:
        if first >= end:
            return 0
        low = bisect_left(self.ends, first)
        self._touched.update(self.starts[low : bisect_right(self.starts, end, lo=low)])
        self._touched.add(first)
        return super().add(first, end)

    def _replace(self, low: int, high: int, starts: list[Offset], ends: list[Offset]) -> None:
        before = zip(self.starts[low:high], self.ends[low:high], strict=True)
        self._touched.update(start for start, _ in set(before) ^ set(zip(starts, ends, strict=True)))
        super()._replace(low, high, starts, ends)

    def drop_below(self, offset: Offset) -> None:
        at = bisect_right(self.ends, offset)
        self._touched.update(self.starts[:at])
        if at < len(self.starts) and self.starts[at] < offset:
            self._touched.update((self.starts[at], offset))
        super().drop_below(offset)

    def changes(self) -> list[tuple[Offset, Offset | None]]:
        """Return (start, end) of the rows to write since the last call; end None: delete the
        row.
        """
        found: list[tuple[Offset, Offset | None]] = []
        touched, self._touched = self._touched, set()
        for start in sorted(touched) if self.starts or self._stored else ():
            at = bisect_left(self.starts, start)
            if at < len(self.starts) and self.starts[at] == start:
                found.append((start, self.ends[at]))
                self._stored.add(start)
            elif start in self._stored:
                found.append((start, None))
                self._stored.discard(start)
        return found


class StoredRangeMap(RangeMap[V]):
    """Like StoredIntervals, with a value in each row.

    `cut`, `carve` and `drop` do not record changes: do not use them here.
    """

    __slots__ = ("_stored", "_touched")

    def __init__(self) -> None:
        super().__init__()
        self._stored: set[Offset] = set()
        self._touched: set[Offset] = set()

    def load(self, first: Offset, end: Offset, value: V) -> None:
        """Add a row from disk. Rows must come in order."""
        super().set(first, end, value)
        self._stored.add(first)

    def set(self, first: Offset, end: Offset, value: V) -> None:
        self._touched.add(first)
        super().set(first, end, value)

    def clear(self, first: Offset, end: Offset) -> None:
        low = bisect_right(self.ends, first)
        high = bisect_left(self.starts, end, lo=low)
        if low < high:
            self._touched.update(self.starts[low:high])
            self._touched.add(end)
            super().clear(first, end)

    def set_all(self, ranges: list[tuple[Offset, Offset]], value: V) -> None:
        self._touched.update(first for first, _ in ranges)
        super().set_all(ranges, value)

    def clear_all(self, ranges: list[tuple[Offset, Offset]]) -> None:
        """Like `clear` of each. The ranges must rise."""
        low = bisect_right(self.ends, ranges[0][0])
        high = bisect_left(self.starts, ranges[-1][1], lo=low)
        there = self.starts[low:high]
        if list(zip(there, self.ends[low:high], strict=True)) == ranges:
            self._touched.update(there)
            self._put(low, high, [])
        elif there:
            for first, end in ranges:
                self.clear(first, end)

    def changes(self) -> list[tuple[Offset, tuple[Offset, V] | None]]:
        """Return (start, (end, value)) of the rows to write since the last call; None: delete the
        row.
        """
        found: list[tuple[Offset, tuple[Offset, V] | None]] = []
        touched, self._touched = self._touched, set()
        for start in sorted(touched):
            at = bisect_left(self.starts, start)
            if at < len(self.starts) and self.starts[at] == start:
                found.append((start, (self.ends[at], self.values[at])))
                self._stored.add(start)
            elif start in self._stored:
                found.append((start, None))
                self._stored.discard(start)
        return found
