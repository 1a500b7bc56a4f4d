"""Every protocol message once: what the wire carries is what the machines take and give.

A message travels as a msgpack array in field order; fields are only ever appended, with a default, so that old and new
understand each other. Durations are milliseconds that remain, never points in time. Ranges are half-open.
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


# --- values inside messages --------------------------------------------------------------------------------------------


class TopicConfig(msgspec.Struct, array_like=True, frozen=True):
    """Policy of a topic. Versioned by the field order, like every message."""

    partitions: int = 1
    retention_ms: int = limits.RETENTION_MS  #: 0 = as soon as every group has acked; 7 days while there is no group
    retain: str = "acked"  #: "acked": age removes what every group has acked; "forever": age removes nothing
    bytes_max: int = 0  #: stored bytes per partition; 0 = no bound
    overflow: str = "refuse"  #: "refuse" or "drop_oldest" when bytes_max is reached
    level: str = "stored"  #: default confirm level of a publish: "stored" or "none"
    beside: str = ""  #: topic whose shards this one shares


class TopicOptions(msgspec.Struct, array_like=True, frozen=True):
    """What a request says of a topic's policy; None = as the cluster says."""

    partitions: int | None = None
    retention_ms: int | None = None
    retain: str | None = None
    bytes_max: int | None = None
    overflow: str | None = None
    level: str | None = None
    beside: str | None = None

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
    """Policy of a group, stored with its first subscription."""

    mode: str = "shared"
    lease_ms: int = limits.LEASE_MS
    in_flight_max: int = limits.IN_FLIGHT_MAX


class GroupOptions(msgspec.Struct, array_like=True, frozen=True):
    """What a subscription says of its group's policy; None = as the group has it, or the cluster says."""

    mode: str | None = None
    lease_ms: int | None = None
    in_flight_max: int | None = None

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


class PartitionStats(msgspec.Struct, array_like=True, frozen=True):
    """Stored counters of one partition; `first` and `next` bound the offsets that can still be read."""

    partition: PartitionKey
    topic: str
    shard: int
    worker: int
    first: Offset
    next: Offset
    published: int
    removed: int
    bytes: int


class GroupStats(msgspec.Struct, array_like=True, frozen=True):
    """Stored counters of one group in one partition: published since its start = ready + in_flight + acked + removed."""

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


# --- sessions ----------------------------------------------------------------------------------------------------------


class Hello(Message):
    """First message on every connection. Nothing else is answered before it."""

    verb = 1
    session: bytes
    client: str  #: free text for `status`
    version: str
    auth: bytes = b""
    user: str = ""


class Welcome(Message):
    verb = 2
    node: str
    cluster: bytes  #: 16 bytes
    version: str
    window_bytes: int  #: unconfirmed publish bytes this connection may have
    silence_ms: int  #: a session ends after this much silence
    ping_ms: int
    routes: list[Route] = []
    shards: int = limits.SHARDS


class Ping(Message):
    verb = 3


class Pong(Message):
    verb = 4


class Bye(Message):
    """The session ends now; what it holds goes back uncounted."""

    verb = 5


class Refused(Message):
    """Answer to any request that cannot be served; `code` is that of `gossipq.errors`."""

    verb = 6
    code: str
    message: str
    hint: str = ""
    retry_after_ms: int = 0
    detail: int = 0  #: the expected sequence of out_of_sequence
    endpoint: str = ""  #: the better address of not_leader


# --- publish -----------------------------------------------------------------------------------------------------------


class Publish(Message):
    """Second frame: one batch. The confirm level "none" gets no answer and promises nothing."""

    verb = 16
    partition: PartitionKey
    level: str = ""  #: "" = as the topic says


class Confirm(Message):
    """Batches that are on a majority of disks: rows of (request id, offset of the first record, copies, duplicate)."""

    verb = 17
    rows: list[tuple[int, Offset, int, bool]]
    window_bytes: int = limits.PUBLISH_WINDOW_BYTES
    direct: str = ""  #: the leader's own address, when the request came through a frontdoor


# --- consume -----------------------------------------------------------------------------------------------------------


class Subscribe(Message):
    """Joins a group, or reads without one (group ""). All partitions lie in the header's shard."""

    verb = 32
    subscription: int  #: chosen by the client, unique in its session
    group: str
    starts: list[Start]
    credit_records: int
    credit_bytes: int
    config: GroupOptions = GroupOptions()
    notify_end: bool = False  #: send AT_END each time everything readable has been handed out
    holding: list[Range] | None = None  #: what the client still has from before it lost its connection; the rest goes back


class Subscribed(Message):
    """`ends` are (partition, position, offset one past the last committed record)."""

    verb = 33
    subscription: int
    lease_ms: int
    ends: list[Range]
    direct: str = ""


class Unsubscribe(Message):
    """What the subscription holds goes back uncounted. Answered by ACKED."""

    verb = 34
    subscription: int


class Credit(Message):
    """Lends more. Not answered."""

    verb = 35
    subscription: int
    records: int
    bytes: int


class Deliver(Message):
    """Second frame: the batches of the slices, one after the other."""

    verb = 36
    subscription: int
    slices: list[Delivered]
    lease_ms: int  #: remaining; 0 for a reader


class Ack(Message):
    verb = 37
    subscription: int
    ranges: list[Range]


class Acked(Message):
    """Answer to ACK, NACK, EXTEND and UNSUBSCRIBE, when stored. `lost` are ranges that somebody else holds."""

    verb = 38
    lost: list[Range] = []


class Nack(Message):
    """Gives back. `failed` counts as a failed attempt; the records come again after `delay_ms`."""

    verb = 39
    subscription: int
    ranges: list[Range]
    delay_ms: int = 0
    failed: bool = True
    reason: str = ""


class Extend(Message):
    verb = 40
    subscription: int
    ranges: list[Range]
    lease_ms: int


class Ready(Message):
    """The leader has records for this subscription and no loan."""

    verb = 41
    subscription: int


class Recall(Message):
    """Asks for unused credit back."""

    verb = 42
    subscription: int


class Recalled(Message):
    verb = 43
    subscription: int
    records: int
    bytes: int


class AtEnd(Message):
    """Everything readable now has been handed out; `ends` as in SUBSCRIBED."""

    verb = 44
    subscription: int
    ends: list[Range]


# --- topics and status -------------------------------------------------------------------------------------------------


class Resolve(Message):
    """Topics by name or by pattern with `*`; to the meta shard."""

    verb = 64
    names: list[str]
    create: bool = False  #: make what is missing, with defaults (not for patterns)


class Topics(Message):
    verb = 65
    topics: list[TopicInfo]


class CreateTopic(Message):
    """Answered by TOPICS when every shard of the topic has stored it."""

    verb = 66
    name: str
    config: TopicOptions = TopicOptions()
    if_not_exists: bool = False


class DropTopic(Message):
    verb = 67
    name: str


class Stats(Message):
    """To a worker: counters of the shards it leads. Empty names: all topics."""

    verb = 68
    topics: list[str] = []


class StatsReply(Message):
    verb = 69
    partitions: list[PartitionStats]
    groups: list[GroupStats]


class Status(Message):
    """To a frontdoor."""

    verb = 70


class StatusReply(Message):
    verb = 71
    node: str
    cluster_name: str
    cluster: bytes
    version: str
    mode: str  #: "standalone", ...
    uptime_ms: int
    shards: int
    led: int  #: shards with a leader and its full set of voters reachable
    workers: list[WorkerStats]
    routes: list[Route]
    warnings: list[str] = []
    bad_frames: int = 0  #: messages the frontdoor could not read


# --- between workers, and inside a node --------------------------------------------------------------------------------


class Append(Message):
    """Raft AppendEntries. Second frame: the entries, as PROTOCOL.md section "Peers" lays them out."""

    verb = 96
    leader: str
    prev_index: int
    prev_term: int
    commit: int
    sizes: list[int]  #: bytes of each entry in the second frame
    sent_ms: int = 0
    prev_chain: bytes = b""


class Appended(Message):
    """`match` is on disk and equal to the leader's log; without ok it is a hint where to look next."""

    verb = 97
    follower: str
    ok: bool
    match: int
    sent_ms: int = 0
    rejected: int = 0  #: without ok: the prev_index that did not fit
    hint_term: int = 0  #: without ok: term of the follower's entry at `match`
    hollow: bool = False  #: its state is not whole: it needs a snapshot


class InstallTopic(Message):
    """Meta leader to a shard's leader: log this version of the topic. `deleted` ends it."""

    verb = 98
    topic: TopicInfo
    deleted: bool = False


class TopicInstalled(Message):
    verb = 99
    topic_id: int
    version: int
    shard: int


class AskTopic(Message):
    """Shard leader to the meta leader: a publish named a topic id that is not in my log."""

    verb = 100
    topic_id: int
    shard: int


class Report(Message):
    """Worker to its frontdoor, once a second and at each change of state."""

    verb = 101
    stats: WorkerStats
    routes: list[Route]


MESSAGES: dict[int, type[Message]] = {kind.verb: kind for kind in Message.__subclasses__()}
assert len(MESSAGES) == len(Message.__subclasses__()), "verb numbers are unique"
