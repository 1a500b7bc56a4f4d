"""What the entries of a log say. PUBLISH has its own fixed layout in `log`; these are msgpack arrays,
append-only."""

import msgspec

from gossipq.types import Index, Offset, PartitionKey, SessionId
from gossipq.values import AccessChange, GroupConfig, Member, Range, Ref, Start, TopicInfo


class CopySet(msgspec.Struct, array_like=True, frozen=True):
    """The copies of this shard from here on. `voters` are in the order in which they should lead; `witnesses`
    are those of the voters and learners that keep the log without bodies; `learners` have no vote."""

    voters: list[str]
    witnesses: list[str] = []
    learners: list[str] = []


class TopicChange(msgspec.Struct, array_like=True, frozen=True):
    """TOPIC in a shard that holds partitions of it; META_TOPIC in the meta shard, where id 0 is a topic to be
    made: the entry's index becomes its id."""

    info: TopicInfo
    deleted: bool = False


class InstalledTopics(msgspec.Struct, array_like=True, frozen=True):
    """(topic id, version) that all shards of the topic have logged; the version of a removal is -id."""

    versions: list[tuple[int, int]]


class RosterChange(msgspec.Struct, array_like=True, frozen=True):
    """A node enters the roster, changes there, or leaves it."""

    member: Member
    gone: bool = False
    invite: bytes = b""  #: digest of the invitation by which it enters


class Options(msgspec.Struct, array_like=True, frozen=True):
    """What [cluster] says from here on: dotted key -> JSON text."""

    options: dict[str, str]


class NewAccess(msgspec.Struct, array_like=True, frozen=True):
    """Users and roles change."""

    change: AccessChange


class RequestKey(msgspec.Struct, array_like=True, frozen=True):
    """The next entry is that of a request with this idempotency key."""

    key: bytes


class GroupChange(msgspec.Struct, array_like=True, frozen=True):
    """A group of a topic, and where it starts in partitions that it does not know yet. `version`: of the
    policy that this one takes the place of; 0 = the group is new."""

    topic_id: int
    name: str
    config: GroupConfig
    starts: list[Start]
    version: int = 0


class LeaseRow(msgspec.Struct, array_like=True, frozen=True):
    """Records that a session holds, as their `attempt`; `started`: it has begun with them. An empty session:
    they were given back, and had begun or not. `ranges`: only these of [first, end)."""

    partition: PartitionKey
    first: Offset
    end: Offset
    session: SessionId
    deadline_ms: int  #: leader time
    attempt: int
    consumer: str = ""
    started: bool = False
    ranges: list[tuple[Offset, Offset]] = []


class LeaseRows(msgspec.Struct, array_like=True, frozen=True):
    group_id: int
    rows: list[LeaseRow]


class FailRow(msgspec.Struct, array_like=True, frozen=True):
    """An attempt is over without success; the records come again at `due_ms`, leader time. `ranges`: only
    these of [first, end)."""

    partition: PartitionKey
    first: Offset
    end: Offset
    attempts: int
    counted: bool
    due_ms: int
    reason: str
    consumer: str
    ranges: list[tuple[Offset, Offset]] = []


class AckRanges(msgspec.Struct, array_like=True, frozen=True):
    """`failed`: what the same consumer has failed to do meanwhile."""

    group_id: int
    consumer: str
    ranges: list[Range]
    failed: list[FailRow] = []


class Trim(msgspec.Struct, array_like=True, frozen=True):
    """Records below `first` leave."""

    partition: PartitionKey
    first: Offset


class Forget(msgspec.Struct, array_like=True, frozen=True):
    """Producers that were idle for too long, and records that were cancelled long ago, before they were
    due."""

    producers: list[tuple[PartitionKey, bytes]]
    before_ms: int = 0  #: leader time: who spoke since then stays
    cancelled: list[Ref] = []


class ReleaseRow(msgspec.Struct, array_like=True, frozen=True):
    """Scheduled records [first, end) of entry `index` get their offsets; `due_ms` is when the one behind them
    is due."""

    partition: PartitionKey
    index: Index
    first: int
    end: int
    due_ms: int


class Release(msgspec.Struct, array_like=True, frozen=True):
    """In the order in which the offsets are given."""

    rows: list[ReleaseRow]


class Fail(msgspec.Struct, array_like=True, frozen=True):
    group_id: int
    rows: list[FailRow]


class ParkRow(msgspec.Struct, array_like=True, frozen=True):
    partition: PartitionKey
    first: Offset
    end: Offset
    attempts: int  #: that began
    lane: bytes
    handed_out: bool = False  #: since the last of these began


class Park(msgspec.Struct, array_like=True, frozen=True):
    """Records that nobody can take now make way for the cursor."""

    group_id: int
    rows: list[ParkRow]


class Dead(msgspec.Struct, array_like=True, frozen=True):
    """Records leave a group as dead letters; the entry's body is their batch. Without a body they are dropped
    and counted."""

    group_id: int
    partition: PartitionKey
    first: Offset
    end: Offset
    reason: str
    error: str
    consumer: str
    attempts: int
    counted: bool


class Letters(msgspec.Struct, array_like=True, frozen=True):
    """REPLAY, PURGE and REQUEUE: records of a group in one partition. `ready`: of REQUEUE, those that were
    acked, by slices."""

    group_id: int
    partition: PartitionKey
    ranges: list[tuple[Offset, Offset]]
    ready: list[tuple[Offset, Offset]] = []


class Void(msgspec.Struct, array_like=True, frozen=True):
    """A record leaves: at `offset`, or, when that is -1, scheduled as `record` of entry `index`. EDIT:
    `publish` is the PUBLISH payload of the record that takes its place, the entry's body its batch."""

    partition: PartitionKey
    offset: Offset
    index: Index
    record: int
    reason: str
    by: str
    publish: bytes = b""


class DueChange(msgspec.Struct, array_like=True, frozen=True):
    partition: PartitionKey
    index: Index
    record: int
    due_ms: int


class AckAndPublish(msgspec.Struct, array_like=True, frozen=True):
    """Ack and publish, both or neither."""

    ack: AckRanges
    publish: bytes


encode = msgspec.msgpack.Encoder().encode


class Rollup(msgspec.Struct, array_like=True, frozen=True):
    """The counters of topics become rows of their growth, for the minute that ends at `time_ms`, leader time.
    `voters`: copies of the shard then."""

    time_ms: int
    voters: int


class Regroup(msgspec.Struct, array_like=True, frozen=True):
    """A group ends with all that it has; with `starts` (of kind "offset") it begins anew there. `dead`: dead
    letters too."""

    group_id: int
    starts: list[Start]
    dead: bool = False
