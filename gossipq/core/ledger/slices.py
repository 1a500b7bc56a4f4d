"""Slices of partitions: a row for each, and the newest of them in memory."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator

from gossipq.core.ledger import records
from gossipq.core.storage import Table
from gossipq.types import Offset, PartitionKey, Slice

TAIL_SLICES = 4_096  #: kept in memory for one partition
#: for all partitions of a shard; partitions written least recently are forgotten first
TAILS_SLICES = 8_192


class Tail:
    """The newest slices of a partition, which most consumers read."""

    __slots__ = ("offsets", "parts")

    def __init__(self) -> None:
        self.offsets: list[Offset] = []
        self.parts: list[Slice] = []

    def forget_half(self) -> int:
        """Forget the older half. Returns how many slices that was."""
        half = len(self.parts) // 2
        del self.offsets[:half], self.parts[:half]
        return half

    def find(self, offset: Offset) -> Slice | None:
        at = bisect_right(self.offsets, offset) - 1
        return self.parts[at] if at >= 0 else None


class Slices:
    def __init__(self, state: Table) -> None:
        self._state = state
        # ordered by the time of their newest slice
        self._tails: OrderedDict[PartitionKey, Tail] = OrderedDict()
        self._remembered = 0  # slices in all tails
        #: slices of this turn, without a row yet
        self.unwritten: list[tuple[PartitionKey, Slice]] = []

    def add(self, partition: PartitionKey, part: Slice) -> None:
        self.unwritten.append((partition, part))
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = Tail()
        self._tails.move_to_end(partition)
        tail.offsets.append(part.offset)
        tail.parts.append(part)
        self._remembered += 1
        if len(tail.parts) > TAIL_SLICES:
            self.write()
            self._remembered -= tail.forget_half()
        while self._remembered > TAILS_SLICES and len(self._tails) > 1:
            self._forget(next(iter(self._tails)))

    def write(self) -> None:
        """Write the rows of new slices into the open transaction, all at once."""
        if self.unwritten:
            parts, self.unwritten = self.unwritten, []
            self._state.put_many(records.slice_rows(parts))

    def at(self, partition: PartitionKey, offset: Offset) -> Slice | None:
        """Return the slice that contains `offset`; None beyond the end."""
        tail = self._tails.get(partition)
        part = tail.find(offset) if tail else None
        if part is None:
            self.write()
            row = self._state.floor(records.slice_key(partition, offset))
            if row is None or row[0][:9] != records.slice_key(partition, 0)[:9]:
                return None
            part = records.decode_slice(*row)
        return part if offset < part.end else None

    def whole(self, partition: PartitionKey, first: Offset, end: Offset, slices_max: int) -> list[Slice]:
        """Return successive slices from `first` that end at `end` or before, from memory only.

        Empty if no slice begins at `first`.
        """
        tail = self._tails.get(partition)
        if tail is None:
            return []
        low = bisect_left(tail.offsets, first)
        found = tail.parts[low : min(bisect_left(tail.offsets, end, low), low + slices_max)]
        if found and found[-1].end > end:
            found.pop()
        return found if found and found[0].offset == first else []

    def between(
        self, partition: PartitionKey, first: Offset, end: Offset
    ) -> Iterator[tuple[Offset, Offset, Slice]]:
        """Yield the parts of [first, end) that lie in one slice each, with that slice."""
        while first < end and (part := self.at(partition, first)) is not None:
            yield first, min(end, part.end), part
            first = part.end

    def drop(self, partition: PartitionKey) -> None:
        """Forget a removed partition. Its rows are swept later."""
        self._forget(partition)

    def _forget(self, partition: PartitionKey) -> None:
        self.write()
        tail = self._tails.pop(partition, None)
        if tail is not None:
            self._remembered -= len(tail.parts)
