"""Sorted, disjoint, half-open ranges of offsets: plain (`Intervals`) and with a value each (`RangeMap`)."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

from gossipq.types import Offset

V = TypeVar("V")
SPARSE = 8  #: ranges that are there for each that comes: more of them are not gone through


class Intervals:
    """A set of offsets as ranges; neighbours melt into one."""

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
        """How many offsets are covered."""
        return self._total

    def add(self, first: Offset, end: Offset) -> int:
        """Covers [first, end); returns how many offsets are new."""
        if first >= end:
            return 0
        low = bisect_left(self.ends, first)  # the first range that touches or lies behind `first`
        high = bisect_right(self.starts, end, lo=low)
        if low == high:
            self.starts.insert(low, first)
            self.ends.insert(low, end)
            self._total += end - first
            return end - first
        covered = sum(self.ends[low:high]) - sum(self.starts[low:high])
        first, end = min(first, self.starts[low]), max(end, self.ends[high - 1])
        self.starts[low:high] = [first]
        self.ends[low:high] = [end]
        self._total += end - first - covered
        return end - first - covered

    def add_all(self, ranges: list[tuple[Offset, Offset]]) -> int:
        """As `add` of each. They rise, and nothing of them is covered."""
        low = bisect_left(self.ends, ranges[0][0])
        high = bisect_right(self.starts, ranges[-1][1], lo=low)
        if high - low > SPARSE * len(ranges):
            return sum(self.add(first, end) for first, end in ranges)
        starts, ends = list[Offset](), list[Offset]()
        there = zip(self.starts[low:high], self.ends[low:high], strict=True)
        for first, end in sorted([*there, *ranges]):
            if ends and ends[-1] == first:
                ends[-1] = end
            else:
                starts.append(first)
                ends.append(end)
        self._replace(low, high, starts, ends)
        count = sum(end - first for first, end in ranges)
        self._total += count
        return count

    def _replace(self, low: int, high: int, starts: list[Offset], ends: list[Offset]) -> None:
        self.starts[low:high] = starts
        self.ends[low:high] = ends

    def reaches(self, first: Offset, end: Offset) -> bool:
        """Whether some of [first, end) is covered."""
        at = bisect_right(self.ends, first)
        return at < len(self.starts) and self.starts[at] < end

    def overlap(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """The parts of [first, end) that are covered."""
        found = []
        at = bisect_right(self.ends, first)
        while first < end and at < len(self.starts) and self.starts[at] < end:
            found.append((max(first, self.starts[at]), min(end, self.ends[at])))
            at += 1
        return found

    def missing(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """The parts of [first, end) that are not covered."""
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
        """The first part of [first, end) that is not covered; None: there is none."""
        at = bisect_right(self.ends, first)
        if at < len(self.starts) and self.starts[at] <= first:
            first, at = self.ends[at], at + 1
        if first >= end:
            return None
        return first, min(end, self.starts[at]) if at < len(self.starts) else end

    def drop_below(self, offset: Offset) -> None:
        """Forgets everything below `offset`."""
        at = bisect_right(self.ends, offset)
        self._total -= sum(self.ends[:at]) - sum(self.starts[:at])
        del self.starts[:at], self.ends[:at]
        if self.starts and self.starts[0] < offset:
            self._total -= offset - self.starts[0]
            self.starts[0] = offset


class RangeMap(Generic[V]):
    """Ranges of offsets, each with a value. Neighbours stay apart, also with equal values."""

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
        """[first, end) has this value from now on, whatever it had before."""
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
        """Where the range [first, end) stands among all of them; -1 when there is none that is just that."""
        at = bisect_left(self.starts, first)
        return at if at < len(self.starts) and self.starts[at] == first and self.ends[at] == end else -1

    def overlap(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset, V]]:
        """The parts of [first, end) that have a value."""
        found = []
        at = bisect_right(self.ends, first)
        while at < len(self.starts) and self.starts[at] < end:
            found.append((max(first, self.starts[at]), min(end, self.ends[at]), self.values[at]))
            at += 1
        return found

    def around(self, first: Offset, end: Offset) -> int:
        """Where the range stands that all of [first, end) lies in; -1 when there is none."""
        at = bisect_right(self.ends, first)
        return at if at < len(self.starts) and self.starts[at] <= first and end <= self.ends[at] else -1

    def cut(self, at: int, first: Offset, end: Offset) -> None:
        """As `clear` of [first, end), which lies in the range at that place."""
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
        """As `set` of each; they rise."""
        at = bisect_right(self.ends, ranges[0][0])
        if at < len(self.starts) and self.starts[at] < ranges[-1][1]:
            for first, end in ranges:
                self.set(first, end, value)
            return
        self.starts[at:at], self.ends[at:at] = zip(*ranges, strict=True)
        self.values[at:at] = [value] * len(ranges)

    def begins(self, ranges: list[tuple[Offset, Offset]], value: V) -> bool:
        """Whether it begins with just these, all with that value."""
        count = len(ranges)
        there = zip(self.starts[:count], self.ends[:count], strict=True)
        return list(there) == ranges and self.values[:count].count(value) == count

    def drop_first(self, count: int) -> None:
        """Takes out so many ranges."""
        del self.starts[:count], self.ends[:count], self.values[:count]

    def carve(
        self, ranges: list[tuple[Offset, Offset]], fits: Callable[[V], bool], instead: V | None
    ) -> list[tuple[V, list[tuple[Offset, Offset]]]] | None:
        """Takes ranges out, or gives them another value; returns what they had, in runs of the same. Each
        lies in one range that is there, whose value fits, and they rise; else nothing changes, and it is
        None. Goes once over all that lies between the first and the last."""
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
        """In the place of the ranges from `low` to `high`."""
        self.starts[low:high] = [first for first, _, _ in kept]
        self.ends[low:high] = [end for _, end, _ in kept]
        self.values[low:high] = [value for _, _, value in kept]

    def reaches(self, first: Offset, end: Offset) -> bool:
        """Whether some of [first, end) has a value."""
        at = bisect_right(self.ends, first)
        return at < len(self.starts) and self.starts[at] < end

    def clear(self, first: Offset, end: Offset) -> None:
        """No value in [first, end)."""
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
        """Takes out what is just one of these ranges, with one of these values; returns the other ranges."""
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
        """`overlap`, and they are gone."""
        found = self.overlap(first, end)
        if found:
            self.clear(first, end)
        return found


class StoredIntervals(Intervals):
    """Each range has a row on disk, under its start: `changes` tells those that are to be written."""

    __slots__ = ("_stored", "_touched")

    def __init__(self) -> None:
        super().__init__()
        self._stored: set[Offset] = set()
        self._touched: set[Offset] = set()

    def load(self, first: Offset, end: Offset) -> None:
        """A row as it was found, in order."""
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
        """(start, end) of the rows to write since the last call; an end of None: the row goes."""
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
    """As StoredIntervals, with a value in each row. `cut`, `carve` and `drop` tell of nothing, and
    are not for it."""

    __slots__ = ("_stored", "_touched")

    def __init__(self) -> None:
        super().__init__()
        self._stored: set[Offset] = set()
        self._touched: set[Offset] = set()

    def load(self, first: Offset, end: Offset, value: V) -> None:
        """A row as it was found, in order."""
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
        """As `clear` of each; they rise."""
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
        """(start, (end, value)) of the rows to write since the last call; None: the row goes."""
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
