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
    "Z" partition first               VoidRow
    "v" partition index record        VoidRow of a record that had no offset
    "F" partition index               what the record of an EDIT entry replaces: (offset, index, record)
    "K"                               ClockRow: this copy's own, not replicated
    "D" partition                     a partition that is gone and still being swept
    "d" partition group id            a group that is gone there and still being swept
    "g" topic id, step, time          GrowthState: topic 0 = all, step 0 = minutes, 1 = hours
    "N" name                          TopicInfo, in the meta shard only
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
from gossipq.types import Index, Offset, PartitionKey, SessionId, Slice, Term
from gossipq.values import GroupConfig, Ref, Run, TopicInfo

META, HARD, INSTALLING, CLOCK = b"M", b"H", b".", b"K"
ROSTER, OPTIONS, ACCESS, ANNOUNCED = b"n", b"o", b"a", b"q"
OWN_ROWS = (INSTALLING, HARD, CLOCK, META)  #: of each copy, in key order; not part of a snapshot
U64, U64X2, U64X3 = Struct(">Q"), Struct(">QQ"), Struct(">QQQ")
SLICE = Struct("<QIIIIqI")
ID, PLACE, COUNT = Struct("<qQI"), Struct("<QQ"), Struct("<Q")
ID_ENTRY = Struct("<qQ")  #: what an ID begins with
ID_BATCH = Struct(
    "<qI"
)  #: leader time, ids; then these, and the numbers of their records if others lie between

encode = msgspec.msgpack.Encoder().encode


def key(prefix: bytes, *numbers: int) -> bytes:
    """`prefix` and each number as 8 bytes, big endian."""
    return prefix + b"".join(map(U64.pack, numbers))


def after(prefix: bytes) -> bytes:
    """The lowest key above all that start with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix[-1] < 255 else after(prefix[:-1])


def slice_key(partition: PartitionKey, offset: Offset) -> bytes:
    return b"O" + U64X2.pack(partition, offset)


def encode_slice(part: Slice) -> bytes:
    return SLICE.pack(*msgspec.structs.astuple(part)[1:-1]) + part.route


def decode_slice(row_key: bytes, row: bytes) -> Slice:
    (offset,) = U64.unpack_from(row_key, 9)
    index, first, count, size, batch_count, time_ms, columns = SLICE.unpack_from(row)
    return Slice(offset, index, first, count, size, batch_count, time_ms, columns, row[SLICE.size :])


def row_key(prefix: bytes, partition: PartitionKey, group_id: int, *numbers: int) -> bytes:
    """Key of a row of one group in one partition."""
    return prefix + U64X2.pack(partition, group_id) + b"".join(map(U64.pack, numbers))


def lane_key(partition: PartitionKey, group_id: int, lane: bytes, first: Offset) -> bytes:
    """Routes have up to 255 bytes, keys 4, one byte names which: the length fits two."""
    return row_key(b"U", partition, group_id) + len(lane).to_bytes(2, "big") + lane + U64.pack(first)


def ack_key(partition: PartitionKey, group_id: int, first: Offset) -> bytes:
    return b"A" + U64X3.pack(partition, group_id, first)


class Installing(msgspec.Struct, array_like=True, frozen=True):
    """A version of a topic that its shards are being told, or that it is removed."""

    info: TopicInfo
    deleted: bool

    @property
    def version(self) -> int:
        return -self.info.id if self.deleted else self.info.version


class DoneRow(msgspec.Struct, array_like=True, frozen=True):
    """A request that is done, and what its entry did."""

    key: bytes
    time_ms: int  #: leader time of the entry
    count: int = 1  #: records that it moved
    partition: PartitionKey = -1  #: of a record that it stored, and where that lies; -1 = it stored none
    offset: Offset = -1
    runs: list[Run] | None = None
    ref: Ref | None = None  #: of a single record that it was about


class Announced(msgspec.Struct, array_like=True, frozen=True):
    """The next entry, if it is of the same term, is that of a request with this key."""

    key: bytes
    term: Term
    index: Index


class Meta(msgspec.Struct, array_like=True):
    """How far this copy has applied its log, and what is left of the log's past."""

    applied: Index = 0
    time_ms: int = 0
    log_first: Index = 1
    epochs: list[tuple[Term, Index]] = []
    chain: bytes = NO_CHAIN  #: of the entry before `log_first`
    voters: list[str] = []
    witnesses: list[str] = []
    learners: list[str] = []


class PartitionState(msgspec.Struct, array_like=True):
    """Counters of records, and the bytes of stored batches. published = next + scheduled + those voided
    without an offset."""

    topic_id: int
    first: Offset = 0
    next: Offset = 0
    published: int = 0
    removed: int = 0
    bytes: int = 0
    scheduled: int = 0
    voided: int = 0
    ids: int = 0  #: remembered
    scheduled_bytes: int = 0  #: of `bytes`
    expiring: Offset = 0  #: end of the newest slice that has records with a time to live of their own


class ProducerState(msgspec.Struct, array_like=True):
    """Where the last sequences were stored, newest last: the answer to a repeat."""

    last: int
    time_ms: int
    recent: bytes  #: int64 little endian: the offset; -2 - index for a batch with due times or ids

    def places(self) -> "array[int]":
        found: array[int] = array("q")
        found.frombytes(self.recent)
        return found


class GroupState(msgspec.Struct, array_like=True):
    """A group belongs to one topic: two topics may have groups of the same name that know nothing of each
    other."""

    id: int
    topic_id: int
    name: str
    config: GroupConfig
    version: int = 1


class Hold(msgspec.Struct, array_like=True, frozen=True):
    """A lease as it was logged. An empty session: given back. `attempt` is the number of the last delivery,
    which counts as an attempt if it `started`."""

    session: SessionId
    deadline_ms: int  #: leader time
    attempt: int
    consumer: str = ""
    started: bool = False


class HoldRow(msgspec.Struct, array_like=True, frozen=True):
    """Records from the one in its key to `end`."""

    end: Offset
    hold: Hold


class CursorState(msgspec.Struct, array_like=True):
    """One group in one partition. Below `cursor`, and in rows "p" above, every record is acked, removed,
    voided, dropped, or has a row of its own (retrying, parked, dead); rows "h" may lie anywhere. `passed` and
    `holds` are those rows in a store of 0.1.

    cursor - start + what passed = acked + removed + voided + dropped + retrying + parked + dead, at any
    moment."""

    group_id: int
    partition: PartitionKey
    start: Offset
    cursor: Offset
    passed: list[tuple[Offset, Offset]] = []
    holds: list[tuple[Offset, Offset, Hold]] = []
    acked: int = 0
    removed: int = 0  #: left unacked, by retention
    redelivered: int = 0
    retrying: int = 0
    parked: int = 0
    unmatched: int = 0  #: of the parked: for want of a consumer of their route
    dead: int = 0
    voided: int = 0
    dropped: int = 0
    merged: Offset = 0  #: acks below are in pages already
    unmerged: int = 0  #: rows of acks since these were looked at


class AckRow(msgspec.Struct, array_like=True, frozen=True):
    """One ack, or a page of them that follow each other. Of a page `time_ms` and `index` are those of the
    first, `consumers` their names, and `page` has four numbers for each: records, consumer, and how far time
    and index lie from those of the one before."""

    end: Offset
    time_ms: int
    consumer: str
    index: Index = 0  #: of the entry that brought it
    consumers: list[str] = []
    page: list[int] = []


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """One failed attempt."""

    time_ms: int
    consumer: str
    reason: str
    attempt: int


class ExceptionRow(msgspec.Struct, array_like=True, frozen=True):
    """Records [first, end) of a group that wait: for their time (`lane` empty), or for their lane to be free.
    With `ranges` only those in them, of one batch that failed alike: then `record` is that of the first."""

    end: Offset
    due_ms: int
    attempts: int  #: that began
    failures: int
    index: Index  #: entry whose body holds them,
    record: int  #: from this record on
    size: int = 0  #: of that body, in bytes
    batch_count: int = 0  #: and in records
    lane: bytes = b""
    own_body: bool = False  #: the body belongs to these records alone (they were dead letters)
    history: list[Failure] = []
    ranges: list[tuple[Offset, Offset]] = []
    handed_out: bool = False  #: since the last attempt began


class DeadRow(msgspec.Struct, array_like=True, frozen=True):
    ranges: ClassVar[list[tuple[Offset, Offset]]] = []  #: letters that lie together are neighbours
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
    """`ranges`: only these of what lies before `end`."""

    end: Offset
    time_ms: int
    what: str
    consumer: str
    reason: str
    attempt: int
    history: list[Failure] = []
    ranges: list[tuple[Offset, Offset]] = []

    def tells_of(self, offset: Offset) -> bool:
        """Of an offset that is not before the row."""
        if not self.ranges:
            return offset < self.end
        return any(first <= offset < end for first, end in self.ranges)


class ScheduledRow(msgspec.Struct, array_like=True, frozen=True):
    """Records [first, end) of the batch of an entry, without offsets. `base_ms` + its delay is when one is
    due; with `fixed`, all are due at `due_ms`, which is that of the first otherwise."""

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
    replaced_by: Index = 0  #: entry that brought the new record
    published_ms: int = 0  #: of a record that had no offset; 0: it has one, or nobody kept that


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
