"""What a group has beside its cursor in one partition: records that wait for another attempt or for their
lane, and the dead.

Each exception row has one index row: by due time ("Y"), or by lane ("U"): a route that nobody takes, or a key
that is busy. Records of one batch that failed alike share a row, also those that are not neighbours, as long
as no other row lies between the first and the last of them: then any record is found by the row before it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import U64, U64X2, DeadRow, ExceptionRow
from gossipq.core.ledger.runs import Found, Runs
from gossipq.core.storage import Intervals, Table
from gossipq.types import Offset, PartitionKey

MAX_OFFSET = 2**63
NEVER_MS = 2**62
NEAR = 8  #: so many records between two that are asked for cost no more than to look anew
Ranges = list[tuple[Offset, Offset]]

decode_exception = msgspec.msgpack.Decoder(ExceptionRow).decode
decode_dead = msgspec.msgpack.Decoder(DeadRow).decode


def dead_rows(state: Table, partition: PartitionKey, group_id: int) -> Runs[DeadRow]:
    """Dead letters of a group in a partition."""
    return Runs(state, records.row_key(b"L", partition, group_id), decode_dead)


def clip(ranges: Ranges, first: Offset, end: Offset) -> Ranges:
    """What of ranges, which rise, lies in [first, end)."""
    if not ranges or (first <= ranges[0][0] and ranges[-1][1] <= end):
        return ranges
    return [(max(low, first), min(high, end)) for low, high in ranges if low < end and first < high]


def _reaching(ranges: Ranges, first: Offset, end: Offset) -> Ranges:
    """Those of ranges, which rise, that reach into [first, end)."""
    low = bisect_right(ranges, first, key=itemgetter(1))
    return ranges[low : bisect_left(ranges, end, lo=low, key=itemgetter(0))]


def _near(ranges: Ranges) -> Ranges:
    """Spans of ranges, which rise: what lies between two of a span are a few records."""
    spans = ranges[:1]
    for first, end in ranges[1:]:
        if first - spans[-1][1] > NEAR:
            spans.append((first, end))
        else:
            spans[-1] = spans[-1][0], end
    return spans


def _parted(mine: Ranges, asked: Ranges) -> tuple[Ranges, Ranges]:
    """What of ranges is asked for, and what is not."""
    count = len(asked)
    if mine[:count] == asked:  # as most: record by record in order
        return asked, mine[count:]
    if count == 1:
        ((first, end),) = asked
        return clip(mine, first, end), clip(mine, 0, first) + clip(mine, end, MAX_OFFSET)
    here = Intervals(mine)
    taken = [part for first, end in asked for part in here.overlap(first, end)]
    gone = Intervals(taken)
    return taken, [part for first, end in mine for part in gone.missing(first, end)]


def ranges_of(found: Found[ExceptionRow]) -> Ranges:
    return found.row.ranges or [(found.first, found.row.end)]


def run_at(whole: Found[ExceptionRow], offset: Offset) -> Found[ExceptionRow] | None:
    """The run of a row that holds an offset."""
    if not whole.row.ranges:
        return whole
    first, end = whole.row.ranges[bisect_right(whole.row.ranges, (offset, MAX_OFFSET)) - 1]
    return _run(whole, first, end) if offset < end else None


def _run(whole: Found[ExceptionRow], first: Offset, end: Offset) -> Found[ExceptionRow]:
    record = whole.row.record + first - whole.first
    return Found(first, msgspec.structs.replace(whole.row, end=end, record=record, ranges=[]))


def _some(whole: Found[ExceptionRow], ranges: Ranges) -> Found[ExceptionRow]:
    first, end = ranges[0][0], ranges[-1][1]
    found = _run(whole, first, end)
    return Found(first, msgspec.structs.replace(found.row, ranges=ranges)) if len(ranges) > 1 else found


class Exceptions(Runs[ExceptionRow]):
    __slots__ = ("_due_prefix", "_group_id", "_partition")

    def __init__(self, state: Table, partition: PartitionKey, group_id: int) -> None:
        super().__init__(state, records.row_key(b"V", partition, group_id), decode_exception)
        self._partition, self._group_id = partition, group_id
        self._due_prefix = records.row_key(b"Y", partition, group_id)

    def _index_key(self, first: Offset, row: ExceptionRow) -> bytes:
        if row.lane:
            return records.lane_key(self._partition, self._group_id, row.lane, first)
        return self._due_prefix + U64X2.pack(row.due_ms, first)

    # --- rows of several runs -------------------------------------------------------------------------------

    def at(self, offset: Offset) -> Found[ExceptionRow] | None:
        found = self.row_at(offset)
        return found if found is None else run_at(found, offset)

    def scan(self, first: Offset = 0) -> Iterator[Found[ExceptionRow]]:
        before = self.row_before(first)
        if before is not None and before.end > first:
            yield from (run for run in self.pieces(before, before.first, before.end) if run.first >= first)
        for found in self._rows(first):
            yield from self.pieces(found, found.first, found.end)

    @staticmethod
    def pieces(whole: Found[ExceptionRow], first: Offset, end: Offset) -> list[Found[ExceptionRow]]:
        if not whole.row.ranges:
            return Runs.pieces(whole, first, end)
        return [_run(whole, low, high) for low, high in clip(whole.row.ranges, first, end)]

    def leave(self, whole: Found[ExceptionRow], first: Offset, end: Offset) -> None:
        if not whole.row.ranges:
            super().leave(whole, first, end)
        elif left := clip(whole.row.ranges, first, end):
            self._store(*_some(whole, left))

    def _touched(self, ranges: Ranges) -> Iterator[Found[ExceptionRow]]:
        """Whole rows that reach into some of the ranges, which rise, and a few more between those."""
        behind = 0
        for first, end in _near(ranges):
            for found in self._reaching(max(first, behind), end) if behind < end else ():
                yield found
                behind = found.end

    def take_all(self, ranges: Ranges) -> list[Found[ExceptionRow]]:
        """As `take` of each, which rise; rows that are taken as a whole, or up to some record, are not taken
        apart."""
        found: list[Found[ExceptionRow]] = []
        for whole in list(self._touched(ranges)):
            mine = whole.row.ranges or [(whole.first, whole.end)]
            if mine == ranges:
                self.delete(whole)
                return [whole]
            taken, left = _parted(mine, _reaching(ranges, whole.first, whole.end))
            if not taken:
                continue
            self.delete(whole)
            if not left or taken[-1][1] <= left[0][0] or left[-1][1] <= taken[0][0]:
                found.append(_some(whole, taken))
                if left:
                    self._store(*_some(whole, left))
            else:  # rows do not reach into one another
                found += [_run(whole, first, end) for first, end in taken]
                for first, end in left:
                    self._store(*_run(whole, first, end))
        return found

    def _make_room(self, first: Offset, end: Offset) -> bool:
        """What lies to both sides of [first, end) becomes two rows. Whether nothing lies between."""
        found = self.row_before(end)
        if found is None or found.end <= first:
            return True
        if found.first >= first:
            return False
        self.delete(found)
        self.leave(found, found.first, first)
        self.leave(found, first, found.end)
        return self._make_room(first, end)

    def put(self, first: Offset, row: ExceptionRow) -> None:
        self.put_many([(first, row)])

    def put_many(self, rows: list[tuple[Offset, ExceptionRow]]) -> None:
        """New rows, which rise."""
        if not rows:
            return
        if not self._make_room(rows[0][0], rows[-1][1].end):
            rows = [each for row in rows for each in self._apart(*row)]
        super().put_many(rows)
        self._state.put_many([(self._index_key(first, row), b"") for first, row in rows])

    def _apart(self, first: Offset, row: ExceptionRow) -> list[tuple[Offset, ExceptionRow]]:
        """A row as it can lie among others: in runs if there are some between its own."""
        whole = Found(first, row)
        if self._make_room(first, row.end):
            return [whole]
        for low, high in row.ranges:
            self._make_room(low, high)
        return list(self.pieces(whole, first, row.end))

    def _store(self, first: Offset, row: ExceptionRow) -> None:
        super().put(first, row)
        self._state.put(self._index_key(first, row), b"")

    def delete(self, found: Found[ExceptionRow]) -> None:
        super().delete(found)
        self._state.delete(self._index_key(*found))

    def change(self, found: Found[ExceptionRow], row: ExceptionRow) -> None:
        """Another row in the place of one that is there."""
        if row == found.row:
            return
        super().put(found.first, row)
        old, new = self._index_key(*found), self._index_key(found.first, row)
        if old != new:
            self._state.delete(old)
            self._state.put(new, b"")

    def due(self, since: tuple[int, Offset], until_ms: int, limit: int) -> list[tuple[int, Offset]]:
        """(due, first) of rows that wait for their time, from `since` to `until_ms`, in order; the first
        few, or all if `limit` is below 0."""
        low = self._due_prefix + U64X2.pack(*since)
        high = self._due_prefix + U64.pack(until_ms + 1)
        found = []
        for row_key, _ in self._state.scan(low, high):
            found.append(U64X2.unpack_from(row_key, 17))
            if len(found) == limit:
                break
        return found

    def retrying(self) -> Iterator[Found[ExceptionRow]]:
        """What waits for its time, run by run, in order."""
        for first in sorted(first for _, first in self.due((0, 0), NEVER_MS, -1)):
            whole = self.row_at(first)
            assert whole is not None, "an index row has its row"
            yield from self.pieces(whole, first, whole.end)

    def lanes(self, behind: bytes, limit: int) -> list[bytes]:
        """Lanes that have rows, the first few behind that one in their order; b"" = from the beginning."""
        return [lane for lane, _ in islice(self.fronts(behind), limit)]

    def fronts(self, behind: bytes = b"") -> Iterator[tuple[bytes, Offset]]:
        """Each lane that has rows, behind that one in their order, and where the first of them begins."""
        prefix = records.row_key(b"U", self._partition, self._group_id)
        low, high = prefix, records.after(prefix)
        if behind:
            low = records.after(records.lane_key(self._partition, self._group_id, behind, 0)[:-8])
        while (row := next(iter(self._state.scan(low, high)), None)) is not None:
            end = 19 + int.from_bytes(row[0][17:19], "big")
            yield row[0][19:end], U64.unpack_from(row[0], end)[0]
            low = records.after(row[0][:end])

    def in_lane(self, lane: bytes, first: Offset, limit: int) -> list[Offset]:
        """Firsts of the rows of a lane from `first` on, in order; the first few."""
        low = records.lane_key(self._partition, self._group_id, lane, first)
        found = []
        for row_key, _ in self._state.scan(low, records.after(low[:-8])):
            found.append(U64.unpack_from(row_key, len(row_key) - 8)[0])
            if len(found) == limit:
                break
        return found
