"""Schedules of topics, as talks."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError, UnknownRecord
from gossipq.messages import Done, DropSchedule, ListSchedules, RunSchedule, Schedules, SetSchedule
from gossipq.times import known_time, time_of
from gossipq.types import partition_key
from gossipq.values import Schedule, ScheduleInfo, TopicInfo
from gossipq.wire import batch as wire
from gossipq_client.operations.questions import Asking, Talk
from gossipq_client.values import (
    NOTHING,
    Options,
    RecordOptions,
    columns,
    flow_column,
    inputs,
    key_column,
    refs,
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick that is over. `offset` is that of its record; None: it got none."""

    time: datetime
    offset: int | None


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, its last ticks, and the next ones. Durations are seconds."""

    topic: str
    partition: int
    name: str
    cron: str
    tz: str
    every: float  #: 0: by `cron`
    start: datetime | None
    end: datetime | None
    count: int  #: ticks in all; 0: any number
    jitter: float
    missed: str
    missed_max: int
    overlap: str
    paused: bool
    ticks: int  #: records in all
    last: list[Tick]  #: the oldest first
    next: list[datetime]  #: empty: it is paused, or has ended


class ScheduleOptions(RecordOptions, total=False):
    """Options of `schedule`, whose docstring explains them."""

    cron: str
    tz: str
    every: inputs.Duration | None
    start: inputs.Time | None
    end: inputs.Time | None
    count: int
    jitter: inputs.Duration
    missed: str
    missed_max: int
    overlap: str
    paused: bool


def schedule_of(
    name: str,
    *,
    cron: str = "",
    tz: str = "",
    every: inputs.Duration | None = None,
    start: inputs.Time | None = None,
    end: inputs.Time | None = None,
    count: int = 0,
    jitter: inputs.Duration = 0,
    missed: str = "last",
    missed_max: int = 100,
    overlap: str = "allow",
    paused: bool = False,
    **record: Any,
) -> tuple[Schedule, dict[str, Any]]:
    """Return the schedule and the options of its record. Raises BadRequest."""
    check_options(record, RECORD_OPTIONS, "a schedule")
    schedule = Schedule(
        name,
        cron,
        tz,
        0 if every is None else inputs.duration_ms(every, "every", limits.SCHEDULE_EVERY_MS_MIN),
        0 if start is None else inputs.time_ms(start, "start"),
        0 if end is None else inputs.time_ms(end, "end"),
        count,
        inputs.duration_ms(jitter, "jitter"),
        missed,
        missed_max,
        overlap,
        paused,
    )
    return schedule, record


RECORD_OPTIONS = frozenset(ScheduleOptions.__annotations__)


def check_options(options: Collection[str], allowed: Collection[str], what: str) -> None:
    """Refuse options of `publish` that a record of another kind does not have. Raises BadRequest."""
    for name in options:
        if name not in allowed:
            raise BadRequest(f"{what} has no option {name}")


def state_of(topic: str, partition: int, info: ScheduleInfo) -> ScheduleState:
    """Return an answer as users see it."""
    asked = info.schedule
    return ScheduleState(
        topic,
        partition,
        asked.name,
        asked.cron,
        asked.zone or "UTC",
        asked.every_ms / 1_000,
        known_time(asked.start_ms),
        known_time(asked.end_ms),
        asked.count_max,
        asked.jitter_ms / 1_000,
        asked.missed,
        asked.missed_max,
        asked.overlap,
        asked.paused,
        info.ticks,
        [Tick(time_of(tick.time_ms), None if tick.offset < 0 else tick.offset) for tick in info.last],
        [time_of(time_ms) for time_ms in info.next_ms],
    )


def record_of(raw: bytes, options: Options) -> bytes:
    """Return the batch of the record that a schedule or a join stores."""
    terms = [options.terms or NOTHING]
    fixed, named = columns(terms, False, 0)
    if options.key is not None:
        fixed |= key_column([options.key])
    return bytes(
        wire.seal(
            [raw],
            route=options.route,
            keys=None if options.key is None else [options.key],
            headers=[options.headers] if options.headers else None,
            ids=named.ids,
            flows=flow_column(terms),
            uniques=named.names,
            fixed=fixed,
        )
    )


class Place(NamedTuple):
    """A partition."""

    info: TopicInfo
    number: int

    @property
    def key(self) -> int:
        return partition_key(self.info.id, self.number)

    @property
    def shard(self) -> int:
        return self.info.shards[self.number]


class Planning:
    """Sets schedules and asks for them. A schedule is in one partition, that of its record."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def set(self, place: Place, schedule: Schedule, batch: bytes) -> Talk[bool]:
        """Set a schedule in one partition, and remove it from the others. Return whether that changed it."""
        done = yield from self._asking.ask(SetSchedule(place.key, schedule), place.shard, Done, batch)
        for other in _places(place.info):
            if other != place:
                yield from self._asking.ask(DropSchedule(other.key, schedule.name), other.shard, Done)
        return done.count > 0

    def all(self, topic: str, most: int = 0) -> Talk[list[ScheduleState]]:
        """List the schedules of a topic in order of their names; with `most`, stop after a page with more
        than that."""
        info = yield from self._asking.topic(topic)
        found = list[ScheduleState]()
        for place in _places(info):
            if 0 < most < len(found):
                break
            rows = yield from self._rows(place, most=most)
            found += [state_of(info.name, place.number, row) for row in rows]
        return sorted(found, key=lambda state: state.name)

    def _rows(self, place: Place, name: str = "", most: int = 0) -> Talk[list[ScheduleInfo]]:
        rows, after = list[ScheduleInfo](), ""
        while True:
            page = yield from self._asking.ask(ListSchedules(place.key, after, name), place.shard, Schedules)
            rows += page.rows
            if not page.more or 0 < most < len(rows):
                return rows
            after = page.more

    def show(self, topic: str, name: str) -> Talk[ScheduleState]:
        """Raises UnknownRecord if it does not exist."""
        place, row = yield from self._found(topic, name)
        return state_of(place.info.name, place.number, row)

    def pause(self, topic: str, name: str, paused: bool) -> Talk[bool]:
        """Pause a schedule, or resume it. Return whether that changed it."""
        place, row = yield from self._found(topic, name)
        schedule = msgspec.structs.replace(row.schedule, paused=paused)
        done = yield from self._asking.ask(SetSchedule(place.key, schedule), place.shard, Done)
        return done.count > 0

    def run(self, topic: str, name: str) -> Talk[str]:
        """Store the record of a schedule now. Return its ref."""
        place, _ = yield from self._found(topic, name)
        done = yield from self._asking.ask(RunSchedule(place.key, name), place.shard, Done)
        return refs.text(place.info.name, place.number, done.ref.offset if done.ref is not None else -1)

    def remove(self, topic: str, name: str) -> Talk[bool]:
        """Remove a schedule. Return whether there was one."""
        info = yield from self._asking.topic(topic)
        removed = 0
        for place in _places(info):
            done = yield from self._asking.ask(DropSchedule(place.key, name), place.shard, Done)
            removed += done.count
        return removed > 0

    def _found(self, topic: str, name: str) -> Talk[tuple[Place, ScheduleInfo]]:
        info = yield from self._asking.topic(topic)
        for place in _places(info):
            for row in (yield from self._rows(place, name)):
                return place, row
        raise self._unknown(topic, name)

    @staticmethod
    def _unknown(topic: str, name: str) -> GossipqError:
        return UnknownRecord(f"topic {topic} has no schedule {name}", hint=f"gossipq schedule list {topic}")


def _places(info: TopicInfo) -> Iterator[Place]:
    return (Place(info, number) for number in range(len(info.shards)))
