"""Messages between workers, and inside a node. Verbs from 96 on; a client that sends one is refused."""

from gossipq.values import Message, Route, TopicInfo, WorkerStats


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
