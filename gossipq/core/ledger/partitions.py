"""Applies entries to partitions: PUBLISH, RELEASE, STEP, VOID, EDIT, RESCHEDULE. Part of the
ledger.
"""

from array import array
from functools import partial
from typing import Protocol

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.cursors import Cursor
from gossipq.core.ledger.dedup import HASH, Dedup
from gossipq.core.ledger.groups import CHANGED, Groups
from gossipq.core.ledger.id_index import names_of
from gossipq.core.ledger.joins import Joins
from gossipq.core.ledger.outcomes import DONE, Outcome, Published, Released, Voided, refused
from gossipq.core.ledger.producers import Producers
from gossipq.core.ledger.records import PLACE, PartitionState, ScheduledRow, VoidRow
from gossipq.core.ledger.schedule import ScheduledRecords
from gossipq.core.ledger.slices import Slices
from gossipq.core.ledger.uniques import Asked, Uniques
from gossipq.core.storage import Columns, Due, Entry, Intervals, Opened, Table, log, payloads
from gossipq.types import (
    DELAY,
    ID_HASH,
    PLACED,
    REPLACE,
    TTL,
    UNIQUE_HASH,
    UNTIL,
    BatchInfo,
    Index,
    Offset,
    PartitionKey,
    Slice,
    StoredAt,
    share,
    topic_id_of,
)
from gossipq.values import Run, TopicConfig


class PartitionsHost(Protocol):
    """The part of the ledger that this room uses."""

    partitions: dict[PartitionKey, PartitionState]
    dirty_partitions: set[PartitionKey]
    cursors: dict[PartitionKey, dict[int, Cursor]]
    voids: dict[PartitionKey, Intervals]
    slices: Slices
    schedule: ScheduledRecords
    dedup: Dedup
    uniques: Uniques
    joins: Joins
    opened: Opened
    producers: Producers

    @property
    def state(self) -> Table: ...
    def cursor(self, partition: PartitionKey, group_id: int) -> Cursor | None: ...
    def config(self, partition: PartitionKey) -> TopicConfig: ...
    def changed(self, partition: PartitionKey) -> None:
        """Write the partition's row at the next flush."""

    def located(self, partition: PartitionKey, run: Run) -> list[Run]: ...
    def stored(self, partition: PartitionKey, index: Index, record: int) -> bool: ...
    def offset_of(self, partition: PartitionKey, index: Index, record: int) -> Offset | None: ...
    def is_void(self, partition: PartitionKey, offset: Offset) -> bool: ...
    def done_everywhere(self, partition: PartitionKey, offset: Offset) -> bool: ...
    def needed(self, index: Index, count: int) -> None: ...
    def not_needed(self, index: Index, count: int) -> None: ...


REPLACED_BY = "a publish of the same unique name"  #: who voids a record whose name another one took
NAME_OF = HASH.pack
UNKNOWN: StoredAt = 0, 0


def kept_runs(runs: list[Run], kept: dict[int, StoredAt]) -> list[Run]:
    """Return the runs of a batch of which some records were kept out, each for the record at its place."""
    places: list[tuple[Index, int, bool, bool]] = []
    for run in runs:
        for at in range(run.count):
            place = kept.get(len(places))
            own = run.index, run.record + at, run.duplicate, False
            places.append(own if place is None else (*place, True, True))
    found: list[Run] = []
    for here in places:
        last = found[-1] if found else Run(0, -1)
        if here == (last.index, last.record + last.count, last.duplicate, last.kept):
            found[-1] = msgspec.structs.replace(last, count=last.count + 1)
        else:
            index, record, duplicate, is_kept = here
            found.append(Run(1, -1, index, record, duplicate, is_kept))
    return found


def _gone(partition: PartitionKey) -> Outcome:
    return refused("unknown_topic", f"the topic with id {topic_id_of(partition)} is not here any more")


class Partitions:
    def __init__(self, host: PartitionsHost, columns: Columns, groups: Groups) -> None:
        self._host = host
        self._columns = columns
        self._groups = groups

    def publish(self, entry: Entry, payload: tuple[PartitionKey, BatchInfo, Due | None]) -> Outcome:
        partition, info, due = payload
        if partition in self._host.partitions and (
            not info.sequence or info.sequence == self._host.producers.get(partition, info.producer).last + 1
        ):
            return self._store(entry, partition, info, due)
        self._host.needed(entry.index, 0)  # a batch without new records
        return self._repeat(entry, partition, info) or _gone(partition)

    def store(self, entry: Entry, publish: bytes) -> Published:
        """Store the batch of an entry that is no repeat. `publish` is the payload of a PUBLISH."""
        return self._store(entry, *log.parse_publish(publish))

    def _repeat(self, entry: Entry, partition: PartitionKey, info: BatchInfo) -> Outcome | None:
        """Answer a batch that adds nothing: its topic is gone, or its sequence is not the next
        one.
        """
        if partition not in self._host.partitions:
            return _gone(partition)
        if not info.sequence:
            return None
        producer = self._host.producers.get(partition, info.producer)
        # 0 is a repeat of the newest batch, -1 the next batch; a gap would reorder batches
        behind = producer.last - info.sequence
        if behind == -1:
            return None
        if not 0 <= behind < len(producer.recent):
            why = f"batch refused: out_of_sequence, {producer.last + 1} is expected"
            return refused("out_of_sequence", why, producer.last + 1)
        # a plain batch is known by its first offset; one whose records lie apart by its entry, as -2 - index
        place = producer.recent[-1 - behind]
        if place >= 0:
            return Published(partition, place, 0, duplicate=True)
        index = -2 - place
        hashes = self._columns.fixed(entry.body, ID_HASH) if info.columns & ID_HASH else None
        names = self._columns.fixed(entry.body, UNIQUE_HASH) if info.columns & UNIQUE_HASH else None
        stored = partial(self._host.stored, partition, index)
        if hashes is None:
            again = [Run(info.count, -1, index)]
        else:
            again = self._host.dedup.again(partition, index, hashes, stored)
        if names is not None:
            again = self._kept_again(entry, partition, index, names, again)
        runs = [at for run in again for at in self._host.located(partition, run)]
        return Published(partition, runs[0].offset, 0, duplicate=True, runs=runs)

    def _store(self, entry: Entry, partition: PartitionKey, info: BatchInfo, due: Due | None) -> Published:
        """Give a batch its offsets, or its place in the schedule."""
        state = self._host.partitions[partition]
        offset, added, runs = state.next, info.count, None
        replaced: list[Offset] = []
        self._host.dirty_partitions.add(partition)
        # ids, delays and unique names can keep records out or move them, so each run gets a place of its own
        if info.columns & PLACED:
            if info.columns & UNIQUE_HASH:
                runs, replaced = self._named(entry, partition, info, due)
            else:
                runs = self._sorted_out(entry, partition, info, due, self._columns.fixed(entry.body, ID_HASH))
            fresh = [run for run in runs if not run.duplicate]
            added = sum(run.count for run in fresh)
            self._host.needed(entry.index, added)
            if due is not None:
                self._schedule(entry, partition, info, due, fresh)
            else:
                for run in fresh:
                    self._place(partition, self._slice(entry, info, state.next, run.record, run.count))
            runs = [at for run in runs for at in self._host.located(partition, run)]
            offset = runs[0].offset
            state.bytes += sum(
                share(info.size, info.count, run.record, run.record + run.count) for run in fresh
            )
        else:
            part = Slice(
                offset, entry.index, 0, added, info.size, added, entry.time_ms, info.columns, info.route
            )
            self._host.slices.add(partition, part)
            state.next = offset + added
            if info.columns & TTL:
                state.expiring = state.next
            state.bytes += info.size
        state.published += added
        if info.sequence:
            # see `_repeat`
            place = offset if runs is None else -2 - entry.index
            self._host.producers.spoke(partition, info.producer, info.sequence, place, entry.time_ms)
        return Published(partition, offset, added, not added, runs=runs, replaced=replaced)

    def _named(
        self, entry: Entry, partition: PartitionKey, info: BatchInfo, due: Due | None
    ) -> tuple[list[Run], list[Offset]]:
        """Return the runs of a batch with unique names, and the offsets of records that left for it."""
        fixed, host = self._columns.fixed, self._host
        hashes, names = fixed(entry.body, ID_HASH), fixed(entry.body, UNIQUE_HASH)
        assert names is not None, "the header says that the batch has unique names"
        untils, replaces = (
            fixed(entry.body, bit) if info.columns & bit else None for bit in (UNTIL, REPLACE)
        )
        asked = Asked(names_of(names), untils, replaces)
        ids: tuple[bytes, ...] = ()
        known: set[bytes] = set()
        if hashes is not None:
            ids = names_of(hashes)
            since_ms = entry.time_ms - host.config(partition).dedup_ms
            known = host.dedup.known(partition, set(ids), since_ms)
        kept, left = host.uniques.sort_out(partition, entry.index, entry.time_ms, asked, ids, known)
        if hashes is not None:
            for record in kept:
                hashes[record] = 0  # the id of a record that is not stored is not remembered
        runs = self._sorted_out(entry, partition, info, due, hashes)
        offsets = [self._make_way(entry, partition, place) for place in left]
        return kept_runs(runs, kept) if kept else runs, [offset for offset in offsets if offset >= 0]

    def _make_way(self, entry: Entry, partition: PartitionKey, place: StoredAt) -> Offset:
        """Void a record whose unique name another one took. Returns its offset, -1 without one."""
        offset = self._host.offset_of(partition, *place)
        offset = -1 if offset is None else offset
        index, record = place
        void = payloads.Void(partition, offset, index, record, reason="", by=REPLACED_BY)
        left = self._leave(entry, void, self._host.partitions[partition], entry.index)
        # a record that is done can hold a name, for a time
        return -1 if left is not None else offset

    def _kept_again(
        self, entry: Entry, partition: PartitionKey, index: Index, names: "array[int]", again: list[Run]
    ) -> list[Run]:
        """Return the answer to a repeat: for each record that was kept out, the one of its batch with its
        name, else the one that has the name now. The one that had it may be done, and not known any more.
        """
        stored = dict[int, StoredAt]()  # by name
        out = dict[int, int]()  # names of records that were kept out
        record = 0
        for run in again:
            for at in range(run.count):
                # a repeated id has another place
                own = (run.index, run.record + at) == (index, record) or not run.index
                if own and (name := names[record]):
                    if self._host.stored(partition, index, record):
                        stored[name] = index, record
                    else:
                        out[record] = name
                record += 1
        if not out:
            return again
        others = {NAME_OF(name) for name in out.values() if name not in stored}
        now = self._host.uniques.holders(partition, others, entry.time_ms)
        kept = {at: stored.get(name) or now.get(NAME_OF(name), UNKNOWN) for at, name in out.items()}
        return kept_runs(again, kept)

    def _sorted_out(
        self,
        entry: Entry,
        partition: PartitionKey,
        info: BatchInfo,
        due: Due | None,
        hashes: "array[int] | None",
    ) -> list[Run]:
        """Return the runs of a batch, without records whose ids are known. `hashes` are the ids."""
        if hashes is None:
            return [Run(info.count, -1, entry.index)]
        state, config = self._host.partitions[partition], self._host.config(partition)
        delays = self._columns.fixed(entry.body, DELAY) if due is not None else None
        last_ms = 0
        if due is not None and delays and delays[-1]:  # timer time, which may be behind that of the entry
            last_ms = max(due.base_ms + delays[-1], entry.time_ms + 1)
        runs, new = self._host.dedup.sort_out(
            partition, entry.index, hashes, entry.time_ms, config.dedup_ms, last_ms
        )
        state.ids += new
        state.ids -= self._host.dedup.evict(
            partition, state.ids, config.dedup_count, entry.time_ms - config.dedup_ms
        )
        return runs

    @staticmethod
    def _slice(entry: Entry, info: BatchInfo, offset: Offset, first: int, count: int) -> Slice:
        return Slice(
            offset, entry.index, first, count, info.size, info.count, entry.time_ms, info.columns, info.route
        )

    def _schedule(
        self, entry: Entry, partition: PartitionKey, info: BatchInfo, due: Due, fresh: list[Run]
    ) -> None:
        state = self._host.partitions[partition]
        for run in fresh:
            due_ms = due.due_ms
            if run.record:
                delays = self._columns.fixed(entry.body, DELAY)
                assert delays is not None, "a scheduled batch has a DELAY column"
                due_ms = due.base_ms + delays[run.record]
            end = run.record + run.count
            row = ScheduledRow(
                end=end,
                due_ms=due_ms,
                base_ms=due.base_ms,
                size=info.size,
                batch_count=info.count,
                columns=info.columns,
                route=info.route,
                time_ms=entry.time_ms,
            )
            self._host.schedule.add(partition, entry.index, run.record, row)
            state.scheduled += run.count
            state.scheduled_bytes += share(info.size, info.count, run.record, end)

    def _add(self, partition: PartitionKey, part: Slice) -> None:
        state = self._host.partitions[partition]
        self._host.slices.add(partition, part)
        state.next = part.end
        if part.columns & TTL:
            state.expiring = part.end

    def _place(self, partition: PartitionKey, part: Slice) -> None:
        """Add a slice whose records can also be named by (index, record)."""
        self._add(partition, part)
        self._host.state.put(
            records.key(b"R", partition, part.index, part.first), PLACE.pack(part.offset, part.count)
        )

    def release(self, entry: Entry, payload: payloads.Release) -> Released:
        grown = set()
        for row in payload.rows:
            state = self._host.partitions.get(row.partition)
            if state is None:
                continue
            part = self._host.schedule.release(row, state.next, entry.time_ms)
            if part is not None:
                self._place(row.partition, part)
                state.scheduled -= part.count
                state.scheduled_bytes -= part.share_bytes
                self._host.changed(row.partition)
                grown.add(row.partition)
        return Released(frozenset(grown))

    def ack_and_publish(self, entry: Entry, payload: payloads.AckAndPublish) -> Outcome:
        partition, info, due = log.parse_publish(payload.publish)
        # a repeat comes first: its first run acked the record, so its lease is over
        outcome = self._repeat(entry, partition, info)
        if outcome is None and self._groups.held(payload.ack):
            outcome = refused("lease_lost", "the record is done, or gone")
        if outcome is not None:
            self._host.needed(entry.index, 0)
            return outcome
        self._groups.ack(entry, payload.ack)
        return self._store(entry, partition, info, due)

    def void(self, entry: Entry, payload: payloads.Void) -> Outcome:
        state = self._host.partitions.get(payload.partition)
        id_hash = self._id_of(payload) if payload.offset < 0 else 0
        name = self._unique_of(payload)
        replaced_by = entry.index if payload.publish else 0
        left = _gone(payload.partition) if state is None else self._leave(entry, payload, state, replaced_by)
        if left is not None and not isinstance(left, ScheduledRow):
            if entry.body:
                self._host.needed(entry.index, 0)
            return left
        had_name = name is not None and self._host.uniques.free(payload.partition, *name)
        if not payload.publish:
            if id_hash:
                self._host.dedup.free(payload.partition, id_hash, (payload.index, payload.record))
            return Voided()
        _, info, due = log.parse_publish(payload.publish)
        if had_name and info.columns & UNIQUE_HASH:
            self._hold_on(entry, payload.partition)
        if left is not None and due is None:  # keeps its due time
            info = msgspec.structs.replace(info, columns=info.columns | DELAY)
            due = Due(left.due_ms, left.due_ms)
        return Voided(self._edited(entry, payload, info, due))

    def _edited(self, entry: Entry, payload: payloads.Void, info: BatchInfo, due: Due | None) -> Published:
        """Store the replacement of a record, and how to find the replaced one."""
        partition, state = payload.partition, self._host.partitions[payload.partition]
        run = Run(1, -1, entry.index)
        self._host.needed(entry.index, 1)
        if due is not None:
            row = ScheduledRow(
                end=1,
                due_ms=due.due_ms,
                base_ms=due.base_ms,
                size=info.size,
                batch_count=1,
                columns=info.columns,
                route=info.route,
                time_ms=entry.time_ms,
                fixed=True,
            )
            self._host.schedule.add(partition, entry.index, 0, row)
            state.scheduled += 1
            state.scheduled_bytes += info.size
        else:
            run = Run(1, state.next, entry.index)
            columns = info.columns | ID_HASH  # it has a row of its own
            self._place(
                partition,
                Slice(state.next, entry.index, 0, 1, info.size, 1, entry.time_ms, columns, info.route),
            )
        state.bytes += info.size
        state.published += 1
        replaced = payload.offset, payload.index, payload.record
        self._host.state.put(records.key(b"F", partition, entry.index), records.encode(replaced))
        return Published(partition, run.offset, 1, runs=[run])

    def _leave(
        self, entry: Entry, payload: payloads.Void, state: PartitionState, replaced_by: Index
    ) -> Outcome | ScheduledRow | None:
        """Void one record. Returns a refusal, or its row if it was scheduled."""
        partition, offset = payload.partition, payload.offset
        self._host.changed(partition)
        if offset < 0:
            row = self._unschedule(partition, payload.index, payload.record)
            if row is None:
                waited = None if payload.publish else self._host.joins.cancel(entry, payload)
                return waited or refused("wrong_state", CHANGED)
            self._host.not_needed(payload.index, 1)
            void = VoidRow(
                end=payload.record + 1,
                time_ms=entry.time_ms,
                reason=payload.reason,
                by=payload.by,
                replaced_by=replaced_by,
                published_ms=row.time_ms,
            )
            self._host.state.put(
                records.key(b"v", partition, payload.index, payload.record), records.encode(void)
            )
            state.bytes -= share(row.size, row.batch_count, payload.record, payload.record + 1)
            state.voided += 1
            return row
        known = state.first <= offset < state.next and not self._host.is_void(partition, offset)
        if not known or self._host.done_everywhere(partition, offset):
            return refused("wrong_state", CHANGED)
        row_key = records.key(b"Z", partition, offset)
        void = VoidRow(offset + 1, entry.time_ms, payload.reason, payload.by, replaced_by)
        self._host.state.put(row_key, records.encode(void))
        self._host.voids.setdefault(partition, Intervals()).add(offset, offset + 1)
        state.voided += 1
        for group_id in self._host.cursors.get(partition, {}):
            cursor = self._host.cursor(partition, group_id)
            assert cursor is not None
            self._groups.void(cursor, offset, offset + 1)
        return None

    def _unschedule(self, partition: PartitionKey, index: Index, record: int) -> ScheduledRow | None:
        """Take a record out of the schedule. Returns its row, with the record's own due time."""

        def delay_of(number: int) -> int:
            delays = self._host.opened.column(index, DELAY)
            assert delays is not None, "only a scheduled batch has rows that are not fixed"
            return delays[number]

        row = self._host.schedule.take(partition, index, record, delay_of)
        if row is None:
            return None
        state = self._host.partitions[partition]
        state.scheduled -= 1
        state.scheduled_bytes -= share(row.size, row.batch_count, record, record + 1)
        return row if row.fixed else msgspec.structs.replace(row, due_ms=row.base_ms + delay_of(record))

    def _id_of(self, payload: payloads.Void | payloads.DueChange) -> int:
        """Return the hash of a scheduled record's id; 0 if it has no id or is not scheduled."""
        found = self._host.schedule.get(payload.partition, payload.index, payload.record)
        if found is None or not found[1].columns & ID_HASH:
            return 0
        hashes = self._host.opened.column(payload.index, ID_HASH)
        return hashes[payload.record] if hashes else 0

    def _unique_of(self, payload: payloads.Void) -> tuple[bytes, StoredAt] | None:
        """Return the unique name of a record that is going to be void, and its place; None if it has no
        name.
        """
        partition, index, record = payload.partition, payload.index, payload.record
        if partition not in self._host.partitions:
            return None
        if payload.offset >= 0:
            part = self._host.slices.at(partition, payload.offset)
            if part is None or not part.columns & UNIQUE_HASH:
                return None
            index, record = part.index, part.first + payload.offset - part.offset
        else:
            found = self._host.schedule.get(partition, index, record)
            if found is None or not found[1].columns & UNIQUE_HASH:
                return None
        hashes = self._host.opened.column(index, UNIQUE_HASH)
        return (NAME_OF(hashes[record]), (index, record)) if hashes and hashes[record] else None

    def _hold_on(self, entry: Entry, partition: PartitionKey) -> None:
        """The record of an EDIT holds the unique name of the one that it replaces."""
        hashes, untils = (self._columns.fixed(entry.body, bit) for bit in (UNIQUE_HASH, UNTIL))
        if hashes and hashes[0]:
            until_ms = untils[0] if untils else 0
            self._host.uniques.hold(partition, entry.index, entry.time_ms, NAME_OF(hashes[0]), until_ms)

    def reschedule(self, entry: Entry, payload: payloads.DueChange) -> Outcome:
        state = self._host.partitions.get(payload.partition)
        if state is None:
            return _gone(payload.partition)
        row = self._unschedule(payload.partition, payload.index, payload.record)
        if row is None:
            return refused("wrong_state", CHANGED)
        changed = msgspec.structs.replace(row, due_ms=payload.due_ms, fixed=True)
        self._host.schedule.add(payload.partition, payload.index, payload.record, changed)
        place, due_ms = (payload.index, payload.record), max(payload.due_ms, entry.time_ms)
        if id_hash := self._id_of(payload):
            self._host.dedup.hold_until(payload.partition, id_hash, place, due_ms)
        state.scheduled += 1
        state.scheduled_bytes += share(row.size, row.batch_count, payload.record, payload.record + 1)
        self._host.changed(payload.partition)
        return DONE
