"""Messages between workers, and inside a node. Verbs from 96; refused from clients.

The types state the bounds of each number and list. A message outside these bounds is refused when
it is decoded, before any of it is stored.
"""

from typing import Annotated

from msgspec import Meta

from gossipq import limits
from gossipq.types import Number
from gossipq.values import (
    AccessTable,
    Alarm,
    AuditRow,
    CopyStats,
    EndedPart,
    JobWatch,
    Lead,
    Member,
    Message,
    Timing,
    TopicInfo,
    WorkerStats,
)

RosterVersion = Annotated[int, Meta(ge=0, le=limits.ROSTER_VERSION_MAX)]
RosterRows = Annotated[list[Member], Meta(max_length=limits.MEMBERS_MAX)]
Leads = Annotated[list[Lead], Meta(max_length=limits.SHARDS_MAX)]
Watches = Annotated[list[JobWatch], Meta(max_length=limits.JOIN_PARTS_MAX)]
Ends = Annotated[list[EndedPart], Meta(max_length=limits.JOIN_PARTS_MAX)]
Copies = Annotated[list[str], Meta(max_length=limits.MEMBERS_MAX)]


class Append(Message):
    """Raft AppendEntries. Second frame: the entries, laid out as in PROTOCOL.md section "Peers"."""

    verb = 96
    leader: str
    prev_index: Number
    prev_term: Number
    commit: Number
    sizes: list[Number]  #: for each entry: bytes of its row, bytes of its batch
    sent_ms: Number = 0
    prev_chain: bytes = b""
    time_ms: Number = 0  #: leader time when this was sent
    sure: bool = False  #: True if leader time is derived from the clocks of all voters
    behind_ms: Number = 0  #: leader time minus timer time


class Appended(Message):
    """Answer to APPEND.

    With `ok`, `match` is on disk and equal to the leader's log; else it is a hint where to look
    next.
    """

    verb = 97
    follower: str
    ok: bool
    match: Number
    sent_ms: Number = 0
    rejected: Number = 0  #: without ok: the prev_index that did not match
    hint_term: Number = 0  #: without ok: term of the follower's entry at `match`
    hollow: bool = False  #: the follower's state is incomplete: it needs a snapshot
    wall_ms: Number = 0  #: the follower's wall clock when this was sent
    est_ms: Number = 0  #: leader time by the follower's anchor; 0: it does not know leader time
    sure: bool = False  #: True if `est_ms` is certain
    no_space: bool = False  #: True if its store refuses publishes
    behind_ms: Number = 0  #: `est_ms` minus timer time by the follower's anchor


class InstallTopic(Message):
    """Meta leader to the leader of a shard: log this version of a topic. `deleted` removes the
    topic.
    """

    verb = 98
    topic: TopicInfo
    deleted: bool = False


class TopicInstalled(Message):
    verb = 99
    topic_id: Number
    version: int
    shard: Number


class AskTopic(Message):
    """Shard leader to meta leader: ask for a topic id that a publish named and my log lacks."""

    verb = 100
    topic_id: Number
    shard: Number


class Report(Message):
    """Worker to its frontdoor, once a second and at each change of state."""

    verb = 101
    stats: WorkerStats
    leads: Leads  #: of all its shards whose leader it knows
    copies: list[CopyStats] = []  #: of the shards that it leads
    version: RosterVersion = 0  #: of the roster, if this worker keeps the meta shard
    members: RosterRows = []
    timings: list[Timing] = []
    alarms: list[Alarm] = []  #: the alarms that this worker raises now
    #: the roster version that its copy of the meta shard never received; 0: none
    given_up: RosterVersion = 0
    audit: list[AuditRow] = []  #: since the last report


class VoteRequest(Message):
    """Raft RequestVote, to every voter. A pre-vote asks for a promise and changes nothing."""

    verb = 102
    candidate: str
    term: Number  #: the term for which it stands
    last_term: Number
    last_index: Number
    pre: bool = False
    #: True if the leader asked it to stand: voters need not wait for the leader's silence
    transfer: bool = False


class Vote(Message):
    """Answer to VOTE_REQUEST. The header has the voter's own term."""

    verb = 103
    voter: str
    term: Number  #: the term of the request
    granted: bool
    pre: bool = False
    wall_ms: Number = 0  #: as in APPENDED
    est_ms: Number = 0
    sure: bool = False
    behind_ms: Number = 0


class TimeoutNow(Message):
    """Leader to the copy that should lead next: stand for election at once."""

    verb = 104
    leader: str


class Snapshot(Message):
    """One part of a shard's state after entry `index`, for a copy too far behind for the log.

    Second frame: rows. The next part is sent when the previous one is stored: state rows, then
    batches, then "end".
    """

    verb = 105
    leader: str
    index: Number
    term: Number  #: of entry `index`
    chain: bytes
    time_ms: Number
    voters: Copies
    witnesses: Copies
    learners: Copies
    number: Number  #: of this part, from 0
    #: rows of a "state" part are (key, value); of a "body" part all (index, batch) in [first, end)
    kind: str
    first: Number = 0
    end: Number = 0
    sent_ms: Number = 0
    spooled_ms: Number = 0  #: together with the term and `index` it identifies the snapshot


class Installed(Message):
    """Answer to SNAPSHOT. `number` is the next part to send; with `done`, `index` is on disk."""

    verb = 106
    follower: str
    index: Number
    number: Number
    done: bool = False
    sent_ms: Number = 0


class ChangeVoters(Message):
    """Ask the leader of a shard to add or remove one voter. Answered by ACKED after the commit."""

    verb = 107
    voters: Copies
    witnesses: Copies  #: voters and learners that store no record bodies
    learners: Copies


class Transfer(Message):
    """Ask the leader of a shard to hand leadership over. Answered by ACKED when it has begun."""

    verb = 108
    to: str


class Bundle(Message):
    """All messages of one turn to one process of another node. Second frame: theirs, in order."""

    verb = 109
    cluster: bytes
    sender: str  #: name of the copy
    to: str
    messages: list[bytes]  #: control frames
    sizes: list[Number] = []  #: bytes of the second frame for each message; empty if all are 0


class View(Message):
    """The knowledge of a frontdoor.

    Other frontdoors get the leaders among its own workers. Its own workers get all leaders.
    """

    verb = 110
    version: RosterVersion  #: of the roster
    members: RosterRows
    leads: Leads
    given_up: RosterVersion = 0  #: of the frontdoor's own node, as in Report


class Waiting(Message):
    """A node without a cluster announces itself to other frontdoors. Not answered."""

    verb = 111
    member: Member
    expect: Number  #: number of nodes that found the cluster together; 0: it only joins
    pledge: str = ""  #: the copy that it has agreed to as founder; it agrees to one only
    options: dict[str, str] = {}  #: its options of [cluster]
    proof: bytes = b""  #: proves that it knows the secret, as in JOIN
    known: list[str] = []  #: addresses of waiting nodes that it knows


class Stray(Message):
    """A copy without a leader asks the leader of its shard whether it is still one of the
    copies.
    """

    verb = 112
    copy: str
    sent_ms: Number


class Dismiss(Message):
    """A serving leader answers STRAY: the committed copies of the shard do not include the sender.

    Current or future copies get no answer.
    """

    verb = 113
    leader: str
    sent_ms: Number  #: of the STRAY


class Greet(Message):
    """First message on a connection between nodes. Answered by CHALLENGE.

    Until PROVE arrives, other messages are ignored.
    """

    verb = 114
    cluster: bytes
    sender: str  #: name of the copy
    to: str
    nonce: bytes


class Prove(Message):
    """Answer to CHALLENGE, on the same connection. From now on the connection belongs to that
    copy.
    """

    verb = 115
    sender: str
    nonce: bytes  #: the nonce of GREET
    proof: bytes


class AccessTold(Message):
    """The table of users and roles. A newer version replaces an older one.

    The worker of shard 0 sends it to the processes of its node, and a frontdoor to those of other
    nodes.
    """

    verb = 116
    table: AccessTable


class LimitUsed(Message):
    """Leader of a shard to the leader of the topic's first shard: its part of the limits of a group.

    Each 100 ms if something changed, else once a second; and at once after LIMIT_TOLD.
    """

    verb = 117
    topic_id: Number
    group: str
    shard: Number
    term: Number  #: in which it leads the shard
    follows_term: Number  #: term of the divider and number in the last LIMIT_TOLD that it took
    follows: Number
    concurrency: Number  #: the limit of the whole group; 0 = none, or no such group
    pace: Number  #: parts of the rate of the whole group, 1,000; 0 = no rate
    has_concurrency: Number  #: its own part of these, beside its floor, at most
    has_pace: Number
    demand: Number  #: its records in flight and those that wait


class LimitTold(Message):
    """Leader of the topic's first shard to the leader of a shard: have this part of the limits of a group.

    Answered by LIMIT_USED. Without a part: keep what you have.
    """

    verb = 118
    topic_id: Number
    group: str
    term: Number  #: of the divider
    number: Number  #: rises within a term
    leads: Number  #: the term of the leader that is meant; only that one takes a part
    part: Annotated[list[Number], Meta(max_length=2)] = []  #: records in flight, parts of the rate


class WatchJobs(Message):
    """Leader of a shard with joins to the leader of a shard with their parts: tell me when these end.

    Answered at once by JOBS_ENDED, with the parts that have ended. Without rows it asks for the term.
    """

    verb = 120
    shard: Number  #: of the joins
    rows: Watches


class JobsEnded(Message):
    """Parts have ended. A leader of a new term does not know of earlier questions."""

    verb = 121
    shard: Number  #: of the parts
    term: Number  #: of the leader of that shard
    rows: Ends


LOADED = Append.verb
