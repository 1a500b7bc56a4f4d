"""Every protocol message once: what the wire carries is what the machines take and give.

A msgpack array in field order; fields are only appended, with a default. Durations are what remains, ranges
half-open.
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
    Lead,
    Member,
    Message,
    PartitionStats,
    Range,
    Ref,
    Route,
    Rule,
    Run,
    Standing,
    Start,
    TopicInfo,
    TopicOptions,
    TraceEvent,
    WorkerStats,
)

# --- sessions -----------------------------------------------------------------------------------------------


class Hello(Message):
    """First message on every connection. Nothing else is answered before it."""

    verb = 1
    session: bytes
    client: str  #: free text for `status`
    version: str
    auth: bytes = b""  #: a token of 32 bytes; b"": who says it shows none
    user: str = ""  #: for whom it acts; "" = for itself
    key: bytes = b""  #: of who owns the session; its producers are made of it too
    resets: bool = False  #: whether RESET says here what has ended, in place of not_leader without a request


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
    nodes: list[str] = []  #: frontdoors of the cluster: any of them will do
    #: clusters that this one went on from, by a recover: what is left of them must not go on
    former: list[bytes] = []
    #: shards that this node keeps, and that have no leader as far as it sees; from frontdoors only
    leaderless: list[int] = []
    away: list[str] = []  #: nodes that are missed for a majority of those; empty while one may be elected


class Ping(Message):
    verb = 3


class Pong(Message):
    verb = 4


class Bye(Message):
    """The session ends now; what it holds goes back uncounted. `lost`: a frontdoor says that this connection
    of a client has ended; the session may come back by another one."""

    verb = 5
    lost: bool = False


class RefusedMessage(Message):
    """Answer to any request that cannot be served; `code` is that of `gossipq.errors`."""

    verb = 6
    code: str
    message: str
    hint: str = ""
    retry_after_ms: int = 0
    detail: int = 0  #: the expected sequence of out_of_sequence
    endpoint: str = ""  #: the better address of not_leader


class Reset(Message):
    """What this session had in these shards has ended: say HELLO and SUBSCRIBE there again, and what was
    not answered. Only to who asks for it in HELLO."""

    verb = 7
    shards: list[int]
    why: str = ""  #: for people


class WhoAmI(Message):
    """To a worker or a frontdoor. Answered by IDENTITY."""

    verb = 12


class Identity(Message):
    verb = 8
    user: str
    closed: bool  #: whether permissions are asked for
    rules: list[Rule] = []
    acting: str = ""  #: the user whose token was shown, when it acts for another one
    expires_ms: int = 0  #: unix, of the token; 0 = never


class AskAccess(Message):
    """To the meta shard: users and roles. Answered by ACCESS."""

    verb = 9


class Access(Message):
    verb = 10
    table: AccessTable


class SetAccess(Message):
    """Answered by ACCESS."""

    verb = 11
    change: AccessChange
    proof: bytes = b""  #: as that of JOIN; who has the permission needs none
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


# --- publish ------------------------------------------------------------------------------------------------


class Publish(Message):
    """Second frame: one batch. The confirm level "none" gets no answer and promises nothing.

    With `acks` it is one atomic step: the records that the subscription holds are acked and the batch is
    stored, or neither (LeaseLost when somebody else holds one of them). All of it lies in the header's
    shard."""

    verb = 16
    partition: PartitionKey
    level: str = ""  #: "" = as the topic says
    age_ms: int = 0  #: since the batch was sealed: its delays count from there
    subscription: int = 0
    acks: list[Range] = []


class PublishPlain(Message):
    """Second frame: a msgpack array of PlainRecord, which the worker seals. Answered as PUBLISH is."""

    verb = 18
    partition: PartitionKey
    level: str = ""
    route: str = ""  #: of all records
    delay_ms: int = 0  #: until they are due; 0 = at once
    ttl_ms: int = 0  #: from due until they expire; 0 = as the topic says
    producer: int = 0  #: number of the producer among those of the session's key
    sequence: int = 0  #: of this producer and partition, from 1; 0 = not deduplicated but by ids
    subscription: int = 0
    acks: list[Range] = []


class Confirm(Message):
    """Batches that are on a majority of disks: rows of (request id, offset of the first record, copies,
    duplicate)."""

    verb = 17
    rows: list[tuple[int, Offset, int, bool]]
    window_bytes: int = limits.PUBLISH_WINDOW_BYTES
    direct: str = ""  #: the leader's own address, when the request came through a frontdoor
    #: (request id, runs) of batches with due times or ids, in the order of the rows
    runs: list[tuple[int, list[Run]]] = []


# --- consume ------------------------------------------------------------------------------------------------


class Subscribe(Message):
    """Joins a group, or reads without one (group ""). Partitions lie in the header's shard, those of a group
    in one topic."""

    verb = 32
    subscription: int  #: chosen by the client, unique in its session
    group: str
    starts: list[Start]
    credit_records: int
    credit_bytes: int
    config: GroupOptions = GroupOptions()
    notify_end: bool = False  #: send AT_END each time everything readable has been handed out
    holding: list[Range] | None = (
        None  #: what the client still has from before it lost its connection; the rest goes back
    )
    #: takes only records whose route matches one of these: equal, or with `*` and `#`; empty = all
    routes: list[str] = []
    ack: bool = True  #: False: at most once; what is handed out counts as acked before it leaves
    #: all shards that this group reads here; mode "exclusive" is refused over more than one
    shards: list[int] = []
    auto: bool = False  #: an ACK or NACK lends again what its records took, and PING extends their leases
    plain: bool = False  #: records come opened, as DELIVER_PLAIN
    shares: bool = False  #: SHARE may be sent: it gives back what nobody has started on
    gaps: bool = False  #: a slice may leave records out: it says which offsets it has
    #: with key order it holds one record of a key at a time; so does one with `auto`
    key_runs: bool = False  #: with key order, a slice may hold several records of a key


class Subscribed(Message):
    """`ends` are (partition, position, offset one past the last committed record)."""

    verb = 33
    subscription: int
    lease_ms: int
    ends: list[Range]
    direct: str = ""
    mode: str = ""  #: of the group; "" for a reader
    attempts_max: int = 0  #: of the group, for records that name none; 0 for a reader


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
    """Done by who had the records. What was never handed out comes back as lost, unless `unseen` says that
    this is meant."""

    verb = 37
    subscription: int
    ranges: list[Range]
    unseen: bool = False


class AckDelivered(Message):
    """Acks deliveries of a group in one partition by their names, (offset, attempt), whichever sessions they
    went to, unless their records were delivered again since. Answered by ACKED."""

    verb = 30
    partition: PartitionKey
    group: str
    deliveries: list[tuple[Offset, int]]


class Acked(Message):
    """Answer to ACK, ACK_DELIVERED, NACK, EXTEND and UNSUBSCRIBE, when stored. `lost` are ranges that others
    hold, nobody any more, or nobody ever had."""

    verb = 38
    lost: list[Range] = []


class Nack(Message):
    """Gives back. `failed` counts as a failed attempt; the records come again after `delay_ms`, -1 = as the
    policy says."""

    verb = 39
    subscription: int
    ranges: list[Range]
    delay_ms: int = -1
    failed: bool = True
    reason: str = ""
    dead: str = (
        ""  #: "rejected" or "undecodable": no further attempt, it becomes a dead letter for that reason
    )


class Extend(Message):
    verb = 40
    subscription: int
    ranges: list[Range]
    lease_ms: int


class ReadyMessage(Message):
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


class Started(Message):
    """User code has begun with these records: that is an attempt, whatever becomes of it. If it never ends,
    and the records were delivered before, it is a failure. Not answered."""

    verb = 45
    subscription: int
    ranges: list[Range]


class Share(Message):
    """Another consumer of the group has nothing to do: of the records that this subscription holds here it
    keeps `keep` at least, and gives back (NACK, not failed) what nobody has started on of the rest."""

    verb = 31
    subscription: int
    keep: int


class DeliverPlain(Message):
    """In place of DELIVER for who asked for it: the second frame is a msgpack array of PlainDelivered."""

    verb = 46
    subscription: int
    lease_ms: int  #: remaining; 0 for a reader


# --- explain and mend ---------------------------------------------------------------------------------------


class Why(Message):
    """Where a record stands. Answered by EXPLAINED."""

    verb = 48
    ref: Ref
    group: str = ""  #: "" = for every group


class Explained(Message):
    verb = 49
    ref: Ref  #: with the offset, when it has one
    standings: list[Standing]
    lines: list[str] = []  #: policies with their origin, route, times


class WhyGroup(Message):
    """Why a group stands still (or does not), in the partitions of this shard."""

    verb = 50
    group: str
    partitions: list[PartitionKey]


class GroupExplained(Message):
    """Per partition: (partition, state, because, next command, unix ms since when)."""

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
    """The record itself. Answered by SHOWN with a batch of one record; also while it is scheduled or a dead
    letter."""

    verb = 54
    ref: Ref


class Shown(Message):
    verb = 55
    ref: Ref
    time_ms: int  #: unix, when it was stored


class Cancel(Message):
    """Voids a record that no consumer holds and not every group has acked. Answered by DONE."""

    verb = 56
    ref: Ref
    reason: str = ""
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class Reschedule(Message):
    """Another due time for a scheduled record. Answered by DONE."""

    verb = 57
    ref: Ref
    delay_ms: int


class Edit(Message):
    """Second frame: one record in a batch. One entry voids the old one and appends it; due times stay.
    Answered by CONFIRM."""

    verb = 58
    ref: Ref
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class Requeue(Message):
    """Hands a record to a group once more: acked, retrying, parked or dead, it is ready now. Answered by
    DONE."""

    verb = 59
    ref: Ref
    group: str
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class Done(Message):
    """Answer to requests that change records: how many."""

    verb = 60
    count: int
    ref: Ref | None = None


class ListDead(Message):
    """Dead letters of a group ("" = of all) in one partition, from offset `after` on. Answered by
    DEAD_LETTERS."""

    verb = 61
    partition: PartitionKey
    group: str = ""
    after: Offset = 0
    limit: int = limits.DEAD_LIST_MAX
    bodies: bool = False


class DeadLetters(Message):
    """Second frame: the batches of the letters, one after the other, when they were asked for."""

    verb = 62
    letters: list[DeadLetter]
    more: Offset = -1  #: where to go on; -1: that was all


class ReplayDead(Message):
    """Dead letters of a group are ready for it again, with fresh counters. Answered by DONE."""

    verb = 63
    partition: PartitionKey
    group: str
    ranges: list[tuple[Offset, Offset]] = []  #: empty = all
    dry_run: bool = False


# --- topics and status --------------------------------------------------------------------------------------


class Resolve(Message):
    """Topics by name or by pattern with `*`; to the meta shard."""

    verb = 64
    names: list[str]
    create: bool = False  #: make what is missing, with defaults (not for patterns)
    after: str = ""  #: names behind that one only: `more` of the answer before


class Topics(Message):
    verb = 65
    topics: list[TopicInfo]  #: in the order of their names
    more: str = ""  #: `after` of the next request; "" = that was all


class CreateTopic(Message):
    """Answered by TOPICS when every shard of the topic has stored it."""

    verb = 66
    name: str
    config: TopicOptions = TopicOptions()
    if_not_exists: bool = False
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class DropTopic(Message):
    verb = 67
    name: str
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class Stats(Message):
    """To a worker: counters of the shards it leads. Empty names: all topics."""

    verb = 68
    topics: list[str] = []
    after: list[int] = []  #: `more` of the answer before; empty = from the beginning


class StatsReply(Message):
    verb = 69
    partitions: list[PartitionStats]
    groups: list[GroupStats]
    more: list[int] = []  #: `after` of the next request; empty = that was all


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
    copy: str = ""  #: name of this node's data in the logs
    members: list[Member] = []  #: the roster, as this node knows it
    leads: list[Lead] = []  #: who leads which shard, as this node knows it
    copies: list[CopyStats] = []  #: of the shards that this node leads
    gossip: str = (
        "off"  #: how finding others goes: "" = well, "off" = a standalone node, else why it is degraded
    )
    events: list[GossipEvent] = []  #: the newest that gossip has shown, oldest first
    cpu_ms: int = 0  #: that the process of the frontdoor has used; 0 = not known
    rss_bytes: int = 0  #: of its memory; 0 = not known
    over_quota: int = 0  #: requests at the frontdoor that were more than the rates of an address allow
    turned_away: int = (
        0  #: connections to it that were closed: silent in a crowd, without end, beyond a bound
    )
    faults: int = 0  #: messages that met a fault of it
    #: public CURVE key of the encrypted doors, 100 ports above the others, 32 bytes; while the cluster gets
    #: another secret, those of the other nodes' doors are behind it; b"": there are none
    door: bytes = b""


class PurgeDead(Message):
    """Dead letters go for good. Answered by DONE."""

    verb = 72
    partition: PartitionKey
    group: str
    ranges: list[tuple[Offset, Offset]] = []
    dry_run: bool = False


class SetGroup(Message):
    """Changes the policy of a topic's group in this shard: also `paused`. Answered by DONE; refused when
    there is none."""

    verb = 73
    topic_id: int
    group: str
    config: GroupOptions
    idempotency_key: bytes = b""  #: asked again with the same one, it gets the answer of the first


class BindTopic(Message):
    """Makes a virtual topic, or binds it to other topics. To the meta shard. Answered by TOPICS."""

    verb = 74
    name: str
    targets: list[str]


# --- the roster; to the meta shard --------------------------------------------------------------------------


class Join(Message):
    """A node says who it is: it enters the roster, or its row is brought up to date. Answered by MEMBERS."""

    verb = 75
    member: Member
    cluster: bytes = b""  #: the cluster it belongs to; b"" when it is new
    proof: bytes = (
        b""  #: that it knows the secret: HMAC over the nonce of CHALLENGE and all else that is said here
    )
    options: dict[str, str] = {}  #: options of [cluster] that it insists on
    nonce: bytes = b""  #: of who asks: the proof of CHALLENGE is made for it
    invite: bytes = b""  #: in place of a proof: the token of an invitation; over encrypted doors only


class Members(Message):
    """The roster after log entry `version`."""

    verb = 76
    version: int
    members: list[Member]
    cluster_name: str = ""
    options: dict[str, str] = {}  #: what [cluster] says: dotted key -> JSON text
    access: AccessTable | None = None  #: in the answer to a JOIN: who may do what


class SetOptions(Message):
    """An operator changes options of [cluster]. Answered by MEMBERS."""

    verb = 47
    options: dict[str, str]  #: dotted key -> JSON text
    proof: bytes = b""  #: as that of JOIN


class AskMembers(Message):
    """Answered by MEMBERS."""

    verb = 77


class SetMember(Message):
    """An operator's word on the member of this name: "in", "leaving", or "gone": off the roster. Answered by
    MEMBERS."""

    verb = 78
    name: str
    state: str
    proof: bytes = b""  #: as that of JOIN


class Challenge(Message):
    """In place of an answer: prove that you know the secret of the cluster, and ask again on this
    connection."""

    verb = 79
    nonce: bytes  #: b"" between nodes: this connection was not greeted
    sender: str = ""  #: name of the copy that is asked
    proof: bytes = b""  #: that it knows the secret, over the nonce of who asked


class Entrust(Message):
    """A node that has joined by an invitation asks for the secret of the cluster; over encrypted doors only.
    Answered by ENTRUSTED."""

    verb = 13
    invite: bytes  #: its token
    copy: str


class Entrusted(Message):
    verb = 14
    secret: bytes


MESSAGES: dict[int, type[Message]] = {kind.verb: kind for kind in Message.__subclasses__()}
assert all(room.LOADED in MESSAGES for room in (export_messages, operator_messages, peer_messages)), (
    "all are loaded"
)
assert len(MESSAGES) == len(Message.__subclasses__()), "verb numbers are unique"
