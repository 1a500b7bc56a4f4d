"""Scheduled records: rows on disk until they are due, then offsets.

A batch has one due row, so scheduled records cost only disk space. Their records are sorted by
delay (`wire.batch.verify` refuses others), so the due ones are always the front of a ScheduledRow.
The leader decides what is released (`plan`) and logs RELEASE; every copy applies it (`release`).

Due records of one batch may pass those of another batch within TOGETHER_MS. So interleaved batches
come in slices of several records instead of single ones.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import U64, U64X3, ScheduledRow
from gossipq.core.storage import Opened, ReleaseRow, Table
from gossipq.types import DELAY, Index, Offset, PartitionKey, Slice

NEVER_MS = 2**62
#: records of one batch that are due within this time can pass those of other batches
TOGETHER_MS = 20
#: in one entry; applying a row takes about 20 us, and confirms wait meanwhile
RELEASE_RECORDS_MAX, RELEASE_ROWS_MAX = 16_384, 2_048
GONE_LOOKED_AT = 4_096  #: rows of removed topics examined in one pass

decode_scheduled = msgspec.msgpack.Decoder(ScheduledRow).decode


class ScheduledRecords:
    def __init__(self, state: Table, knows: Callable[[PartitionKey], bool]) -> None:
        """`knows` tells whether a partition exists; rows of removed ones wait to be swept."""
        self._state, self._knows = state, knows
        self._next_ms: int | None = None  # None: unknown
        self._begin = b"E"  # due rows before this one belong to removed partitions
        self._cut_ms = NEVER_MS  # time at which the last scan of due rows ended early

    # --- reading --------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """Timer time of the next due record, or of the next scan; None if nothing is scheduled."""
        if self._next_ms is None:
            first = next(self._due_rows(NEVER_MS), None)
            if first is None and self._cut_ms < NEVER_MS:
                return self._cut_ms
            self._next_ms = first[0] if first else NEVER_MS
        return self._next_ms if self._next_ms < NEVER_MS else None

    def forget(self) -> None:
        """A partition was removed, perhaps with the next due record."""
        self._next_ms = None

    def _due_rows(self, before_ms: int) -> Iterator[tuple[int, Index, int, PartitionKey]]:
        """Yield (due, index, first, partition) of rows due before `before_ms`, in order.

        After many rows of removed topics the scan ends early; `_cut_ms` is the time it reached. The
        next scan begins behind the first of them.
        """
        gone = 0
        first = True
        self._cut_ms = NEVER_MS
        for row_key, row in self._state.scan(self._begin, records.key(b"E", before_ms)):
            (partition,) = U64.unpack(row)
            if self._knows(partition):
                first = False
                yield (*U64X3.unpack_from(row_key, 1), partition)
                continue
            gone += 1
            if first:
                self._begin = row_key
            if gone > GONE_LOOKED_AT:
                self._cut_ms = U64.unpack_from(row_key, 1)[0]
                return

    def get(self, partition: PartitionKey, index: Index, record: int) -> tuple[int, ScheduledRow] | None:
        """Return (first record, row) of the scheduled run that contains a record."""
        prefix = records.key(b"W", partition, index)
        found = self._state.floor(prefix + U64.pack(record))
        if found is None or found[0][:17] != prefix:
            return None
        first, row = U64.unpack_from(found[0], 17)[0], decode_scheduled(found[1])
        return (first, row) if record < row.end else None

    def holds(self, partition: PartitionKey, index: Index) -> bool:
        """Say if a record of an entry is scheduled."""
        prefix = records.key(b"W", partition, index)
        return next(iter(self._state.scan_keys(prefix, records.after(prefix))), None) is not None

    def plan(self, timer_ms: int, opened: Opened) -> list[ReleaseRow]:
        """Return the due records of all batches, earliest first, as many as one entry may have."""
        rows = self._due_rows(timer_ms + 1)
        heap: list[tuple[int, Index, int, PartitionKey, ScheduledRow]] = []
        planned: list[ReleaseRow] = []
        waiting, count, last = next(rows, None), 0, None
        while (waiting or heap) and count < RELEASE_RECORDS_MAX and len(planned) < RELEASE_ROWS_MAX:
            while waiting and (not heap or waiting[0] <= heap[0][0]):
                due_ms, index, first, partition = waiting
                found = self.get(partition, index, first)
                assert found is not None, "a due row has its scheduled row"
                heappush(heap, (due_ms, index, first, partition, found[1]))
                waiting = next(rows, None)
            due_ms, index, first, partition, row = heappop(heap)
            timer_ms = min(timer_ms, self._cut_ms)
            next_ms = min(waiting[0] if waiting else timer_ms, heap[0][0] if heap else timer_ms)
            until_ms = min(timer_ms, max(next_ms, due_ms + TOGETHER_MS))
            end, next_ms = self._due_end(opened, index, first, row, until_ms)
            before = planned.pop().first if last is row and planned[-1].end == first else first
            planned.append(ReleaseRow(partition, index, before, end, next_ms))
            last = row
            count += end - first
            if end < row.end and next_ms <= timer_ms:
                heappush(heap, (next_ms, index, end, partition, row))
        return planned

    @staticmethod
    def _due_end(
        opened: Opened, index: Index, first: int, row: ScheduledRow, until_ms: int
    ) -> tuple[int, int]:
        """Return the end of the records due by `until_ms`, and the due time of the next one."""
        delays = None if row.fixed else opened.column(index, DELAY)
        if delays is None:
            return row.end, NEVER_MS
        end = max(first + 1, bisect_right(delays, until_ms - row.base_ms, first, row.end))
        return end, row.base_ms + delays[end] if end < row.end else NEVER_MS

    # --- applying -------------------------------------------------------------------------------------------

    def add(self, partition: PartitionKey, index: Index, first: int, row: ScheduledRow) -> None:
        self._state.put(records.key(b"W", partition, index, first), records.encode(row))
        due_key = records.key(b"E", row.due_ms, index, first)
        self._state.put(due_key, U64.pack(partition))
        self._begin = min(self._begin, due_key)
        if self._next_ms is not None:
            self._next_ms = min(self._next_ms, row.due_ms)

    def _drop(self, partition: PartitionKey, index: Index, first: int, row: ScheduledRow) -> None:
        self._state.delete(records.key(b"W", partition, index, first))
        self._state.delete(records.key(b"E", row.due_ms, index, first))
        self._next_ms = None

    def release(self, row: ReleaseRow, offset: Offset, time_ms: int) -> Slice | None:
        """Take records out of the schedule. Returns their slice, or None if they are not there any
        more.
        """
        found = self.get(row.partition, row.index, row.first)
        if found is None or found[0] != row.first or found[1].end < row.end or found[1].due_ms > time_ms:
            return None  # cancelled or rescheduled meanwhile; due records are planned again
        scheduled = found[1]
        self._drop(row.partition, row.index, row.first, scheduled)
        if row.end < scheduled.end:
            rest = msgspec.structs.replace(scheduled, due_ms=row.due_ms)
            self.add(row.partition, row.index, row.end, rest)
        return Slice(
            offset,
            row.index,
            row.first,
            row.end - row.first,
            scheduled.size,
            scheduled.batch_count,
            time_ms,
            scheduled.columns,
            scheduled.route,
        )

    def take(
        self, partition: PartitionKey, index: Index, record: int, due_of: Callable[[int], int]
    ) -> ScheduledRow | None:
        """Take one record out. `due_of(record)` is the due time of a record with a DELAY column.

        The rows beside it keep their due times.
        """
        found = self.get(partition, index, record)
        if found is None:
            return None
        first, row = found
        self._drop(partition, index, first, row)
        if first < record:
            self.add(partition, index, first, msgspec.structs.replace(row, end=record))
        if record + 1 < row.end:
            due_ms = row.due_ms if row.fixed else row.base_ms + due_of(record + 1)
            self.add(partition, index, record + 1, msgspec.structs.replace(row, due_ms=due_ms))
        return msgspec.structs.replace(row, end=record + 1)
