"""Payloads of log entries, as msgpack arrays that only grow at the end.

PUBLISH has a fixed layout of its own in `log`.

Requests carry options, in which None means not set. Entries carry whole configurations: the leader
decides which option wins once, and the log shows the result.

Leases, acks and removals are entries, too. So the followers have every state of a record, and it
survives kill -9.
"""

import msgspec

from gossipq.rates import Payer
from gossipq.types import Index, Offset, PartitionKey, SessionId
from gossipq.values import (
    AccessChange,
    EndedPart,
    GroupConfig,
    JobProgress,
    JobResult,
    JoinPart,
    Member,
    Range,
    Ref,
    ResultRun,
    Schedule,
    Start,
    TopicInfo,
)


class CopySet(msgspec.Struct, array_like=True, frozen=True):
    """The copies of this shard from here on.

    `voters` are ordered by preference as leader. `witnesses` are voters and learners that store the
    log without bodies. `learners` have no vote.
    """

    voters: list[str]
    witnesses: list[str] = []
    learners: list[str] = []


class TopicChange(msgspec.Struct, array_like=True, frozen=True):
    """A version of a topic. The kind TOPIC is for shards with its partitions.

    META_TOPIC is for the meta shard. There id 0 means a new topic, whose id becomes the entry's
    index, and `owners` are the accounts that it counts for.
    """

    info: TopicInfo
    deleted: bool = False
    owners: tuple[Payer, ...] = ()


class InstalledTopics(msgspec.Struct, array_like=True, frozen=True):
    """(topic id, version) that all shards of the topic have logged. A removal has version -id."""

    versions: list[tuple[int, int]]


class RosterChange(msgspec.Struct, array_like=True, frozen=True):
    """A node enters the roster, changes in it, or leaves it."""

    member: Member
    gone: bool = False
    invite: bytes = b""  #: digest of the invitation with which it enters


class Options(msgspec.Struct, array_like=True, frozen=True):
    """The options of [cluster] from here on: dotted key -> JSON text."""

    options: dict[str, str]


class NewAccess(msgspec.Struct, array_like=True, frozen=True):
    """A change of users and roles."""

    change: AccessChange


class RequestKey(msgspec.Struct, array_like=True, frozen=True):
    """The next entry belongs to the request with this idempotency key."""

    key: bytes


class GroupChange(msgspec.Struct, array_like=True, frozen=True):
    """The policy of a group, and its start in partitions that are new to it.

    `version` is that of the replaced policy; 0 = the group is new, and counts for `owners`.
    """

    topic_id: int
    name: str
    config: GroupConfig
    starts: list[Start]
    version: int = 0
    owners: tuple[Payer, ...] = ()


class LeaseRow(msgspec.Struct, array_like=True, frozen=True):
    """Records [first, end) that a session holds as attempt `attempt`.

    `started`: a handler has begun. Session b"": the records were given back, before or after they
    were started. `ranges`: only these parts of [first, end).
    """

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
    """A failed attempt. The records are due again at `due_ms`, leader time.

    `ranges`: only these parts of [first, end).
    """

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
    """Acked ranges. `failed` are attempts of the same consumer that failed in the same turn."""

    group_id: int
    consumer: str
    ranges: list[Range]
    failed: list[FailRow] = []


class Trim(msgspec.Struct, array_like=True, frozen=True):
    """Remove the records below `first`."""

    partition: PartitionKey
    first: Offset


class Forget(msgspec.Struct, array_like=True, frozen=True):
    """Forget idle producers, records that were cancelled long ago before they were due, and unique names
    that are free.
    """

    producers: list[tuple[PartitionKey, bytes]]
    before_ms: int = 0  #: leader time; producers active since then stay
    cancelled: list[Ref] = []
    uniques: list[PartitionKey] = []  #: partitions, some of whose names are looked at


class ReleaseRow(msgspec.Struct, array_like=True, frozen=True):
    """Scheduled records [first, end) of entry `index` get their offsets.

    `due_ms` is the due time of the record behind them.
    """

    partition: PartitionKey
    index: Index
    first: int
    end: int
    due_ms: int


class Release(msgspec.Struct, array_like=True, frozen=True):
    """Rows in the order in which the records get their offsets."""

    rows: list[ReleaseRow]


class Fail(msgspec.Struct, array_like=True, frozen=True):
    group_id: int
    rows: list[FailRow]


class FlowPause(msgspec.Struct, array_like=True, frozen=True):
    """No record of a flow is delivered before `until_ms`, leader time, because its consumer said so."""

    partition: PartitionKey
    flow: int  #: its hash; 0 = the records without a flow
    until_ms: int
    consumer: str
    reason: str


class PauseFlows(msgspec.Struct, array_like=True, frozen=True):
    group_id: int
    rows: list[FlowPause]


class ParkRow(msgspec.Struct, array_like=True, frozen=True):
    partition: PartitionKey
    first: Offset
    end: Offset
    attempts: int  #: attempts that began
    lane: bytes
    handed_out: bool = False  #: True if the record was delivered since the last attempt began


class Park(msgspec.Struct, array_like=True, frozen=True):
    """Park records that no consumer can take now, so that the cursor can pass them."""

    group_id: int
    rows: list[ParkRow]


class Dead(msgspec.Struct, array_like=True, frozen=True):
    """Records become dead letters of a group; the entry's body is their batch.

    Without a body they are dropped and counted.
    """

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
    """Payload of REPLAY, PURGE and REQUEUE: records of a group in one partition.

    `ready` is for REQUEUE: the acked ones among the records, as slices.
    """

    group_id: int
    partition: PartitionKey
    ranges: list[tuple[Offset, Offset]]
    ready: list[tuple[Offset, Offset]] = []


class Void(msgspec.Struct, array_like=True, frozen=True):
    """Void the record at `offset`; with -1 it is scheduled, as `record` of entry `index`.

    For EDIT, `publish` is the PUBLISH payload of the new record, whose batch is the entry's body.
    """

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
    """Write rows of growth from the counters of topics, for the minute that ends at `time_ms`.

    `time_ms` is leader time. `voters` is the number of copies of the shard then.
    """

    time_ms: int
    voters: int


class Regroup(msgspec.Struct, array_like=True, frozen=True):
    """End a group with all its state. With `starts` (kind "offset") it begins again there.

    `dead`: its dead letters are deleted too.
    """

    group_id: int
    starts: list[Start]
    dead: bool = False


class ScheduleChange(msgspec.Struct, array_like=True, frozen=True):
    """A schedule from here on. Its record is the body; without a body the present record stays.

    `deleted`: only the name counts.
    """

    partition: PartitionKey
    schedule: Schedule
    deleted: bool = False


class TickDone(msgspec.Struct, array_like=True, frozen=True):
    """A tick of a schedule is over. `publish` is the payload of a PUBLISH with the body of this
    entry; b"" = the tick got no record.

    `version` is that of the schedule. `beside`: asked for by hand, and no tick.
    """

    partition: PartitionKey
    name: str
    version: Index
    tick_ms: int
    publish: bytes = b""
    beside: bool = False


class AckWithResults(msgspec.Struct, array_like=True, frozen=True):
    """An ACK, with the results of some of its records: both or neither."""

    ack: AckRanges
    results: list[JobResult]
    runs: list[ResultRun] = []


class ExpireResults(msgspec.Struct, array_like=True, frozen=True):
    """Delete results whose time is over at `before_ms`, leader time, the oldest first."""

    before_ms: int
    count_max: int


class ProgressReports(msgspec.Struct, array_like=True, frozen=True):
    """How far the handlers of a group are with records."""

    group_id: int
    rows: list[JobProgress]


class JoinBegun(msgspec.Struct, array_like=True, frozen=True):
    """The record in the body waits until `count` of the parts have ended, or until `end_ms`, leader time."""

    partition: PartitionKey
    parts: list[JoinPart]
    count: int
    end_ms: int
    group: str = ""


class PartsEnded(msgspec.Struct, array_like=True, frozen=True):
    """Parts of joins of this shard have ended."""

    rows: list[EndedPart]


class JoinDone(msgspec.Struct, array_like=True, frozen=True):
    """The wait of a join is over. `publish` is the payload of a PUBLISH with the body of this entry."""

    partition: PartitionKey
    index: Index
    publish: bytes
