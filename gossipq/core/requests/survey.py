"""The state of all records of a partition, page by page, for exports: LIST_ACKS, LIST_STATES. Reads
the ledger and changes nothing.

A page of states covers a range of offsets of one group completely, as of one log index. So the
pages of a group give each record exactly one state, whatever happens between two pages.
"""

from collections.abc import Callable, Iterator
from heapq import merge
from typing import Any, TypeVar

from gossipq import limits
from gossipq.core.delivery import NUMBER_MAX, within
from gossipq.core.desk import Desk, Request
from gossipq.core.ledger import (
    U64,
    U64X2,
    AckRow,
    Cursor,
    DeadRow,
    ExceptionRow,
    Found,
    Ledger,
    RunRow,
    Runs,
    decode_ack,
    decode_void,
    records,
    runs_of,
)
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.export_messages import AckRuns, ListAcks, ListStates, States
from gossipq.types import Offset, PartitionKey
from gossipq.values import AckRun, Message, StateRun

#: in place of a group id: records that were taken from all groups; sorts after all ids
VOIDS = 1 << 62
ROW_BYTES = 96  #: size of a row in an answer, without its texts
PAGE_BYTES = limits.CONTROL_BYTES_MAX // 2
NOWHERE = -1, 0  #: in place of the next page: this was the last one


R = TypeVar("R", bound=RunRow)


class SurveyRequests:
    def __init__(self, desk: Desk, ledger: Ledger, topics: TopicsHere) -> None:
        self._desk = desk
        self._ledger = ledger
        self._topics = topics
        self.handlers: dict[type[Message], Callable[[Request], None]] = {
            ListAcks: self._list_acks,
            ListStates: self._list_states,
        }

    def _check(self, message: ListAcks | ListStates) -> None:
        """Raises BadRequest, or the error for an unknown partition."""
        if message.partition not in self._ledger.partitions:
            raise self._topics.unknown(message.partition)
        within("group_id", message.group_id, 0, NUMBER_MAX)
        within("offset", message.offset, 0, NUMBER_MAX)

    # --- acks -----------------------------------------------------------------------------------------------

    def _list_acks(self, request: Request) -> None:
        message: ListAcks = request.message
        self._check(message)
        runs: list[AckRun] = []
        more, size, groups = NOWHERE, 0, self._ledger.groups
        acks = self._acks(message.partition, message.group_id, message.offset)
        for count, (group_id, first, row) in enumerate(acks):
            if count == limits.SURVEY_ROWS_MAX or size > PAGE_BYTES:
                more = group_id, first
                break
            if row.index >= message.since and group_id in groups:
                runs.append(
                    AckRun(
                        group=groups[group_id].name,
                        first=first,
                        end=row.end,
                        time_ms=row.time_ms,
                        consumer=row.consumer,
                        index=row.index,
                    )
                )
                size += ROW_BYTES + _bytes(runs[-1].group, row.consumer)
        more_group_id, more_offset = more
        self._desk.reply(request, AckRuns(self._ledger.applied, runs, more_group_id, more_offset))

    def _acks(
        self, partition: PartitionKey, group_id: int, offset: Offset
    ) -> Iterator[tuple[int, Offset, AckRow]]:
        """Acks of a group from `offset` on, then those of later groups, each with its group id."""
        prefix = records.key(b"A", partition)
        page = self._ledger.state.floor(records.ack_key(partition, group_id, offset))
        low = records.ack_key(partition, group_id, offset)
        if page is not None and page[0].startswith(low[:-8]):
            low = page[0]  # a row of several ranges may begin below
        for row_key, raw in self._ledger.state.scan(low, records.after(prefix)):
            each, at = U64X2.unpack_from(row_key, 9)
            for first, row in runs_of(at, decode_ack(raw)):
                if each > group_id or first >= offset:
                    yield each, first, row

    # --- states ---------------------------------------------------------------------------------------------

    def _list_states(self, request: Request) -> None:
        message: ListStates = request.message
        self._check(message)
        runs: list[StateRun] = []
        more, size = NOWHERE, 0
        for group_id, run in self._states(message.partition, message.group_id, message.offset):
            if len(runs) == limits.SURVEY_ROWS_MAX or size > PAGE_BYTES:
                more = group_id, run.first
                break
            runs.append(run)
            size += ROW_BYTES + _bytes(run.group, run.reason, run.error, run.consumer)
        more_group_id, more_offset = more
        self._desk.reply(request, States(self._ledger.applied, runs, more_group_id, more_offset))

    def _states(
        self, partition: PartitionKey, group_id: int, offset: Offset
    ) -> Iterator[tuple[int, StateRun]]:
        """Runs from `offset` of group `group_id` on, each with its group id."""
        ledger = self._ledger
        for each, cursor in sorted(ledger.cursors.get(partition, {}).items()):
            if each >= group_id:
                first = max(cursor.state.start, offset if each == group_id else 0)
                for run in _of_group(
                    cursor, ledger.groups[each].name, first, ledger.partitions[partition].next
                ):
                    yield each, run
        low = records.key(b"Z", partition, offset if group_id == VOIDS else 0)
        for row_key, raw in ledger.state.scan(low, records.after(records.key(b"Z", partition))):
            (first,), row = U64.unpack_from(row_key, 9), decode_void(raw)
            yield (
                VOIDS,
                StateRun(
                    "", "voided", first, row.end, time_ms=row.time_ms, reason=row.reason, consumer=row.by
                ),
            )


def _bytes(*texts: str) -> int:
    """Bytes of texts in an answer; a character may take four."""
    return sum(len(text.encode()) for text in texts)


def _from(runs: Runs[R], offset: Offset) -> Iterator[Found[R]]:
    """Rows from `offset` on; the first one is cut to begin there."""
    before = runs.at(offset)
    for found in runs.scan(offset if before is None else before.first):
        yield found.part(max(found.first, offset), found.end)


def _of_group(cursor: Cursor, group: str, at: Offset, end: Offset) -> Iterator[StateRun]:
    """Runs that cover [at, end) without gaps."""
    waiting: Iterator[Found[Any]] = _from(cursor.exceptions, at) if cursor.exceptional else iter(())
    dead: Iterator[Found[Any]] = _from(cursor.dead, at) if cursor.state.dead else iter(())
    for found in merge(waiting, dead, key=lambda each: each.first):
        yield from _without_row(cursor, group, at, found.first)
        if isinstance(found.row, DeadRow):
            row = found.row
            yield StateRun(
                group=group,
                state="dead",
                first=found.first,
                end=found.end,
                attempts=row.attempts,
                failures=row.failures,
                time_ms=row.time_ms,
                reason=row.reason,
                error=row.error,
            )
        else:
            yield from _waiting(cursor, group, found.first, found.row)
        at = found.end
    yield from _without_row(cursor, group, at, end)


def _waiting(cursor: Cursor, group: str, at: Offset, row: ExceptionRow) -> Iterator[StateRun]:
    last = row.history[-1] if row.history else None

    def waits(first: Offset, end: Offset) -> StateRun:
        return StateRun(
            group=group,
            state="parked" if row.lane else "retrying",
            first=first,
            end=end,
            attempts=row.attempts,
            failures=row.failures,
            due_ms=row.due_ms,
            time_ms=last.time_ms if last else 0,
            reason=last.reason if last else "",
            consumer=last.consumer if last else "",
        )

    for first, end, hold in cursor.holds.overlap(at, row.end):
        if hold.session:
            yield from _rest(waits(at, first))
            yield StateRun(
                group=group,
                state="in_flight",
                first=first,
                end=end,
                attempts=hold.attempt,
                failures=row.failures,
                due_ms=hold.deadline_ms,
                consumer=hold.consumer,
            )
            at = end
    yield from _rest(waits(at, row.end))


def _without_row(cursor: Cursor, group: str, at: Offset, end: Offset) -> Iterator[StateRun]:
    for low, high in cursor.fresh(at, end):
        yield from _rest(StateRun(group, "done", at, low))
        at = low
        for first, last, hold in cursor.holds.overlap(low, high):
            if hold.session:
                yield from _rest(StateRun(group, "ready", at, first))
                yield StateRun(
                    group=group,
                    state="in_flight",
                    first=first,
                    end=last,
                    attempts=hold.attempt,
                    failures=0,
                    due_ms=hold.deadline_ms,
                    consumer=hold.consumer,
                )
                at = last
        yield from _rest(StateRun(group, "ready", at, high))
        at = high
    yield from _rest(StateRun(group, "done", at, end))


def _rest(run: StateRun) -> Iterator[StateRun]:
    if run.first < run.end:
        yield run
