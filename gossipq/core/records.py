"""Rows of a shard's `state` table: keys, layouts, and the values the ledger keeps of them in memory.

    key                                   value
    "M"                                   Meta
    "H"                                   HardState, as (term, vote)
    "."                                   index of the snapshot that is being installed: the state is not whole
    "P" partition                         PartitionState
    "O" partition offset                  slice row: where the records from `offset` on lie
    "S" partition producer                ProducerState
    "T" topic id                          TopicInfo
    "G" group id                          GroupState
    "C" partition group id                CursorState
    "A" partition group id first          ack row: (end, leader time, consumer)
    "D" partition                         a partition that is gone and still being swept
    "N" name                              TopicInfo, in the meta shard only
    "X" topic id                          TopicInfo of a topic that was removed, in the meta shard only

Numbers in keys are 8 bytes, big endian. Values are msgpack arrays, fields only ever appended, but for the two hot rows
("O" and the offsets inside "S"), which are fixed little-endian numbers.
"""

from array import array
from struct import Struct

import msgspec

from gossipq.core.log import NO_CHAIN
from gossipq.messages import GroupConfig
from gossipq.types import Index, Offset, PartitionKey, SessionId, Slice, Term

META, HARD, INSTALLING = b"M", b"H", b"."
OWN_ROWS = (INSTALLING, HARD, META)  #: of each copy, in key order; not part of a snapshot
U64, U64X2, U64X3 = Struct(">Q"), Struct(">QQ"), Struct(">QQQ")
SLICE = Struct("<QIIIIq")

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
    return SLICE.pack(part.index, part.first, part.count, part.size, part.batch_count, part.time_ms)


def decode_slice(row_key: bytes, row: bytes) -> Slice:
    return Slice(U64.unpack_from(row_key, 9)[0], *SLICE.unpack(row))


def ack_key(partition: PartitionKey, group_id: int, first: Offset) -> bytes:
    return b"A" + U64X3.pack(partition, group_id, first)


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
    """published = next - removed offsets + ...: `published` and `removed` count records, `bytes` those of stored batches."""

    topic_id: int
    first: Offset = 0
    next: Offset = 0
    published: int = 0
    removed: int = 0
    bytes: int = 0


class ProducerState(msgspec.Struct, array_like=True):
    """Offsets of the last sequences, newest last; the answer to a repeat."""

    last: int
    time_ms: int
    recent: bytes  #: int64 little endian

    def offsets(self) -> "array[int]":
        found: array[int] = array("q")
        found.frombytes(self.recent)
        return found


class GroupState(msgspec.Struct, array_like=True):
    id: int
    name: str
    config: GroupConfig
    version: int = 1


class Hold(msgspec.Struct, array_like=True, frozen=True):
    """A lease as it was logged. An empty session: given back. `attempt` is the ordinal of the last handing-over."""

    session: SessionId
    deadline_ms: int  #: leader time
    attempt: int
    consumer: str = ""


class CursorState(msgspec.Struct, array_like=True):
    """One group in one partition: below `cursor` everything is acked or removed; `acked` and `holds` lie above it."""

    group_id: int
    partition: PartitionKey
    start: Offset
    cursor: Offset
    acked: list[tuple[Offset, Offset]] = []
    holds: list[tuple[Offset, Offset, Hold]] = []
    acked_count: int = 0
    removed_count: int = 0  #: left unacked, by retention
    redelivered: int = 0


class AckRow(msgspec.Struct, array_like=True, frozen=True):
    end: Offset
    time_ms: int
    consumer: str
