"""Schedules: rows that a leader turns into records, tick by tick. Part of the ledger.

The leader decides when a tick is due and logs TICK with the batch of its record. Each copy applies it once:
a tick that is not behind the last one is refused, so a tick that two leaders log is stored once.
"""

from typing import NamedTuple, Protocol

import msgspec

from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.outcomes import DONE, Counted, Outcome, Published, refused
from gossipq.core.ledger.records import PartitionState, ScheduleRow
from gossipq.core.storage import Entry, Table, payloads
from gossipq.types import Index, PartitionKey, topic_id_of
from gossipq.values import Schedule, Tick

_decode_row = msgspec.msgpack.Decoder(ScheduleRow).decode


class ScheduleName(NamedTuple):
    partition: PartitionKey
    name: str

    def key(self, prefix: bytes) -> bytes:
        return records.key(prefix, self.partition) + self.name.encode()


class StoringHost(Protocol):
    """The part of the ledger that schedules and joins use."""

    partitions: dict[PartitionKey, PartitionState]

    @property
    def state(self) -> Table: ...
    def needed(self, index: Index, count: int) -> None: ...
    def changed(self, partition: PartitionKey) -> None: ...
    def store_record(self, entry: Entry, publish: bytes) -> Published:
        """Store the record in the body of an entry, as a PUBLISH with this payload does."""


def timing(schedule: Schedule) -> Schedule:
    """Return the fields of a schedule that decide when its ticks are."""
    return Schedule(
        schedule.name,
        schedule.cron,
        schedule.zone,
        schedule.every_ms,
        schedule.start_ms,
        paused=schedule.paused,
    )


class Timetable:
    def __init__(self, host: StoringHost) -> None:
        self._host = host
        self.rows: dict[ScheduleName, ScheduleRow] = {}

    def load(self) -> None:
        for row_key, row in self._host.state.scan(b"s", records.after(b"s")):
            (partition,) = records.U64.unpack_from(row_key, 1)
            if partition in self._host.partitions:  # otherwise it is being swept
                self.rows[ScheduleName(partition, row_key[9:].decode())] = _decode_row(row)

    def batch(self, name: ScheduleName) -> bytes:
        """Return the batch of a schedule's record."""
        return self._host.state.get(name.key(b"l")) or b""

    def drop(self, partition: PartitionKey) -> None:
        """Forget the schedules of a removed partition. Their rows are swept."""
        for name in [name for name in self.rows if name.partition == partition]:
            del self.rows[name]

    # --- applying -------------------------------------------------------------------------------------------

    def change(self, entry: Entry, payload: payloads.ScheduleChange) -> Outcome:
        """Set, change or remove a schedule."""
        name = ScheduleName(payload.partition, payload.schedule.name)
        outcome = self._remove(name) if payload.deleted else self._set(entry, name, payload.schedule)
        if entry.body:
            self._host.needed(entry.index, 0)  # the record is in a row of its own
        return outcome

    def _remove(self, name: ScheduleName) -> Outcome:
        if self.rows.pop(name, None) is None:
            return Counted(0)
        self._host.state.delete(name.key(b"s"))
        self._host.state.delete(name.key(b"l"))
        return Counted(1)

    def _set(self, entry: Entry, name: ScheduleName, schedule: Schedule) -> Outcome:
        known = self.rows.get(name)
        if name.partition not in self._host.partitions:
            return refused(
                "unknown_topic", f"the topic with id {topic_id_of(name.partition)} is not here any more"
            )
        if known is None and not entry.body:
            return refused("wrong_state", f"schedule {name.name} was removed at the same moment")
        if known is None and len(self.rows) >= limits.SCHEDULES_MAX:
            return refused("bad_request", f"{limits.SCHEDULES_MAX} schedules exist in this shard")
        body = entry.body or self.batch(name)
        if known is not None and known.schedule == schedule and self.batch(name) == body:
            return Counted(0)
        if known is None:
            row = ScheduleRow(schedule, entry.index, entry.time_ms)
        elif timing(known.schedule) == timing(schedule):
            row = msgspec.structs.replace(known, schedule=schedule, version=entry.index)
        else:  # ticks of the time before the change are not missed
            row = msgspec.structs.replace(
                known, schedule=schedule, version=entry.index, after_ms=max(known.after_ms, entry.time_ms)
            )
        self._host.state.put(name.key(b"l"), bytes(body))
        self._put(name, row)
        return Counted(1)

    def tick(self, entry: Entry, payload: payloads.TickDone) -> Outcome:
        """Store the record of a tick, once."""
        name = ScheduleName(payload.partition, payload.name)
        row = self.rows.get(name)
        if row is None or row.version != payload.version:
            why = f"schedule {name.name} was changed or removed at the same moment"
        elif payload.tick_ms <= row.after_ms and not payload.beside:
            why = f"the tick {payload.tick_ms} of schedule {name.name} is over"
        else:
            return self._ticked(entry, name, row, payload)
        if entry.body:
            self._host.needed(entry.index, 0)
        return refused("wrong_state", why)

    def _ticked(
        self, entry: Entry, name: ScheduleName, row: ScheduleRow, payload: payloads.TickDone
    ) -> Outcome:
        outcome: Outcome = DONE
        offset = -1
        if payload.publish:
            outcome = published = self._host.store_record(entry, payload.publish)
            offset = published.offset
        last = [*row.last, Tick(payload.tick_ms, offset)][-limits.TICKS_KEPT :]
        after_ms = row.after_ms if payload.beside else payload.tick_ms
        ticks = row.ticks + bool(payload.publish and not payload.beside)
        self._put(name, msgspec.structs.replace(row, after_ms=after_ms, ticks=ticks, last=last))
        return outcome

    def _put(self, name: ScheduleName, row: ScheduleRow) -> None:
        self.rows[name] = row
        self._host.state.put(name.key(b"s"), records.encode(row))
