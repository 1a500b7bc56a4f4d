"""Acks of a group in a partition, with consumer and time: rows "A".

Each ack writes a row. When everything before them is finished, about a thousand rows are merged
into one row, a *page*, which keeps the same facts for each record. An ack between failed records is
a page with gaps; later acks of those records fill the gaps.

The ACK entry of a turn also carries the failures of its consumer. The cursor passes all of it at
once, and no row of a passed range is written only to be deleted.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import itemgetter

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import U64, AckRow, CursorState
from gossipq.core.storage import Table
from gossipq.types import Index, Offset, PartitionKey

PAGE_RUNS = 1_024  #: acks in a page at most; also the number of rows worth merging
LARGE = 16  #: a page with more than this part of PAGE_RUNS is not merged again
#: a larger filled page is split, because each ack that fills a gap rewrites its page
FILLED_RUNS = 512
#: rows are merged again after this many new ones, even if that makes no full page
DRAINED_RUNS = 64

GAP = -1  #: in place of a consumer: these records are not acked

AckRange = tuple[Offset, AckRow]  #: first offset, and the ack of all records in the run

decode_ack = msgspec.msgpack.Decoder(AckRow).decode


def runs_of(first: Offset, row: AckRow) -> Iterator[AckRange]:
    """Yield the acks in a row, one by one."""
    if not row.page:
        yield first, row
        return
    time_ms, index, numbers = row.time_ms, row.index, iter(row.page)
    for count, who, later_ms, further in zip(numbers, numbers, numbers, numbers, strict=True):
        time_ms, index = time_ms + later_ms, index + further
        if who >= 0:
            yield first, AckRow(first + count, time_ms, row.consumers[who], index)
        first += count


@lru_cache(maxsize=4)
def _opened(first: Offset, row: bytes) -> tuple[AckRange, ...]:
    """Cached `runs_of` a stored row: reading record by record reads one page many times."""
    return tuple(runs_of(first, decode_ack(row)))


def _end_of(run: AckRange) -> Offset:
    return run[1].end


def page_of(runs: list[AckRange]) -> AckRow:
    """Return one page with these acks. They must rise."""
    row = runs[0][1]
    if len(runs) == 1:
        return row
    names: dict[str, int] = {}
    page: list[int] = []
    time_ms, index, at = row.time_ms, row.index, runs[0][0]
    for first, each in runs:
        if at < first:
            page += (first - at, GAP, 0, 0)
        at = each.end
        who = names.setdefault(each.consumer, len(names))
        page += (each.end - first, who, each.time_ms - time_ms, each.index - index)
        time_ms, index = each.time_ms, each.index
    return AckRow(
        end=runs[-1][1].end,
        time_ms=row.time_ms,
        consumer="",
        index=row.index,
        consumers=list(names),
        page=page,
    )


def page_for(ranges: list[tuple[Offset, Offset]], time_ms: int, consumer: str, index: Index) -> AckRow:
    """Return one page in which all ranges have the same ack. They must rise."""
    first, end = ranges[0]
    if len(ranges) == 1:
        return AckRow(end, time_ms, consumer, index)
    page, at = list[int](), first
    for first, end in ranges:
        if at < first:
            page += (first - at, GAP, 0, 0)
        page += (end - first, 0, 0, 0)
        at = end
    return AckRow(end=at, time_ms=time_ms, consumer="", index=index, consumers=[consumer], page=page)


class AckRows:
    def __init__(self, state: Table, partition: PartitionKey, group_id: int) -> None:
        self._state = state
        self._prefix = records.row_key(b"A", partition, group_id)

    def _row(self, offset: Offset) -> AckRange | None:
        """Return the row that begins at an offset, or the last one before it."""
        found = self._state.floor(self._prefix + U64.pack(offset))
        if found is None or not found[0].startswith(self._prefix):
            return None
        return U64.unpack_from(found[0], len(self._prefix))[0], decode_ack(found[1])

    def put(self, first: Offset, row: AckRow) -> None:
        self._state.put(self._prefix + U64.pack(first), records.encode(row))

    def put_many(self, runs: list[AckRange]) -> None:
        prefix = self._prefix
        if runs:
            self._state.put_many([(prefix + U64.pack(first), records.encode(row)) for first, row in runs])

    def fill(self, runs: list[AckRange]) -> int:
        """Add acks of records that the cursor has passed. They must rise.

        Acks in the gap of a page are merged into that page. Returns how many rows were added.
        """
        alone, at, parts = list[AckRange](), 0, 0
        while at < len(runs):
            first = runs[at][0]
            page, end = self._row(first), at + 1
            if page is None or page[1].end <= first:
                alone.append(runs[at])
            else:
                while end < len(runs) and runs[end][0] < page[1].end:
                    end += 1
                whole = sorted([*runs_of(*page), *runs[at:end]], key=itemgetter(0))
                size = len(whole) if len(whole) <= FILLED_RUNS else FILLED_RUNS // 2
                pieces = [whole[low : low + size] for low in range(0, len(whole), size)]
                self.put_many([(piece[0][0], page_of(piece)) for piece in pieces])
                parts += len(pieces) - 1
            at = end
        self.put_many(alone)
        return len(alone) + parts

    def last(self, offset: Offset) -> AckRange | None:
        """Return the ack that contains an offset, or the last one below it."""
        row = self._row(offset)
        if row is None:
            return None
        return [run for run in runs_of(*row) if run[0] <= offset][-1]

    def within(self, first: Offset, end: Offset) -> Iterator[AckRange]:
        """Yield each ack that overlaps [first, end)."""
        low = self._prefix + U64.pack(first)
        before = self._state.floor(low)
        if before is not None and before[0].startswith(self._prefix):
            low = before[0]
        for row_key, row in self._state.scan(low, self._prefix + U64.pack(end)):
            runs = _opened(U64.unpack_from(row_key, len(self._prefix))[0], row)
            for at in range(bisect_right(runs, first, key=_end_of), len(runs)):
                if runs[at][0] >= end:
                    break
                yield runs[at]

    def cover(self, first: Offset, end: Offset) -> bool:
        """True if all of [first, end) is acked. Dropped and purged records have no ack."""
        return sum(min(run.end, end) - max(at, first) for at, run in self.within(first, end)) == end - first

    def take(self, first: Offset, end: Offset) -> list[AckRange]:
        """Remove the acks of records, which must be in one row. Returns the removed acks."""
        row = self._row(first)
        if row is None or row[1].end <= first:
            return []
        self._state.delete(self._prefix + U64.pack(row[0]))
        taken: list[AckRange] = []
        kept: tuple[list[AckRange], list[AckRange]] = [], []
        for low, run in runs_of(*row):
            _cut(kept[0], low, run, row[0], first)
            _cut(taken, low, run, first, end)
            _cut(kept[1], low, run, end, run.end)
        for runs in filter(None, kept):
            self.put(runs[0][0], page_of(runs))
        return taken

    def merge(self, cursor: CursorState, first: Offset, end: Offset) -> None:
        """Merge rows that begin in [first, end), a limited number at a time.

        All records there must be finished. `first` must not be below the offset that retention has
        reached, so that every copy has the same rows.
        """
        low, high = max(first, cursor.merged), self._prefix + U64.pack(max(end, 0))
        found: list[AckRange] = []
        for row_key, row in self._state.scan(self._prefix + U64.pack(low), high):
            found.append((U64.unpack_from(row_key, len(self._prefix))[0], decode_ack(row)))
            if len(found) == PAGE_RUNS:
                break
        if len(found) < PAGE_RUNS:
            cursor.unmerged = 0
            return
        cursor.merged, cursor.unmerged = found[-1][1].end, PAGE_RUNS - DRAINED_RUNS
        for runs in _pages(found):
            if len(runs) > 1:
                page_end = self._prefix + U64.pack(runs[-1][1].end)
                self._state.delete_range(self._prefix + U64.pack(runs[0][0]), page_end, len(runs))
                self.put(runs[0][0], page_of(runs))


def _cut(kept: list[AckRange], low: Offset, run: AckRow, first: Offset, end: Offset) -> None:
    """Add the part of an ack in [first, end) to `kept`."""
    first, end = max(low, first), min(run.end, end)
    if first < end:
        kept.append((first, msgspec.structs.replace(run, end=end)))


def _pages(rows: Iterable[AckRange]) -> list[list[AckRange]]:
    """Group acks into pages. A row that is already a large page stays alone."""
    found: list[list[AckRange]] = [[]]
    for first, row in rows:
        large = len(row.page) > 4 * PAGE_RUNS // LARGE
        if large or len(found[-1]) >= PAGE_RUNS:
            found.append([])
        if not large:
            found[-1] += runs_of(first, row)
    return found
