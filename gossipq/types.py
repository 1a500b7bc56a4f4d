"""Identities and small values. Every number says its unit; every range is half-open [first, end)."""

from typing import Annotated

import msgspec

from gossipq import limits

#: of an index, a term or a time that another node sends
Number = Annotated[int, msgspec.Meta(ge=0, le=limits.NUMBER_MAX)]
ShardId = int  #: 0 .. shards - 1; shard 0 is the meta shard
Index = int  #: position in a shard's log, from 1
StoredAt = tuple[Index, int]  #: log index, and number of the record in the batch
Term = int  #: number of a leadership, from 1; fences old leaders
Offset = int  #: position of a record in its partition, from 0
Ranges = list[tuple[Offset, Offset]]  #: of offsets, each from its first to before its end
#: topic id << 16 | partition number; names a partition for ever, also after its topic is gone
PartitionKey = int
SessionId = bytes  #: 16 random bytes, made by a client process
Origin = tuple[bytes, ...]  #: routing frames of a peer, opaque to everyone but the mailbox

META_SHARD: ShardId = 0
NODE_SHARD: ShardId = 0xFFFF  #: in a header: the frontdoor itself, not the leader of a shard
PARTITION_BITS = 16
#: clients declare schemas here; the one system topic that nodes do not write
SCHEMAS_TOPIC = "_schemas"

# optional columns of a batch, by their bit
KEY_HASH, DELAY, TTL, LEASE, ATTEMPTS, ID_HASH, BACKOFF, FLOW_HASH, PRIORITY = (1 << bit for bit in range(9))
KEYS, HEADERS, IDS, FLOWS = (1 << bit for bit in range(16, 20))
UNIQUE_HASH, UNTIL, REPLACE, UNIQUES = 1 << 9, 1 << 10, 1 << 11, 1 << 20
#: batches with one of these get their offsets record by record, so a row names where each run lies
PLACED = DELAY | ID_HASH | UNIQUE_HASH

PARTS_HEADER = "gossipq-parts"  #: header of a joined record: how the jobs ended that it waited for


def partition_key(topic_id: int, partition: int) -> PartitionKey:
    """Return the key of a partition. It is unique in a cluster, because topic ids are never
    reused.
    """
    return topic_id << PARTITION_BITS | partition


def topic_id_of(key: PartitionKey) -> int:
    return key >> PARTITION_BITS


def partition_of(key: PartitionKey) -> int:
    return key & (1 << PARTITION_BITS) - 1


class Now(msgspec.Struct, frozen=True, gc=False):
    """One reading of the clocks: boot time drives timers and leases, wall time only what users see."""

    boot_ms: int
    wall_ms: int


class BatchInfo(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch. Nodes read the header, never the records."""

    count: int  #: records
    size: int  #: bytes of the whole batch
    crc: int  #: CRC-32 of everything after this field
    producer: bytes  #: 16 bytes
    sequence: int  #: per (producer, partition) from 1; 0 = not deduplicated
    publish_ms: int  #: wall time of the client
    columns: int  #: bit set of the optional columns
    route: bytes = b""


class Slice(msgspec.Struct, frozen=True, gc=False):
    """`count` records of the batch stored at log index `index`, from its record `first` on.

    `offset` is that of the first record.
    """

    offset: Offset
    index: Index
    first: int
    count: int
    size: int  #: bytes of the whole stored batch
    batch_count: int  #: records in the whole stored batch
    time_ms: int  #: leader time of the entry that gave the offsets
    columns: int = 0  #: of the batch
    route: bytes = b""

    @property
    def end(self) -> Offset:
        return self.offset + self.count

    @property
    def share_bytes(self) -> int:
        """Bytes of the stored batch that belong to this slice. The shares of all records add up to
        `size`.
        """
        return share(self.size, self.batch_count, self.first, self.first + self.count)


def share(size: int, batch_count: int, first: int, end: int) -> int:
    """Return the bytes that records `first` to `end` have of a batch of `size` bytes.

    Neighbouring ranges add up without rounding errors.
    """
    return size * end // batch_count - size * first // batch_count
