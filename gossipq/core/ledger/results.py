"""Results of jobs: rows "r", each written by the entry that acks its record.

Nothing of them is kept in memory but the time at which the first one ends.
"""

from collections.abc import Mapping
from itertools import islice

import msgspec

from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.cursors import Cursor
from gossipq.core.ledger.groups import Groups
from gossipq.core.ledger.outcomes import DONE, Counted, Outcome
from gossipq.core.ledger.records import U64, U64X2, U64X3, GroupState, ProgressRow, ResultRow, ResultsRow
from gossipq.core.ledger.slices import Slices
from gossipq.core.storage import Entry, Intervals, Table, payloads
from gossipq.types import DELAY, ID_HASH, Index, Offset, PartitionKey
from gossipq.values import JobResult, ResultRun

PROGRESS_FLAG = 2**63  #: added to the group id in rows "y" of progress
RUN_FLAG = 2**62  #: added to the group id in rows "r" and "y" of neighbours
BLOCK = 64  #: neighbours in one row are between two multiples of it, so that a row is found from an offset
RUN_KEY_BYTES = 33
NO_RANGES = Intervals()


decode_result = msgspec.msgpack.Decoder(ResultRow).decode
decode_results = msgspec.msgpack.Decoder(ResultsRow).decode
_decode_progress = msgspec.msgpack.Decoder(ProgressRow).decode


class Results:
    def __init__(
        self,
        state: Table,
        slices: Slices,
        cursors: Mapping[PartitionKey, Mapping[int, Cursor]],
        names: Mapping[int, GroupState],
        groups: Groups,
    ) -> None:
        self._state = state
        self._slices = slices
        self._cursors = cursors
        self._names = names
        self._groups = groups
        #: leader time at which the first result goes; None: there are no results
        self.first_end_ms = self._first_end()

    def _first_end(self) -> int | None:
        row_key = next(iter(self._state.scan_keys(b"y", b"z")), None)
        return None if row_key is None else int(U64.unpack_from(row_key, 1)[0])

    # --- reading --------------------------------------------------------------------------------------------

    def of(self, partition: PartitionKey, offset: Offset) -> dict[int, ResultRow]:
        """Return the results of a record by group id."""
        prefix, found = records.key(b"r", partition, offset - offset % BLOCK), dict[int, ResultRow]()
        for row_key, raw in self._state.scan(prefix, records.after(prefix)):
            if len(row_key) == RUN_KEY_BYTES:
                flagged, first = U64X2.unpack_from(row_key, 17)
                if (row := decode_results(raw).at(offset - first)) is not None:
                    found[flagged - RUN_FLAG] = row
        prefix = records.key(b"r", partition, offset)
        for row_key, raw in self._state.scan(prefix, records.after(prefix)):
            if len(row_key) != RUN_KEY_BYTES:  # an operator requeued the record, perhaps
                found[U64.unpack_from(row_key, 17)[0]] = decode_result(raw)
        return found

    def offset_of(self, partition: PartitionKey, index: Index, record: int) -> Offset | None:
        """Return the offset of a record that was scheduled and has a result, also after retention removed
        it."""
        row = self._state.get(records.key(b"c", partition, index, record))
        return None if row is None else U64.unpack(row)[0]

    def progress(self, partition: PartitionKey, offset: Offset, group_id: int) -> ProgressRow | None:
        """Return the last reported progress of a record."""
        row = self._state.get(records.key(b"w", partition, offset, group_id))
        return None if row is None else _decode_progress(row)

    # --- applying -------------------------------------------------------------------------------------------

    def ack(self, entry: Entry, payload: payloads.AckWithResults) -> Counted:
        """Ack records, and store the results of those that were open."""
        acked: dict[PartitionKey, Intervals] = {}
        for partition, first, end in payload.ack.ranges:
            acked.setdefault(partition, Intervals()).add(first, end)
        kept = [
            (result, attempt)
            for result in payload.results
            if result.offset in acked.get(result.partition, ())
            and (attempt := self._open_attempt(payload.ack.group_id, result.partition, result.offset))
            is not None
        ]
        runs = list[ResultRun]()
        for run in payload.runs:
            for part in acked.get(run.partition, NO_RANGES).overlap(run.first, run.end):
                fresh, others = self._open_parts(payload.ack.group_id, run.partition, part)
                runs += [run.part(*each) for each in fresh]
                kept += [(run.one(offset), attempt) for offset, attempt in others]
        outcome = self._groups.ack(entry, payload.ack)
        for result, attempt in kept:
            self._put(entry, payload.ack, result, attempt)
        for run in runs:
            self._put_run(entry, payload.ack, run)
        return outcome

    def _open_parts(
        self, group_id: int, partition: PartitionKey, part: tuple[Offset, Offset]
    ) -> tuple[list[tuple[Offset, Offset]], list[tuple[Offset, int]]]:
        """Return the parts of a range without a failed attempt, and the other open records with the number of
        attempts of each."""
        cursor = self._cursors.get(partition, {}).get(group_id)
        if cursor is None:
            return [], []
        fresh = cursor.fresh(*part)
        if fresh == [part] or not cursor.exceptional:
            return fresh, []
        others = list[tuple[Offset, int]]()
        for offset in range(*part):
            if (found := cursor.exceptions.at(offset)) is not None:
                others.append((offset, found.row.attempts + found.row.handed_out))
        return fresh, others

    def _put_run(self, entry: Entry, ack: payloads.AckRanges, run: ResultRun) -> None:
        """Store the results of neighbours, each for the first attempt of its record."""
        at = run.first
        while at < run.end:
            part = self._slices.at(run.partition, at)
            end = run.end if part is None else min(run.end, part.end)
            if end == at + 1 or (part is not None and part.columns & (DELAY | ID_HASH)):
                for offset in range(at, end):  # each has a place of its own
                    self._put(entry, ack, run.one(offset), 1)
            else:
                self._put_block(entry, ack, run.part(at, end))
            at = end

    def _put_block(self, entry: Entry, ack: payloads.AckRanges, run: ResultRun) -> None:
        """Store results of neighbours, with one row for each block."""
        end_ms, flagged = entry.time_ms + run.keep_ms, RUN_FLAG + ack.group_id
        rows, at = list[tuple[bytes, bytes]](), run.first
        while at < run.end:
            block = at - at % BLOCK
            end = min(run.end, block + BLOCK)
            row = ResultsRow(
                group=self._names[ack.group_id].name,
                consumer=ack.consumer,
                time_ms=entry.time_ms,
                end_ms=end_ms,
                kind=run.kind,
                values=run.values[at - run.first : end - run.first],
            )
            rows.append((records.key(b"r", run.partition, block, flagged, at), records.encode(row)))
            rows.append((records.key(b"y", end_ms, run.partition, at, flagged), b""))
            at = end
        self._state.put_many(rows)
        self._ends_at(end_ms)

    def _open_attempt(self, group_id: int, partition: PartitionKey, offset: Offset) -> int | None:
        """Return the number of attempts of a record, as far as entries tell; None if it is not open."""
        cursor = self._cursors.get(partition, {}).get(group_id)
        if cursor is None:
            return None
        if cursor.exceptional and (found := cursor.exceptions.at(offset)) is not None:
            return found.row.attempts + found.row.handed_out
        return 1 if cursor.fresh(offset, offset + 1) else None

    def _put(self, entry: Entry, ack: payloads.AckRanges, result: JobResult, attempt: int) -> None:
        state, partition, offset = self._state, result.partition, result.offset
        part = self._slices.at(partition, offset)
        index = record = 0
        if part is not None and part.columns & DELAY:
            index, record = part.index, part.first + offset - part.offset
            state.put(records.key(b"c", partition, index, record), U64.pack(offset))
        elif part is not None and part.columns & ID_HASH:
            index, record = self._earlier(partition, part.index)
            if index:
                state.put(records.key(b"c", partition, index, record), U64.pack(offset))
        end_ms = entry.time_ms + result.keep_ms
        row = ResultRow(
            group=self._names[ack.group_id].name,
            consumer=ack.consumer,
            time_ms=entry.time_ms,
            end_ms=end_ms,
            attempt=attempt,
            kind=result.kind,
            value=result.value,
            index=index,
            record=record,
        )
        row_key = records.key(b"r", partition, offset, ack.group_id)
        old = state.get(row_key)
        if old is not None:  # an operator requeued the record
            state.delete(records.key(b"y", decode_result(old).end_ms, partition, offset, ack.group_id))
        state.put(row_key, records.encode(row))
        state.put(records.key(b"y", end_ms, partition, offset, ack.group_id), b"")
        self._ends_at(end_ms)

    def _earlier(self, partition: PartitionKey, index: Index) -> tuple[Index, int]:
        """Return entry and record that named the record of an EDIT or JOINED entry before it had an offset;
        (0, 0) if nothing did."""
        row = self._state.get(records.key(b"F", partition, index))
        if row is None:
            return 0, 0
        offset, earlier, record = msgspec.msgpack.decode(row)
        return (earlier, record) if offset < 0 else (0, 0)

    def _ends_at(self, end_ms: int) -> None:
        if self.first_end_ms is None or end_ms < self.first_end_ms:
            self.first_end_ms = end_ms

    def report(self, entry: Entry, payload: payloads.ProgressReports) -> Outcome:
        """Store the progress of records that are open."""
        state = self._state
        end_ms = entry.time_ms + limits.PROGRESS_KEPT_MS
        for each in payload.rows:
            name = each.partition, each.offset, payload.group_id
            if self._open_attempt(payload.group_id, each.partition, each.offset) is None:
                continue
            indexed = each.partition, each.offset, PROGRESS_FLAG + payload.group_id
            if (old := self.progress(*name)) is not None:
                state.delete(records.key(b"y", old.end_ms, *indexed))
            row = ProgressRow(done=each.done, text=each.text, time_ms=entry.time_ms, end_ms=end_ms)
            state.put(records.key(b"w", *name), records.encode(row))
            state.put(records.key(b"y", end_ms, *indexed), b"")
            self._ends_at(end_ms)
        return DONE

    def expire(self, entry: Entry, payload: payloads.ExpireResults) -> Counted:
        """Delete the results whose time is over."""
        row_keys = self._state.scan_keys(b"y", records.key(b"y", payload.before_ms + 1))
        gone = list(islice(row_keys, payload.count_max))
        for row_key in gone:
            partition, offset, group_id = U64X3.unpack_from(row_key, 9)
            if group_id >= PROGRESS_FLAG:
                self._state.delete(records.key(b"w", partition, offset, group_id - PROGRESS_FLAG))
            elif group_id >= RUN_FLAG:
                block = offset - offset % BLOCK
                self._state.delete(records.key(b"r", partition, block, group_id, offset))
            else:
                self._delete(partition, offset, group_id)
            self._state.delete(row_key)
        self.first_end_ms = self._first_end()
        return Counted(len(gone))

    def _delete(self, partition: PartitionKey, offset: Offset, group_id: int) -> None:
        state, row_key = self._state, records.key(b"r", partition, offset, group_id)
        raw = state.get(row_key)
        if raw is None:
            return  # its topic was removed
        row = decode_result(raw)
        if row.index and len(self.of(partition, offset)) == 1:
            state.delete(records.key(b"c", partition, row.index, row.record))
        state.delete(row_key)
