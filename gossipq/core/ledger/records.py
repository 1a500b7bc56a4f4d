"""Rows of a shard's `state` table: keys, layouts, and the values the ledger keeps of them in memory.

    key                                   value
    "M"                               Meta
    "H"                               HardState, as (term, vote)
    "."                               index of the snapshot that is being installed: the state is not whole
    "P" partition                     PartitionState
    "O" partition offset              slice row: where the records from `offset` on lie
    "S" partition producer            ProducerState
    "T" topic id                      TopicInfo
    "G" group id                      GroupState
    "C" partition group id            CursorState
    "p" partition group id first      end of records above the cursor that it has passed
    "h" partition group id first      HoldRow: a lease, or what was given back
    "f" partition group id            the paused flows: a list of FlowPause
    "A" partition group id first      AckRow: one ack, or a page of them
    "V" partition group id first      ExceptionRow: neither new nor done, so that the cursor can pass
    "Y" partition group id due first  when an exception row is to be looked at again
    "U" partition group id lane first exception rows that wait for their lane, which its length precedes
    "L" partition group id first      DeadRow
    "Q" partition group id first index  TraceRow
    "W" partition index first         ScheduledRow
    "E" due index first               the due index; value: the partition
    "R" partition index first         where released records, and those of batches with ids, got their offsets
    "B" index                         records that still need the batch of this entry; no row: all or none do
    "b" index                         nothing needs that batch any more; it stays while others may read it
    "j" partition index               the ids that an entry brought, oldest entry first; found in memory
    "J" partition index               the same, of ids that have rows of their own
    "i" partition due index           the ids of an entry whose records are due by then; they have rows "I"
    "I" partition id hash             an id that is remembered
    "u" partition index               the unique names that an entry took; found in memory
    "Z" partition first               VoidRow
    "v" partition index record        VoidRow of a record that had no offset
    "F" partition index               what the record of an EDIT entry replaces, or the earlier place of the
                                      record of a JOINED entry: (offset, index, record)
    "K"                               ClockRow: this copy's own, not replicated
    "s" partition name                ScheduleRow: a schedule and its last ticks
    "l" partition name                the batch of a schedule's record
    "r" partition offset group id     ResultRow: what a handler returned; of neighbours a ResultsRow at a
                                      multiple of 64, with 2**62 + group id, and the first offset behind it
    "y" end, partition offset group id  the same by the end of its time, also with 2**62 + group id
    "w" partition offset group id     ProgressRow: how far its handler was; in "y" with 2**63 + group id
    "c" partition index record        offset of a record with a result that was scheduled before
    "z" partition index number        record 0 of an entry waits for jobs: 0 = JoinRow, 1 = its batch,
                                      2 + n = PartEnd, how part n ended
    "D" partition                     a partition that is gone and still being swept
    "d" partition group id            a group that is gone there and still being swept
    "g" topic id, step, time          GrowthState: topic 0 = all, step 0 = minutes, 1 = hours
    "N" name                          TopicInfo, in the meta shard only
    "t" topic id                      owners of a topic, as [kind, name] each; in the meta shard only
    "m" copy                          Member, in the meta shard only
    "g" copy                          was a member, and does not return; in the meta shard only
    "n"                               index of the entry that changed the roster last, in the meta shard only
    "k" index                         DoneRow: the entry of a request with an idempotency key
    "q"                               Announced: the next entry is that of such a request
    "o"                               options of [cluster], a map of text, in the meta shard only
    "a"                               AccessTable, in the meta shard only
    "X" topic id                      Installing: a shard of the topic may not know it; in the meta shard
    "x" topic id                      tombstone: a topic that had partitions here was removed
    "e" leader time, topic id         the same by time, so that tombstones go after a week

Numbers in keys are 8 bytes, big endian. Values are msgpack arrays, fields only ever appended, but for the two
hot rows ("O" and the offsets inside "S"), which are fixed little-endian numbers.
"""

from array import array
from struct import Struct
from typing import ClassVar

import msgspec

from gossipq.core.storage import NO_CHAIN
from gossipq.rates import Payer
from gossipq.types import Index, Offset, PartitionKey, SessionId, Slice, Term
from gossipq.values import GroupConfig, JoinPart, Ref, Run, Schedule, Tick, TopicInfo

META, HARD, INSTALLING, CLOCK = b"M", b"H", b".", b"K"
ROSTER, OPTIONS, ACCESS, ANNOUNCED = b"n", b"o", b"a", b"q"
#: rows of each copy itself, in key order; not in snapshots
OWN_ROWS = (INSTALLING, HARD, CLOCK, META)
U64, U64X2, U64X3 = Struct(">Q"), Struct(">QQ"), Struct(">QQQ")
SLICE = Struct("<QIIIIqI")
ID, PLACE, COUNT = Struct("<qQI"), Struct("<QQ"), Struct("<Q")
ID_ENTRY = Struct("<qQ")  #: start of an ID row
ID_BATCH = Struct(
    "<qI"
)  #: leader time, number of ids; then the ids, and the numbers of their records if not 0, 1, 2, ...

encode = msgspec.msgpack.Encoder().encode


def key(prefix: bytes, *numbers: int) -> bytes:
    """Return the key: `prefix`, and each number as 8 bytes, big endian."""
    return prefix + b"".join(map(U64.pack, numbers))


def after(prefix: bytes) -> bytes:
    """Return the lowest key above all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix[-1] < 255 else after(prefix[:-1])


def slice_key(partition: PartitionKey, offset: Offset) -> bytes:
    return b"O" + U64X2.pack(partition, offset)


def encode_slice(part: Slice) -> bytes:
    return SLICE.pack(*msgspec.structs.astuple(part)[1:-1]) + part.route


def slice_rows(parts: list[tuple[PartitionKey, Slice]]) -> list[tuple[bytes, bytes]]:
    """Return key and row of many slices, as `slice_key` and `encode_slice` make them of each."""
    pack_key, pack, rows = U64X2.pack, SLICE.pack, []
    for partition, part in parts:
        row = pack(
            part.index, part.first, part.count, part.size, part.batch_count, part.time_ms, part.columns
        )
        rows.append((b"O" + pack_key(partition, part.offset), row + part.route))
    return rows


def decode_slice(row_key: bytes, row: bytes) -> Slice:
    (offset,) = U64.unpack_from(row_key, 9)
    index, first, count, size, batch_count, time_ms, columns = SLICE.unpack_from(row)
    return Slice(offset, index, first, count, size, batch_count, time_ms, columns, row[SLICE.size :])


def row_key(prefix: bytes, partition: PartitionKey, group_id: int, *numbers: int) -> bytes:
    """Return the key of a row of one group in one partition."""
    return prefix + U64X2.pack(partition, group_id) + b"".join(map(U64.pack, numbers))


def lane_key(partition: PartitionKey, group_id: int, lane: bytes, first: Offset) -> bytes:
    """Return the key of a row in a lane. A lane has up to 256 bytes, so its length takes two
    bytes.
    """
    return row_key(b"U", partition, group_id) + len(lane).to_bytes(2, "big") + lane + U64.pack(first)


def ack_key(partition: PartitionKey, group_id: int, first: Offset) -> bytes:
    return b"A" + U64X3.pack(partition, group_id, first)


class ProgressRow(msgspec.Struct, array_like=True, frozen=True):
    """The last reported progress of a record in a group."""

    done: float
    text: str
    time_ms: int  #: leader time of the report
    end_ms: int  #: leader time at which the row goes


class ResultRow(msgspec.Struct, array_like=True, frozen=True):
    """The result of a record in a group."""

    group: str
    consumer: str
    time_ms: int  #: leader time of the ack
    end_ms: int  #: leader time at which the result goes
    attempt: int
    kind: str
    value: bytes
    index: Index = 0  #: the entry of a record that was scheduled; 0 = it was not
    record: int = 0


class ResultsRow(msgspec.Struct, array_like=True, frozen=True):
    """The results of neighbouring records in a group, each of its first attempt."""

    group: str
    consumer: str
    time_ms: int  #: leader time of the ack
    end_ms: int  #: leader time at which the results go
    kind: str
    values: list[bytes]

    def at(self, number: int) -> ResultRow | None:
        """Return the result of record `number` of the row; None if the row has none of it."""
        if not 0 <= number < len(self.values):
            return None
        return ResultRow(
            group=self.group,
            consumer=self.consumer,
            time_ms=self.time_ms,
            end_ms=self.end_ms,
            attempt=1,
            kind=self.kind,
            value=self.values[number],
        )


class JoinRow(msgspec.Struct, array_like=True, frozen=True):
    """A record that waits until `count` of the parts have ended, or until `end_ms`, leader time."""

    parts: list[JoinPart]
    count: int
    end_ms: int
    group: str  #: the group that works at the parts; "" = the only one of each
    time_ms: int  #: leader time of its entry


class ScheduleRow(msgspec.Struct, array_like=True):
    """A schedule and its last ticks."""

    schedule: Schedule
    version: Index  #: entry that set or changed it
    after_ms: int  #: the next tick is behind this leader time
    ticks: int = 0  #: records in all
    last: list[Tick] = []  #: the oldest first


class Installing(msgspec.Struct, array_like=True, frozen=True):
    """A version of a topic, or its removal, that the shards of the topic are being told."""

    info: TopicInfo
    deleted: bool

    @property
    def version(self) -> int:
        return -self.info.id if self.deleted else self.info.version


class DoneRow(msgspec.Struct, array_like=True, frozen=True):
    """A finished request with an idempotency key, and its result."""

    key: bytes
    time_ms: int  #: leader time of the entry
    count: int = 1  #: records that changed
    #: partition of the record that was stored, with its place; -1 = none was stored
    partition: PartitionKey = -1
    offset: Offset = -1
    runs: list[Run] | None = None
    ref: Ref | None = None  #: the single record that the request concerned


class Announced(msgspec.Struct, array_like=True, frozen=True):
    """The next entry, if it is of the same term, belongs to the request with this key."""

    key: bytes
    term: Term
    index: Index


class Meta(msgspec.Struct, array_like=True):
    """The index up to which this copy has applied its log, and facts about removed log rows."""

    applied: Index = 0
    time_ms: int = 0
    log_first: Index = 1
    epochs: list[tuple[Term, Index]] = []
    chain: bytes = NO_CHAIN  #: of the entry before `log_first`
    voters: list[str] = []
    witnesses: list[str] = []
    learners: list[str] = []


class PartitionState(msgspec.Struct, array_like=True):
    """Counters of records, and bytes of stored batches.

    published = next + scheduled + those voided before they had an offset.
    """

    topic_id: int
    first: Offset = 0
    next: Offset = 0
    published: int = 0
    removed: int = 0
    bytes: int = 0
    scheduled: int = 0
    voided: int = 0
    ids: int = 0  #: remembered ids
    scheduled_bytes: int = 0  #: part of `bytes`
    #: end of the newest slice with records that have a time to live of their own
    expiring: Offset = 0
    unique_hand: Index = 0  #: the next entry whose unique names are looked at


class ProducerState(msgspec.Struct, array_like=True):
    """The places of a producer's last sequences, newest last, as answers to repeats."""

    last: int
    time_ms: int
    recent: bytes  #: int64 little endian: offset; or -2 - index for a batch with due times or ids

    def places(self) -> "array[int]":
        found: array[int] = array("q")
        found.frombytes(self.recent)
        return found


class GroupState(msgspec.Struct, array_like=True):
    """A group of one topic. Groups of the same name on two topics are independent."""

    id: int
    topic_id: int
    name: str
    config: GroupConfig
    version: int = 1
    owners: tuple[Payer, ...] = ()  #: accounts that it counts for, once for each of its partitions here


class Hold(msgspec.Struct, array_like=True, frozen=True):
    """A logged lease. An empty session means that the records were given back.

    `attempt` is the number of the last delivery, which counts as an attempt if it `started`.
    """

    session: SessionId
    deadline_ms: int  #: leader time
    attempt: int
    consumer: str = ""
    started: bool = False


class HoldRow(msgspec.Struct, array_like=True, frozen=True):
    """Records from the offset in its key up to `end`."""

    end: Offset
    hold: Hold


class CursorState(msgspec.Struct, array_like=True):
    """One group in one partition.

    Every record below `cursor`, and in rows "p" above it, is acked, removed, voided or dropped, or
    has a row of its own (retrying, parked, dead). Rows "h" can be anywhere.

    At any moment: cursor - start + passed = acked + removed + voided + dropped + retrying + parked
    + dead. The fields `passed` and `holds` are not used: both lists are always empty.
    """

    group_id: int
    partition: PartitionKey
    start: Offset
    cursor: Offset
    passed: list[tuple[Offset, Offset]] = []
    holds: list[tuple[Offset, Offset, Hold]] = []
    acked: int = 0
    removed: int = 0  #: removed by retention, unacked
    redelivered: int = 0
    retrying: int = 0
    parked: int = 0
    unmatched: int = 0  #: parked records whose route has no consumer
    dead: int = 0
    voided: int = 0
    dropped: int = 0
    merged: Offset = 0  #: acks below are merged into pages
    unmerged: int = 0  #: rows of acks since the last merge


class AckRow(msgspec.Struct, array_like=True, frozen=True):
    """One ack, or a page of successive acks.

    In a page, `time_ms` and `index` belong to the first ack, and `consumers` are names. `page` has
    four numbers for each ack: records, consumer, and the differences of time and index to the ack
    before.
    """

    end: Offset
    time_ms: int
    consumer: str
    index: Index = 0  #: of the entry that stored it
    consumers: list[str] = []
    page: list[int] = []


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """One failed attempt."""

    time_ms: int
    consumer: str
    reason: str
    attempt: int


class ExceptionRow(msgspec.Struct, array_like=True, frozen=True):
    """Records [first, end) of a group that wait for their time, or for their lane if `lane` is set.

    With `ranges`, only the records in them: of one batch, with equal failures. `record` is then
    that of the first.
    """

    end: Offset
    due_ms: int
    attempts: int  #: attempts that began
    failures: int
    index: Index  #: entry whose body has the records
    record: int  #: number of the first record in that body
    size: int = 0  #: bytes of that body
    batch_count: int = 0  #: records in that body
    lane: bytes = b""
    #: True if the body belongs to these records alone: they were dead letters
    own_body: bool = False
    history: list[Failure] = []
    ranges: list[tuple[Offset, Offset]] = []
    handed_out: bool = False  #: True if delivered since the last attempt began


class DeadRow(msgspec.Struct, array_like=True, frozen=True):
    #: dead letters in one row are always neighbours
    ranges: ClassVar[list[tuple[Offset, Offset]]] = []
    end: Offset
    reason: str
    error: str
    attempts: int
    failures: int
    time_ms: int
    index: Index
    record: int
    size: int
    batch_count: int
    history: list[Failure] = []


class TraceRow(msgspec.Struct, array_like=True, frozen=True):
    """An event for records. `ranges`: only these of the records before `end`."""

    end: Offset
    time_ms: int
    what: str
    consumer: str
    reason: str
    attempt: int
    history: list[Failure] = []
    ranges: list[tuple[Offset, Offset]] = []

    def tells_of(self, offset: Offset) -> bool:
        """True if the row covers an offset. The offset must not be before the row."""
        if not self.ranges:
            return offset < self.end
        return any(first <= offset < end for first, end in self.ranges)


class ScheduledRow(msgspec.Struct, array_like=True, frozen=True):
    """Records [first, end) of the batch of an entry, without offsets.

    A record is due at `base_ms` + its delay. With `fixed`, all are due at `due_ms`. Otherwise
    `due_ms` is the due time of the first.
    """

    end: int
    due_ms: int
    base_ms: int
    size: int  #: bytes of the whole batch
    batch_count: int
    columns: int
    route: bytes
    time_ms: int  #: when it was published
    fixed: bool = False


class VoidRow(msgspec.Struct, array_like=True, frozen=True):
    end: Offset
    time_ms: int
    reason: str
    by: str
    replaced_by: Index = 0  #: entry that stored the new record
    #: publish time of a record that had no offset; 0: it had one, or the time is unknown
    published_ms: int = 0


class GrowthState(msgspec.Struct, array_like=True, frozen=True):
    """Counters of a topic in this shard at the end of a minute or an hour."""

    published: int
    acked: int
    dead: int
    removed: int
    records: int
    bytes: int
    backlog: int
    term: Term
    voters: int
