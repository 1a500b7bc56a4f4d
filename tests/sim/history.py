"""What happened in a run, as it was seen from outside and from each copy: the only thing that checkers look
at."""

from typing import NamedTuple

RIVAL = "rival"  #: names of topics that several make and remove begin so
LOOSE = b"loose"  #: in the values of records that were sent once, without a producer


class Confirmed(NamedTuple):
    time_ms: int
    producer: bytes
    sequence: int
    values: tuple[bytes, ...]
    partition: int
    offset: int
    copies: int
    fresh_term: int = 0  #: in which it got its offset, when this is the first confirm of it


class Job(NamedTuple):
    """A record that asks for more, as its publisher knows it. 0: it does not ask."""

    value: bytes
    sealed_ms: int  #: true time, like all times here
    key: int
    delay_ms: int
    ttl_ms: int
    attempts: int
    id: int
    route: bytes

    @property
    def due_ms(self) -> int:
        return self.sealed_ms + self.delay_ms


class JobConfirmed(NamedTuple):
    time_ms: int
    partition: int
    jobs: tuple[Job, ...]
    offset: int  #: of the first; -1: `runs` say
    runs: tuple[tuple[int, int, int, int, bool], ...]  #: count, offset, index, record, duplicate


class Pushed(NamedTuple):
    """Records that a leader handed to a consumer, at the moment when it did."""

    time_ms: int
    term: int
    consumer: str  #: "" = a reader
    group: str
    partition: int
    offset: int
    attempt: int
    values: tuple[bytes, ...]
    lease_ms: int
    newest_term: int  #: that anybody led at that moment
    led_ms: int  #: the same moment by the leader's time, which may be late: I11 bounds that


class Seen(NamedTuple):
    """What a reader got, in its order."""

    reader: str
    term: int
    partition: int
    offset: int
    values: tuple[bytes, ...]


class Begun(NamedTuple):
    """A leader heard that a consumer of a group has begun with these records."""

    time_ms: int
    group: str
    partition: int
    first: int
    end: int


class AckConfirmed(NamedTuple):
    """A consumer heard that these are done; or, among the failed, that its attempts are over."""

    time_ms: int
    group: str
    partition: int
    first: int
    end: int
    term: int = 0  #: of who said so


class Asked(NamedTuple):
    """An ack or a failure that a leader has heard of; it may come to nothing."""

    time_ms: int
    consumer: str
    partition: int
    first: int
    end: int
    well: bool  #: an ack


class Released(NamedTuple):
    """A consumer has nothing of a range any more (it gave it back, or started over), as its leader knows."""

    time_ms: int
    consumer: str
    partition: int
    first: int
    end: int


class TopicSaid(NamedTuple):
    """What the register answered: the id of a name, negative when it is gone; 0 = somebody asked for its
    end."""

    asked_ms: int
    time_ms: int
    name: str
    topic_id: int


class TopicUsed(NamedTuple):
    """A shard did something for a topic by its id, as if it were there."""

    asked_ms: int
    time_ms: int
    topic_id: int
    what: str


class RosterSaid(NamedTuple):
    """What the leader of the meta shard answered: (copy, name, address, state) of each member."""

    asked_ms: int
    time_ms: int
    version: int
    rows: tuple[tuple[str, str, str, str], ...]


class Copy(NamedTuple):
    """The dump of one full copy at the end: all that its tables hold."""

    name: str
    applied: int
    chains: dict[int, bytes]  #: of the kept log rows up to `applied`
    digest: str
    records: dict[int, dict[int, bytes | None]]  #: partition -> offset -> value; None: its batch is missing
    firsts: dict[int, int]  #: partition -> offset below which retention has removed everything
    cursors: dict[tuple[int, str], dict[str, int]]
    topics: dict[str, int]
    members: tuple[tuple[str, str, str, str], ...]
    #: partition -> offset -> when it was given, as true time if clocks are right
    given: dict[int, dict[int, int]]
    scheduled: dict[int, dict[bytes, int]]  #: partition -> value -> entry of records that have no offset
    dead: dict[tuple[int, str], dict[int, str]]  #: (partition, group) -> offset -> reason
    #: (partition, group) -> offset -> when, as true time if clocks are right
    acked: dict[tuple[int, str], dict[int, int]]
    shard: int = 0
    grouped: tuple[int, ...] = ()  #: ids of the topics that its groups belong to


class History:
    """Lists in order of time."""

    def __init__(self) -> None:
        self.attempted: set[bytes] = set()
        self.attempts: dict[tuple[bytes, int], tuple[bytes, ...]] = {}
        self.confirmed: list[Confirmed] = []
        self.pushed: list[Pushed] = []
        self.seen: list[Seen] = []
        self.acks: list[AckConfirmed] = []
        self.failed: list[AckConfirmed] = []
        self.asked: list[Asked] = []
        self.jobs: dict[bytes, Job] = {}
        self.job_confirms: list[JobConfirmed] = []
        #: the longest that a request with this job was on its way to a leader
        self.way_ms: dict[bytes, int] = {}
        self.mode = self.expire = ""  #: of the group that takes jobs, and of their topic
        self.dedup_ms = 0  #: of that topic
        self.clock_error_ms = 100  #: of wall clocks that are right; one node's may be wrong by anything
        self.late_ms = 0  #: by how much the time of a leader that served was late, at most
        self.retention_ms = 0  #: of the topic that all use
        self.end_ms = 0
        self.released: list[Released] = []
        self.begun: list[Begun] = []
        self.topics: list[TopicSaid] = []
        self.used: list[TopicUsed] = []
        self.shard_of: dict[int, int] = {}  #: of the partitions in which nobody meddles
        self.rosters: list[RosterSaid] = []
        self.copies: list[Copy] = []
        self.broken: list[str] = []  #: invariants that a copy's trace broke, as they broke
        self.counts: dict[str, int] = {}  #: what the run really had: takeovers, crashes, ...

    def took(self, values: tuple[bytes, ...], way_ms: int) -> None:
        for value in values:
            if value in self.jobs:
                self.way_ms[value] = max(way_ms, self.way_ms.get(value, 0))

    def copies_of(self, partition: int) -> list[Copy]:
        """Those of its shard."""
        return [copy for copy in self.copies if copy.shard == self.shard_of.get(partition, 0)]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
