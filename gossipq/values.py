"""What messages are made of: their base, and the values inside: policies, records, counters, and what explains them.

A value travels as a msgpack array in field order; fields are only ever appended, with a default.
"""

from typing import ClassVar, TypeVar, dataclass_transform

import msgspec

from gossipq import limits
from gossipq.types import Offset, PartitionKey

Config = TypeVar("Config", bound=msgspec.Struct)
Range = tuple[PartitionKey, Offset, Offset]  #: (partition, first, end)


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all; `verb` is its number in the fixed header."""

    verb: ClassVar[int] = 0


def _over(options: msgspec.Struct, config: Config) -> Config:
    said = {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
    return msgspec.structs.replace(config, **said)


class TopicConfig(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a topic. Versioned by the field order, like every message."""

    partitions: int = 1
    retention_ms: int = limits.RETENTION_MS  #: 0 = as soon as every group has acked; 7 days while there is no group
    retain: str = "acked"  #: "acked": age removes what every group has acked; "forever": age removes nothing
    bytes_max: int = 0  #: stored bytes per partition; 0 = no bound
    overflow: str = "refuse"  #: "refuse" or "drop_oldest" when bytes_max is reached
    level: str = "stored"  #: default confirm level of a publish: "stored" or "none"
    beside: str = ""  #: topic whose shards this one shares
    ttl_ms: int = 0  #: time to live of records that name none, counted from due; 0 = they do not expire
    expire: str = "dead"  #: what expires untried: "dead" letter, "drop" (counted), or "try_once"
    dedup_ms: int = limits.DEDUP_MS  #: an id is remembered for so long,
    dedup_count: int = limits.DEDUP_COUNT  #: and for so many later ids of its partition
    trace: str = "failures"  #: which steps are kept: "failures", "all" or "off"
    lease_ms: int | None = None  #: these three: None = as the cluster says; a group or a record may say otherwise
    attempts_max: int | None = None  #: failures after which a record is a dead letter
    backoff_ms: list[int] | None = None  #: pause after the first, second ... failure; the last one repeats
    virtual: list[str] = []  #: a virtual topic has no partitions: what is published to it is copied to these


class TopicOptions(msgspec.Struct, array_like=True, frozen=True):
    """What a request says of a topic's policy; None = as the cluster says."""

    partitions: int | None = None
    retention_ms: int | None = None
    retain: str | None = None
    bytes_max: int | None = None
    overflow: str | None = None
    level: str | None = None
    beside: str | None = None
    ttl_ms: int | None = None
    expire: str | None = None
    dedup_ms: int | None = None
    dedup_count: int | None = None
    trace: str | None = None
    lease_ms: int | None = None
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    virtual: list[str] | None = None

    def over(self, config: TopicConfig) -> TopicConfig:
        """`config` with what is said here in its place."""
        return _over(self, config)


class TopicInfo(msgspec.Struct, array_like=True, frozen=True):
    """A topic as clients and leaders know it; `shards[i]` holds partition i."""

    id: int
    name: str
    version: int
    config: TopicConfig
    shards: list[int]


class GroupConfig(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a group, stored with its first subscription. None = as the topic or the cluster says."""

    mode: str = "shared"  #: "shared", "exclusive" or "key_ordered"
    lease_ms: int | None = None
    in_flight_max: int = limits.IN_FLIGHT_MAX
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    parked_max: int = limits.PARKED_MAX  #: records per partition that may wait behind others of their key
    paused: bool = False  #: nothing is handed out


class GroupOptions(msgspec.Struct, array_like=True, frozen=True):
    """What a subscription says of its group's policy; None = as the group has it, or the cluster says."""

    mode: str | None = None
    lease_ms: int | None = None
    in_flight_max: int | None = None
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    parked_max: int | None = None
    paused: bool | None = None

    def over(self, config: GroupConfig) -> GroupConfig:
        """`config` with what is said here in its place."""
        return _over(self, config)


class Route(msgspec.Struct, array_like=True, frozen=True):
    """Where the leader of a shard answers clients."""

    shard: int
    term: int
    endpoint: str


class Start(msgspec.Struct, array_like=True, frozen=True):
    """Where a new group or a reader starts in one partition: "first", "new", "offset" (value) or "time" (unix ms)."""

    partition: PartitionKey
    kind: str = "first"
    value: int = 0


class Delivered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One slice in a DELIVER: `size` bytes of its second frame. `charge` is what it took of the byte credit."""

    partition: PartitionKey
    offset: Offset
    count: int
    attempt: int
    size: int
    charge: int


class Ref(msgspec.Struct, array_like=True, frozen=True):
    """Names one record: by its offset; or by (log index, record) as RUN gives them while it has no offset; or by its id."""

    partition: PartitionKey
    offset: Offset = -1
    index: int = 0
    record: int = 0
    id_hash: int = 0  #: BLAKE2b-64 of the id, little endian


class Run(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Outcome of `count` neighbouring records of a published batch. `offset` is that of the first; -1: it has none yet, and
    (index, record) name it. `duplicate`: their ids were known; what is named here is where they were stored first."""

    count: int
    offset: Offset
    index: int = 0
    record: int = 0
    duplicate: bool = False


class DeadLetter(msgspec.Struct, array_like=True, frozen=True):
    """Records that a group will not get again; `size` bytes of the second frame are their batch (0: not asked for)."""

    partition: PartitionKey
    group: str
    offset: Offset
    count: int
    reason: str  #: "failures", "rejected", "expired", "undecodable"
    error: str  #: what the last consumer said
    attempts: int
    failures: int
    time_ms: int  #: unix, when they became dead letters
    size: int = 0
    history: list["Step"] = []  #: the last failed attempts


class Standing(msgspec.Struct, array_like=True, frozen=True):
    """Where a record stands, for one group ("" = for all): part of an answer to WHY."""

    group: str
    state: str  #: "ready", "in_flight", "retrying", "parked", "scheduled", "acked", "dead", "voided", "removed", "skipped"
    because: str  #: one sentence
    next: str = ""  #: the command that changes it
    consumer: str = ""
    time_ms: int = 0  #: unix: of the ack, the death, the due time, the end of the lease
    attempts: int = 0
    failures: int = 0


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One thing that happened to a record."""

    time_ms: int  #: unix
    what: str  #: "published", "due", "handed_out", "failed", "given_back", "acked", "dead", "voided", "replayed", "requeued"
    group: str = ""
    consumer: str = ""
    reason: str = ""
    attempt: int = 0


class PartitionStats(msgspec.Struct, array_like=True, frozen=True):
    """Stored counters of one partition; `first` and `next` bound the offsets that can still be read.

    published = (next - first - void records between) + removed + scheduled + voided, at any moment."""

    partition: PartitionKey
    topic: str
    shard: int
    worker: int
    first: Offset
    next: Offset
    published: int
    removed: int
    bytes: int
    scheduled: int = 0
    voided: int = 0


class GroupStats(msgspec.Struct, array_like=True, frozen=True):
    """Stored counters of one group in one partition. Since its start, published =
    ready + in_flight + retrying + parked + acked + dead + voided + dropped + removed."""

    partition: PartitionKey
    topic: str
    group: str
    cursor: Offset
    ready: int
    in_flight: int
    acked: int
    removed: int
    consumers: int
    redelivered: int
    retrying: int = 0  #: failed, waiting for their next attempt
    parked: int = 0  #: waiting behind others of their key, or for a consumer of their route
    dead: int = 0  #: dead letters that are kept
    voided: int = 0  #: cancelled, edited or removed by an operator; and dead letters that were purged
    dropped: int = 0  #: expired, in a topic that drops what expires
    unmatched: int = 0  #: of the parked: no consumer takes their route
    blocked_by_key: int = 0  #: of the parked and ready: another record of their key is not done
    paused: bool = False


class WorkerStats(msgspec.Struct, array_like=True, frozen=True):
    """One worker process as its node sees it. Times are milliseconds, sizes bytes."""

    worker: int
    pid: int
    endpoint: str
    state: str  #: "starting", "ready", "recovering" (a commit failed), "full" (publishes refused), "down"
    restarts: int
    leading: int  #: shards
    sessions: int
    published: int
    delivered: int
    acked: int
    refused: int
    bad_frames: int
    turns: int
    commits: int
    commit_us: int  #: moving average of one commit
    store_bytes: int
    detail: str = ""
    dropped: int = 0  #: messages to who was gone or did not read
    dead: int = 0  #: records that became dead letters since the start
    dead_per_minute: int = 0  #: of the last minute
