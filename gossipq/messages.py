"""Every protocol message, once: the same types on the wire and in the state machines.

A message is a msgpack array in field order; new fields are appended with a default. Durations are
remaining times. Ranges are half-open.
"""

from gossipq import export_messages, limits, operator_messages, peer_messages
from gossipq.types import Offset, PartitionKey
from gossipq.values import (
    AccessChange,
    AccessTable,
    CopyStats,
    DeadLetter,
    Delivered,
    GossipEvent,
    GroupOptions,
    GroupStats,
    JobInfo,
    JobProgress,
    JobResult,
    JoinPart,
    Lead,
    Member,
    Message,
    PartitionStats,
    Range,
    Ref,
    ResultRun,
    Route,
    Rule,
    Run,
    Schedule,
    ScheduleInfo,
    Standing,
    Start,
    TopicInfo,
    TopicOptions,
    TraceEvent,
    WorkerStats,
)

# --- sessions -----------------------------------------------------------------------------------------------


class Hello(Message):
    """First message on every connection. Other messages are refused before it."""

    verb = 1
    session: bytes
    client: str  #: free text, shown by `status`
    version: str
    auth: bytes = b""  #: a token of 32 bytes; b"": the client sends none
    user: str = ""  #: the user on whose behalf it acts; "" = the token's own
    #: secret of the session's owner; the names of its producers are derived from it
    key: bytes = b""
    #: the client accepts RESET; otherwise it gets not_leader when its state in a shard has ended
    resets: bool = False


class Welcome(Message):
    verb = 2
    node: str
    cluster: bytes  #: 16 bytes
    version: str
    window_bytes: int  #: unconfirmed publish bytes of this connection
    silence_ms: int  #: a session ends after this silence
    ping_ms: int
    routes: list[Route] = []
    shards: int = limits.SHARDS
    nodes: list[str] = []  #: frontdoors of the cluster; each of them serves
    #: clusters that were replaced by this one in a `recover`; their remaining nodes must stop
    former: list[bytes] = []
    #: shards of this node that have no leader as far as it knows; only from frontdoors
    leaderless: list[int] = []
    #: unreachable nodes that are missing for a majority of those shards; empty during an election
    away: list[str] = []


class Ping(Message):
    verb = 3


class Pong(Message):
    verb = 4


class Bye(Message):
    """End the session now. Its records are redelivered, and the attempt does not count.

    `lost` is set by a frontdoor: the connection of a client has ended, and the session can continue
    on another one.
    """

    verb = 5
    lost: bool = False


class RefusedMessage(Message):
    """Answer to a request that cannot be served. `code` is a code of `gossipq.errors`."""

    verb = 6
    code: str
    message: str
    hint: str = ""
    retry_after_ms: int = 0
    detail: int = 0  #: for out_of_sequence: the expected sequence
    endpoint: str = ""  #: for not_leader: a better address


class Reset(Message):
    """The session's state in these shards has ended: send HELLO, SUBSCRIBE and open requests again.

    Only sent to clients that set `resets` in HELLO.
    """

    verb = 7
    shards: list[int]
    why: str = ""  #: for people


class WhoAmI(Message):
    """Ask a worker or frontdoor for the user of this connection. Answered by IDENTITY."""

    verb = 12


class Identity(Message):
    verb = 8
    user: str
    closed: bool  #: True if requests need permissions
    rules: list[Rule] = []
    acting: str = ""  #: the user whose token was sent, if it acts for another user
    expires_ms: int = 0  #: when the token expires, in unix milliseconds; 0 = never


class AskAccess(Message):
    """Ask the meta shard for users and roles. Answered by ACCESS."""

    verb = 9


class Access(Message):
    verb = 10
    table: AccessTable


class SetAccess(Message):
    """Change users and roles. Answered by ACCESS."""

    verb = 11
    change: AccessChange
    proof: bytes = b""  #: as in JOIN; not needed with the permission
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


# --- publish ------------------------------------------------------------------------------------------------


class Publish(Message):
    """Publish one batch, in the second frame. With level "none" it is not confirmed.

    With `acks` it is one atomic step: the broker acks these records of the subscription and stores
    the batch, or does neither. It is refused with lease_lost if another consumer holds one of the
    records. All of them must be in the header's shard.
    """

    verb = 16
    partition: PartitionKey
    level: str = ""  #: "" = the topic's level
    age_ms: int = 0  #: time since the batch was sealed: its delays count from then
    subscription: int = 0
    acks: list[Range] = []


class PublishPlain(Message):
    """Publish plain records, which the worker seals. Answered like PUBLISH.

    The second frame is a msgpack array of PlainRecord.
    """

    verb = 18
    partition: PartitionKey
    level: str = ""
    route: str = ""  #: of all records
    delay_ms: int = 0  #: until they are due; 0 = at once
    ttl_ms: int = 0  #: from due until they expire; 0 = the topic's value
    producer: int = 0  #: number of the producer among those of the session's key
    sequence: int = 0  #: of this producer and partition, from 1; 0 = deduplicated by ids only
    subscription: int = 0
    acks: list[Range] = []
    until_ms: int = 0  #: how long the unique names are taken; 0 = until their records are done
    replace: bool = False  #: replace the records that have the unique names; False = keep those


class Confirm(Message):
    """Batches that a majority of disks has stored.

    Rows of (request id, offset of the first record, copies, duplicate).
    """

    verb = 17
    rows: list[tuple[int, Offset, int, bool]]
    window_bytes: int = limits.PUBLISH_WINDOW_BYTES
    direct: str = ""  #: the leader's own address, if the request came through a frontdoor
    #: (request id, runs) of batches with due times or ids, in the order of the rows
    runs: list[tuple[int, list[Run]]] = []


# --- consume ------------------------------------------------------------------------------------------------


class Subscribe(Message):
    """Join a group, or read without a group (""). All partitions are in the header's shard.

    A group has partitions of one topic.
    """

    verb = 32
    subscription: int  #: chosen by the client, unique in its session
    group: str
    starts: list[Start]
    credit_records: int
    credit_bytes: int
    config: GroupOptions = GroupOptions()
    notify_end: bool = False  #: send AT_END each time that everything readable has been delivered
    #: records the client still holds from before a reconnect; the others are redelivered
    holding: list[Range] | None = None
    #: deliver only records whose route matches one of these, with `*` and `#`; empty = all
    routes: list[str] = []
    ack: bool = True  #: False: at most once; records count as acked before they are sent
    #: all shards in which this group is read; mode "exclusive" is refused over more than one
    shards: list[int] = []
    #: ACK and NACK return the credit of their records, and PING extends their leases
    auto: bool = False
    plain: bool = False  #: records arrive opened, as DELIVER_PLAIN
    #: SHARE can be sent: the client gives back records that no handler has started
    shares: bool = False
    gaps: bool = False  #: a slice can leave out records: it lists the offsets it has
    #: without this, or with `auto`, the client holds one record of each key at a time
    key_runs: bool = False
    #: the credit is what fetches ask for, so the node does not bound what is not started
    fetches: bool = False
    cancels: bool = False  #: CANCELLED can be sent: the client stops the handlers of these records


class Subscribed(Message):
    """`ends` are (partition, position, offset one past the last committed record)."""

    verb = 33
    subscription: int
    lease_ms: int
    ends: list[Range]
    direct: str = ""
    mode: str = ""  #: of the group; "" for a reader
    attempts_max: int = 0  #: of the group, for records without a value of their own; 0 for a reader


class Unsubscribe(Message):
    """End a subscription. Its records are redelivered, and the attempt does not count.

    Answered by ACKED.
    """

    verb = 34
    subscription: int


class Credit(Message):
    """Grant more credit. Not answered."""

    verb = 35
    subscription: int
    records: int
    bytes: int


class Deliver(Message):
    """Slices of records. The second frame has their batches, one after the other."""

    verb = 36
    subscription: int
    slices: list[Delivered]
    lease_ms: int  #: remaining time; 0 for a reader


class Ack(Message):
    """The consumer has processed these records.

    Records that were never delivered are returned as lost, unless `unseen` says that this is
    intended.
    """

    verb = 37
    subscription: int
    ranges: list[Range]
    unseen: bool = False


class AckResults(Message):
    """Ack records as ACK does, and keep results of them. Answered by ACKED.

    A result is stored in the entry that acks its record. If the ack is lost, so is the result. A
    second result of an acked record is ignored.
    """

    verb = 128
    subscription: int
    ranges: list[Range]
    results: list[JobResult]  #: of some of these records
    runs: list[ResultRun] = []  #: likewise, of neighbours


class ReportProgress(Message):
    """Report how far handlers are with records that the session holds. Answered by ACKED."""

    verb = 131
    subscription: int
    rows: list[JobProgress]


class AckDelivered(Message):
    """Ack deliveries of a group in one partition by (offset, attempt). Answered by ACKED.

    The session does not matter. A record that was delivered again since is not acked.
    """

    verb = 30
    partition: PartitionKey
    group: str
    deliveries: list[tuple[Offset, int]]


class Acked(Message):
    """Answer to ACK, ACK_DELIVERED, NACK, EXTEND and UNSUBSCRIBE, after the change is stored.

    `lost` are ranges that this session does not hold: another session holds them, their lease
    ended, or they were never delivered.
    """

    verb = 38
    lost: list[Range] = []


class Nack(Message):
    """Give records back. With `failed` this counts as a failed attempt.

    They are redelivered after `delay_ms`; -1 = the backoff of the policy.
    """

    verb = 39
    subscription: int
    ranges: list[Range]
    delay_ms: int = -1
    failed: bool = True
    reason: str = ""
    dead: str = (
        #: "rejected" or "undecodable": no further attempt, it becomes a dead letter for that reason
        ""
    )
    #: no record of their flows is delivered before `delay_ms` is over, in a group of order "fair"
    pause_flow: bool = False


class Extend(Message):
    verb = 40
    subscription: int
    ranges: list[Range]
    lease_ms: int


class ReadyMessage(Message):
    """The leader has records for this subscription, but no credit."""

    verb = 41
    subscription: int


class Recall(Message):
    """Ask for unused credit back."""

    verb = 42
    subscription: int


class Recalled(Message):
    verb = 43
    subscription: int
    records: int
    bytes: int


class AtEnd(Message):
    """Everything readable now has been delivered. `ends` as in SUBSCRIBED."""

    verb = 44
    subscription: int
    ends: list[Range]


class Started(Message):
    """A handler has started with these records, so the attempt counts. Not answered.

    If the consumer dies, records that were delivered before count as failed.
    """

    verb = 45
    subscription: int
    ranges: list[Range]


class Share(Message):
    """Another consumer of the group is idle: give back records that no handler has started.

    The client keeps at least `keep` of the records that this subscription holds. It gives back by
    NACK, not failed.
    """

    verb = 31
    subscription: int
    keep: int


class Cancelled(Message):
    """Records that this subscription holds are void: their jobs were cancelled, or other records took their
    unique names. Sent if the subscription has `cancels`.

    Their acks are lost. The client stops the handlers.
    """

    verb = 132
    subscription: int
    ranges: list[Range]


class DeliverPlain(Message):
    """Sent instead of DELIVER if the subscription is `plain`. Second frame: array of
    PlainDelivered.
    """

    verb = 46
    subscription: int
    lease_ms: int  #: remaining time; 0 for a reader


# --- explain and mend ---------------------------------------------------------------------------------------


class Why(Message):
    """Ask for the state of a record. Answered by EXPLAINED."""

    verb = 48
    ref: Ref
    group: str = ""  #: "" = every group


class Explained(Message):
    verb = 49
    ref: Ref  #: with the offset if it has one
    standings: list[Standing]
    lines: list[str] = []  #: policies with their origin, route, times


class WhyGroup(Message):
    """Ask why a group waits in the partitions of this shard. Answered by GROUP_EXPLAINED."""

    verb = 50
    group: str
    partitions: list[PartitionKey]


class GroupExplained(Message):
    """Per partition: (partition, state, reason, next command, unix ms of the state's start)."""

    verb = 51
    rows: list[tuple[PartitionKey, str, str, str, int]]


class Trace(Message):
    verb = 52
    ref: Ref
    group: str = ""


class Traced(Message):
    verb = 53
    steps: list[TraceEvent]


class Show(Message):
    """Ask for a record, also a scheduled one or a dead letter. Answered by SHOWN with a batch of
    one.
    """

    verb = 54
    ref: Ref


class Shown(Message):
    verb = 55
    ref: Ref
    time_ms: int  #: when it was stored, in unix milliseconds


class Cancel(Message):
    """Void a record. Answered by DONE.

    Refused if every group has acked it; and if a consumer holds it, unless `running` is set.
    """

    verb = 56
    ref: Ref
    reason: str = ""
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer
    running: bool = False  #: take it from the consumers that hold it, too; they are told by CANCELLED


class Reschedule(Message):
    """Change the due time of a scheduled record. Answered by DONE."""

    verb = 57
    ref: Ref
    delay_ms: int


class Edit(Message):
    """Replace a record by the one in the second frame, a batch of one. Answered by CONFIRM.

    One log entry voids the old record and appends the new one. The due time stays.
    """

    verb = 58
    ref: Ref
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class Requeue(Message):
    """Make a record ready for a group once more. Answered by DONE.

    It can be acked, retrying, parked or dead.
    """

    verb = 59
    ref: Ref
    group: str
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class Done(Message):
    """Answer to requests that change records: the number of changed records."""

    verb = 60
    count: int
    ref: Ref | None = None


class SetSchedule(Message):
    """Set a schedule of a partition, or change it. The second frame is a batch of its one record.

    Without a batch the schedule must exist, and its record stays. Answered by DONE; the count is 0
    if nothing changed.
    """

    verb = 19
    partition: PartitionKey
    schedule: Schedule
    idempotency_key: bytes = b""


class DropSchedule(Message):
    """Remove a schedule. Answered by DONE; the count is 0 if it does not exist."""

    verb = 20
    partition: PartitionKey
    name: str
    idempotency_key: bytes = b""


class RunSchedule(Message):
    """Store the record of a schedule now, besides its ticks. Answered by DONE with its place."""

    verb = 21
    partition: PartitionKey
    name: str
    idempotency_key: bytes = b""


class ListSchedules(Message):
    """List the schedules of a partition in order of their names. Answered by SCHEDULES."""

    verb = 22
    partition: PartitionKey
    after: str = ""  #: `more` of the previous answer; "" = from the beginning
    name: str = ""  #: only this one; "" = all


class Schedules(Message):
    verb = 23
    rows: list[ScheduleInfo]
    more: str = ""  #: `after` of the next request; "" = this was the last page


class AskJob(Message):
    """Ask for the state of a record as a job of a group. Answered by JOB.

    `group` "" is allowed if one group has the record, or has its result. With `wait_ms` the answer
    waits until the job has ended, or until this time is over.
    """

    verb = 129
    ref: Ref
    group: str = ""
    wait_ms: int = 0
    seen_ms: int = -1  #: `progress_ms` of the last answer: a newer report ends the wait, too; -1 = none does


class Job(Message):
    verb = 130
    job: JobInfo


class JoinJobs(Message):
    """Store a record when other records have ended as jobs. The second frame is a batch of this record.

    Answered by DONE with the place of the record: until it is published, it has no offset. A leader
    publishes it when `count` of the parts have ended, or when `timeout_ms` is over.
    """

    verb = 136
    partition: PartitionKey
    parts: list[JoinPart]
    timeout_ms: int
    count: int = 0  #: parts that must have ended; 0 = all
    group: str = ""  #: the group that works at the parts; "" = the only one of each
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class ListDead(Message):
    """List dead letters of a group ("" = of all) in one partition, behind offset `after`.

    Answered by DEAD_LETTERS.
    """

    verb = 61
    partition: PartitionKey
    group: str = ""
    after: Offset = 0
    limit: int = limits.DEAD_LIST_MAX
    bodies: bool = False


class DeadLetters(Message):
    """Second frame: the batches of the letters, one after the other, if they were asked for."""

    verb = 62
    letters: list[DeadLetter]
    more: Offset = -1  #: `after` of the next page; -1: this was the last one


class ReplayDead(Message):
    """Make dead letters of a group ready again, with fresh counters. Answered by DONE."""

    verb = 63
    partition: PartitionKey
    group: str
    ranges: list[tuple[Offset, Offset]] = []  #: empty = all
    dry_run: bool = False


# --- topics and status --------------------------------------------------------------------------------------


class Resolve(Message):
    """Ask the meta shard for topics by name or by pattern with `*`. Answered by TOPICS."""

    verb = 64
    names: list[str]
    create: bool = False  #: create missing topics with defaults (not for patterns)
    after: str = ""  #: only names behind this one: `more` of the previous answer


class Topics(Message):
    verb = 65
    topics: list[TopicInfo]  #: ordered by name
    more: str = ""  #: `after` of the next request; "" = this was the last page


class CreateTopic(Message):
    """Create a topic. Answered by TOPICS when every shard of the topic has stored it."""

    verb = 66
    name: str
    config: TopicOptions = TopicOptions()
    if_not_exists: bool = False
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class DropTopic(Message):
    verb = 67
    name: str
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class Stats(Message):
    """Ask a worker for counters of the shards it leads. Empty names: all topics."""

    verb = 68
    topics: list[str] = []
    after: list[int] = []  #: `more` of the previous answer; empty = from the beginning


class StatsReply(Message):
    verb = 69
    partitions: list[PartitionStats]
    groups: list[GroupStats]
    more: list[int] = []  #: `after` of the next request; empty = this was the last page


class Status(Message):
    """Ask a frontdoor for the state of its node."""

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
    led: int  #: shards with a leader whose full set of voters is reachable
    workers: list[WorkerStats]
    routes: list[Route]
    warnings: list[str] = []
    bad_frames: int = 0  #: messages that the frontdoor could not read
    copy: str = ""  #: name of this node's data in the logs
    members: list[Member] = []  #: the roster as this node knows it
    leads: list[Lead] = []  #: leaders of shards as this node knows them
    copies: list[CopyStats] = []  #: of the shards that this node leads
    gossip: str = "off"  #: state of discovery: "" = good, "off" = a standalone node, else why it is degraded
    events: list[GossipEvent] = []  #: the newest events of gossip, oldest first
    cpu_ms: int = 0  #: used by the frontdoor's process; 0 = unknown
    rss_bytes: int = 0  #: memory of the frontdoor's process; 0 = unknown
    over_quota: int = 0  #: requests at the frontdoor that exceeded the rates of an address
    turned_away: int = 0  #: connections the frontdoor closed: silent in a crowd, endless, or above a bound
    faults: int = 0  #: messages during which the frontdoor met a fault of its own
    #: public CURVE key of the encrypted ports, 32 bytes; b"" if there are none

    #: They are 100 ports above the others. While the cluster's secret is being replaced, the keys
    #: of the other nodes' ports follow behind this one.
    door: bytes = b""


class PurgeDead(Message):
    """Delete dead letters. Answered by DONE."""

    verb = 72
    partition: PartitionKey
    group: str
    ranges: list[tuple[Offset, Offset]] = []
    dry_run: bool = False


class SetGroup(Message):
    """Change the policy of a topic's group in this shard, including `paused`. Answered by DONE.

    Refused if the group does not exist.
    """

    verb = 73
    topic_id: int
    group: str
    config: GroupOptions
    idempotency_key: bytes = b""  #: a repeat with the same key gets the first answer


class BindTopic(Message):
    """Create a virtual topic, or bind it to other topics; to the meta shard. Answered by TOPICS."""

    verb = 74
    name: str
    targets: list[str]


# --- the roster; to the meta shard --------------------------------------------------------------------------


class Join(Message):
    """A node enters the roster, or updates its row. Answered by MEMBERS."""

    verb = 75
    member: Member
    cluster: bytes = b""  #: the cluster it belongs to; b"" if it is new
    proof: bytes = (
        #: proves knowledge of the secret: HMAC over the nonce of CHALLENGE and all other fields
        b""
    )
    options: dict[str, str] = {}  #: options of [cluster] that were set on the node and must hold
    nonce: bytes = b""  #: chosen by this node: the proof in CHALLENGE covers it
    #: instead of a proof: the token of an invitation; over encrypted ports only
    invite: bytes = b""


class Members(Message):
    """The roster after log entry `version`."""

    verb = 76
    version: int
    members: list[Member]
    cluster_name: str = ""
    options: dict[str, str] = {}  #: options of [cluster]: dotted key -> JSON text
    access: AccessTable | None = None  #: in the answer to JOIN: users and roles


class SetOptions(Message):
    """Change options of [cluster], as an operator. Answered by MEMBERS."""

    verb = 47
    options: dict[str, str]  #: dotted key -> JSON text
    proof: bytes = b""  #: as in JOIN


class AskMembers(Message):
    """Ask for the roster. Answered by MEMBERS."""

    verb = 77


class SetMember(Message):
    """Set the state of the member of this name, as an operator. Answered by MEMBERS.

    "in", "leaving", or "gone" (removed from the roster).
    """

    verb = 78
    name: str
    state: str
    proof: bytes = b""  #: as in JOIN


class Challenge(Message):
    """Instead of an answer: prove that you know the cluster's secret, and ask again.

    The proof and the repeated request are sent on the same connection.
    """

    verb = 79
    nonce: bytes  #: b"" between nodes: this connection was not greeted
    sender: str = ""  #: name of the copy that answers
    proof: bytes = b""  #: proves knowledge of the secret, over the nonce that the asking node sent


class Entrust(Message):
    """Ask for the cluster's secret, after joining by an invitation. Answered by ENTRUSTED.

    Over encrypted ports only.
    """

    verb = 13
    invite: bytes  #: token of the invitation
    copy: str


class Entrusted(Message):
    verb = 14
    secret: bytes


MESSAGES: dict[int, type[Message]] = {kind.verb: kind for kind in Message.__subclasses__()}
assert all(room.LOADED in MESSAGES for room in (export_messages, operator_messages, peer_messages)), (
    "all are loaded"
)
assert len(MESSAGES) == len(Message.__subclasses__()), "verb numbers are unique"
