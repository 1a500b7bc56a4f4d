"""Applies entries to groups: LEASE, ACK, FAIL, PARK, DEAD, REPLAY, PURGE, REQUEUE. Part of the
ledger.

A record that the cursor has not passed is *fresh*. A record that it passed without an ack has an
exception row or is a dead letter. An entry changes both kinds, and ignores records that were acked
or removed since it was proposed.

A group belongs to one topic. Groups of the same name on two topics share no state, even if one
shard has both topics. A client that consumes several topics subscribes to each.

A group that is moved becomes a new group: REGROUP gives it a new id, and its old rows are deleted
like those of a topic. So no cursor moves back, the counters can always be checked, and no turn
deletes a million rows.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

import msgspec

from gossipq.core.ledger import life, records
from gossipq.core.ledger.acks import PAGE_RUNS, AckRange, page_for
from gossipq.core.ledger.cursors import Cursor
from gossipq.core.ledger.exceptions import AT_ONCE_MS, clip, ranges_of
from gossipq.core.ledger.outcomes import DONE, Counted, Outcome, refused
from gossipq.core.ledger.records import AckRow, DeadRow, ExceptionRow, Failure, Hold, PartitionState, TraceRow
from gossipq.core.ledger.runs import Found
from gossipq.core.ledger.slices import Slices
from gossipq.core.storage import Entry, Intervals, Table, melted, payloads
from gossipq.types import Index, Offset, PartitionKey, Ranges, Slice
from gossipq.values import Range, TopicConfig

HISTORY_MAX = 16  #: failures remembered for a record
ROW_RANGES_MAX = 256  #: ranges in one exception row: taking one out rewrites the others
NO_INTERVALS = Intervals()
CHANGED = "the record changed at the same moment"


class GroupsHost(Protocol):
    """The part of the ledger that this room uses."""

    partitions: dict[PartitionKey, PartitionState]
    slices: Slices
    voids: dict[PartitionKey, Intervals]

    @property
    def state(self) -> Table: ...
    def cursor(self, partition: PartitionKey, group_id: int) -> Cursor | None:
        """Return the cursor for a change. It is written at the next flush."""

    def config(self, partition: PartitionKey) -> TopicConfig: ...
    def is_void(self, partition: PartitionKey, offset: Offset) -> bool: ...
    def needed(self, index: Index, count: int) -> None:
        """`count` records need the body of an entry."""

    def not_needed(self, index: Index, count: int) -> None: ...


def _failed(
    old: ExceptionRow | None, row: payloads.FailRow | payloads.Dead, time_ms: int, reason: str
) -> list[Failure]:
    history = old.history if old else []
    return (
        [*history[1 - HISTORY_MAX :], Failure(time_ms, row.consumer, reason, row.attempts)]
        if row.counted
        else history
    )


def _failed_again(row: payloads.FailRow, time_ms: int, old: ExceptionRow) -> ExceptionRow:
    """Return the row of records that failed once more."""
    return msgspec.structs.replace(
        old,
        lane=b"",
        due_ms=row.due_ms,
        attempts=row.attempts,
        handed_out=False,
        failures=old.failures + row.counted,
        history=_failed(old, row, time_ms, row.reason),
    )


def _no_group() -> Outcome:
    return refused("bad_request", "the group, or its topic, was removed at the same moment")


def _placed(row: ExceptionRow, end: Offset, at: Slice, record: int) -> ExceptionRow:
    return msgspec.structs.replace(
        row, end=end, index=at.index, record=record, size=at.size, batch_count=at.batch_count
    )


def ranges_in(row: payloads.FailRow | payloads.LeaseRow) -> Ranges:
    return row.ranges or [(row.first, row.end)]


def rising(ranges: Ranges) -> Ranges:
    """Sort and join ranges, unless they rise without overlap, as most do."""
    at = 0
    for first, end in ranges:
        if first < at or end <= first:
            found = Intervals()
            for each in ranges:
                found.add(*each)
            return list(found)
        at = end
    return ranges


def count_of(ranges: Ranges) -> int:
    return sum([end - first for first, end in ranges])


def _count_attempts(cursor: Cursor, part: Found[ExceptionRow], attempts: int) -> None:
    """Count redelivered attempts of these records; `attempts` began by now.

    Short leases are not logged, so the end of an attempt can be its first trace.
    """
    known = part.row.attempts or 1  # the first attempt is not a redelivery
    if attempts > known:
        cursor.state.redelivered += part.total * (attempts - known)


def _count_unlogged(cursor: Cursor, part: Found[ExceptionRow]) -> None:
    """Count the last attempt of acked records that were tried before, if its lease was not
    logged.
    """
    if part.row.attempts:
        held = [cursor.holds.overlap(*each) for each in ranges_of(part)] if cursor.holds else []
        logged = sum(end - first for found in held for first, end, hold in found if hold.started)
        cursor.state.redelivered += part.total - logged


class Ended(NamedTuple):
    """Ended attempts of one partition in an entry: acked ranges and failed ones."""

    cursor: Cursor
    entry: Entry
    consumer: str
    acked: Ranges
    failed: list[tuple[payloads.FailRow, Ranges]]


class Groups:
    def __init__(self, host: GroupsHost) -> None:
        self._host = host

    def _trace(self, cursor: Cursor, first: Offset, entry: Entry, row: TraceRow) -> None:
        state = cursor.state
        row_key = records.row_key(b"Q", state.partition, state.group_id, first, entry.index)
        self._host.state.put(row_key, records.encode(row))

    def _traces(self, partition: PartitionKey, wanted: str) -> bool:
        """True if the topic keeps steps of this kind ("failures" or "all")."""
        return self._host.config(partition).trace in (wanted, "all")

    @staticmethod
    def _found(cursor: Cursor, first: Offset, end: Offset) -> list[Found[ExceptionRow]]:
        """Remove exception rows and their leases. The caller decides what happens to the
        records.
        """
        if not cursor.exceptional:
            return []
        found = cursor.exceptions.take(first, end)
        for part in found:
            cursor.holds.clear_all(ranges_of(part))
        return found

    def _taken(
        self, cursor: Cursor, ranges: Ranges, event: str, fresh: Ranges | None = None
    ) -> list[Found[ExceptionRow]]:
        """Remove exception rows because of an event. If all ranges are `fresh`, no such rows
        exist.
        """
        if fresh == ranges or not cursor.exceptional:
            return []
        found = cursor.exceptions.take_all(ranges)
        for part in found:
            if event == life.ACK:
                _count_unlogged(cursor, part)
            cursor.holds.clear_all(ranges_of(part))
            cursor.move(life.waiting(part.row), event, part.total)
        return found

    @staticmethod
    def _changed(
        cursor: Cursor,
        ranges: Ranges,
        event: str,
        fresh: Ranges | None,
        change: Callable[[ExceptionRow], ExceptionRow],
    ) -> list[Found[ExceptionRow]]:
        """Like `_taken`, for records that keep waiting: writes the new rows, returns the old ones.

        Leases stay.
        """
        if fresh == ranges or not cursor.exceptional:
            return []
        exceptions = cursor.exceptions
        whole = exceptions.row_at(ranges[0][0])
        # the common case: records that are retried together
        if whole is not None and ranges_of(whole) == ranges:
            cursor.move(life.waiting(whole.row), event, whole.total)
            exceptions.change(whole, change(whole.row))
            return [whole]
        found = exceptions.take_all(ranges)
        for part in found:
            cursor.move(life.waiting(part.row), event, part.total)
            exceptions.put(part.first, change(part.row))
        return found

    def _new_rows(
        self, cursor: Cursor, fresh: Ranges, row: ExceptionRow
    ) -> Iterator[tuple[Offset, ExceptionRow]]:
        """Yield exception rows for open records with equal state: one for each slice."""
        parts = (part for each in fresh for part in self._host.slices.between(cursor.state.partition, *each))
        for at, group in groupby(parts, itemgetter(2)):
            ranges = [(first, end) for first, end, _ in group]
            for low in range(0, len(ranges), ROW_RANGES_MAX):
                some = ranges[low : low + ROW_RANGES_MAX]
                first = some[0][0]
                placed = _placed(row, some[-1][1], at, at.first + first - at.offset)
                yield first, msgspec.structs.replace(placed, ranges=some) if len(some) > 1 else placed

    def lease(self, entry: Entry, payload: payloads.LeaseRows) -> Outcome:
        for row in payload.rows:
            cursor = self._host.cursor(row.partition, payload.group_id)
            if cursor is None:
                continue
            # a lease without a session is a record that was given back: it is due at once
            hold = Hold(row.session, row.deadline_ms, row.attempt, row.consumer, row.started)
            longer = self._longer(cursor, row) if row.session and cursor.holds else NO_INTERVALS
            ranges = row.ranges or [(row.first, row.end)]
            fresh = held = cursor.fresh_in(ranges)
            if fresh:
                # the first attempt is no redelivery; one whose start an earlier entry told is counted already
                if row.started and row.attempt > 1:
                    cursor.state.redelivered += count_of(fresh) - self._begun(cursor, fresh, row.attempt)
                cursor.move(life.OPEN, life.HAND_OUT, count_of(fresh))
                cursor.holds.set_all(fresh, hold)
            due_ms = row.deadline_ms if row.session else AT_ONCE_MS
            unstarted = row.attempt > 0 and not row.started
            attempts = row.attempt - unstarted
            handed = partial(
                msgspec.structs.replace, lane=b"", due_ms=due_ms, attempts=attempts, handed_out=unstarted
            )
            for part in self._changed(cursor, ranges, life.HAND_OUT, fresh, handed):
                _count_attempts(cursor, part, attempts)
                if row.session:
                    cursor.holds.set_all(ranges_of(part), hold)
                else:
                    cursor.holds.clear_all(ranges_of(part))
                held = held + ranges_of(part)
            again = [gap for part in held for gap in longer.missing(*part)] if longer else held
            # an extended lease is no delivery, so only the other ranges get a step in the trace
            if self._traces(row.partition, "all"):
                what = "handed_out" if row.session else "given_back"
                for first, end in again:
                    self._trace(
                        cursor,
                        first,
                        entry,
                        TraceRow(
                            end=end,
                            time_ms=entry.time_ms,
                            what=what,
                            consumer=row.consumer,
                            reason="",
                            attempt=row.attempt,
                        ),
                    )
        return DONE

    @staticmethod
    def _longer(cursor: Cursor, row: payloads.LeaseRow) -> Intervals:
        """Return the ranges that this session already holds by the same delivery: its lease is
        extended.
        """
        longer = Intervals()
        for part in ranges_in(row):
            for first, end, hold in cursor.holds.overlap(*part):
                if hold.session == row.session and hold.attempt == row.attempt:
                    longer.add(first, end)
        return longer

    @staticmethod
    def _begun(cursor: Cursor, ranges: Ranges, attempt: int) -> int:
        """Count records whose attempt is known to have begun."""
        held = [part for each in ranges for part in cursor.holds.overlap(*each)] if cursor.holds else []
        return sum(end - first for first, end, hold in held if hold.started and hold.attempt >= attempt)

    def held(self, payload: payloads.AckRanges) -> list[Range]:
        """Return those ranges that contain records which cannot be acked: finished or removed
        ones.
        """
        lost = []
        for partition, low, high in payload.ranges:
            cursor = self._host.cursor(partition, payload.group_id)
            open_count = 0
            if cursor is not None:
                open_count = sum(
                    end - first
                    for first, end in cursor.fresh(low, min(high, self._host.partitions[partition].next))
                )
                if cursor.exceptional:
                    open_count += sum(part.total for part in cursor.exceptions.overlap(low, high))
            if open_count < high - low:
                lost.append((partition, low, high))
        return lost

    def ack(self, entry: Entry, payload: payloads.AckRanges) -> Counted:
        return self._over(entry, payload.group_id, payload.consumer, payload.ranges, payload.failed)

    def fail(self, entry: Entry, payload: payloads.Fail) -> Counted:
        return self._over(entry, payload.group_id, "", [], payload.rows)

    def pause_flows(self, entry: Entry, payload: payloads.PauseFlows) -> Outcome:
        for row in payload.rows:
            cursor = self._host.cursor(row.partition, payload.group_id)
            if cursor is not None:
                cursor.pause(row, entry.time_ms)
        return DONE

    def _over(
        self,
        entry: Entry,
        group_id: int,
        consumer: str,
        acked: list[Range],
        failed: list[payloads.FailRow],
    ) -> Counted:
        """End attempts: ack records, or make failed ones due again."""
        # each partition has a cursor of its own, which advances once for the whole entry
        over: dict[PartitionKey, tuple[list[tuple[Offset, Offset]], list[payloads.FailRow]]] = {}
        for partition, first, end in acked:
            over.setdefault(partition, ([], []))[0].append((first, end))
        for row in failed:
            over.setdefault(row.partition, ([], []))[1].append(row)
        count, lost = 0, list[Range]()
        for partition, (ranges, rows) in over.items():
            cursor = self._host.cursor(partition, group_id)
            if cursor is None:
                # the group was removed: the client must not take its ack as stored
                lost += [(partition, *each) for each in ranges]
                lost += [(partition, *each) for row in rows for each in ranges_in(row)]
                continue
            next_ = self._host.partitions[partition].next
            fails = [(row, clip(ranges_in(row), 0, next_)) for row in rows]
            ended = Ended(cursor, entry, consumer, clip(rising(ranges), 0, next_), fails)
            count += self._end(ended)
            if partition in self._host.voids:
                lost += self._lost_to_voids(ended)
            cursor.advance()
            self._page(cursor)
        return Counted(count, lost)

    def _lost_to_voids(self, ended: "Ended") -> list[Range]:
        """Return the ranges whose ack came too late: an entry just before this one voided the records."""
        cursor, partition = ended.cursor, ended.cursor.state.partition
        voids, lost = self._host.voids[partition], list[Range]()
        for part in ended.acked:
            for low, high in voids.overlap(*part):
                acked = Intervals()
                for first, row in cursor.acks.within(low, high):
                    acked.add(max(first, low), min(row.end, high))
                lost += [(partition, *gap) for gap in acked.missing(low, high)]
        return lost

    def _end(self, ended: "Ended") -> int:
        """Apply the ended attempts of one partition. Returns the number of acked records."""
        cursor, entry, ranges, fails = ended.cursor, ended.entry, ended.acked, ended.failed
        fresh = cursor.fresh_in(ranges) if ranges else []
        again = [(row, each, cursor.fresh_in(each)) for row, each in fails if each]
        # the cursor passes acked and failed ranges in one walk: one for each range would be quadratic in the
        # holes
        passing = melted(sorted([*fresh, *(part for _, _, new in again for part in new)]))
        if passing is None:  # ranges overlap: apply them one after the other
            count = self._end(ended._replace(failed=[]))
            for fail in fails:
                self._end(ended._replace(acked=[], failed=[fail]))
            return count
        late = self._taken(cursor, ranges, life.ACK, fresh) if ranges else []
        for row, ranges_of_row, new in again:
            self._failed_again(ended, row, ranges_of_row, new)
        for row, _, new in again:
            if row.attempts > 1:
                cursor.state.redelivered += count_of(new) - self._begun(cursor, new, row.attempts)
        counts = {life.ACK: count_of(fresh), life.FAIL: sum(count_of(new) for _, _, new in again)}
        if passing:
            cursor.pass_all(passing, {event: count for event, count in counts.items() if count})
        for row, _, new in again:
            history = _failed(None, row, entry.time_ms, row.reason)
            first = ExceptionRow(
                end=0,
                due_ms=row.due_ms,
                attempts=row.attempts,
                failures=int(row.counted),
                index=0,
                record=0,
                history=history,
            )
            cursor.exceptions.put_many(list(self._new_rows(cursor, new, first)))
        self._told(ended, fresh, passing, late)
        return counts[life.ACK] + sum(part.total for part in late)

    @staticmethod
    def _failed_again(ended: "Ended", row: payloads.FailRow, ranges: Ranges, fresh: Ranges) -> None:
        """Count another failure of records that already wait."""
        cursor = ended.cursor
        change = partial(_failed_again, row, ended.entry.time_ms)
        for part in Groups._changed(cursor, ranges, life.FAIL, fresh, change):
            _count_attempts(cursor, part, row.attempts)
            cursor.holds.clear_all(ranges_of(part))

    def _told(self, ended: "Ended", fresh: Ranges, passed: Ranges, late: list[Found[ExceptionRow]]) -> None:
        """Write acks: one row for records that are passed together, with gaps for failed ones."""
        cursor, entry, at = ended.cursor, ended.entry, 0
        time_ms, consumer, index = entry.time_ms, ended.consumer, entry.index
        rows, filled = list[AckRange](), list[AckRange]()
        if passed == fresh:  # no range has a gap
            rows, passed = [(first, AckRow(end, time_ms, consumer, index)) for first, end in fresh], []
        for _, end in passed:
            stop = bisect_left(fresh, end, lo=at, key=itemgetter(0))
            for low in range(at, stop, PAGE_RUNS):
                ranges = fresh[low : min(stop, low + PAGE_RUNS)]
                rows.append((ranges[0][0], page_for(ranges, time_ms, consumer, index)))
            at = stop
        for part in late:
            filled += [(first, AckRow(end, time_ms, consumer, index)) for first, end in ranges_of(part)]
            self._acked_late(cursor, part, entry, ended.consumer)
        cursor.acks.put_many(rows)
        cursor.state.unmerged += len(rows) + cursor.acks.fill(filled)

    def _page(self, cursor: Cursor) -> None:
        """Merge rows of acks into pages."""
        state = cursor.state
        if state.unmerged >= PAGE_RUNS:
            first = self._host.partitions[state.partition].first
            cursor.acks.merge(state, first, cursor.done_below())

    def _acked_late(self, cursor: Cursor, part: Found[ExceptionRow], entry: Entry, consumer: str) -> None:
        """Ack records that had an exception row."""
        if part.row.own_body:
            self._host.not_needed(part.row.index, part.total)
        if part.row.history and self._traces(cursor.state.partition, "failures"):
            row = TraceRow(
                end=part.end,
                time_ms=entry.time_ms,
                what="acked",
                consumer=consumer,
                reason="",
                attempt=part.row.attempts,
                history=part.row.history,
                ranges=part.row.ranges,
            )
            self._trace(cursor, part.first, entry, row)

    def _unacked(self, cursor: Cursor, first: Offset, end: Offset) -> None:
        """Remove the acks of records that an operator requeued."""
        state, name = self._host.state, (cursor.state.partition, cursor.state.group_id)
        for low, row in cursor.acks.take(first, end):
            if self._traces(cursor.state.partition, "failures"):  # because the next ack replaces it
                trace = TraceRow(
                    end=row.end,
                    time_ms=row.time_ms,
                    what="acked",
                    consumer=row.consumer,
                    reason="",
                    attempt=0,
                )
                trace_key = records.row_key(b"Q", *name, low, row.index)
                state.put(trace_key, state.get(trace_key) or records.encode(trace))

    def park(self, entry: Entry, payload: payloads.Park) -> Outcome:
        for row in payload.rows:
            cursor = self._host.cursor(row.partition, payload.group_id)
            if cursor is not None:
                new = cursor.fresh(row.first, row.end)
                first = ExceptionRow(
                    end=0,
                    due_ms=entry.time_ms,
                    attempts=row.attempts,
                    failures=0,
                    index=0,
                    record=0,
                    lane=row.lane,
                    handed_out=row.handed_out,
                )
                cursor.exceptions.put_many(list(self._new_rows(cursor, new, first)))
                for low, high in new:
                    cursor.passes(low, high, life.parking(row.lane))
                cursor.advance()
        return DONE

    def dead(self, entry: Entry, payload: payloads.Dead) -> Counted:
        """Make records dead letters, or drop them."""
        cursor = self._host.cursor(payload.partition, payload.group_id)
        if cursor is None:
            if entry.body:
                self._host.needed(entry.index, 0)
            return Counted(0, [(payload.partition, payload.first, payload.end)])
        # an entry with a body keeps the values of its dead letters; one without drops the records
        kept, count = bool(entry.body), 0
        reason, event = payload.error or payload.reason, life.BURY if kept else life.DROP
        for part in self._taken(cursor, [(payload.first, payload.end)], event):
            _count_attempts(cursor, part, payload.attempts)
            for first, end in ranges_of(part) if kept else ():
                self._bury(cursor, entry, payload, first, end, part.row, reason)
            if part.row.own_body:
                self._host.not_needed(part.row.index, part.total)
            count += part.total
        for first, end in cursor.fresh(
            payload.first, min(payload.end, self._host.partitions[payload.partition].next)
        ):
            self._bury(cursor, entry, payload, first, end, None, reason) if kept else None
            cursor.passes(first, end, event)
            count += end - first
        cursor.advance()
        if kept:
            self._host.needed(entry.index, count)
        return Counted(count)

    @staticmethod
    def _bury(
        cursor: Cursor,
        entry: Entry,
        payload: payloads.Dead,
        first: Offset,
        end: Offset,
        old: ExceptionRow | None,
        reason: str,
    ) -> None:
        cursor.dead.put(
            first,
            DeadRow(
                end=end,
                reason=payload.reason,
                error=payload.error,
                attempts=payload.attempts,
                failures=(old.failures if old else 0) + payload.counted,
                time_ms=entry.time_ms,
                index=entry.index,
                record=first - payload.first,
                size=len(entry.body),
                batch_count=payload.end - payload.first,
                history=_failed(old, payload, entry.time_ms, reason),
            ),
        )

    def _letters(
        self,
        entry: Entry,
        payload: payloads.Letters,
        event: str,
        treat: Callable[[Cursor, Found[DeadRow]], None],
    ) -> Outcome:
        cursor = self._host.cursor(payload.partition, payload.group_id)
        if cursor is None:
            return _no_group()
        return Counted(self._taken_dead(cursor, payload, event, treat))

    @staticmethod
    def _taken_dead(
        cursor: Cursor,
        payload: payloads.Letters,
        event: str,
        treat: Callable[[Cursor, Found[DeadRow]], None],
    ) -> int:
        count = 0
        for first, end in payload.ranges:
            for part in cursor.dead.take(first, end):
                cursor.move(life.DEAD, event, part.total)
                treat(cursor, part)
                count += part.total
        return count

    def replay(self, entry: Entry, payload: payloads.Letters) -> Outcome:
        def revive(cursor: Cursor, part: Found[DeadRow]) -> None:
            self._revive(entry, cursor, part, "replayed")

        return self._letters(entry, payload, life.REPLAY, revive)

    def _again(self, cursor: Cursor, first: Offset, end: Offset, entry: Entry, what: str) -> None:
        """Trace an operator's step."""
        if self._traces(cursor.state.partition, "failures"):
            self._trace(
                cursor,
                first,
                entry,
                TraceRow(end=end, time_ms=entry.time_ms, what=what, consumer="", reason="", attempt=0),
            )

    def _revive(self, entry: Entry, cursor: Cursor, part: Found[DeadRow], what: str) -> None:
        # the row points at the body of the dead letter, because retention may have removed the batch
        dead = part.row
        self._again(cursor, part.first, part.end, entry, what)
        row = ExceptionRow(
            end=dead.end,
            due_ms=AT_ONCE_MS,
            attempts=0,
            failures=0,
            index=dead.index,
            record=dead.record,
            size=dead.size,
            batch_count=dead.batch_count,
            own_body=True,
            history=dead.history,
        )
        cursor.exceptions.put(part.first, row)

    def purge(self, entry: Entry, payload: payloads.Letters) -> Outcome:
        def drop(cursor: Cursor, part: Found[DeadRow]) -> None:
            self._host.not_needed(part.row.index, part.total)

        return self._letters(entry, payload, life.PURGE, drop)

    def requeue(self, entry: Entry, payload: payloads.Letters) -> Outcome:
        cursor = self._host.cursor(payload.partition, payload.group_id)
        if cursor is None:
            return _no_group()
        count = self._taken_dead(
            cursor, payload, life.REQUEUE, lambda cursor, part: self._revive(entry, cursor, part, "requeued")
        )
        due = partial(msgspec.structs.replace, lane=b"", due_ms=AT_ONCE_MS)
        for first, end in payload.ranges:
            for part in self._changed(cursor, [(first, end)], life.REQUEUE, None, due):
                cursor.holds.clear_all(ranges_of(part))
                for low, high in ranges_of(part):
                    self._again(cursor, low, high, entry, "requeued")
                count += part.total
        for first, end in payload.ready:
            taken = cursor.fresh(first, end) or cursor.exceptions.at(first) or cursor.dead.at(first)
            left = first < self._host.partitions[payload.partition].first or self._host.is_void(
                payload.partition, first
            )
            # an acked record has no row: a new one points at its batch, if retention kept that
            acked = not taken and not left and cursor.acks.cover(first, end)
            at = self._host.slices.at(payload.partition, first) if acked else None
            if at is not None:
                row = _placed(
                    ExceptionRow(end=0, due_ms=AT_ONCE_MS, attempts=0, failures=0, index=0, record=0),
                    end,
                    at,
                    at.first + first - at.offset,
                )
                cursor.exceptions.put(first, row)
                cursor.move(life.ACKED, life.REQUEUE, end - first)
                self._unacked(cursor, first, end)
                self._again(cursor, first, end, entry, "requeued")
                count += end - first
        return Counted(count) if count else refused("wrong_state", CHANGED)

    def void(self, cursor: Cursor, first: Offset, end: Offset) -> None:
        """Take [first, end) away from a group, except acked records."""
        self.leave(cursor, first, end, life.VOID)
        for part in cursor.dead.take(first, end):
            cursor.move(life.DEAD, life.VOID, part.total)
            self._host.not_needed(part.row.index, part.total)
        cursor.advance()

    def leave(self, cursor: Cursor, first: Offset, end: Offset, event: str) -> None:
        """Remove records that are neither acked nor dead. Retention keeps rows with a body of their
        own.
        """
        kept: Ranges = []
        if cursor.exceptional and event == life.TRIM:
            rows = cursor.exceptions.within(first, end)
            kept = [(found.first, found.end) for found in rows if found.row.own_body]
        for low, high in Intervals(kept).missing(first, end):
            for part in self._found(cursor, low, high):
                cursor.move(life.waiting(part.row), event, part.total)
                if part.row.own_body:
                    self._host.not_needed(part.row.index, part.total)
        for low, high in cursor.fresh(first, end):
            cursor.passes(low, high, event)
