"""What a snapshot of a cluster is made of: rows of plain values, the same from a node, from a recording and
in `-o json`.

Rows name each other (a shard its leader's node, a copy its node). Times are unix milliseconds, sizes bytes,
counters grow. Fields are only ever added, with a default, so that old recordings can be played.
"""

from typing import dataclass_transform

import msgspec

UNKNOWN = -1  #: of numbers that nobody told


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all."""


class Node(Row):
    name: str
    state: str = "ready"  #: "ready", "starting", "recovering", "full", "failed", "left", "witness"
    endpoint: str = ""
    version: str = ""
    uptime_ms: int = 0
    silent_ms: int = UNKNOWN  #: since it was last heard of
    rtt_us: int = UNKNOWN  #: of one question from here
    cpu_ms: int = UNKNOWN  #: that all its processes have used
    rss_bytes: int = UNKNOWN  #: of all its processes, with what they have mapped of their stores
    disk_free_bytes: int = UNKNOWN
    leading: int = 0  #: shards
    following: int = 0
    sessions: int = 0
    published: int = 0
    delivered: int = 0
    acked: int = 0
    refused: int = 0
    restarts: int = 0
    store_bytes: int = 0
    commit_us: int = 0  #: of the slowest of its workers, on the average
    detail: str = ""
    config: dict[str, str] = {}  #: what it runs with; secrets are masked by the node


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
    """One copy of a shard. `lag` is in log entries behind the leader."""

    node: str
    role: str  #: "leader", "follower", "witness", "learner"
    lag: int = 0
    reachable: bool = True


class Shard(Row):
    shard: int
    state: str = "ok"  #: "ok", "degraded" (a copy is missing), "no leader"
    leader: str = ""  #: name of its node
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
    consumers: int = 0
    paused: bool = False
    oldest_ms: int = 0  #: age of the oldest record that is not done
    alarm_lag: int = 0  #: 0 = none


class Subscription(Row):
    topic: str
    group: str = ""  #: "" = a reader
    partitions: int = 0
    credit_records: int = 0
    in_flight: int = 0


class Client(Row):
    """A session at one worker: one that talks to several workers has a row for each."""

    session: str  #: hexadecimal, as much as `gossipq client kick` needs
    client: str = ""  #: what it calls itself
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
    node: str = ""  #: who raised it
    subject: str = ""  #: "orders/billing", "worker-1", "shard 7"; "" = the node
    text: str = ""
    command: str = ""
    since_ms: int = 0


class Event(Row):
    """Something worth a line in the list of events."""

    time_ms: int
    kind: str  #: "member-join", "member-failed", "member-gone", "leader-move", "worker-restart" ...
    who: str = ""
    text: str = ""


class Growth(Row):
    """One step of the growth over time, all topics together."""

    time_ms: int  #: its end
    published: int = 0  #: in this step
    acked: int = 0  #: in this step
    dead: int = 0
    records: int = 0
    bytes: int = 0
    backlog: int = 0
    takeovers: int = 0  #: in this step
    voters: int = 0  #: copies of the shard that has fewest
    joined: bool = False  #: a copy came in this step
    left: bool = False


class Snapshot(Row):
    time_ms: int
    counted_ms: int = 0  #: when partitions and groups were counted; 0 = then
    server: str = ""  #: who was asked
    answered_by: str = ""  #: name of that node
    cluster: str = ""
    version: str = ""
    mode: str = ""
    uptime_ms: int = 0  #: of the node that runs longest
    shards_total: int = 0
    shards_led: int = 0
    serf: str = ""  #: state of the gossip: "ok", "degraded ...", "" = none
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
    missing: list[str] = []  #: what this node cannot tell, in words
    state: str = ""  #: the word of gossipq.health for the cluster; "" = not known: nodes are still asked
    findings: list[str] = []  #: what is not well, the worst first
