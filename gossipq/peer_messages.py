"""Messages between workers, and inside a node. Verbs from 96 on; a client that sends one is refused."""

from gossipq.values import Alarm, CopyStats, Lead, Member, Message, Timing, TopicInfo, WorkerStats


class Append(Message):
    """Raft AppendEntries. Second frame: the entries, as PROTOCOL.md section "Peers" lays them out."""

    verb = 96
    leader: str
    prev_index: int
    prev_term: int
    commit: int
    sizes: list[int]  #: of each entry: bytes of its row, bytes of its batch
    sent_ms: int = 0
    prev_chain: bytes = b""
    time_ms: int = 0  #: leader time when this left
    sure: bool = False  #: whether it goes back to the clocks of all voters


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
    wall_ms: int = 0  #: its wall clock when this left
    est_ms: int = 0  #: leader time by its anchor then; 0: it has none
    sure: bool = False  #: whether that is sure


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
    leads: list[Lead]  #: of all shards that it keeps and knows a leader of
    copies: list[CopyStats] = []  #: of the shards that it leads
    version: int = 0  #: of the roster, if this worker keeps the meta shard
    members: list[Member] = []
    timings: list[Timing] = []
    alarms: list[Alarm] = []  #: what this worker has to say now


class VoteRequest(Message):
    """Raft RequestVote, to every voter. A pre-vote asks whether a vote would be given, and changes nothing."""

    verb = 102
    candidate: str
    term: int  #: that it stands for
    last_term: int
    last_index: int
    pre: bool = False
    transfer: bool = False  #: the leader asked it to: voters need not wait for that leader's silence


class Vote(Message):
    """Answer to VOTE_REQUEST; the header has the voter's own term."""

    verb = 103
    voter: str
    term: int  #: that was stood for
    granted: bool
    pre: bool = False
    wall_ms: int = 0  #: as in APPENDED
    est_ms: int = 0
    sure: bool = False


class TimeoutNow(Message):
    """Leader to the copy that is to lead after it: stand for election at once."""

    verb = 104
    leader: str


class Snapshot(Message):
    """A part of a shard's state after entry `index`, for a copy that the log cannot help any more. Second frame: rows.

    Parts come one at a time, the next when the one before is stored: state rows, then batches, then "end"."""

    verb = 105
    leader: str
    index: int
    term: int  #: of entry `index`
    chain: bytes
    time_ms: int
    voters: list[str]
    witnesses: list[str]
    learners: list[str]
    number: int  #: of this part, from 0
    kind: str  #: "state": (key, value) rows; "body": (index, batch) rows, all there are in [first, end); "end": that was all
    first: int = 0
    end: int = 0
    sent_ms: int = 0
    spooled_ms: int = 0  #: with the term and `index` this names the snapshot


class Installed(Message):
    """Answer to SNAPSHOT: `number` is the part that is wanted next; `done`: nothing more, `index` is on disk."""

    verb = 106
    follower: str
    index: int
    number: int
    done: bool = False
    sent_ms: int = 0


class ChangeVoters(Message):
    """To the leader of a shard: other voters, one more or one less. Answered by ACKED when it is committed."""

    verb = 107
    voters: list[str]
    witnesses: list[str]  #: of the voters and learners: those that keep no bodies
    learners: list[str]


class Transfer(Message):
    """To the leader of a shard: hand leadership over. Answered by ACKED when it is under way."""

    verb = 108
    to: str


class Bundle(Message):
    """Everything that one turn has to say to one process of another node. Second frame: those of its messages, in order."""

    verb = 109
    cluster: bytes
    sender: str  #: name of the copy
    to: str
    token: bytes  #: proves that the sender knows the secret
    messages: list[bytes]  #: control frames
    sizes: list[int] = []  #: bytes that each message has of the second frame; empty: nobody has any


class View(Message):
    """What a frontdoor knows: to the other frontdoors what its own workers lead, to its own workers all there is."""

    verb = 110
    version: int  #: of the roster
    members: list[Member]
    leads: list[Lead]


class Waiting(Message):
    """A node that belongs to no cluster yet, to the frontdoor's address of others that may wait too. Nobody answers it."""

    verb = 111
    member: Member
    expect: int  #: nodes that found the cluster together; 0: it only joins
    pledge: str = ""  #: the copy that it has agreed should found the cluster; it agrees to one only
    options: dict[str, str] = {}  #: what its [cluster] says
    token: bytes = b""  #: proves that it knows the secret
    known: list[str] = []  #: addresses of nodes that wait, as it knows


class Stray(Message):
    """To the leader of a shard, from a copy with rows that no leader speaks to: is it still one of its copies?"""

    verb = 112
    copy: str
    sent_ms: int


class Dismiss(Message):
    """Answer to STRAY of a leader that serves: the copies in force are committed, and this one is none of them. Who is one,
    or may become one, gets no answer."""

    verb = 113
    leader: str
    sent_ms: int  #: of the question


LOADED = Append.verb
