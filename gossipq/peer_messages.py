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


class Appended(Message):
    """`match` is on disk and equal to the leader's log; without ok it is a hint where to look next."""

    verb = 97
    follower: str
    ok: bool
    match: int
    sent_ms: int = 0


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
