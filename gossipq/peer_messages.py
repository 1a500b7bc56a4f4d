"""Messages between workers, and inside a node. Verbs from 96 on; a client that sends one is refused.

What a number or a list may be stands in its type: a message with another one is refused where it is read,
before anything of it is kept.
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
    Lead,
    Member,
    Message,
    Timing,
    TopicInfo,
    WorkerStats,
)

RosterVersion = Annotated[int, Meta(ge=0, le=limits.ROSTER_VERSION_MAX)]
Roster = Annotated[list[Member], Meta(max_length=limits.MEMBERS_MAX)]
Leads = Annotated[list[Lead], Meta(max_length=limits.SHARDS_MAX)]
Copies = Annotated[list[str], Meta(max_length=limits.MEMBERS_MAX)]


class Append(Message):
    """Raft AppendEntries. Second frame: the entries, as PROTOCOL.md section "Peers" lays them out."""

    verb = 96
    leader: str
    prev_index: Number
    prev_term: Number
    commit: Number
    sizes: list[Number]  #: of each entry: bytes of its row, bytes of its batch
    sent_ms: Number = 0
    prev_chain: bytes = b""
    time_ms: Number = 0  #: leader time when this left
    sure: bool = False  #: whether it goes back to the clocks of all voters


class Appended(Message):
    """`match` is on disk and equal to the leader's log; without ok it is a hint where to look next."""

    verb = 97
    follower: str
    ok: bool
    match: Number
    sent_ms: Number = 0
    rejected: Number = 0  #: without ok: the prev_index that did not fit
    hint_term: Number = 0  #: without ok: term of the follower's entry at `match`
    hollow: bool = False  #: its state is not whole: it needs a snapshot
    wall_ms: Number = 0  #: its wall clock when this left
    est_ms: Number = 0  #: leader time by its anchor then; 0: it has none
    sure: bool = False  #: whether that is sure
    no_space: bool = False  #: its store takes no publishes


class InstallTopic(Message):
    """Meta leader to a shard's leader: log this version of the topic. `deleted` ends it."""

    verb = 98
    topic: TopicInfo
    deleted: bool = False


class TopicInstalled(Message):
    verb = 99
    topic_id: Number
    version: int
    shard: Number


class AskTopic(Message):
    """Shard leader to the meta leader: a publish named a topic id that is not in my log."""

    verb = 100
    topic_id: Number
    shard: Number


class Report(Message):
    """Worker to its frontdoor, once a second and at each change of state."""

    verb = 101
    stats: WorkerStats
    leads: Leads  #: of all shards that it keeps and knows a leader of
    copies: list[CopyStats] = []  #: of the shards that it leads
    version: RosterVersion = 0  #: of the roster, if this worker keeps the meta shard
    members: Roster = []
    timings: list[Timing] = []
    alarms: list[Alarm] = []  #: what this worker has to say now
    given_up: RosterVersion = 0  #: the version that its copy of the meta shard did not get; 0: none
    audit: list[AuditRow] = []  #: since the last report


class VoteRequest(Message):
    """Raft RequestVote, to every voter. A pre-vote asks whether a vote would be given, and changes
    nothing."""

    verb = 102
    candidate: str
    term: Number  #: that it stands for
    last_term: Number
    last_index: Number
    pre: bool = False
    transfer: bool = False  #: the leader asked it to: voters need not wait for that leader's silence


class Vote(Message):
    """Answer to VOTE_REQUEST; the header has the voter's own term."""

    verb = 103
    voter: str
    term: Number  #: that was stood for
    granted: bool
    pre: bool = False
    wall_ms: Number = 0  #: as in APPENDED
    est_ms: Number = 0
    sure: bool = False


class TimeoutNow(Message):
    """Leader to the copy that is to lead after it: stand for election at once."""

    verb = 104
    leader: str


class Snapshot(Message):
    """A part of a shard's state after entry `index`, for a copy that the log cannot help any more. Second
    frame: rows.

    Parts come one at a time, the next when the one before is stored: state rows, then batches, then "end"."""

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
    #: "state": (key, value) rows; "body": (index, batch) rows, all there are in [first, end); "end": that was
    #: all
    kind: str
    first: Number = 0
    end: Number = 0
    sent_ms: Number = 0
    spooled_ms: Number = 0  #: with the term and `index` this names the snapshot


class Installed(Message):
    """Answer to SNAPSHOT: `number` is the part that is wanted next; `done`: nothing more, `index` is on
    disk."""

    verb = 106
    follower: str
    index: Number
    number: Number
    done: bool = False
    sent_ms: Number = 0


class ChangeVoters(Message):
    """To the leader of a shard: other voters, one more or one less. Answered by ACKED when it is
    committed."""

    verb = 107
    voters: Copies
    witnesses: Copies  #: of the voters and learners: those that keep no bodies
    learners: Copies


class Transfer(Message):
    """To the leader of a shard: hand leadership over. Answered by ACKED when it is under way."""

    verb = 108
    to: str


class Bundle(Message):
    """Everything that one turn has to say to one process of another node. Second frame: those of its
    messages, in order."""

    verb = 109
    cluster: bytes
    sender: str  #: name of the copy
    to: str
    messages: list[bytes]  #: control frames
    sizes: list[Number] = []  #: bytes that each message has of the second frame; empty: nobody has any


class View(Message):
    """What a frontdoor knows: to the other frontdoors what its own workers lead, to its own workers all there
    is."""

    verb = 110
    version: RosterVersion  #: of the roster
    members: Roster
    leads: Leads
    given_up: RosterVersion = 0  #: of the frontdoor's own node: as in Report


class Waiting(Message):
    """A node that belongs to no cluster yet, to the frontdoor's address of others that may wait too. Nobody
    answers it."""

    verb = 111
    member: Member
    expect: Number  #: nodes that found the cluster together; 0: it only joins
    pledge: str = ""  #: the copy that it has agreed should found the cluster; it agrees to one only
    options: dict[str, str] = {}  #: what its [cluster] says
    proof: bytes = b""  #: that it knows the secret: as that of JOIN
    known: list[str] = []  #: addresses of nodes that wait, as it knows


class Stray(Message):
    """To the leader of a shard, from a copy with rows that no leader speaks to: is it still one of its
    copies?"""

    verb = 112
    copy: str
    sent_ms: Number


class Dismiss(Message):
    """Answer to STRAY of a leader that serves: the copies in force are committed, and this one is none of
    them. Who is one, or may become one, gets no answer."""

    verb = 113
    leader: str
    sent_ms: Number  #: of the question


class Greet(Message):
    """First message on a connection between nodes. Answered by CHALLENGE; nothing else is heard before
    PROVE."""

    verb = 114
    cluster: bytes
    sender: str  #: name of the copy
    to: str
    nonce: bytes


class Prove(Message):
    """Answer to CHALLENGE, on the same connection: from here on it is that copy's."""

    verb = 115
    sender: str
    nonce: bytes  #: that of GREET
    proof: bytes


class AccessTold(Message):
    """The worker that keeps shard 0 to the processes of its node, a frontdoor to those of other nodes: the
    table of users and roles. A newer one takes the place of an older one."""

    verb = 116
    table: AccessTable


LOADED = Append.verb
