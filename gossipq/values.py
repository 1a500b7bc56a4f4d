"""Base class of messages, and the values in them: policies, records, counters, states.

A value is sent as a msgpack array in field order; new fields are appended with a default.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

import msgspec
from msgspec import Meta

from gossipq import limits
from gossipq.types import Index, Number, Offset, PartitionKey, SessionId, partition_of

AnyConfig = TypeVar("AnyConfig", bound=msgspec.Struct)
Range = tuple[PartitionKey, Offset, Offset]  #: (partition, first, end)

Count = Annotated[int, Meta(ge=0, le=limits.NUMBER_MAX)]
Positive = Annotated[int, Meta(ge=1, le=limits.NUMBER_MAX)]
Duration = Annotated[int, Meta(ge=0, le=limits.DELAY_MS_MAX)]
ByteRate = Annotated[int, Meta(ge=limits.FRAME_BYTES_MAX, le=limits.NUMBER_MAX)]


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all messages. `verb` is its number in the fixed header."""

    verb: ClassVar[int] = 0


def _over(options: msgspec.Struct, config: AnyConfig) -> AnyConfig:
    said = {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
    return msgspec.structs.replace(config, **said)


class TopicConfig(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a topic. As in every message, versions differ only by appended fields."""

    partitions: int = 1
    #: 0 = removed as soon as every group has acked, or after 7 days if the topic has no groups
    retention_ms: int = limits.RETENTION_MS
    #: "acked": age removes records that every group has acked; "forever": age removes nothing
    retain: str = "acked"
    bytes_max: int = 0  #: stored bytes per partition; 0 = no bound
    overflow: str = "refuse"  #: "refuse" or "drop_oldest" when bytes_max is reached
    level: str = "stored"  #: default confirm level of publishes: "stored" or "none"
    beside: str = ""  #: topic whose shards this one shares
    #: time to live of records without one, counted from due; 0 = they do not expire
    ttl_ms: int = 0
    #: records that expire untried: "dead" letter, "drop" (counted), or "try_once"
    expire: str = "dead"
    #: an id is remembered for this time, or until `dedup_count` later ids of its partition
    dedup_ms: int = limits.DEDUP_MS
    dedup_count: int = limits.DEDUP_COUNT
    trace: str = "failures"  #: which steps are kept: "failures", "all" or "off"
    #: lease_ms, attempts_max, backoff_ms: None = the cluster's value; groups and records override
    #: it
    lease_ms: int | None = None
    attempts_max: int | None = None  #: failures after which a record is a dead letter
    #: pause after the first, second, ... failure; the last value repeats
    backoff_ms: list[int] | None = None
    #: topics that get a copy of each record; a virtual topic has no partitions of its own
    virtual: list[str] = []
    #: records per partition that a group can be behind before an alarm; None, 0 = no alarm
    alarm_lag: int | None = None
    #: a group without consumers and changes for this time is deleted; 0 = never
    group_idle_ms: int = 0


class TopicOptions(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a topic as given in a request. None = the cluster's value."""

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
    alarm_lag: int | None = None
    group_idle_ms: int | None = None

    def over(self, config: TopicConfig) -> TopicConfig:
        """Return `config` with the values that are set here."""
        return _over(self, config)


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of topics, and the bounds that the fields of a policy have in requests, too.

    TopicConfig has no bounds: entries that a version with wider bounds logged must be read.
    """

    partitions: Annotated[int, Meta(ge=1, le=limits.PARTITIONS_MAX)] = TopicConfig().partitions
    retention_ms: Count = TopicConfig().retention_ms
    retain: Literal["acked", "forever"] = "acked"
    bytes_max: Count = TopicConfig().bytes_max
    overflow: Literal["refuse", "drop_oldest"] = "refuse"
    level: Literal["stored", "none"] = "stored"
    ttl_ms: Duration = TopicConfig().ttl_ms
    expire: Literal["dead", "drop", "try_once"] = "dead"
    dedup_ms: Annotated[int, Meta(ge=0, le=limits.DEDUP_HARD_MS)] = TopicConfig().dedup_ms
    dedup_count: Annotated[int, Meta(ge=0, le=limits.DEDUP_HARD_COUNT)] = TopicConfig().dedup_count
    trace: Literal["failures", "all", "off"] = "failures"
    group_idle_ms: Count = TopicConfig().group_idle_ms
    #: this and the next two: 0 or [] means the value of [cluster.group]
    lease_ms: Annotated[int, Meta(ge=0, le=limits.LEASE_TOTAL_MS_MAX)] = 0
    attempts_max: Annotated[int, Meta(ge=0, le=limits.ATTEMPTS_HARD_MAX)] = 0
    backoff_ms: Annotated[tuple[Duration, ...], Meta(max_length=limits.BACKOFF_STEPS_MAX)] = ()

    def message(self) -> TopicConfig:
        said = msgspec.structs.asdict(self)
        said |= {"lease_ms": self.lease_ms or None, "attempts_max": self.attempts_max or None}
        return TopicConfig(**said | {"backoff_ms": list(self.backoff_ms) or None})


class Schedule(msgspec.Struct, array_like=True, frozen=True):
    """The times at which a topic gets a record: by a cron expression, or at a fixed interval.

    Times are unix milliseconds of leader time. A *tick* is a time at which a record is due.
    """

    name: str
    cron: str = ""  #: five fields; "" = by `every_ms`
    zone: str = ""  #: IANA name of the time zone of `cron`; "" = UTC
    every_ms: int = 0  #: ticks are multiples of it, counted from `start_ms`
    start_ms: int = 0  #: no tick before it
    end_ms: int = 0  #: no tick at or after it; 0 = never ends
    count_max: int = 0  #: ticks in all; 0 = no limit
    jitter_ms: int = 0  #: each record comes up to this long after its tick
    missed: str = "last"  #: ticks of a time without a leader: "none", "last", or "all"
    missed_max: int = 100  #: of "all": the newest ticks up to this number
    overlap: str = "allow"  #: while the last record is not done: "allow", "skip", or "replace" it
    paused: bool = False


class Tick(msgspec.Struct, array_like=True, frozen=True):
    """A tick that is over."""

    time_ms: int
    offset: int  #: of its record; -1 = it got none, because the last record was not done


class ScheduleInfo(msgspec.Struct, array_like=True, frozen=True):
    """A schedule, its last ticks, and the next ones."""

    schedule: Schedule
    ticks: int  #: records in all
    last: list[Tick]  #: the oldest first
    next_ms: list[int]  #: empty = it is paused, or has ended


class TopicInfo(msgspec.Struct, array_like=True, frozen=True):
    """A topic as clients and leaders know it; `shards[i]` holds partition i."""

    id: int
    name: str
    version: int
    config: TopicConfig
    shards: list[int]


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for the clients of a cluster.

    One address gets at most half of a limit, one user a quarter, so that others have room.
    """

    topics: Annotated[int, Meta(ge=1, le=limits.TOPICS_MAX)] = limits.TOPICS_MAX
    partitions: Positive = 100_000  #: of all topics, about 1 KiB of memory each
    groups: Positive = 5_000  #: in one shard
    sessions: Positive = 10_000  #: at one worker
    subscriptions: Positive = 2_000  #: of a session, in one shard
    connections: Positive = limits.CONNECTIONS_MAX  #: to one process
    #: limits of one address; this host counts as one address
    #: to one process; connections of this host count only towards `connections`
    address_connections: Positive = 1_000
    address_sessions: Positive = 10_000  #: at one worker
    address_subscriptions: Positive = 20_000  #: in one shard
    address_topics: Positive = limits.TOPICS_MAX // 2  #: that it created and that exist, as of all below
    address_partitions: Positive = 50_000
    #: in one shard; a group counts once for each partition of its topic there
    address_groups: Positive = 2_500
    address_requests_per_s: Positive = 50_000  #: at one process
    address_bytes_per_s: ByteRate = limits.GIB  #: the same
    #: limits of one user of a closed cluster, on all hosts together
    user_sessions: Positive = 2_500  #: at one worker
    user_subscriptions: Positive = 20_000  #: in one shard
    user_topics: Positive = limits.TOPICS_MAX // 4  #: as of an address
    user_partitions: Positive = 25_000  #: as of an address
    user_groups: Positive = 1_250  #: as of an address
    user_requests_per_s: Positive = 50_000  #: at one process
    user_bytes_per_s: ByteRate = limits.GIB  #: the same


class Rate(msgspec.Struct, array_like=True, frozen=True):
    """At most `records` in `per_ms`, evenly, and up to `burst` at a time."""

    records: int = 0  #: 0 = no limit
    per_ms: int = 1_000
    burst: int = 0  #: 0 = as many as in 100 ms, but at least 1


class GroupConfig(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a group, stored with its first subscription. None = the topic's or cluster's
    value.
    """

    mode: str = "shared"  #: "shared", "exclusive" or "key_ordered"
    lease_ms: int | None = None
    in_flight_max: int = limits.IN_FLIGHT_MAX
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    #: records per partition that can wait behind others of their key
    parked_max: int = limits.PARKED_MAX
    paused: bool = False  #: no records are delivered
    alarm_lag: int | None = None  #: as in the topic's policy; None = the topic's value
    #: which record is next: "arrival", "priority" (the higher one), or "fair" (of the higher ones, one of
    #: each flow in turn)
    order: str = "arrival"
    #: records that a flow gets each time that its turn comes; flows that are not named get 1
    weights: dict[str, int] = {}
    #: records of the group that may be in flight, over all partitions; 0 = no limit
    concurrency: int = 0
    flow_concurrency: int = 0  #: records of each flow that may be in flight; 0 = no limit
    rate: Rate = Rate()  #: of deliveries of the group, over all partitions
    flow_rate: Rate = Rate()  #: of deliveries of each flow
    #: records of a flow that may wait in a partition; publishes beyond are refused; 0 = no bound
    flow_backlog: int = 0
    #: records that wait longer get a part of the deliveries, whatever their priority; 0 = they do not
    age_after_ms: int = 0


class GroupOptions(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a group as given in a subscription. None = the group's value, or the cluster's."""

    mode: str | None = None
    lease_ms: int | None = None
    in_flight_max: int | None = None
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    parked_max: int | None = None
    paused: bool | None = None
    alarm_lag: int | None = None
    order: str | None = None
    weights: dict[str, int] | None = None
    concurrency: int | None = None
    flow_concurrency: int | None = None
    rate: Rate | None = None
    flow_rate: Rate | None = None
    flow_backlog: int | None = None
    age_after_ms: int | None = None

    def over(self, config: GroupConfig) -> GroupConfig:
        """Return `config` with the values that are set here."""
        return _over(self, config)


class GroupDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of groups, the last in the precedence record, group, topic, cluster; and bounds of
    their fields in requests, too.
    """

    lease_ms: Annotated[int, Meta(ge=1, le=limits.LEASE_TOTAL_MS_MAX)] = limits.LEASE_MS
    attempts_max: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_HARD_MAX)] = limits.ATTEMPTS_MAX
    backoff_ms: Annotated[tuple[Duration, ...], Meta(min_length=1, max_length=limits.BACKOFF_STEPS_MAX)] = (
        limits.BACKOFF_MS
    )
    in_flight_max: Annotated[int, Meta(ge=1, le=limits.IN_FLIGHT_HARD_MAX)] = GroupConfig().in_flight_max
    parked_max: Annotated[int, Meta(ge=0, le=limits.PARKED_HARD_MAX)] = GroupConfig().parked_max

    def message(self) -> GroupConfig:
        return GroupConfig(**msgspec.structs.asdict(self) | {"backoff_ms": list(self.backoff_ms)})


class Route(msgspec.Struct, array_like=True, frozen=True):
    """The address at which the leader of a shard answers clients."""

    shard: int
    term: int
    endpoint: str


class Start(msgspec.Struct, array_like=True, frozen=True):
    """Start of a new group or a reader in one partition.

    `kind` is "first", "new", "offset" (value) or "time" (unix ms).
    """

    partition: PartitionKey
    kind: str = "first"
    value: int = 0


class Delivered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One slice in a DELIVER: `size` bytes of its second frame.

    `attempt` counts the attempts that began, and this one. `charge` is its cost in the byte credit.
    `ranges`: offsets of the records, unless they follow each other from `offset` on. `again`: the
    records were delivered before as this attempt, and it is unknown whether it began.
    """

    partition: PartitionKey
    offset: Offset
    count: int
    attempt: int
    size: int
    charge: int
    ranges: list[tuple[Offset, Offset]] = []
    failures: int = 0
    again: bool = False


class PlainRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record in PUBLISH_PLAIN."""

    value: bytes
    key: bytes = b""
    headers: dict[str, Any] = {}  #: values are bytes or text
    id: bytes = b""
    unique: bytes = b""  #: a name that one record has at a time


class PlainDelivered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record in DELIVER_PLAIN."""

    partition: PartitionKey
    offset: Offset
    attempt: int
    value: bytes
    key: bytes
    headers: dict[str, Any]  #: values are bytes or text
    id: bytes
    route: str
    time_ms: int  #: publish time of its batch, in unix milliseconds
    failures: int = 0


class Ref(msgspec.Struct, array_like=True, frozen=True):
    """Names one record: by offset, by id, or by (log index, record).

    (log index, record) is as in RUN, for a record that has not got an offset yet.
    """

    partition: PartitionKey
    offset: Offset = -1
    index: int = 0
    record: int = 0
    id_hash: int = 0  #: BLAKE2b-64 of the id, little endian

    def text(self, topic: str) -> str:
        """Return the ref as users write it; "" if it names the record only by id."""
        if self.offset >= 0:
            return f"{topic}/{partition_of(self.partition)}/{self.offset}"
        return f"{topic}/{partition_of(self.partition)}/@{self.index}.{self.record}" if self.index else ""


class JobResult(msgspec.Struct, array_like=True, frozen=True):
    """The return value of a handler for the record at `offset`, which its consumer sends with the ack."""

    partition: PartitionKey
    offset: Offset
    keep_ms: int  #: how long the broker keeps it
    kind: str = ""  #: how clients read `value`: "json", "text", "bytes", or "" = there is no value
    value: bytes = b""


class ResultRun(msgspec.Struct, array_like=True, frozen=True):
    """The results of neighbouring records, the first of them at `first`."""

    partition: PartitionKey
    first: Offset
    keep_ms: int  #: as in JobResult, as the next one
    kind: str
    values: list[bytes]

    @property
    def end(self) -> Offset:
        return self.first + len(self.values)

    def one(self, offset: Offset) -> JobResult:
        """Return the result of one of these records."""
        return JobResult(self.partition, offset, self.keep_ms, self.kind, self.values[offset - self.first])

    def part(self, first: Offset, end: Offset) -> "ResultRun":
        """Return the results of the records [first, end) among these."""
        values = self.values[first - self.first : end - self.first]
        return ResultRun(self.partition, first, self.keep_ms, self.kind, values)


class JobProgress(msgspec.Struct, array_like=True, frozen=True):
    """How far a handler is with the record at `offset`."""

    partition: PartitionKey
    offset: Offset
    done: float  #: 0 to 1
    text: str = ""  #: for people


class JobInfo(msgspec.Struct, array_like=True, frozen=True):
    """The state of a record in a group, as the job that it is."""

    ref: Ref
    group: str  #: "" = no group reads the partition yet
    #: "scheduled", "waiting", "running", "retrying"; and when it has ended: "succeeded", "failed",
    #: "cancelled", "expired"
    state: str
    because: str  #: one sentence; for a failed job its error
    consumer: str = ""  #: of the lease, or of the ack
    time_ms: int = 0  #: unix ms: since when it runs, when it is due, or when it ended
    attempt: int = 0  #: number of the last attempt that is known
    failures: int = 0
    kind: str = ""  #: as in JobResult
    value: bytes = b""
    kept_ms: int = 0  #: remaining time of the result; 0 = there is none
    done: float = -1.0  #: the last reported progress, 0 to 1; -1 = none was reported
    text: str = ""  #: reported with it
    progress_ms: int = 0  #: unix ms of that report


class JoinPart(msgspec.Struct, array_like=True, frozen=True):
    """A job that another record waits for."""

    ref: Ref
    topic: str  #: name of its topic
    shard: int  #: of its partition


class PartEnd(msgspec.Struct, array_like=True, frozen=True):
    """How a part of a join ended."""

    state: str  #: as in JobInfo when it has ended; "unknown" = nothing is known of it
    ref: Ref  #: with the offset if it has one
    because: str = ""  #: of a failed part its error, of an unknown one why it is


class JobWatch(msgspec.Struct, array_like=True, frozen=True):
    """A job whose end the leader of a join waits for: part `part` of the join of entry `index`."""

    partition: PartitionKey
    index: int
    part: int
    wanted: JoinPart
    group: str = ""


class EndedPart(msgspec.Struct, array_like=True, frozen=True):
    """Part `part` of the join of entry `index` has ended."""

    partition: PartitionKey
    index: int
    part: int
    end: PartEnd


class Run(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Result for `count` neighbouring records of a published batch.

    `offset` is that of the first record. With -1 the records have not got offsets yet, and (index,
    record) names the first. `duplicate`: their ids were known, and the place is that of the first
    publish.
    """

    count: int
    offset: Offset
    index: int = 0
    record: int = 0
    duplicate: bool = False
    #: a duplicate whose unique name another record holds; the place is that of this one
    kept: bool = False


class DeadLetter(msgspec.Struct, array_like=True, frozen=True):
    """Records that a group will not receive again.

    `size` bytes of the second frame are their batch; 0: batches were not asked for.
    """

    partition: PartitionKey
    group: str
    offset: Offset
    count: int
    reason: str  #: "failures", "rejected", "expired", "undecodable"
    error: str  #: error text of the last consumer
    attempts: int
    failures: int
    time_ms: int  #: when they became dead letters, in unix milliseconds
    size: int = 0
    history: list["TraceEvent"] = []  #: the last failed attempts


class Standing(msgspec.Struct, array_like=True, frozen=True):
    """State of a record for one group ("" = for all). Part of an answer to WHY."""

    group: str
    #: "ready", "in_flight", "retrying", "parked", "scheduled", "acked", "dead", "voided", "removed",
    #: "skipped"
    state: str
    because: str  #: one sentence
    next: str = ""  #: the command that changes it
    consumer: str = ""
    time_ms: int = 0  #: unix ms of the ack, the death, the due time, or the end of the lease
    attempts: int = 0
    failures: int = 0


class TraceEvent(msgspec.Struct, array_like=True, frozen=True):
    """One event in the life of a record."""

    time_ms: int  #: in unix milliseconds
    #: "published", "due", "handed_out", "failed", "given_back", "acked", "dead", "voided", "replayed",
    #: "requeued"
    what: str
    group: str = ""
    consumer: str = ""
    reason: str = ""
    attempt: int = 0


class AckRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Records [first, end) that one ack of a group finished."""

    group: str
    first: Offset
    end: Offset
    time_ms: int  #: in unix milliseconds
    consumer: str
    index: Index  #: of the entry in the shard's log


class StateRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Records [first, end) in the same state for a group."""

    group: str
    state: str  #: "ready", "in_flight", "retrying", "parked", "dead", "done"; "voided" with group ""
    first: Offset
    end: Offset
    attempts: int = 0
    failures: int = 0
    due_ms: int = 0  #: unix ms of the next attempt, or the end of the lease
    time_ms: int = 0  #: unix ms of the death, the last failure, or the voiding
    reason: str = ""
    error: str = ""
    consumer: str = ""


class PartitionStats(msgspec.Struct, array_like=True, frozen=True):
    """Stored counters of one partition. The readable offsets are [first, next).

    At any moment: published = (next - first - void records between) + removed + scheduled + voided.
    """

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


class FlowRow(msgspec.Struct, array_like=True, frozen=True):
    """A flow of a group in one partition."""

    partition: int
    flow: str  #: "" = the records without a flow
    waiting: int  #: records that no consumer has
    oldest_ms: int  #: time since the first of them was published; 0 = not known any more
    in_flight: int = 0  #: only in a group with flow_concurrency
    waits_for: str = ""  #: "limit", "rate", "pause", or "" if its records can be delivered


class GroupStats(msgspec.Struct, array_like=True, frozen=True):
    """Stored counters of one group in one partition.

    Since the group's start: published = ready + in_flight + retrying + parked + acked + dead +
    voided + dropped + removed.
    """

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
    dead: int = 0  #: dead letters that still exist
    voided: int = 0  #: cancelled, edited or removed by an operator; and purged dead letters
    dropped: int = 0  #: expired, in a topic whose expired records are dropped
    unmatched: int = 0  #: of `parked`: their route has no consumer
    #: of `parked` and `ready`: another record of their key is in flight or waiting
    blocked_by_key: int = 0
    paused: bool = False
    delivered: int = 0  #: deliveries since this node became leader
    oldest_ms: int = 0  #: age of the oldest unfinished record; 0 = all are finished
    unaccounted: int = 0  #: difference of the sum above: always 0
    alarm_lag: int = 0  #: value in force, of the group or the topic; 0 = no alarm
    #: time until the group is deleted as unused (`group_idle_ms` of its topic); 0 = never
    goes_ms: int = 0
    behind_limit: int = 0  #: of `ready`: as many records are in flight as a limit allows
    behind_rate: int = 0  #: of `ready`: they wait for a rate


class WorkerStats(msgspec.Struct, array_like=True, frozen=True):
    """One worker process as its node sees it. Times in milliseconds, sizes in bytes."""

    worker: int
    pid: int
    endpoint: str
    state: str  #: "starting", "ready", "recovering" (a commit failed), "full" (publishes refused), "down"
    restarts: int
    leading: int  #: shards that it leads
    sessions: int
    published: int
    delivered: int
    acked: int
    refused: int
    bad_frames: int
    turns: int
    commits: int
    commit_us: int  #: moving average of the time of one commit
    store_bytes: int
    detail: str = ""
    dropped: int = 0  #: messages dropped because the peer was gone or did not read
    dead: int = 0  #: records that became dead letters since the start
    dead_per_minute: int = 0  #: in the last minute
    cpu_ms: int = 0  #: used by this process; 0 = unknown
    rss_bytes: int = 0  #: memory of the process, with mapped pages of its store; 0 = unknown
    #: shards of which this worker has a voting copy but does not know a leader
    leaderless: list[int] = []
    #: silent copies of leaderless shards that are needed for a majority, and silent leaders of
    #: shards whose copy here is damaged
    away: list[str] = []
    stopped: list[int] = []  #: shards whose copy here is damaged
    disk_free_bytes: int = 0  #: free space on the disk of its store; 0 = unknown
    disk_reserve_bytes: int = 0  #: publishes are refused if less space than this is free
    silent_ms: int = 0  #: time since its last report to its node
    #: requests and parts of turns that met a fault of the node; the log has each kind once
    faults: int = 0
    turned_away: int = 0  #: connections it closed: silent in a crowd, endless, or above a bound
    over_quota: int = 0  #: requests that exceeded the rates of an address


class Member(msgspec.Struct, array_like=True, frozen=True):
    """A node in the roster of its cluster. `copy` names its data: node id and directory id."""

    copy: str
    name: str  #: for people; unique in the cluster
    endpoint: str  #: address of its frontdoor as others reach it; its workers' ports follow from it
    workers: int
    witness: bool = False  #: votes, but stores no records
    #: "in", "leaving" (drained, without copies) or "lost" (silent too long, rebuilt elsewhere)
    state: str = "in"
    version: str = ""
    features: int = 1  #: highest feature level that it knows
    #: public CURVE keys for its connections to nodes, now and after its next start; b"": none
    key: bytes = b""
    next_key: bytes = b""
    encrypts: bool = False  #: True if its own ports are encrypted

    @property
    def keys(self) -> frozenset[bytes]:
        return frozenset((self.key, self.next_key)) - {b""}


class Rule(msgspec.Struct, array_like=True, frozen=True):
    """Permissions of a role on the topics of a pattern. A sole `*` also covers the cluster
    itself.
    """

    topics: str  #: a name, with `*` for any characters
    permissions: list[str]  #: names in `gossipq.permissions`


class Role(msgspec.Struct, array_like=True, frozen=True):
    name: str
    rules: list[Rule]


class Credential(msgspec.Struct, array_like=True, frozen=True):
    """The stored form of a token."""

    digest: bytes  #: SHA-256 of its 32 bytes
    expires_ms: int = 0  #: unix ms; 0 = never


class User(msgspec.Struct, array_like=True, frozen=True):
    name: str
    roles: list[str]
    tokens: list[Credential] = []


class Invite(msgspec.Struct, array_like=True, frozen=True):
    """The stored form of a token with which one node may join."""

    digest: bytes  #: SHA-256 of its 32 bytes
    expires_ms: int  #: unix ms
    copy: str = ""  #: the copy that has joined with it; "": unused


class AccessTable(msgspec.Struct, array_like=True, frozen=True):
    """Users and roles of a cluster. While it is not closed, all clients may do everything."""

    version: int = 0  #: index of the entry that changed it last
    closed: bool = False
    users: list[User] = []
    roles: list[Role] = []
    invites: list[Invite] = []


class AuditRow(msgspec.Struct, array_like=True, frozen=True):
    """A request to a closed cluster, as one process of a node saw it."""

    time_ms: int  #: unix ms
    user: str
    address: str  #: host of the client
    verb: str
    target: str  #: the topic; "" = the cluster as a whole
    #: "admitted" or "forbidden"; "missed": `target` is the number of rows that did not fit
    outcome: str


class AccessChange(msgspec.Struct, array_like=True, frozen=True):
    """A change of users and roles, applied completely or not at all.

    Users and roles replace those of the same name, or are removed. The cluster can be closed or
    opened.
    """

    users: list[User] = []
    roles: list[Role] = []
    users_gone: list[str] = []
    roles_gone: list[str] = []
    closed: bool | None = None  #: None: unchanged
    version: int = 0  #: version of the table that the change was made for; 0 = any
    invites: list[Invite] = []  #: replace the invitations with the same token
    invites_gone: list[bytes] = []  #: digests of invitations to remove


class GossipEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event of gossip. It is a hint for people."""

    time_ms: int  #: unix ms
    what: str  #: "join", "leave", "fail", "back", "update", "degraded", "well"
    node: str  #: name of the node; "" if the event concerns this node's own membership
    detail: str = ""


class Lead(msgspec.Struct, array_like=True, frozen=True):
    """The leader of a shard, as the name of its copy."""

    shard: Number
    term: Number
    copy: str


class CopyStats(msgspec.Struct, array_like=True, frozen=True):
    """One copy of a shard, as its leader sees it."""

    shard: int
    term: int
    copy: str
    role: str  #: "leader", "follower", "witness", "learner"
    match: int  #: highest log index on its disk, as far as the leader knows
    behind: int  #: entries that the leader has and this copy lacks
    silent_ms: int  #: time since its last answer; 0 for the leader
    synced: bool  #: True if confirms wait for it
    clock_ms: int = 0  #: lead of its wall clock over leader time, at least; negative: it is behind


class Timing(msgspec.Struct, array_like=True, frozen=True):
    """Histogram of durations.

    `counts[i]` of them took at most `limits.TIMING_BOUNDS_US[i]`; the last count is above all
    bounds.
    """

    #: "publish": from reading a batch to its confirm. "delivery": from storing a slice to sending
    #: it. "commit": one transaction with its sync.
    name: str
    counts: list[int]
    sum_us: int


class Alarm(msgspec.Struct, array_like=True, frozen=True):
    """A condition that an operator should look at. `gossipq help alarm-NAME` explains `name`.

    An alarm exists while the condition does.
    """

    name: str
    severity: str  #: "critical" or "warning"
    node: str  #: the node that raises it
    subject: str  #: subject of the alarm: "orders/billing", "worker-1"; "" = the node
    text: str  #: one sentence
    command: str  #: the command that helps or shows more
    since_ms: int = 0  #: unix ms


class GrowthRow(msgspec.Struct, array_like=True, frozen=True):
    """Counters of a topic in a shard at the end of a minute or an hour; topic "" = all topics.

    A row exists only if a value changed.
    """

    topic: str
    shard: int
    time_ms: int  #: unix ms, leader time
    published: int  #: records; this and the next are counters: they never fall
    acked: int  #: over all groups
    dead: int  #: dead letters that exist; this and the next ones are gauges
    removed: int  #: by retention; a counter
    records: int  #: readable records
    bytes: int
    backlog: int  #: over all groups: published and not finished
    term: int  #: term of the leader: a change means a takeover
    voters: int  #: copies of the shard


class Consuming(msgspec.Struct, array_like=True, frozen=True):
    """Consumption of one topic by a client at one worker. Group "" = it only reads."""

    topic: str
    group: str
    partitions: int
    credit_records: int  #: granted and not used
    credit_bytes: int
    in_flight: int  #: records that the client holds
    held_ms: int = 0  #: age of the oldest of these deliveries
    acked: int = 0  #: since it subscribed there
    delivered: int = 0  #: since it subscribed there
    failed: int = 0  #: failed, rejected or undecodable, since it subscribed there


class ClientRow(msgspec.Struct, array_like=True, frozen=True):
    """A session as one worker sees it. Counters start when it greeted there."""

    session: SessionId  #: its first bytes; `bytes` would name the field below to Python 3.14
    client: str  #: its own description
    version: str  #: version of its software
    node: str
    worker: int
    connections: int
    age_ms: int
    silent_ms: int  #: time since its last message
    batches: int  #: batches it published
    published: int  #: records it published
    bytes: int
    subscriptions: list[Consuming]
    unlisted: int = 0  #: subscriptions beyond those in `subscriptions`


class SoughtRow(msgspec.Struct, array_like=True, frozen=True):
    """Position of a group in a partition before and after SEEK_GROUP."""

    partition: PartitionKey
    before: Offset
    after: Offset
    again: int  #: finished records that will be delivered once more
    skipped: int  #: unfinished records that will be skipped


class ConfigRow(msgspec.Struct, array_like=True, frozen=True):
    """One option of a running node. Secrets are masked."""

    key: str
    value: str  #: as cluster.toml has it
    #: "flag --bind", "environment GOSSIPQ_NODE__BIND", "file cluster.toml" or "default"
    origin: str
