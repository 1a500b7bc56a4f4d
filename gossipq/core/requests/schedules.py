"""Schedules of a leader: SET_SCHEDULE, DROP_SCHEDULE, RUN_SCHEDULE, LIST_SCHEDULES, and the ticks themselves.

A tick that is due becomes one entry with the batch of its record. The next tick of that schedule waits until
the entry is applied, so a slow disk delays ticks and doubles none.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush

from gossipq import limits
from gossipq.core.delivery import Dispatch, Lease, MovingRecords, within
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import Counted, Ledger, Outcome, Published, ScheduleName, ScheduleRow
from gossipq.core.requests.publish import PublishRequests
from gossipq.core.requests.ticks import due_ticks, next_due, next_ticks
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.storage import Calendar, log, payloads
from gossipq.errors import BadBatch, BadRequest, GossipqError, WrongState
from gossipq.messages import Done, DropSchedule, ListSchedules, RunSchedule, Schedules, SetSchedule
from gossipq.permissions import SYSTEM, require_writer
from gossipq.types import DELAY, Index, Offset, PartitionKey
from gossipq.values import Message, Ref, Schedule, ScheduleInfo

TICKS_PER_TURN = 64
ARMED_PER_TURN = 4  #: of a new leader; an expression that has a tick in 28 years costs 10 ms
AGAIN_MS = 1_000  #: until a tick is tried again that found no space
PAGE = 100  #: schedules in an answer
#: an answer looks ahead for this time at most, for the same reason
AHEAD_MS = 20 * 365 * limits.DAY_MS
MISSED, OVERLAP = ("none", "last", "all"), ("allow", "skip", "replace")
MISSED_MAX = 1_000
REPLACED = "replaced by the next tick"


def record_id(name: str, time_ms: int) -> bytes:
    """Return the id of the record of a tick."""
    at = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return f"{name}/{at.isoformat(timespec='milliseconds' if time_ms % 1_000 else 'seconds')}".encode()


class ScheduleRequests:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        dispatch: Dispatch,
        topics: TopicsHere,
        publishing: PublishRequests,
        calendar: Calendar,
    ) -> None:
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._topics = topics
        self._publishing, self._calendar = publishing, calendar
        self._rows = ledger.timetable.rows
        self._due: list[tuple[int, ScheduleName]] = []  # a heap by leader time; rows that changed stay in it
        self._unarmed: list[ScheduleName] = []  # schedules that a new leader has yet to look at
        #: leader time of the valid row of that heap; empty: no tick is due, ever
        self.armed: dict[ScheduleName, int] = {}
        self._logged: set[ScheduleName] = set()  # ticks whose entries are not applied yet
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            SetSchedule: self._set,
            DropSchedule: self._drop,
            RunSchedule: self._run,
            ListSchedules: self._list,
        }

    def lead(self) -> None:
        """Begin with the schedules of the ledger, some of them in each turn: others wait meanwhile."""
        self._unarmed = list(self._rows)

    # --- ticks ----------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next tick."""
        if self._unarmed:
            return self._desk.boot_ms
        while self._due and self.armed.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        if not self._due:
            return None
        return self._desk.boot_ms + max(0, self._due[0][0] - self._desk.leader_ms)

    def tick(self) -> None:
        """Log the ticks that are due, some of them in each turn."""
        for _ in range(min(ARMED_PER_TURN, len(self._unarmed))):
            self._arm(self._unarmed.pop())
        left = TICKS_PER_TURN
        while left > 0 and self._due and self._due[0][0] <= self._desk.leader_ms:
            due_ms, name = heappop(self._due)
            if self.armed.get(name) == due_ms:
                del self.armed[name]
                left -= self._log_ticks(name, left)

    def _log_ticks(self, name: ScheduleName, ticks_max: int) -> int:
        """Log the due ticks of a schedule. Returns how many."""
        row = self._rows.get(name)
        if row is None:  # it went with its topic
            return 0
        schedule = row.schedule
        ticks = due_ticks(self._calendar, schedule, row.after_ms, self._desk.leader_ms)
        if schedule.count_max:
            ticks_max = min(ticks_max, schedule.count_max - row.ticks)
        if schedule.overlap != "allow":
            ticks_max = min(ticks_max, 1)
        ticks = ticks[:ticks_max]
        if not ticks:
            self._arm(name)
            return 0
        if not self._has_space(name):  # the ticks wait, and `missed` decides about them
            self._look_at(name, self._desk.leader_ms + AGAIN_MS)
            return 1
        self._logged.add(name)
        for tick_ms in ticks:
            index = self._log_tick(name, row, tick_ms)
        self._desk.pending.add(index, partial(self._ticked, name))
        return len(ticks)

    def _has_space(self, name: ScheduleName) -> bool:
        """True if a publish of the record would not be refused for lack of space."""
        try:
            batch = self._ledger.timetable.batch(name)
            self._publishing.require_space(name.partition, self._desk.columns.peek(batch))
        except GossipqError:
            return False
        return True

    def _log_tick(self, name: ScheduleName, row: ScheduleRow, tick_ms: int) -> Index:
        waits = self._last_waiting(name, row) if row.schedule.overlap != "allow" else -1
        if waits >= 0 and row.schedule.overlap == "skip":
            payload = payloads.TickDone(name.partition, name.name, row.version, tick_ms)
            return self._desk.propose(log.TICK, payloads.encode(payload))
        if waits >= 0 and not self._held(name.partition, waits):
            void = payloads.Void(
                partition=name.partition, offset=waits, index=0, record=0, reason=REPLACED, by=name.name
            )
            self._desk.propose(log.VOID, payloads.encode(void))
        return self._log_record(name, row, tick_ms)

    def _log_record(self, name: ScheduleName, row: ScheduleRow, time_ms: int, beside: bool = False) -> Index:
        batch = self._desk.columns.named(self._ledger.timetable.batch(name), record_id(name.name, time_ms))
        publish = log.publish_payload(name.partition, self._desk.columns.peek(batch))
        payload = payloads.TickDone(
            partition=name.partition,
            name=name.name,
            version=row.version,
            tick_ms=time_ms,
            publish=publish,
            beside=beside,
        )
        return self._desk.propose(log.TICK, payloads.encode(payload), body=batch)

    def _last_waiting(self, name: ScheduleName, row: ScheduleRow) -> Offset:
        """Return the offset of the newest record of a schedule if a group has yet to finish it, else -1."""
        offset = next((tick.offset for tick in reversed(row.last) if tick.offset >= 0), -1)
        ledger = self._ledger
        over = (
            offset < ledger.partitions[name.partition].first
            or not ledger.cursors.get(name.partition)
            or ledger.is_void(name.partition, offset)
            or ledger.done_everywhere(name.partition, offset)
        )
        return -1 if over else offset

    def _held(self, partition: PartitionKey, offset: Offset) -> bool:
        """True if a consumer holds a record, or an entry on its way changes it."""
        views = [group.views.get(partition) for group in self._dispatch.groups.values()]
        return any(isinstance(view.window.at(offset), (Lease, MovingRecords)) for view in views if view)

    def _ticked(self, name: ScheduleName, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._logged.discard(name)
        self._arm(name)

    def _arm(self, name: ScheduleName) -> None:
        """Note when a schedule has to be looked at next."""
        self.armed.pop(name, None)
        row = self._rows.get(name)
        if row is None or name in self._logged or row.schedule.paused or self._used_up(row):
            return
        due_ms = next_due(self._calendar, row.schedule, row.after_ms, self._desk.leader_ms)
        if due_ms is not None:
            self._look_at(name, due_ms)

    def _look_at(self, name: ScheduleName, due_ms: int) -> None:
        self.armed[name] = due_ms
        heappush(self._due, (due_ms, name))

    @staticmethod
    def _used_up(row: ScheduleRow) -> bool:
        return 0 < row.schedule.count_max <= row.ticks

    # --- requests -------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Raises what must be refused."""
        message = request.message
        partition = message.partition
        if partition not in self._ledger.partitions:
            raise self._topics.unknown(partition)
        self._handlers[type(message)](request)

    def _set(self, request: Request) -> None:
        message: SetSchedule = request.message
        schedule, name = message.schedule, ScheduleName(message.partition, message.schedule.name)
        self._check(schedule)
        topic = self._ledger.topics[self._ledger.partitions[name.partition].topic_id]
        if topic.name.startswith(SYSTEM):
            require_writer(topic.name, request.sender.node)
        batch = request.batch
        if batch:
            self._check_record(batch)
            self._publishing.require_space(name.partition, self._desk.columns.peek(batch))
        elif name not in self._rows:
            raise WrongState(f"there is no schedule {schedule.name}", hint="give the record that it stores")
        payload = payloads.encode(payloads.ScheduleChange(name.partition, schedule))
        index = self._desk.propose(log.SCHEDULE, payload, body=batch)
        self._desk.pending.add(index, partial(self._changed, name), request)

    def _check(self, schedule: Schedule) -> None:
        """Raises BadRequest."""
        size = len(schedule.name.encode())
        if not 0 < size <= limits.SCHEDULE_NAME_BYTES_MAX or "/" in schedule.name:
            raise BadRequest(
                f"a schedule cannot be named {schedule.name!r}",
                hint=f"1 to {limits.SCHEDULE_NAME_BYTES_MAX} bytes without / are allowed",
            )
        if bool(schedule.cron) == bool(schedule.every_ms):
            raise BadRequest(f"schedule {schedule.name} needs a cron expression, or how often: every")
        if schedule.cron:
            self._calendar.check(schedule.cron, schedule.zone)
        else:
            within("every_ms", schedule.every_ms, limits.SCHEDULE_EVERY_MS_MIN, limits.DELAY_MS_MAX)
        for what, allowed in (("missed", MISSED), ("overlap", OVERLAP)):
            if getattr(schedule, what) not in allowed:
                raise BadRequest(
                    f"{what} = {getattr(schedule, what)!r}", hint=f"{', '.join(allowed)} are allowed"
                )
        within("missed_max", schedule.missed_max, 1, MISSED_MAX)
        within("jitter_ms", schedule.jitter_ms, 0, schedule.every_ms or limits.DAY_MS)
        within("count_max", schedule.count_max, 0, limits.NUMBER_MAX)
        within("start_ms", schedule.start_ms, 0, limits.NUMBER_MAX)
        within("end_ms", schedule.end_ms, 0, limits.NUMBER_MAX)

    def _check_record(self, batch: bytes) -> None:
        """Raises BadBatch."""
        info = self._desk.columns.peek(batch)
        if info.count != 1:
            raise BadBatch(f"a schedule stores one record at each tick, not {info.count}")
        if info.columns & DELAY:
            raise BadBatch("the record of a schedule has a delay", hint="leave it out: the tick says when")

    def _drop(self, request: Request) -> None:
        message: DropSchedule = request.message
        name = ScheduleName(message.partition, message.name)
        payload = payloads.ScheduleChange(name.partition, Schedule(name.name), deleted=True)
        index = self._desk.propose(log.SCHEDULE, payloads.encode(payload))
        self._desk.pending.add(index, partial(self._changed, name), request)

    def _changed(self, name: ScheduleName, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._arm(name)
        if isinstance(outcome, Counted):
            self._desk.reply(asker, Done(outcome.count))
        else:
            self._desk.refuse_by(asker, outcome)

    def _run(self, request: Request) -> None:
        message: RunSchedule = request.message
        name = ScheduleName(message.partition, message.name)
        row = self._rows.get(name)
        if row is None:
            raise WrongState(f"there is no schedule {message.name}", hint="gossipq schedule list")
        self._publishing.require_space(
            name.partition, self._desk.columns.peek(self._ledger.timetable.batch(name))
        )
        index = self._log_record(name, row, self._desk.leader_ms, beside=True)
        self._desk.pending.add(index, partial(self._ran, name.partition), request)

    def _ran(self, partition: PartitionKey, asker: Asker, index: Index, outcome: Outcome) -> None:
        if isinstance(outcome, Published):
            self._desk.reply(asker, Done(1, Ref(partition, outcome.offset)))
        else:
            self._desk.refuse_by(asker, outcome)

    def _list(self, request: Request) -> None:
        message: ListSchedules = request.message
        if message.name:
            wanted = ScheduleName(message.partition, message.name)
            found = [wanted] if wanted in self._rows and message.name > message.after else []
        else:
            found = sorted(
                name
                for name in self._rows
                if name.partition == message.partition and name.name > message.after
            )
        rows, ahead_ms = list[ScheduleInfo](), 0
        for name in found[:PAGE]:
            info = self._info(name)
            rows.append(info)
            ahead_ms += info.next_ms[-1] - self._desk.leader_ms if info.next_ms else 0
            if ahead_ms > AHEAD_MS:
                break
        more = rows[-1].schedule.name if len(found) > len(rows) else ""
        self._desk.reply(request, Schedules(rows, more))

    def _info(self, name: ScheduleName) -> ScheduleInfo:
        row = self._rows[name]
        left = limits.TICKS_NEXT
        if row.schedule.count_max:
            left = min(left, row.schedule.count_max - row.ticks)
        after_ms = max(row.after_ms, self._desk.leader_ms)
        ticks = [] if row.schedule.paused else next_ticks(self._calendar, row.schedule, after_ms, left)
        return ScheduleInfo(row.schedule, row.ticks, row.last, ticks)
