"""What messages are made of: their base, and the values inside: policies, records, counters, and what
explains them.

A value travels as a msgpack array in field order; fields are only ever appended, with a default.
"""

from typing import Any, ClassVar, TypeVar, dataclass_transform

import msgspec

from gossipq import limits
from gossipq.types import Index, Number, Offset, PartitionKey

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
    #: 0 = as soon as every group has acked; 7 days while there is no group
    retention_ms: int = limits.RETENTION_MS
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
    lease_ms: int | None = (
        None  #: these three: None = as the cluster says; a group or a record may say otherwise
    )
    attempts_max: int | None = None  #: failures after which a record is a dead letter
    backoff_ms: list[int] | None = None  #: pause after the first, second ... failure; the last one repeats
    virtual: list[str] = []  #: a virtual topic has no partitions: what is published to it is copied to these
    alarm_lag: int | None = (
        None  #: records of a partition a group may be behind before an alarm; None, 0 = any number
    )
    #: a group goes that nobody consumed in, and in which nothing moved, for so long; 0 = it stays
    group_idle_ms: int = 0


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
    alarm_lag: int | None = None
    group_idle_ms: int | None = None

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


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a cluster its clients may take. One address gets half of it at most, one user a quarter, so
    that room for others is left."""

    topics: int = limits.TOPICS_MAX
    partitions: int = 100_000  #: of all topics, about 1 KiB of memory each
    groups: int = 5_000  #: in one shard
    sessions: int = 10_000  #: at one worker
    subscriptions: int = 2_000  #: of a session, in one shard
    connections: int = limits.CONNECTIONS_MAX  #: to one process
    #: of one address; this host is one, whatever it is called
    address_connections: int = 1_000  #: to one process; those of this host are bounded with all others only
    address_sessions: int = 10_000  #: at one worker
    address_subscriptions: int = 20_000  #: in one shard
    address_topics: int = limits.TOPICS_MAX // 2  #: made in an hour
    address_partitions: int = 50_000  #: made in an hour
    #: made in an hour, in one shard; a group counts once for each partition of its topic there
    address_groups: int = 2_500
    address_requests_per_s: int = 50_000  #: at one process
    address_bytes_per_s: int = limits.GIB  #: the same
    #: of one user of a closed cluster, wherever its programs are
    user_sessions: int = 2_500  #: at one worker
    user_subscriptions: int = 20_000  #: in one shard
    user_topics: int = limits.TOPICS_MAX // 4  #: made in an hour
    user_partitions: int = 25_000  #: made in an hour
    user_groups: int = 1_250  #: as of an address
    user_requests_per_s: int = 50_000  #: at one process
    user_bytes_per_s: int = limits.GIB  #: the same


class GroupConfig(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a group, stored with its first subscription. None = as the topic or the cluster says."""

    mode: str = "shared"  #: "shared", "exclusive" or "key_ordered"
    lease_ms: int | None = None
    in_flight_max: int = limits.IN_FLIGHT_MAX
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    parked_max: int = limits.PARKED_MAX  #: records per partition that may wait behind others of their key
    paused: bool = False  #: nothing is handed out
    alarm_lag: int | None = None  #: as that of the topic; None = as that says


class GroupOptions(msgspec.Struct, array_like=True, frozen=True):
    """What a subscription says of its group's policy; None = as the group has it, or the cluster says."""

    mode: str | None = None
    lease_ms: int | None = None
    in_flight_max: int | None = None
    attempts_max: int | None = None
    backoff_ms: list[int] | None = None
    parked_max: int | None = None
    paused: bool | None = None
    alarm_lag: int | None = None

    def over(self, config: GroupConfig) -> GroupConfig:
        """`config` with what is said here in its place."""
        return _over(self, config)


class Route(msgspec.Struct, array_like=True, frozen=True):
    """Where the leader of a shard answers clients."""

    shard: int
    term: int
    endpoint: str


class Start(msgspec.Struct, array_like=True, frozen=True):
    """Where a new group or a reader starts in one partition: "first", "new", "offset" (value) or "time" (unix
    ms)."""

    partition: PartitionKey
    kind: str = "first"
    value: int = 0


class Delivered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One slice in a DELIVER: `size` bytes of its second frame. `attempt` counts the attempts that began, and
    this one. `charge` is what it took of the byte credit. `ranges`: where the records of its batch are,
    unless they follow each other from `offset` on. `again`: the records were delivered before as this
    attempt, and it is not known to have begun."""

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
    """A record as PUBLISH_PLAIN brings it."""

    value: bytes
    key: bytes = b""
    headers: dict[str, Any] = {}  #: of bytes or texts
    id: bytes = b""


class PlainDelivered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record as DELIVER_PLAIN brings it."""

    partition: PartitionKey
    offset: Offset
    attempt: int
    value: bytes
    key: bytes
    headers: dict[str, Any]  #: of bytes or texts
    id: bytes
    route: str
    time_ms: int  #: unix, the publish time of its batch
    failures: int = 0


class Ref(msgspec.Struct, array_like=True, frozen=True):
    """Names one record: by its offset; or by (log index, record) as RUN gives them while it has no offset; or
    by its id."""

    partition: PartitionKey
    offset: Offset = -1
    index: int = 0
    record: int = 0
    id_hash: int = 0  #: BLAKE2b-64 of the id, little endian


class Run(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Outcome of `count` neighbouring records of a published batch. `offset` is that of the first; -1: it has
    none yet, and (index, record) name it. `duplicate`: their ids were known; what is named here is where they
    were stored first."""

    count: int
    offset: Offset
    index: int = 0
    record: int = 0
    duplicate: bool = False


class DeadLetter(msgspec.Struct, array_like=True, frozen=True):
    """Records that a group will not get again; `size` bytes of the second frame are their batch (0: not asked
    for)."""

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
    history: list["TraceEvent"] = []  #: the last failed attempts


class Standing(msgspec.Struct, array_like=True, frozen=True):
    """Where a record stands, for one group ("" = for all): part of an answer to WHY."""

    group: str
    #: "ready", "in_flight", "retrying", "parked", "scheduled", "acked", "dead", "voided", "removed",
    #: "skipped"
    state: str
    because: str  #: one sentence
    next: str = ""  #: the command that changes it
    consumer: str = ""
    time_ms: int = 0  #: unix: of the ack, the death, the due time, the end of the lease
    attempts: int = 0
    failures: int = 0


class TraceEvent(msgspec.Struct, array_like=True, frozen=True):
    """One thing that happened to a record."""

    time_ms: int  #: unix
    #: "published", "due", "handed_out", "failed", "given_back", "acked", "dead", "voided", "replayed",
    #: "requeued"
    what: str
    group: str = ""
    consumer: str = ""
    reason: str = ""
    attempt: int = 0


class AckRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Records [first, end) that a group was done with by one ack."""

    group: str
    first: Offset
    end: Offset
    time_ms: int  #: unix
    consumer: str
    index: Index  #: of the entry in the log of the shard


class StateRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Records [first, end) that stand alike for a group."""

    group: str
    state: str  #: "ready", "in_flight", "retrying", "parked", "dead", "done"; "voided" with group ""
    first: Offset
    end: Offset
    attempts: int = 0
    failures: int = 0
    due_ms: int = 0  #: unix: of the next attempt, or the end of the lease
    time_ms: int = 0  #: unix: of the death, the last failure, the voiding
    reason: str = ""
    error: str = ""
    consumer: str = ""


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
    delivered: int = 0  #: handed out since this leader serves
    oldest_ms: int = 0  #: age of the oldest record that is not done; 0 = there is none
    unaccounted: int = 0  #: difference of the sum above: always 0
    alarm_lag: int = 0  #: what rules, the group's or the topic's; 0 = no alarm
    goes_ms: int = 0  #: unused, it goes so long from now (`group_idle_ms` of its topic); 0 = it stays


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
    cpu_ms: int = 0  #: that this process has used; 0 = not known
    rss_bytes: int = 0  #: of its memory, with what it has mapped of its store; 0 = not known
    leaderless: list[int] = []  #: shards of which it keeps a voting copy, and knows no leader
    #: of which it hears nothing: other copies of those, where a majority is missed, and the last known
    #: leaders of shards that have stopped here
    away: list[str] = []
    stopped: list[int] = []  #: shards whose copy here is damaged
    disk_free_bytes: int = 0  #: of the disk of its store; 0 = not known
    disk_reserve_bytes: int = 0  #: publishes stop when so much is left
    silent_ms: int = 0  #: since it reported to its node
    faults: int = (
        0  #: requests and parts of turns that met a fault of the node itself; its log tells each kind once
    )
    turned_away: int = 0  #: connections that it closed: silent in a crowd, without end, or beyond a bound
    over_quota: int = 0  #: requests that were more than the rates of an address allow


class Member(msgspec.Struct, array_like=True, frozen=True):
    """A node as the roster of its cluster has it. `copy` names its data: node id and directory id."""

    copy: str
    name: str  #: for people; no two members have the same
    endpoint: str  #: of its frontdoor, as others reach it; its workers' ports follow from it
    workers: int
    witness: bool = False  #: votes, and keeps no records
    #: "in", "leaving" (drained: keeps and leads nothing any more), "lost" (silent for too long: rebuilt
    #: elsewhere)
    state: str = "in"
    version: str = ""
    features: int = 1  #: highest feature level that it knows
    #: public CURVE keys that it comes by at the doors for nodes, now and after its next start; b"": none
    key: bytes = b""
    next_key: bytes = b""
    encrypts: bool = False  #: whether its own doors are encrypted

    @property
    def keys(self) -> frozenset[bytes]:
        return frozenset((self.key, self.next_key)) - {b""}


class Rule(msgspec.Struct, array_like=True, frozen=True):
    """Of a role: what it may do to the topics of a pattern. `*` alone covers the cluster as a whole too."""

    topics: str  #: a name, with `*` for any characters
    permissions: list[str]  #: of `gossipq.permissions`


class Role(msgspec.Struct, array_like=True, frozen=True):
    name: str
    rules: list[Rule]


class Credential(msgspec.Struct, array_like=True, frozen=True):
    """What is stored of a token."""

    digest: bytes  #: SHA-256 of its 32 bytes
    expires_ms: int = 0  #: unix; 0 = never


class User(msgspec.Struct, array_like=True, frozen=True):
    name: str
    roles: list[str]
    tokens: list[Credential] = []


class Invite(msgspec.Struct, array_like=True, frozen=True):
    """What is stored of a token by which one node may join."""

    digest: bytes  #: SHA-256 of its 32 bytes
    expires_ms: int  #: unix
    copy: str = ""  #: that has joined by it; "": none yet


class AccessTable(msgspec.Struct, array_like=True, frozen=True):
    """Who may do what in a cluster. While it is not closed, everybody may do everything."""

    version: int = 0  #: index of the entry that changed it last
    closed: bool = False
    users: list[User] = []
    roles: list[Role] = []
    invites: list[Invite] = []


class AuditRow(msgspec.Struct, array_like=True, frozen=True):
    """Who asked a closed cluster for what, as the door of one process saw it."""

    time_ms: int  #: unix
    user: str
    address: str  #: of its host
    verb: str
    target: str  #: the topic; "" = the cluster as a whole
    outcome: str  #: "admitted", "forbidden"; "missed": so many more than could be noted, in `target`


class AccessChange(msgspec.Struct, array_like=True, frozen=True):
    """Users and roles that take the place of those of their names, or go; the cluster is closed, or opened.
    All of it or nothing."""

    users: list[User] = []
    roles: list[Role] = []
    users_gone: list[str] = []
    roles_gone: list[str] = []
    closed: bool | None = None  #: None: as it is
    version: int = 0  #: of the table that it was made for; 0 = whichever
    invites: list[Invite] = []  #: in place of those of their tokens
    invites_gone: list[bytes] = []  #: by their digests


class GossipEvent(msgspec.Struct, array_like=True, frozen=True):
    """What gossip has shown: a hint, for people."""

    time_ms: int  #: unix
    what: str  #: "join", "leave", "fail", "back", "update", "degraded", "well"
    node: str  #: its name; "" for what concerns this node's own membership
    detail: str = ""


class Lead(msgspec.Struct, array_like=True, frozen=True):
    """Who leads a shard, by the name of the copy."""

    shard: Number
    term: Number
    copy: str


class CopyStats(msgspec.Struct, array_like=True, frozen=True):
    """One copy of a shard as its leader sees it."""

    shard: int
    term: int
    copy: str
    role: str  #: "leader", "follower", "witness", "learner"
    match: int  #: highest log index that is on its disk, as far as the leader knows
    behind: int  #: entries that the leader has and it has not
    silent_ms: int  #: since its last answer; 0 for the leader
    synced: bool  #: confirms wait for it
    clock_ms: int = 0  #: how far its wall clock is ahead of leader time, at least; negative: behind


class Timing(msgspec.Struct, array_like=True, frozen=True):
    """How long something took: `counts[i]` of them up to `limits.TIMING_BOUNDS_US[i]`, the last ones longer
    than all bounds."""

    #: "publish": from being read to being confirmed, by batch; "delivery": from stored to handed out, by
    #: slice;
    name: str
    counts: list[int]  #: "commit": one transaction with its sync
    sum_us: int


class Alarm(msgspec.Struct, array_like=True, frozen=True):
    """Something that somebody should look at, as long as it is so. `name` is explained by `gossipq help
    alarm-NAME`."""

    name: str
    severity: str  #: "critical" or "warning"
    node: str  #: that says so
    subject: str  #: what it is about: "orders/billing", "worker-1"; "" = the node
    text: str  #: one sentence
    command: str  #: that helps, or tells more
    since_ms: int = 0  #: unix


class GrowthRow(msgspec.Struct, array_like=True, frozen=True):
    """A topic in a shard at the end of a minute or an hour; "" = all its topics. There is a row only when
    something changed."""

    topic: str
    shard: int
    time_ms: int  #: unix, leader time
    published: int  #: records; this and the next are counters: they never fall
    acked: int  #: over all groups
    dead: int  #: dead letters that are kept; this and the next ones are levels
    removed: int  #: by retention; a counter
    records: int  #: that can be read
    bytes: int
    backlog: int  #: over all groups: published and not done
    term: int  #: of the leader: it has changed when another one has taken over
    voters: int  #: copies of the shard


class Consuming(msgspec.Struct, array_like=True, frozen=True):
    """What a client consumes of one topic at one worker; group "" = it only reads."""

    topic: str
    group: str
    partitions: int
    credit_records: int  #: lent and not used
    credit_bytes: int
    in_flight: int  #: records it holds
    held_ms: int = 0  #: age of the oldest handing-over of those
    acked: int = 0  #: since it subscribed there
    delivered: int = 0  #: likewise
    failed: int = 0  #: likewise: nacked as failures, rejected, not decodable


class ClientRow(msgspec.Struct, array_like=True, frozen=True):
    """A session as one worker sees it; counters since it greeted there."""

    session: bytes  #: the first bytes of it
    client: str  #: what it calls itself
    version: str  #: of its software
    node: str
    worker: int
    connections: int
    age_ms: int
    silent_ms: int  #: since its last message
    batches: int  #: published
    published: int  #: records
    bytes: int
    subscriptions: list[Consuming]
    unlisted: int = 0  #: further subscriptions, for which there is no row


class SoughtRow(msgspec.Struct, array_like=True, frozen=True):
    """Where a group stands in a partition before and after SEEK_GROUP."""

    partition: PartitionKey
    before: Offset
    after: Offset
    again: int  #: records that were done and will be handed out once more
    skipped: int  #: records that were not done and will not be handed out


class ConfigRow(msgspec.Struct, array_like=True, frozen=True):
    """One option of a running node. What is secret is masked."""

    key: str
    value: str  #: as cluster.toml has it
    origin: str  #: "flag --bind", "environment GOSSIPQ_NODE__BIND", "file cluster.toml" or "default"
