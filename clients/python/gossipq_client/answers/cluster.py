"""Answers about nodes, clients and users of a cluster, as `mq.admin` returns them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gossipq import values as wire
from gossipq.times import unix_ms_of
from gossipq.types import SessionId

# --- nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker process as its node sees it. Counters begin at its start."""

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
    commit_us: int  #: moving average of the time of one commit, in microseconds
    store_bytes: int
    detail: str
    dropped: int  #: messages dropped because the peer was gone or did not read
    dead: int  #: records that became dead letters
    dead_per_minute: int  #: in the last minute
    cpu: timedelta  #: used by this process; 0 = unknown
    rss_bytes: int  #: memory of the process, with mapped pages of its store; 0 = unknown
    leaderless: tuple[int, ...]  #: shards of which it has a voting copy but does not know a leader
    away: tuple[str, ...]  #: silent copies that are needed for a majority
    stopped: tuple[int, ...]  #: shards whose copy here is damaged
    disk_free_bytes: int  #: free space on the disk of its store; 0 = unknown
    disk_reserve_bytes: int  #: publishes are refused if less space than this is free
    silent: timedelta  #: time since its last report to its node
    faults: int  #: requests and parts of turns that met a fault of the node
    turned_away: int  #: connections it closed: silent in a crowd, endless, or above a bound
    over_quota: int  #: requests that exceeded the rates of an address


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRoute:
    """The address at which the leader of a shard answers clients."""

    shard: int
    term: int
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """A node in the roster of its cluster. `copy` names its data: node id and directory id."""

    copy: str
    name: str
    endpoint: str
    workers: int
    witness: bool  #: votes, but stores no records
    state: str  #: "in", "leaving" (drained, without copies) or "lost" (silent too long, rebuilt elsewhere)
    version: str
    features: int  #: highest feature level that it knows
    key: bytes  #: public CURVE key of its connections to nodes; b"" = none
    next_key: bytes  #: the one after its next start
    encrypts: bool  #: True if its own ports are encrypted


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeader:
    """The leader of a shard, as the name of its copy."""

    shard: int
    term: int
    copy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatus:
    """One copy of a shard, as its leader sees it."""

    shard: int
    term: int
    copy: str
    role: str  #: "leader", "follower", "witness", "learner"
    match: int  #: highest log index on its disk, as far as the leader knows
    behind: int  #: entries that the leader has and this copy lacks
    silent: timedelta  #: time since its last answer; 0 for the leader
    synced: bool  #: True if confirms wait for it
    clock: timedelta  #: lead of its wall clock over leader time, at least; negative: it is behind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """An event of gossip, a hint for people."""

    time: datetime
    what: str  #: "join", "leave", "fail", "back", "update", "degraded", "well"
    node: str  #: name of the node; "" if the event concerns this node's own membership
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """How a node sees itself, its workers and its cluster."""

    node: str
    cluster_name: str
    cluster: bytes  #: id of the cluster
    version: str
    mode: str  #: "standalone", ...
    uptime: timedelta
    shards: int
    led: int  #: shards with a leader whose full set of voters is reachable
    workers: tuple[WorkerStatus, ...]
    routes: tuple[ShardRoute, ...]
    warnings: tuple[str, ...]
    bad_frames: int  #: messages that the frontdoor could not read
    copy: str  #: name of this node's data in the logs
    members: tuple[ClusterMember, ...]  #: the roster as this node knows it
    leads: tuple[ShardLeader, ...]  #: leaders of shards as this node knows them
    copies: tuple[CopyStatus, ...]  #: of the shards that this node leads
    gossip: str  #: state of discovery: "" = good, "off" = a standalone node, else why it is degraded
    events: tuple[ClusterEvent, ...]  #: the newest events of gossip, oldest first
    cpu: timedelta  #: used by the frontdoor's process; 0 = unknown
    rss_bytes: int  #: memory of the frontdoor's process; 0 = unknown
    over_quota: int  #: requests at the frontdoor that exceeded the rates of an address
    turned_away: int  #: connections the frontdoor closed: silent in a crowd, endless, or above a bound
    faults: int  #: messages during which the frontdoor met a fault of its own
    door: bytes  #: public CURVE keys of the encrypted ports; b"" = there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlarm:
    """A condition that an operator should look at, for as long as it exists."""

    name: str
    severity: str  #: "critical" or "warning"
    node: str  #: the node that raises it
    subject: str  #: "orders/billing", "worker-1"; "" = the node
    text: str  #: one sentence
    command: str  #: the command that helps or shows more
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOption:
    """One option of a running node. Secrets are masked."""

    key: str
    value: str  #: as cluster.toml has it
    origin: str  #: "flag --bind", "environment GOSSIPQ_NODE__BIND", "file cluster.toml" or "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthCounters:
    """Counters of a topic in a shard at the end of a minute or an hour; topic "" = all topics.

    One exists only if a value changed.
    """

    topic: str
    shard: int
    time: datetime
    published: int  #: records; this and the next are counters: they never fall
    acked: int  #: over all groups
    dead: int  #: dead letters that exist
    removed: int  #: by retention; a counter
    records: int  #: readable records
    bytes: int
    backlog: int  #: over all groups: published and not finished
    term: int  #: term of the leader: a change means a takeover
    voters: int  #: copies of the shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The nodes of a cluster, and the options that they share."""

    version: int  #: log entry that changed it last
    members: tuple[ClusterMember, ...]
    cluster_name: str
    options: dict[str, str]  #: options of [cluster]: dotted key -> JSON text


# --- clients


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """Consumption of one topic by a client at one worker. Group "" = it only reads."""

    topic: str
    group: str
    partitions: int
    credit_records: int  #: granted and not used
    credit_bytes: int
    in_flight: int  #: records that the client holds
    held: timedelta  #: age of the oldest of these deliveries
    acked: int  #: this and the next ones since it subscribed there
    delivered: int
    failed: int  #: failed, rejected or undecodable


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSession:
    """A session as one worker sees it. Counters begin when it connected there."""

    session: SessionId  #: its first bytes; `bytes` would name the field below to Python 3.14
    client: str  #: its own description
    version: str
    node: str
    worker: int
    connections: int
    age: timedelta
    silent: timedelta  #: time since its last message
    batches: int  #: batches it published
    published: int  #: records it published
    bytes: int
    subscriptions: tuple[Consumption, ...]
    unlisted: int  #: subscriptions beyond those in `subscriptions`


# --- users


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Permissions of a role on the topics of a pattern. A sole `*` also covers the cluster itself."""

    topics: str  #: a name, with `*` for any characters
    permissions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Role:
    """What the users who have the role may do."""

    name: str
    rules: tuple[AccessRule, ...]


@dataclass(frozen=True, slots=True)
class TokenDigest:
    """The stored form of a token."""

    digest: bytes  #: SHA-256 of its 32 bytes
    expires: datetime | None = None  #: None = never


@dataclass(frozen=True, slots=True)
class User:
    """A user of a closed cluster."""

    name: str
    roles: tuple[str, ...]
    tokens: tuple[TokenDigest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The stored form of a token with which one node may join."""

    digest: bytes  #: SHA-256 of its 32 bytes
    expires: datetime
    copy: str  #: the copy that has joined with it; "" = unused


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Users and roles of a cluster. While it is not closed, all clients may do everything."""

    version: int  #: log entry that changed it last
    closed: bool
    users: tuple[User, ...]
    roles: tuple[Role, ...]
    invites: tuple[Invitation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """The user of a client, and what it may do."""

    user: str
    closed: bool  #: True if requests need permissions
    rules: tuple[AccessRule, ...]
    acting: str  #: the user whose token was sent, if it acts for another user
    expires: datetime | None  #: when the token expires; None = never


def access_change(
    users: Iterable[User],
    roles: Iterable[Role],
    users_gone: Iterable[str],
    roles_gone: Iterable[str],
    closed: bool | None,
    version: int,
) -> wire.AccessChange:
    """Return a change of users and roles as the cluster takes it."""
    return wire.AccessChange(
        users=[
            wire.User(
                each.name,
                list(each.roles),
                [wire.Credential(token.digest, unix_ms_of(token.expires)) for token in each.tokens],
            )
            for each in users
        ],
        roles=[
            wire.Role(each.name, [wire.Rule(rule.topics, list(rule.permissions)) for rule in each.rules])
            for each in roles
        ],
        users_gone=list(users_gone),
        roles_gone=list(roles_gone),
        closed=closed,
        version=version,
    )
