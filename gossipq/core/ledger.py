"""The replicated state of a shard, changed only by applying committed entries, in order, the same on every copy.

`apply` reads its entry and its own rows, nothing else: no clock, no dispatch, no other shard. Rows that change with every
entry are kept decoded and written by `flush`, once a turn.
"""

from array import array
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

import msgspec

from gossipq import limits
from gossipq.core import log, payloads, records
from gossipq.core.intervals import Intervals, RangeMap
from gossipq.core.log import Entry
from gossipq.core.records import CursorState, GroupState, Hold, Meta, PartitionState, ProducerState
from gossipq.core.tables import Tables
from gossipq.errors import UnknownKind
from gossipq.messages import TopicInfo
from gossipq.types import META_SHARD, BatchInfo, Offset, PartitionKey, Slice, partition_key

TAIL_SLICES = 4_096


class Published(NamedTuple):
    """Outcome of a PUBLISH: where it lies, or the code of a refusal."""

    partition: PartitionKey
    offset: Offset
    part: Slice | None  #: None when nothing was added
    duplicate: bool = False
    error: str = ""
    detail: int = 0


class Cursor:
    """A CursorState, opened."""

    __slots__ = ("acked", "holds", "state")

    def __init__(self, state: CursorState) -> None:
        self.state = state
        self.acked = Intervals(state.acked)
        self.holds: RangeMap[Hold] = RangeMap()
        for first, end, hold in state.holds:
            self.holds.set(first, end, hold)

    def row(self) -> bytes:
        self.state.acked, self.state.holds = list(self.acked), list(self.holds)
        return records.encode(self.state)

    def settle(self, offset: Offset) -> None:
        """Everything below `offset` is done; moves the cursor over what is acked behind it."""
        self.state.cursor = max(self.state.cursor, offset)
        if self.acked.starts and self.acked.starts[0] <= self.state.cursor:
            self.acked.drop_below(self.state.cursor)
            if self.acked.starts and self.acked.starts[0] == self.state.cursor:
                self.state.cursor = self.acked.ends[0]
                self.acked.drop_below(self.state.cursor)


class Producer:
    """A ProducerState, opened. `recent` are the offsets of the last sequences, newest last."""

    __slots__ = ("last", "recent", "time_ms")

    def __init__(self, state: ProducerState | None) -> None:
        self.last = state.last if state else 0
        self.time_ms = state.time_ms if state else 0
        self.recent = deque(state.offsets() if state else (), maxlen=limits.PRODUCER_REPEATS)


class Tail:
    """The newest slices of a partition: where readers mostly are."""

    __slots__ = ("offsets", "parts")

    def __init__(self) -> None:
        self.offsets: list[Offset] = []
        self.parts: list[Slice] = []

    def add(self, part: Slice) -> None:
        if len(self.offsets) >= TAIL_SLICES:
            del self.offsets[: TAIL_SLICES // 2], self.parts[: TAIL_SLICES // 2]
        self.offsets.append(part.offset)
        self.parts.append(part)

    def find(self, offset: Offset) -> Slice | None:
        at = bisect_right(self.offsets, offset) - 1
        return self.parts[at] if at >= 0 else None


_decode_meta = msgspec.msgpack.Decoder(Meta).decode
_decode_partition = msgspec.msgpack.Decoder(PartitionState).decode
decode_producer = msgspec.msgpack.Decoder(ProducerState).decode
_decode_group = msgspec.msgpack.Decoder(GroupState).decode
_decode_cursor = msgspec.msgpack.Decoder(CursorState).decode
_decode_topic = msgspec.msgpack.Decoder(TopicInfo).decode


class Ledger:
    def __init__(self, shard: int, tables: Tables) -> None:
        """Opens what `tables` hold: work and memory go with partitions and groups, never with records."""
        self.shard, self._state = shard, tables.state
        row = self._state.get(records.META)
        self.meta = _decode_meta(row) if row else Meta()
        self.partitions: dict[PartitionKey, PartitionState] = {}
        self.topics: dict[int, TopicInfo] = {}
        self.groups: dict[int, GroupState] = {}
        self.group_ids: dict[str, int] = {}
        self.cursors: dict[PartitionKey, dict[int, Cursor]] = {}
        self.names: dict[str, TopicInfo] = {}  #: the meta shard's topics
        self._producers: dict[tuple[PartitionKey, bytes], Producer] = {}
        self._tails: dict[PartitionKey, Tail] = {}
        self._dirty_partitions: set[PartitionKey] = set()
        self._dirty_producers: set[tuple[PartitionKey, bytes]] = set()
        self._dirty_cursors: set[tuple[PartitionKey, int]] = set()
        self._applied = self.meta.applied
        self.meta_changed = False
        self._apply = {
            log.NOOP: self._noop,
            log.CONFIG: self._config,
            log.PUBLISH: self._publish,
            log.TOPIC: self._topic,
            log.GROUP: self._group,
            log.LEASE: self._lease,
            log.ACK: self._ack,
            log.TRIM: self._trim,
            log.META_TOPIC: self._meta_topic,
            log.FORGET: self._forget,
        }
        self._load()

    def _load(self) -> None:
        for row_key, row in self._scan(b"P"):
            self.partitions[records.U64.unpack_from(row_key, 1)[0]] = _decode_partition(row)
        for _, row in self._scan(b"T"):
            info = _decode_topic(row)
            self.topics[info.id] = info
        for _, row in self._scan(b"G"):
            group = _decode_group(row)
            self.groups[group.id], self.group_ids[group.name] = group, group.id
        for _, row in self._scan(b"C"):
            state = _decode_cursor(row)
            self.cursors.setdefault(state.partition, {})[state.group_id] = Cursor(state)
        for _, row in self._scan(b"N"):
            info = _decode_topic(row)
            self.names[info.name] = info

    def _scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return list(self._state.scan(prefix, records.after(prefix)))

    # --- reading ---------------------------------------------------------------------------------------------------

    def slice_at(self, partition: PartitionKey, offset: Offset) -> Slice | None:
        """The slice that holds `offset`; None beyond the end."""
        tail = self._tails.get(partition)
        part = tail.find(offset) if tail else None
        if part is None:
            row = self._state.floor(records.slice_key(partition, offset))
            if row is None or row[0][:9] != records.slice_key(partition, 0)[:9]:
                return None
            part = records.decode_slice(*row)
        return part if offset < part.end else None

    def offset_at(self, partition: PartitionKey, time_ms: int) -> Offset:
        """The first offset whose leader time is `time_ms` or later; the end when there is none."""
        state = self.partitions[partition]
        low, high = state.first, state.next
        while low < high:
            middle = (low + high) // 2
            part = self.slice_at(partition, middle)
            if part is None or part.time_ms >= time_ms:
                high = max(low, part.offset) if part else middle
            else:
                low = part.end
        return low

    def knows(self, partition: PartitionKey, info: BatchInfo) -> bool:
        """Whether a batch with this sequence, or a later one, is stored already."""
        return bool(info.sequence) and info.sequence <= self._producer(partition, info.producer).last

    def group(self, name: str) -> GroupState | None:
        found = self.group_ids.get(name)
        return None if found is None else self.groups[found]

    def done_below(self, partition: PartitionKey) -> Offset:
        """Every group has acked everything below; without groups, the end."""
        cursors = self.cursors.get(partition)
        if not cursors:
            return self.partitions[partition].next
        return min(cursor.state.cursor for cursor in cursors.values())

    # --- applying --------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> object:
        """Takes the next committed entry; returns its outcome, for the leader to answer with. Raises UnknownKind."""
        handler = self._apply.get(entry.kind)
        if handler is None or entry.version > log.VERSION:
            raise UnknownKind(
                f"shard {self.shard} met entry {entry.index} of kind {entry.kind} version {entry.version}",
                hint="upgrade this node: a newer leader wrote it",
            )
        assert entry.index == self._applied + 1, "entries are applied in order, each once"
        self._applied, self.meta.time_ms = entry.index, entry.time_ms
        return handler(entry)

    def skip(self, entry: Entry) -> None:
        """What a witness does with a committed entry: it knows the voters, and how far the log goes."""
        self._applied, self.meta.time_ms = entry.index, entry.time_ms
        if entry.kind == log.CONFIG:
            self._config(entry)

    @property
    def applied(self) -> int:
        return self._applied

    @property
    def dirty(self) -> bool:
        """Whether `flush` has something to write."""
        return self.meta_changed or self.meta.applied != self._applied

    def flush(self) -> None:
        """Writes the rows that changed, and how far the log is applied, into the open transaction."""
        put = self._state.put
        for partition in self._dirty_partitions:
            put(records.key(b"P", partition), records.encode(self.partitions[partition]))
        for name in self._dirty_producers:
            producer = self._producers[name]
            recent = array("q", producer.recent).tobytes()
            put(records.key(b"S", name[0]) + name[1], records.encode(ProducerState(producer.last, producer.time_ms, recent)))
        for partition, group_id in self._dirty_cursors:
            put(records.key(b"C", partition, group_id), self.cursors[partition][group_id].row())
        self._dirty_partitions.clear()
        self._dirty_producers.clear()
        self._dirty_cursors.clear()
        if len(self._producers) > limits.TURN_MESSAGES_MAX * 4:
            self._producers.clear()  # all clean now; read back when they speak again
        if self.dirty:
            self.meta.applied, self.meta_changed = self._applied, False
            put(records.META, records.encode(self.meta))

    def _noop(self, entry: Entry) -> None:
        """Only its term matters."""

    def _config(self, entry: Entry) -> None:
        config = msgspec.msgpack.decode(entry.payload, type=payloads.Config)
        self.meta.voters, self.meta.witnesses, self.meta.learners = config.voters, config.witnesses, config.learners

    def _producer(self, partition: PartitionKey, producer: bytes) -> Producer:
        name = partition, producer
        found = self._producers.get(name)
        if found is None:
            row = self._state.get(records.key(b"S", partition) + producer)
            found = self._producers[name] = Producer(decode_producer(row) if row else None)
        return found

    def _publish(self, entry: Entry) -> Published:
        partition, info = log.parse_publish(entry.payload)
        state = self.partitions.get(partition)
        if state is None:
            return Published(partition, -1, None, error="unknown_topic")
        offset = state.next
        if info.sequence:
            producer = self._producer(partition, info.producer)
            behind = producer.last - info.sequence
            if behind >= 0:
                if behind < len(producer.recent):
                    return Published(partition, producer.recent[-1 - behind], None, duplicate=True)
                return Published(partition, -1, None, error="out_of_sequence", detail=producer.last + 1)
            if behind < -1:
                return Published(partition, -1, None, error="out_of_sequence", detail=producer.last + 1)
            producer.last, producer.time_ms = info.sequence, entry.time_ms
            producer.recent.append(offset)
            self._dirty_producers.add((partition, info.producer))
        part = Slice(offset, entry.index, 0, info.count, info.size, info.count, entry.time_ms)
        self._state.put(records.slice_key(partition, offset), records.encode_slice(part))
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = Tail()
        tail.add(part)
        state.next += info.count
        state.published += info.count
        state.bytes += info.size
        self._dirty_partitions.add(partition)
        return Published(partition, offset, part)

    def _topic(self, entry: Entry) -> payloads.Topic:
        payload = msgspec.msgpack.decode(entry.payload, type=payloads.Topic)
        info = payload.info
        mine = [partition_key(info.id, i) for i, shard in enumerate(info.shards) if shard == self.shard]
        if payload.deleted:
            self.topics.pop(info.id, None)
            self._state.delete(records.key(b"T", info.id))
            for partition in mine:
                self._drop_partition(partition)
            return payload
        self.topics[info.id] = info
        self._state.put(records.key(b"T", info.id), records.encode(info))
        for partition in mine:
            if partition not in self.partitions:
                self.partitions[partition] = PartitionState(info.id)
                self._dirty_partitions.add(partition)
        return payload

    def _drop_partition(self, partition: PartitionKey) -> None:
        if self.partitions.pop(partition, None) is None:
            return
        self._dirty_partitions.discard(partition)
        self._state.delete(records.key(b"P", partition))
        for group_id in self.cursors.pop(partition, {}):
            self._dirty_cursors.discard((partition, group_id))
            self._state.delete(records.key(b"C", partition, group_id))
        for name in [name for name in self._producers if name[0] == partition]:
            del self._producers[name]
            self._dirty_producers.discard(name)
        self._tails.pop(partition, None)
        self._state.put(records.key(b"D", partition), b"")

    def _group(self, entry: Entry) -> payloads.Group:
        payload = msgspec.msgpack.decode(entry.payload, type=payloads.Group)
        group = self.group(payload.name)
        if group is None:
            group = GroupState(entry.index, payload.name, payload.config)
            self.groups[group.id], self.group_ids[group.name] = group, group.id
            self._state.put(records.key(b"G", group.id), records.encode(group))
        elif group.config != payload.config:
            group.config, group.version = payload.config, group.version + 1
            self._state.put(records.key(b"G", group.id), records.encode(group))
        for start in payload.starts:
            state = self.partitions.get(start.partition)
            cursors = self.cursors.setdefault(start.partition, {})
            if state is None or group.id in cursors:
                continue
            at = {"first": state.first, "new": state.next}.get(start.kind, start.value)
            at = min(max(at, state.first), state.next)
            cursors[group.id] = Cursor(CursorState(group.id, start.partition, at, at))
            self._dirty_cursors.add((start.partition, group.id))
        return payload

    def _cursor(self, partition: PartitionKey, group_id: int) -> Cursor | None:
        return self.cursors.get(partition, {}).get(group_id)

    def _lease(self, entry: Entry) -> None:
        payload = msgspec.msgpack.decode(entry.payload, type=payloads.Lease)
        for row in payload.rows:
            cursor = self._cursor(row.partition, payload.group_id)
            if cursor is None:
                continue
            hold = Hold(row.session, row.deadline_ms, row.attempt, row.consumer)
            for first, end in cursor.acked.missing(max(row.first, cursor.state.cursor), row.end):
                cursor.holds.set(first, end, hold)
                if row.session and row.attempt > 1:
                    cursor.state.redelivered += end - first
                self._dirty_cursors.add((row.partition, payload.group_id))

    def _ack(self, entry: Entry) -> None:
        payload = msgspec.msgpack.decode(entry.payload, type=payloads.Ack)
        for partition, low, high in payload.ranges:
            cursor = self._cursor(partition, payload.group_id)
            if cursor is None:
                continue
            state = cursor.state
            for first, end in cursor.acked.missing(max(low, state.cursor), min(high, self.partitions[partition].next)):
                cursor.holds.clear(first, end)
                cursor.acked.add(first, end)
                state.acked_count += end - first
                row = records.AckRow(end, entry.time_ms, payload.consumer)
                self._state.put(records.ack_key(partition, payload.group_id, first), records.encode(row))
                self._dirty_cursors.add((partition, payload.group_id))
            cursor.settle(state.cursor)

    def _trim(self, entry: Entry) -> None:
        payload = msgspec.msgpack.decode(entry.payload, type=payloads.Trim)
        state = self.partitions.get(payload.partition)
        if state is None or payload.first <= state.first:
            return
        state.removed += payload.first - state.first
        state.bytes -= payload.bytes
        state.first = payload.first
        self._dirty_partitions.add(payload.partition)
        for group_id, cursor in self.cursors.get(payload.partition, {}).items():
            if cursor.state.cursor >= state.first:
                continue
            for first, end in cursor.acked.missing(cursor.state.cursor, state.first):
                cursor.state.removed_count += end - first
            cursor.holds.clear(0, state.first)
            cursor.settle(state.first)
            self._dirty_cursors.add((payload.partition, group_id))

    def _meta_topic(self, entry: Entry) -> payloads.Topic:
        assert self.shard == META_SHARD, "the topic register lies in the meta shard"
        payload = msgspec.msgpack.decode(entry.payload, type=payloads.Topic)
        name = payload.info.name
        known = self.names.get(name)
        if payload.deleted:
            if known is not None:
                del self.names[name]
                self._state.delete(b"N" + name.encode())
                self._state.put(records.key(b"X", known.id), records.encode(known))
            return payload
        if known is None:
            known = msgspec.structs.replace(payload.info, id=entry.index)
            self.names[name] = known
            self._state.put(b"N" + name.encode(), records.encode(known))
        return payloads.Topic(known)

    def _forget(self, entry: Entry) -> None:
        for partition, producer in msgspec.msgpack.decode(entry.payload, type=payloads.Forget).producers:
            self._producers.pop((partition, producer), None)
            self._dirty_producers.discard((partition, producer))
            self._state.delete(records.key(b"S", partition) + producer)
