"""The replicated state of a shard, changed only by applying committed entries in order.

It is the same on every copy, because `apply` reads only its entry and its own rows: no clock, no
dispatch, no other shard. Rows that change with every entry are kept decoded, and `flush` writes
them once a turn.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from gossipq import limits
from gossipq.core.ledger import life, records
from gossipq.core.ledger.cluster_state import ClusterState
from gossipq.core.ledger.cursors import Cursor
from gossipq.core.ledger.dedup import Dedup
from gossipq.core.ledger.groups import Groups
from gossipq.core.ledger.growth import GrowthRows
from gossipq.core.ledger.joins import Joins
from gossipq.core.ledger.outcomes import DONE, Counted, Outcome, Published, Regrouped, TopicChanged, refused
from gossipq.core.ledger.owned import Owned
from gossipq.core.ledger.partitions import Partitions
from gossipq.core.ledger.producers import Producers
from gossipq.core.ledger.records import (
    COUNT,
    PLACE,
    CursorState,
    GroupState,
    HoldRow,
    Meta,
    PartitionState,
    VoidRow,
)
from gossipq.core.ledger.repeats import Repeats
from gossipq.core.ledger.results import Results
from gossipq.core.ledger.schedule import ScheduledRecords, decode_scheduled
from gossipq.core.ledger.slices import Slices
from gossipq.core.ledger.timetable import Timetable
from gossipq.core.ledger.uniques import Uniques
from gossipq.core.storage import Columns, Entry, Intervals, Opened, Tables, log, payloads
from gossipq.errors import BadRequest, CorruptLog, UnknownKind
from gossipq.types import (
    BatchInfo,
    Index,
    Offset,
    PartitionKey,
    partition_key,
    partition_of,
    topic_id_of,
)
from gossipq.values import Run, Start, TopicConfig, TopicInfo

_decode_meta = msgspec.msgpack.Decoder(Meta).decode
_decode_partition = msgspec.msgpack.Decoder(PartitionState).decode
_decode_group = msgspec.msgpack.Decoder(GroupState).decode
_decode_cursor = msgspec.msgpack.Decoder(CursorState).decode
_decode_hold = msgspec.msgpack.Decoder(HoldRow).decode
_decode_pauses = msgspec.msgpack.Decoder(list[payloads.FlowPause]).decode
_decode_topic = msgspec.msgpack.Decoder(TopicInfo).decode
TOMBSTONE_MS = limits.DAY_MS * 7  #: leader time for which a shard remembers the removal of a topic
SWEPT_ROWS = 256  #: of unique names that one FORGET looks at in a partition
TOMBSTONES_DROPPED = 64  #: old tombstones removed with one entry

decode_void = msgspec.msgpack.Decoder(VoidRow).decode


class Ledger:
    def __init__(self, shard: int, tables: Tables, columns: Columns) -> None:
        """Open the state in `tables`. Cost depends on partitions and groups, not on records."""
        self.shard = shard
        self._tables = tables
        self.state = tables.state
        row = self.state.get(records.META)
        self.meta = _decode_meta(row) if row else Meta()
        self.partitions: dict[PartitionKey, PartitionState] = {}
        self.topics: dict[int, TopicInfo] = {}
        self.groups: dict[int, GroupState] = {}
        self.group_ids: dict[tuple[int, str], int] = {}  #: by topic id and name
        self.cursors: dict[PartitionKey, dict[int, Cursor]] = {}
        self.voids: dict[PartitionKey, Intervals] = {}  #: voided offsets, which are never delivered
        self.owned = Owned()  #: topics and partitions in the meta shard, groups in each
        self.cluster = ClusterState(self.state, self.owned)  #: in the meta shard; else empty
        self.slices = Slices(self.state)
        self.schedule = ScheduledRecords(self.state, self.partitions.__contains__)
        self.timetable = Timetable(self)
        self.joins = Joins(self)
        self.repeats = Repeats(self.state)
        self.dedup = Dedup(self.state, self.partitions.__contains__, self.schedule.holds)
        self.uniques = Uniques(self.state, self.partitions, self.waiting, self.changed)
        self.producers = Producers(self.state)
        self.opened = Opened(columns, self._body)
        self._groups = Groups(self)
        self._partitions = Partitions(self, columns, self._groups)
        self.results = Results(self.state, self.slices, self.cursors, self.groups, self._groups)
        self.dirty_partitions: set[PartitionKey] = set()  #: whose rows the next flush writes
        self._dirty_cursors: set[tuple[PartitionKey, int]] = set()
        self.applied = self.meta.applied  #: entries up to this index are applied
        self.payload: Any = None  #: decoded, of the last entry that was applied
        self.dirty = False  #: `flush` has something to write
        self.keeping = self._keeping_swept = False  #: batches stay, while a snapshot is being read
        self._kept = list[Index]()
        self.free = deque[Index]()  #: entries with batches that nothing reads
        self._apply = self._handlers()
        self._load()
        self.growth = GrowthRows(self)

    def _handlers(self) -> dict[int, Callable[[Entry, Any], Outcome]]:
        """Return the function that applies each kind of entry, with its decoded payload."""
        return {
            log.NOOP: self._noop,
            log.CONFIG: self._config,
            log.PUBLISH: self._partitions.publish,
            log.TOPIC: self._topic,
            log.GROUP: self._group,
            log.LEASE: self._groups.lease,
            log.ACK: self._groups.ack,
            log.TRIM: self._trim,
            log.META_TOPIC: self.cluster.topic,
            log.INSTALLED: self.cluster.installed,
            log.MEMBER: self.cluster.member,
            log.OPTIONS: self.cluster.set_options,
            log.ACCESS: self.cluster.set_access,
            log.FORGET: self._forget,
            log.RELEASE: self._partitions.release,
            log.FAIL: self._groups.fail,
            log.PARK: self._groups.park,
            log.DEAD: self._groups.dead,
            log.REPLAY: self._groups.replay,
            log.PURGE: self._groups.purge,
            log.VOID: self._partitions.void,
            log.RESCHEDULE: self._partitions.reschedule,
            log.EDIT: self._partitions.void,
            log.REQUEUE: self._groups.requeue,
            log.STEP: self._partitions.ack_and_publish,
            log.ROLLUP: self._roll_up,
            log.REGROUP: self._regroup,
            log.SCHEDULE: self.timetable.change,
            log.TICK: self.timetable.tick,
            log.RESULT: self.results.ack,
            log.EXPIRE_RESULTS: self.results.expire,
            log.PROGRESS: self.results.report,
            log.PAUSE_FLOWS: self._groups.pause_flows,
            log.JOIN: self.joins.begin,
            log.JOIN_ENDS: self.joins.note,
            log.JOINED: self.joins.close,
        }

    def _load(self) -> None:
        for row_key, row in self._scan(b"P"):
            self.partitions[records.U64.unpack_from(row_key, 1)[0]] = _decode_partition(row)
        self.timetable.load()
        self.joins.load()
        for _, row in self._scan(b"T"):
            info = _decode_topic(row)
            self.topics[info.id] = info
        for _, row in self._scan(b"G"):
            group = _decode_group(row)
            self.groups[group.id], self.group_ids[group.topic_id, group.name] = group, group.id
        for _, row in self._scan(b"C"):
            state = _decode_cursor(row)
            self.cursors.setdefault(state.partition, {})[state.group_id] = Cursor(self.state, state)
            if state.group_id in self.groups:
                self.owned.add("groups", self.groups[state.group_id].owners, 1)
        for row_key, row in self._scan(b"p"):
            partition, group_id, first = records.U64X3.unpack_from(row_key, 1)
            if (
                cursor := self.cursors.get(partition, {}).get(group_id)
            ) is not None:  # otherwise it is being swept
                cursor.passed.load(first, records.U64.unpack(row)[0])
        for row_key, row in self._scan(b"h"):
            partition, group_id, first = records.U64X3.unpack_from(row_key, 1)
            if (cursor := self.cursors.get(partition, {}).get(group_id)) is not None:
                held = _decode_hold(row)
                cursor.holds.load(first, held.end, held.hold)
        for row_key, row in self._scan(b"f"):
            partition, group_id = records.U64X2.unpack_from(row_key, 1)
            if (cursor := self.cursors.get(partition, {}).get(group_id)) is not None:
                cursor.pauses = {each.flow: each for each in _decode_pauses(row)}
        for row_key, row in self._scan(b"Z"):
            partition, first = records.U64X2.unpack_from(row_key, 1)
            known = self.partitions.get(partition)
            if known is not None and first >= known.first:  # those below wait to be swept
                self.voids.setdefault(partition, Intervals()).add(first, decode_void(row).end)
        self.free.extend(
            records.U64.unpack_from(row_key, 1)[0]
            for row_key in self.state.scan_keys(b"b", records.after(b"b"))
        )

    def _scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return list(self.state.scan(prefix, records.after(prefix)))

    # --- reading --------------------------------------------------------------------------------------------

    def _body(self, index: Index) -> bytes:
        body = self._tables.body.get(log.INDEX_KEY.pack(index))
        if body is None:
            raise CorruptLog(f"shard {self.shard}: the batch of entry {index} is missing")
        return body

    def config(self, partition: PartitionKey) -> TopicConfig:
        """Return the policy of the topic of a partition."""
        return self.topics[self.partitions[partition].topic_id].config

    def offset_at(self, partition: PartitionKey, time_ms: int) -> Offset:
        """Return the first offset whose leader time is `time_ms` or later, else the end."""
        state = self.partitions[partition]
        # leader time never falls, so a binary search over the slices finds the offset
        low, high = state.first, state.next
        while low < high:
            middle = (low + high) // 2
            part = self.slices.at(partition, middle)
            if part is None or part.time_ms >= time_ms:
                high = max(low, part.offset) if part else middle
            else:
                low = part.end
        return low

    def knows(self, partition: PartitionKey, info: BatchInfo) -> bool:
        """True if a batch with this sequence, or a later one, is stored."""
        return bool(info.sequence) and info.sequence <= self.producers.get(partition, info.producer).last

    def located(self, partition: PartitionKey, run: Run) -> list[Run]:
        """Split a run by the present places of its records: with and without offsets."""
        if run.index == 0:
            return [run]
        runs, record, stop = [], run.record, run.record + run.count
        while record < stop:
            offset, end = self._released(partition, run.index, record)
            if offset is None:
                scheduled = self.schedule.get(partition, run.index, record)
                end = scheduled[1].end if scheduled else record + 1
            some = Run(
                count=min(end, stop) - record,
                offset=-1 if offset is None else offset,
                index=run.index,
                record=record,
                duplicate=run.duplicate,
                kept=run.kept,
            )
            runs.append(some)
            record = end
        return runs

    def offset_of(self, partition: PartitionKey, index: Index, record: int) -> Offset | None:
        """Return the offset of a record that was scheduled or has an id.

        None if it has no offset yet, or is not known any more.
        """
        return self._released(partition, index, record)[0]

    def _released(self, partition: PartitionKey, index: Index, record: int) -> tuple[Offset | None, int]:
        """Return the offset of a record, and the end of the run that contains it."""
        prefix = records.key(b"R", partition, index)
        found = self.state.floor(prefix + records.U64.pack(record))
        if found is None or not found[0].startswith(prefix):
            return None, record
        offset, count = PLACE.unpack(found[1])
        first = int(records.U64.unpack_from(found[0], 17)[0])
        return (int(offset) + record - first, first + count) if record < first + count else (None, record)

    def stored(self, partition: PartitionKey, index: Index, record: int) -> bool:
        """True if a record of a batch is still known.

        It got an offset, is scheduled, or was voided before it had one.
        """
        return (
            self.offset_of(partition, index, record) is not None
            or self.schedule.get(partition, index, record) is not None
            or self.void_of(partition, index, record) is not None
        )

    def void_of(self, partition: PartitionKey, index: Index, record: int) -> VoidRow | None:
        """Return how a record was voided before it had an offset."""
        row = self.state.get(records.key(b"v", partition, index, record))
        return decode_void(row) if row else None

    def is_void(self, partition: PartitionKey, offset: Offset) -> bool:
        return partition in self.voids and offset in self.voids[partition]

    def done_everywhere(self, partition: PartitionKey, offset: Offset) -> bool:
        """True if groups have read an offset and none of them can still receive it."""
        cursors = self.cursors.get(partition, {}).values()
        return bool(cursors) and not any(
            cursor.fresh(offset, offset + 1)
            or (cursor.exceptional and cursor.exceptions.at(offset) is not None)
            or cursor.dead.at(offset) is not None
            for cursor in cursors
        )

    def waiting(self, partition: PartitionKey, index: Index, numbers: Sequence[int]) -> set[int]:
        """Return those records of an entry that are scheduled, or that a group can still receive.

        Without groups every record with an offset waits. Records below the first offset never do: each
        copy sweeps their rows when it has time.
        """
        prefix, found = records.key(b"W", partition, index), set[int]()
        for row_key, row in self.state.scan(prefix, records.after(prefix)):
            first, end = records.U64.unpack_from(row_key, 17)[0], decode_scheduled(row).end
            found.update(number for number in numbers if first <= number < end)
        prefix = records.key(b"R", partition, index)
        for row_key, row in self.state.scan(prefix, records.after(prefix)):
            first, (offset, count) = records.U64.unpack_from(row_key, 17)[0], PLACE.unpack(row)
            its = [number for number in numbers if first <= number < first + count]
            if not its:
                continue
            low, high = offset + min(its) - first, offset + max(its) - first + 1
            left = self._open(partition, low, high)
            if list(left) == [(low, high)]:
                found.update(its)
            elif left:
                found.update(number for number in its if offset + number - first in left)
        return found

    def _open(self, partition: PartitionKey, first: Offset, end: Offset) -> Intervals:
        """Return the parts of [first, end) that a group can still receive; without groups, that exist."""
        first, left = max(first, self.partitions[partition].first), Intervals()
        if first >= end:
            return left
        cursors = self.cursors.get(partition)
        if not cursors:
            voids = self.voids.get(partition)
            return Intervals([(first, end)] if voids is None else voids.missing(first, end))
        for cursor in cursors.values():
            for part in cursor.fresh(first, end):
                left.add(*part)
            for found in cursor.exceptions.within(first, end) if cursor.exceptional else ():
                left.add(max(first, found.first), min(end, found.end))
        return left

    def removed(self, topic_id: int) -> bool:
        """True if a topic of this shard was removed. False also if its tombstone has expired."""
        return self.state.get(records.key(b"x", topic_id)) is not None

    def group(self, topic_id: int, name: str) -> GroupState | None:
        found = self.group_ids.get((topic_id, name))
        return None if found is None else self.groups[found]

    def no_group(self, topic_id: int, name: str) -> BadRequest:
        """Error for a request that names a group without partitions here."""
        topic = self.topics.get(topic_id)
        on = f" on {topic.name}" if topic else ""
        return BadRequest(f"no group {name}{on}", hint=f"gossipq group ls {topic.name if topic else 'TOPIC'}")

    def no_cursor(self, partition: PartitionKey, name: str) -> BadRequest:
        """Error for a group that this partition does not have. Other partitions can have it."""
        topic = self.topics[topic_id_of(partition)].name
        text = f"no group {name} has begun in partition {partition_of(partition)} of {topic}"
        return BadRequest(text, hint=f"gossipq group lag {topic} -g {name} --partitions")

    def done_below(self, partition: PartitionKey) -> Offset:
        """Every group has acked everything below; without groups, the end of the partition."""
        cursors = self.cursors.get(partition)
        if not cursors:
            return self.partitions[partition].next
        first = self.partitions[partition].first
        return min(cursor.needs_from(first) for cursor in cursors.values())

    # --- applying -------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> Outcome:
        """Apply the next committed entry, and return its outcome for the answer. Raises
        UnknownKind.
        """
        handler = self._apply.get(entry.kind)
        # a copy that skipped an unknown entry would differ from the others for ever, so it stops
        if handler is None or entry.version > log.VERSION:
            raise UnknownKind(
                f"shard {self.shard} met entry {entry.index} of kind {entry.kind} version {entry.version}",
                hint="upgrade this node: a newer leader wrote it",
            )
        assert entry.index == self.applied + 1, "entries are applied in order, each once"
        self.applied = entry.index
        self.meta.time_ms = entry.time_ms
        self.dirty = True
        payload = self.payload = log.KINDS[entry.kind].decode(entry.payload)
        # only an entry behind a NOOP with a request key can be a repeat
        if not self.repeats.announced:
            return handler(entry, payload)
        key, repeated = self.repeats.claim(entry)
        # a repeat stores no record, so its body is not needed
        if repeated is not None and entry.body:
            self.needed(entry.index, 0)
        outcome = repeated or handler(entry, payload)
        self.repeats.note(key, entry, payload, outcome)
        return outcome

    def skip(self, entry: Entry) -> Outcome:
        """Apply an entry on a witness, which only tracks the voters and the end of the log."""
        self.applied = entry.index
        self.meta.time_ms = entry.time_ms
        self.dirty = True
        return self._config(entry, log.message_of(entry)) if entry.kind == log.CONFIG else DONE

    def flush(self) -> None:
        """Write changed rows, and the index up to which the log is applied, in the open
        transaction.
        """
        if self.slices.unwritten:
            self.slices.write()
        rows = self.producers.take_rows()
        for partition in self.dirty_partitions:
            rows.append((b"P" + records.U64.pack(partition), records.encode(self.partitions[partition])))
        for partition, group_id in self._dirty_cursors:
            self.cursors[partition][group_id].write()
        self.dirty_partitions.clear()
        self._dirty_cursors.clear()
        if self.dirty:
            self.meta.applied, self.dirty = self.applied, False
            rows.append((records.META, records.encode(self.meta)))
        if rows:
            self.state.put_many(rows)

    def _noop(self, entry: Entry, payload: payloads.RequestKey | None) -> Outcome:
        """A NOOP has no effect, unless it announces the request key of the next entry."""
        if payload is not None:
            self.repeats.announce(entry, payload.key)
        return DONE

    def _config(self, entry: Entry, payload: payloads.CopySet) -> Outcome:
        self.meta.voters = payload.voters
        self.meta.witnesses = payload.witnesses
        self.meta.learners = payload.learners
        return DONE

    def store_record(self, entry: Entry, publish: bytes) -> Published:
        return self._partitions.store(entry, publish)

    def changed(self, partition: PartitionKey) -> None:
        self.dirty_partitions.add(partition)

    def needed(self, index: Index, count: int) -> None:
        """`count` records need the body of this entry; with 0 the body is deleted."""
        if count:
            self.state.put(records.key(b"B", index), COUNT.pack(count))
        else:
            self._drop_body(index, self.keeping)

    def keep_bodies(self, keep: bool, swept: bool = False) -> None:
        """Keep batches that would be deleted, while a snapshot is being read.

        The log behind the snapshot can refer to them. `swept`: also keep batches that sweeping
        deletes, for a backup, which does not see that in the log.
        """
        self.keeping, self._keeping_swept = keep, swept
        if self._kept and not keep:
            self.free.extend(self._kept)
            self._kept = []

    @property
    def left_over(self) -> list[Index]:
        """Return the entries whose batches are unused but still exist."""
        return [*self._kept, *self.free]

    def free_bodies(self, count: int) -> None:
        """Delete up to `count` of them: after a backup, hours of retention can be waiting."""
        for _ in range(min(count, len(self.free))):
            index = self.free.popleft()
            self._tables.body.delete(log.INDEX_KEY.pack(index))
            self.state.delete(records.key(b"b", index))

    def sweep_body(self, index: Index) -> None:
        """Delete the body of a swept slice."""
        self._drop_body(index, self._keeping_swept)

    def _drop_body(self, index: Index, keep: bool) -> None:
        if keep:
            self._kept.append(index)
            self.state.put(records.key(b"b", index), b"")
        else:
            self._tables.body.delete(log.INDEX_KEY.pack(index))

    def not_needed(self, index: Index, count: int) -> None:
        """`count` fewer records need the body of an entry; with the last one it is deleted."""
        row_key = records.key(b"B", index)
        row = self.state.get(row_key)
        left = COUNT.unpack(row)[0] - count if row else 0
        if left > 0:
            self.state.put(row_key, COUNT.pack(left))
        else:
            self.state.delete(row_key)
            self._drop_body(index, self.keeping)

    def _topic(self, entry: Entry, payload: payloads.TopicChange) -> Outcome:
        info = payload.info
        if payload.deleted:
            return self._drop_topic(entry, info)
        if self.removed(info.id):
            return refused("unknown_topic", f"topic {info.name} was removed")
        known = self.topics.get(info.id)
        if known is not None and known.version >= info.version:
            return TopicChanged(known)
        if known is not None and known.shards != info.shards:
            return refused("bad_request", f"topic {info.name} with other partitions than it was made with")
        mine = [partition_key(info.id, i) for i, shard in enumerate(info.shards) if shard == self.shard]
        self.topics[info.id] = info
        self.state.put(records.key(b"T", info.id), records.encode(info))
        for partition in mine:
            if partition not in self.partitions:
                self.partitions[partition] = PartitionState(info.id)
                self.dirty_partitions.add(partition)
        return TopicChanged(info)

    def _drop_topic(self, entry: Entry, info: TopicInfo) -> TopicChanged:
        """Remove a topic completely, except for a tombstone that late messages find."""
        known = self.topics.pop(info.id, info)
        self.state.delete(records.key(b"T", info.id))
        for number, shard in enumerate(known.shards):
            if shard == self.shard:
                self._drop_partition(partition_key(info.id, number))
        for group in [group for group in self.groups.values() if group.topic_id == info.id]:
            del self.groups[group.id], self.group_ids[group.topic_id, group.name]
            self.state.delete(records.key(b"G", group.id))
        self.growth.drop(info.id)
        if not self.removed(info.id):
            self.state.put(records.key(b"x", info.id), b"")
            self.state.put(records.key(b"e", entry.time_ms, info.id), b"")
        old = self.state.scan(b"e", records.key(b"e", max(0, entry.time_ms - TOMBSTONE_MS)))
        for row_key, _ in list(islice(old, TOMBSTONES_DROPPED)):
            self.state.delete(row_key)
            self.state.delete(b"x" + row_key[9:])
        return TopicChanged(known, True)

    def _drop_partition(self, partition: PartitionKey) -> None:
        if self.partitions.pop(partition, None) is None:
            return
        self.schedule.forget()
        self.dirty_partitions.discard(partition)
        self.state.delete(records.key(b"P", partition))
        for group_id in self.cursors.pop(partition, {}):
            self.owned.add("groups", self.groups[group_id].owners, -1)
            self._dirty_cursors.discard((partition, group_id))
            self.state.delete(records.key(b"C", partition, group_id))
        self.producers.drop(partition)
        self.dedup.drop(partition)
        self.uniques.drop(partition)
        self.timetable.drop(partition)
        self.joins.drop(partition)
        self.slices.drop(partition)
        self.voids.pop(partition, None)
        self.state.put(records.key(b"D", partition), b"")

    def _group(self, entry: Entry, payload: payloads.GroupChange) -> Outcome:
        group = self.group(payload.topic_id, payload.name)
        if payload.topic_id not in self.topics or any(
            start.partition not in self.partitions for start in payload.starts
        ):
            return refused(
                "unknown_topic", f"the topic with id {payload.topic_id} was removed at the same moment"
            )
        if group is None and (payload.version or not payload.starts):
            return refused("busy", f"group {payload.name} was removed at the same moment")
        if group is not None and group.config != payload.config and group.version != payload.version:
            return refused("busy", f"the policy of group {payload.name} was changed at the same moment")
        if group is None:
            group = GroupState(
                entry.index, payload.topic_id, payload.name, payload.config, owners=payload.owners
            )
            self.groups[group.id], self.group_ids[group.topic_id, group.name] = group, group.id
            self.state.put(records.key(b"G", group.id), records.encode(group))
        elif group.config != payload.config:
            group.config, group.version = payload.config, group.version + 1
            self.state.put(records.key(b"G", group.id), records.encode(group))
        for start in payload.starts:
            self._start(group, start)
        return DONE

    def _start(self, group: GroupState, start: Start) -> None:
        """Start a group in a partition that is new to it."""
        state, cursors = self.partitions[start.partition], self.cursors.setdefault(start.partition, {})
        if group.id in cursors:
            return
        at = {"first": state.first, "new": state.next}.get(start.kind, start.value)
        at = min(max(at, state.first), state.next)
        cursor = cursors[group.id] = Cursor(self.state, CursorState(group.id, start.partition, at, at))
        for first, end in self.voids.get(start.partition, ()):
            if end > at:
                cursor.passes(max(first, at), end, life.VOID)
        cursor.advance()
        self.owned.add("groups", group.owners, 1)
        self._dirty_cursors.add((start.partition, group.id))

    def _regroup(self, entry: Entry, payload: payloads.Regroup) -> Outcome:
        """End a group, and start it again under the index of this entry as its id if asked to."""
        group = self.groups.get(payload.group_id)
        if group is None:
            return refused("wrong_state", "the group, or its topic, was removed at the same moment")
        mine = [cursors[group.id] for cursors in self.cursors.values() if group.id in cursors]
        if not payload.dead and any(cursor.state.dead for cursor in mine):
            return refused("wrong_state", f"group {group.name} got dead letters at the same moment")
        del self.groups[group.id]
        del self.group_ids[group.topic_id, group.name]
        self.state.delete(records.key(b"G", group.id))
        self.owned.add("groups", group.owners, -len(mine))
        for partition in [cursor.state.partition for cursor in mine]:
            del self.cursors[partition][group.id]
            if not self.cursors[partition]:
                del self.cursors[partition]
            self._dirty_cursors.discard((partition, group.id))
            self.state.delete(records.key(b"C", partition, group.id))
            self.state.put(records.key(b"d", partition, group.id), b"")
        if payload.starts:
            anew = msgspec.structs.replace(group, id=entry.index, version=group.version + 1)
            self.groups[anew.id], self.group_ids[anew.topic_id, anew.name] = anew, anew.id
            self.state.put(records.key(b"G", anew.id), records.encode(anew))
            for start in payload.starts:
                self._start(anew, start)
        return Regrouped(group.id)

    def _roll_up(self, entry: Entry, payload: payloads.Rollup) -> Outcome:
        self.growth.roll_up(entry, payload)
        return DONE

    def cursor(self, partition: PartitionKey, group_id: int) -> Cursor | None:
        """Return the cursor for a change. It is written at the next flush."""
        found = self.cursors.get(partition, {}).get(group_id)
        if found is not None:
            self._dirty_cursors.add((partition, group_id))
        return found

    def _trim(self, entry: Entry, payload: payloads.Trim) -> Counted:
        state = self.partitions.get(payload.partition)
        if state is None or payload.first <= state.first:
            return Counted()
        before, count = state.first, payload.first - state.first
        void = self.voids.get(payload.partition)
        state.removed += sum(
            end - first for first, end in (void or Intervals()).missing(state.first, payload.first)
        )
        if void is not None:
            void.drop_below(payload.first)
        parts = self.slices.between(payload.partition, state.first, payload.first)
        state.bytes -= sum(part.share_bytes for _, _, part in parts)
        state.first = payload.first
        self.dirty_partitions.add(payload.partition)
        for group_id, cursor in self.cursors.get(payload.partition, {}).items():
            if cursor.state.cursor < state.first or cursor.exceptional:
                # what still exists of earlier records has a body of its own
                self._groups.leave(cursor, before, state.first, life.TRIM)
                cursor.advance(state.first)
                self._dirty_cursors.add((payload.partition, group_id))
        return Counted(count)

    def _forget(self, entry: Entry, payload: payloads.Forget) -> Counted:
        for ref in payload.cancelled:
            self.state.delete(records.key(b"v", ref.partition, ref.index, ref.record))
            # the replaced record was itself stored by an EDIT
            self.state.delete(records.key(b"F", ref.partition, ref.index))
        for partition in payload.uniques:
            if partition in self.partitions:
                self.uniques.sweep(partition, entry.time_ms, SWEPT_ROWS, entry.index)
        return Counted(self.producers.forget(payload.producers, payload.before_ms))
