"""Finds out which records of a delivery are here already, or have an unanswered ack or
nack. Leaders repeat deliveries after a crash, and deliver records again whose ack or
failure is still on its way.

Both are looked up only for slices that begin below the highest offset seen, and collected once per
delivery. So a delivery of a thousand failed records looks at the records here once.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from gossipq.types import Offset, PartitionKey
from gossipq.values import Range
from gossipq_client.session.credit import Part
from gossipq_client.session.held import Ranges, merge, subtract


class Spans:
    """Ranges of partitions; finds those that overlap another range without looking at all."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._of: dict[PartitionKey, tuple[list[Offset], list[Offset]]] = {}
        for partition, first, end in merge(ranges):
            starts, ends = self._of.setdefault(partition, ([], []))
            starts.append(first)
            ends.append(end)

    def add(self, partition: PartitionKey, first: Offset, end: Offset) -> None:
        """Adds a range that is not covered yet."""
        starts, ends = self._of.setdefault(partition, ([], []))
        at = bisect_left(starts, first)
        starts.insert(at, first)
        ends.insert(at, end)

    def add_all(self, partition: PartitionKey, ranges: Ranges) -> None:
        """Adds ranges that lie between two present ones."""
        starts, ends = self._of.setdefault(partition, ([], []))
        at = bisect_left(starts, ranges[0][0])
        starts[at:at] = [first for first, _ in ranges]
        ends[at:at] = [end for _, end in ranges]

    def reaching(self, partition: PartitionKey, first: Offset, end: Offset) -> Ranges:
        starts, ends = self._of.get(partition, ([], []))
        low = bisect_right(ends, first)
        high = bisect_left(starts, end, lo=low)
        return list(zip(starts[low:high], ends[low:high], strict=True))


class Known:
    """What is known for one delivery. `settled` returns ranges of the part that the user has acked
    or given back, sent or not, and that the leader has not answered.
    """

    def __init__(self, part: Part, settled: Callable[[], list[Range]]) -> None:
        self._part, self._ask_settled = part, settled
        self._here: Spans | None = None
        self._settled: Spans | None = None

    def unseen(self, partition: PartitionKey, first: Offset, end: Offset) -> Ranges:
        """The ranges of a delivered slice that are not here already. They
        count as here from now on.
        """
        part = self._part
        if not part.subscription.group:
            first = max(first, part.positions.get(partition, 0))
            return [(first, end)] if first < end else []
        if first >= part.high.get(partition, 0):
            if self._here is not None:
                self._here.add(partition, first, end)
            return [(first, end)]
        here = self._all_here()
        found = subtract([(first, end)], here.reaching(partition, first, end))
        for each in found:
            here.add(partition, *each)
        return found

    def _all_here(self) -> Spans:
        if self._here is None:
            self._here = Spans(
                (held.partition, *piece)
                for held in self._part.outstanding
                for piece in held.open_ranges(held.first, held.end)
            )
        return self._here

    def none_of(self, partition: PartitionKey, ranges: Ranges) -> bool:
        """True if no record of a slice with gaps is here, and none in its gaps; the
        slice then counts as here.
        """
        here = self._all_here()
        if here.reaching(partition, ranges[0][0], ranges[-1][1]):
            return False
        here.add_all(partition, ranges)
        return True

    def settled(self, partition: PartitionKey, first: Offset, end: Offset) -> Ranges:
        """The ranges of a slice whose ack or nack is unanswered; empty if
        it came for the first time.
        """
        if first >= self._part.high.get(partition, 0):
            return []
        if self._settled is None:
            self._settled = Spans(self._ask_settled())
        reaching = self._settled.reaching(partition, first, end)
        return [(max(first, low), min(end, high)) for low, high in reaching]
