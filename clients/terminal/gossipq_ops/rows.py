"""The rows of a snapshot: plain values, the same from a node, in a recording and in `-o json`.

Rows refer to each other by name (a shard to its leader's node, a copy to its node). Times are unix
milliseconds, sizes are bytes, counters grow. Fields are only added, with a default, so that old
recordings can be replayed.
"""

from typing import dataclass_transform

import msgspec

UNKNOWN = -1  #: for unknown numbers


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all rows."""


class Node(Row):
    name: str
    state: str = "ready"  #: "ready", "starting", "recovering", "full", "failed", "left", "witness"
    endpoint: str = ""
    version: str = ""
    uptime_ms: int = 0
    silent_ms: int = UNKNOWN  #: time since its last answer
    rtt_us: int = UNKNOWN  #: of one question from here
    cpu_ms: int = UNKNOWN  #: used by all its processes
    rss_bytes: int = UNKNOWN  #: memory of all its processes, with mapped pages of their stores
    disk_free_bytes: int = UNKNOWN
    leading: int = 0  #: shards that it leads
    following: int = 0
    sessions: int = 0
    published: int = 0
    delivered: int = 0
    acked: int = 0
    refused: int = 0
    restarts: int = 0
    store_bytes: int = 0
    commit_us: int = 0  #: average of its slowest worker
    detail: str = ""
    config: dict[str, str] = {}  #: its options; the node masks secrets


class Worker(Row):
    node: str
    worker: int
    pid: int = 0
    endpoint: str = ""
    state: str = "ready"
    restarts: int = 0
    leading: int = 0
    sessions: int = 0
    published: int = 0
    delivered: int = 0
    acked: int = 0
    refused: int = 0
    dropped: int = 0
    bad_frames: int = 0
    dead: int = 0
    dead_per_minute: int = 0
    turns: int = 0
    commits: int = 0
    commit_us: int = 0
    store_bytes: int = 0
    detail: str = ""


class Copy(Row):
    """One copy of a shard. `lag` counts log entries behind the leader."""

    node: str
    role: str  #: "leader", "follower", "witness", "learner"
    lag: int = 0
    reachable: bool = True


class Shard(Row):
    shard: int
    state: str = "ok"  #: "ok", "degraded" (a copy is missing), "no leader"
    leader: str = ""  #: name of the leading node
    worker: int = UNKNOWN
    pid: int = 0
    term: int = 0
    copies: list[Copy] = []


class Topic(Row):
    name: str
    id: int = 0
    partitions: int = 0
    virtual: list[str] = []
    config: dict[str, str] = {}


class Partition(Row):
    topic: str
    partition: int
    shard: int
    first: int = 0
    next: int = 0
    published: int = 0
    removed: int = 0
    bytes: int = 0
    scheduled: int = 0
    voided: int = 0


class Group(Row):
    """One group in one partition."""

    topic: str
    group: str
    partition: int
    cursor: int = 0
    ready: int = 0
    in_flight: int = 0
    retrying: int = 0
    parked: int = 0
    acked: int = 0
    dead: int = 0
    voided: int = 0
    dropped: int = 0
    removed: int = 0
    redelivered: int = 0
    unmatched: int = 0
    blocked_by_key: int = 0
    behind_limit: int = 0  #: of `ready`
    behind_rate: int = 0  #: of `ready`
    consumers: int = 0
    paused: bool = False
    oldest_ms: int = 0  #: age of the oldest unfinished record
    alarm_lag: int = 0  #: 0 = none


class Subscription(Row):
    topic: str
    group: str = ""  #: "" = a reader
    partitions: int = 0
    credit_records: int = 0
    in_flight: int = 0


class Client(Row):
    """A session at one worker. A client of several workers has a row for each."""

    session: str  #: in hex, as long as `gossipq client kick` needs
    client: str = ""  #: its own description
    version: str = ""
    node: str = ""
    worker: int = UNKNOWN
    connections: int = 0
    age_ms: int = 0
    silent_ms: int = 0
    batches: int = 0
    published: int = 0
    bytes: int = 0
    subscriptions: list[Subscription] = []


class Alarm(Row):
    name: str
    severity: str = "warning"  #: "warning" or "critical"
    node: str = ""  #: the node that raised it
    subject: str = ""  #: "orders/billing", "worker-1", "shard 7"; "" = the node
    text: str = ""
    command: str = ""
    since_ms: int = 0


class Event(Row):
    """An event for the list of events."""

    time_ms: int
    kind: str  #: "member-join", "member-failed", "member-gone", "leader-move", "worker-restart" ...
    who: str = ""
    text: str = ""


class Growth(Row):
    """One step of growth, all topics together."""

    time_ms: int  #: end of the step
    published: int = 0  #: in this step
    acked: int = 0  #: in this step
    dead: int = 0
    records: int = 0
    bytes: int = 0
    backlog: int = 0
    takeovers: int = 0  #: in this step
    voters: int = 0  #: minimum of copies over the shards
    joined: bool = False  #: a copy joined in this step
    left: bool = False


class Snapshot(Row):
    time_ms: int
    counted_ms: int = 0  #: when partitions and groups were counted; 0 = at `time_ms`
    server: str = ""  #: the asked server
    answered_by: str = ""  #: name of the node that answered
    cluster: str = ""
    version: str = ""
    mode: str = ""
    uptime_ms: int = 0  #: of the node that has been running longest
    shards_total: int = 0
    shards_led: int = 0
    serf: str = ""  #: state of gossip: "ok", "degraded ...", "" = off
    nodes: list[Node] = []
    workers: list[Worker] = []
    shards: list[Shard] = []
    topics: list[Topic] = []
    partitions: list[Partition] = []
    groups: list[Group] = []
    clients: list[Client] = []
    alarms: list[Alarm] = []
    events: list[Event] = []  #: the newest ones that the cluster keeps
    growth_hours: list[Growth] = []  #: a week, oldest first
    growth_minutes: list[Growth] = []  #: the last hours, oldest first
    warnings: list[str] = []
    missing: list[str] = []  #: data that this node cannot supply, in words
    state: str = ""  #: health word of the cluster; "" = unknown yet
    findings: list[str] = []  #: problems, the worst first
