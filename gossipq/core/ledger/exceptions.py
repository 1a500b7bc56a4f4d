"""Records of a group beside its cursor in one partition: waiting ones, and dead letters.

Each exception row has one index row: by due time ("Y"), or by lane ("U"), which is a route without
a consumer or a busy key. Records of one batch with equal failures share a row, even with gaps
between them, unless another row lies in a gap. So the last row that begins at or before an offset
is the one that contains it, if any does.

Failed, parked and dead records leave the window of the cursor for these rows, so one bad record
blocks no other record. A shared row costs a node a quarter of a row, a lease and a slice for each
record.
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
from gossipq.types import Offset, PartitionKey, Ranges

MAX_OFFSET = 2**63
NEVER_MS = 2**62
AT_ONCE_MS = 0  #: due time of a record that does not wait: due by any clock
NEAR = 8  #: scanning this many records between two requested ones costs no more than a new search

decode_exception = msgspec.msgpack.Decoder(ExceptionRow).decode
decode_dead = msgspec.msgpack.Decoder(DeadRow).decode


def dead_rows(state: Table, partition: PartitionKey, group_id: int) -> Runs[DeadRow]:
    """Return the dead letters of a group in a partition."""
    return Runs(state, records.row_key(b"L", partition, group_id), decode_dead)


def clip(ranges: Ranges, first: Offset, end: Offset) -> Ranges:
    """Return the parts of ranges in [first, end). The ranges must rise."""
    if not ranges or (first <= ranges[0][0] and ranges[-1][1] <= end):
        return ranges
    return [(max(low, first), min(high, end)) for low, high in ranges if low < end and first < high]


def _reaching(ranges: Ranges, first: Offset, end: Offset) -> Ranges:
    """Return the ranges that overlap [first, end). The ranges must rise."""
    low = bisect_right(ranges, first, key=itemgetter(1))
    return ranges[low : bisect_left(ranges, end, lo=low, key=itemgetter(0))]


def _near(ranges: Ranges) -> Ranges:
    """Join ranges with at most NEAR records between them. The ranges must rise."""
    spans = ranges[:1]
    for first, end in ranges[1:]:
        if first - spans[-1][1] > NEAR:
            spans.append((first, end))
        else:
            spans[-1] = spans[-1][0], end
    return spans


def _parted(mine: Ranges, asked: Ranges) -> tuple[Ranges, Ranges]:
    """Split `mine` into the parts inside `asked` and the others."""
    count = len(asked)
    if mine[:count] == asked:  # the common case: records in order
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
    """Return the run of a row that contains an offset."""
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
        """Yield whole rows that overlap some of the rising ranges, and a few rows between them."""
        behind = 0
        for first, end in _near(ranges):
            for found in self._reaching(max(first, behind), end) if behind < end else ():
                yield found
                behind = found.end

    def take_all(self, ranges: Ranges) -> list[Found[ExceptionRow]]:
        """Like `take` for each of the rising ranges. Rows that are taken as a whole are not split
        first.
        """
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
            else:  # stored as runs, because rows must not overlap
                found += [_run(whole, first, end) for first, end in taken]
                for first, end in left:
                    self._store(*_run(whole, first, end))
        return found

    def _make_room(self, first: Offset, end: Offset) -> bool:
        """Split the row around [first, end) into two rows. True if [first, end) is free then."""
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
        """Write new rows, which must rise."""
        if not rows:
            return
        if not self._make_room(rows[0][0], rows[-1][1].end):
            rows = [each for row in rows for each in self._apart(*row)]
        super().put_many(rows)
        self._state.put_many([(self._index_key(first, row), b"") for first, row in rows])

    def _apart(self, first: Offset, row: ExceptionRow) -> list[tuple[Offset, ExceptionRow]]:
        """Split a row into runs if other rows lie in its gaps."""
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
        """Replace an existing row by another."""
        if row == found.row:
            return
        super().put(found.first, row)
        old, new = self._index_key(*found), self._index_key(found.first, row)
        if old != new:
            self._state.delete(old)
            self._state.put(new, b"")

    def due(self, since: tuple[int, Offset], until_ms: int, limit: int) -> list[tuple[int, Offset]]:
        """Return (due, first) of rows that wait for their time, from `since` to `until_ms`, in
        order.

        At most `limit` rows; below 0 means all.
        """
        low = self._due_prefix + U64X2.pack(*since)
        high = self._due_prefix + U64.pack(until_ms + 1)
        found = []
        for row_key, _ in self._state.scan(low, high):
            found.append(U64X2.unpack_from(row_key, 17))
            if len(found) == limit:
                break
        return found

    def retrying(self) -> Iterator[Found[ExceptionRow]]:
        """Yield the records that wait for their time, run by run, in order."""
        for first in sorted(first for _, first in self.due((0, 0), NEVER_MS, -1)):
            whole = self.row_at(first)
            assert whole is not None, "an index row has its row"
            yield from self.pieces(whole, first, whole.end)

    def lanes(self, behind: bytes, limit: int) -> list[bytes]:
        """Return the first `limit` lanes with rows, in order, behind `behind`; b"" = from the
        start.
        """
        return [lane for lane, _ in islice(self.fronts(behind), limit)]

    def fronts(self, behind: bytes = b"") -> Iterator[tuple[bytes, Offset]]:
        """Yield each lane with rows behind `behind`, and the first offset in it."""
        prefix = records.row_key(b"U", self._partition, self._group_id)
        low, high = prefix, records.after(prefix)
        if behind:
            low = records.after(records.lane_key(self._partition, self._group_id, behind, 0)[:-8])
        while (row := next(iter(self._state.scan(low, high)), None)) is not None:
            end = 19 + int.from_bytes(row[0][17:19], "big")
            yield row[0][19:end], U64.unpack_from(row[0], end)[0]
            low = records.after(row[0][:end])

    def in_lane(self, lane: bytes, first: Offset, limit: int) -> list[Offset]:
        """Return the first offsets of up to `limit` rows of a lane, from `first` on, in order."""
        low = records.lane_key(self._partition, self._group_id, lane, first)
        found = []
        for row_key, _ in self._state.scan(low, records.after(low[:-8])):
            found.append(U64.unpack_from(row_key, len(row_key) - 8)[0])
            if len(found) == limit:
                break
        return found
