"""The history of a run, as observed from outside and from each copy.
Checkers look at nothing else.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

RIVAL = "rival"  #: names of topics that several rivals create and remove begin with this
LOOSE = b"loose"  #: part of the values of records that were sent once, without a producer


class Confirmed(NamedTuple):
    time_ms: int
    producer: bytes
    sequence: int
    values: tuple[bytes, ...]
    partition: int
    offset: int
    copies: int
    fresh_term: int = 0  #: the term that assigned the offset, if this is its first confirm


class Job(NamedTuple):
    """A record with options, as its publisher knows it. 0 means that an option is not used."""

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
    offset: int  #: offset of the first record; -1: see `runs`
    runs: tuple[tuple[int, int, int, int, bool], ...]  #: count, offset, index, record, duplicate


class Pushed(NamedTuple):
    """Records that a leader sent to a consumer, at the moment of sending."""

    time_ms: int
    term: int
    consumer: str  #: "" means a reader
    group: str
    partition: int
    offset: int
    attempt: int
    values: tuple[bytes, ...]
    lease_ms: int
    late: bool  #: True if it waited for an entry; its lease began before that
    newest_term: int  #: the newest term with a leader at that moment
    led_ms: int  #: the same moment by the leader's time, which may be late; I11 bounds that


class Seen(NamedTuple):
    """Records that a reader got, in the order in which it got them."""

    reader: str
    term: int
    partition: int
    offset: int
    values: tuple[bytes, ...]


class StartedRow(NamedTuple):
    """A leader heard that user code has begun with records."""

    time_ms: int
    term: int
    consumer: str
    partition: int
    first: int
    end: int


class Begun(NamedTuple):
    """A leader learned that a consumer of the group has begun these records."""

    time_ms: int
    group: str
    partition: int
    first: int
    end: int


class AckConfirmed(NamedTuple):
    """A consumer was told that these records are done or, in `failed`,
    that their attempts are over.
    """

    time_ms: int
    group: str
    partition: int
    first: int
    end: int
    term: int = 0  #: term of the leader that told it
    with_results: bool = False  #: the ack had a result for each record


class Asked(NamedTuple):
    """An ack or a failure that reached a leader; it may fail."""

    time_ms: int
    consumer: str
    partition: int
    first: int
    end: int
    well: bool  #: True for an ack
    with_results: bool  #: an ack with a result for each record


class Released(NamedTuple):
    """As its leader knows, a consumer holds no record of this range any more: it gave
    them back or started over.
    """

    time_ms: int
    consumer: str
    partition: int
    first: int
    end: int


class TopicSaid(NamedTuple):
    """Answer of the register: the id of a topic, negative when the topic is gone; 0 = a
    client requested its removal.
    """

    asked_ms: int
    time_ms: int
    name: str
    topic_id: int


class TopicUsed(NamedTuple):
    """A shard did something for a topic id as if the topic existed."""

    asked_ms: int
    time_ms: int
    topic_id: int
    what: str


class RosterSaid(NamedTuple):
    """Answer of the meta shard's leader: (copy, name, address, state) of each member."""

    asked_ms: int
    time_ms: int
    version: int
    rows: tuple[tuple[str, str, str, str], ...]


class JobHeard(NamedTuple):
    """An answer of a leader about the state of a job."""

    asked_ms: int
    time_ms: int  #: of the answer, when it was sent
    partition: int
    offset: int
    state: str
    value: bytes
    term: int = 0
    text: str = ""  #: of the report of progress that it shows; "" = none


class Reported(NamedTuple):
    """A report of progress, of which there is one with this text."""

    asked_ms: int
    stored_ms: int  #: when its answer was sent; -1: none came, or it was refused
    term: int  #: of the leader that answered
    partition: int
    offset: int
    text: str


class Copy(NamedTuple):
    """The dump of one full copy at the end: everything in its tables."""

    name: str
    applied: int
    chains: dict[int, bytes]  #: index -> chain of the kept log rows up to `applied`
    digest: str
    #: partition -> offset -> value; None if its batch is missing
    records: dict[int, dict[int, bytes | None]]
    firsts: dict[int, int]  #: partition -> offset below which retention has removed everything
    cursors: dict[tuple[int, str], dict[str, int]]
    topics: dict[str, int]
    members: tuple[tuple[str, str, str, str], ...]
    #: partition -> offset -> when it was assigned, as true time if clocks are right
    given: dict[int, dict[int, int]]
    #: partition -> value -> entry, for scheduled records without an offset
    scheduled: dict[int, dict[bytes, int]]
    dead: dict[tuple[int, str], dict[int, str]]  #: (partition, group) -> offset -> reason
    #: (partition, group) -> offset -> when it was acked, as true time if clocks are right
    acked: dict[tuple[int, str], dict[int, int]]
    #: (partition, group) -> offset -> result, and when it was stored
    results: dict[tuple[int, str], dict[int, tuple[bytes, int]]]
    shard: int = 0
    grouped: tuple[int, ...] = ()  #: ids of the topics that the copy's groups belong to
    ids: dict[int, dict[int, bytes]] | None = None  #: partition -> offset -> id, of records with one
    voids: dict[int, list[tuple[int, int]]] | None = None  #: partition -> offsets that are void
    #: partition -> offset -> header with the parts, of records that were joined
    told: dict[int, dict[int, str]] | None = None
    waiting: dict[int, list[bytes]] | None = None  #: partition -> values of records that wait for jobs


@dataclass
class Plan:
    """A schedule, and when the client asked and heard of it; 0: not yet."""

    name: str
    partition: int
    every_ms: int
    asked_ms: int
    made_ms: int = 0
    drop_ms: int = 0  #: it asked to remove it
    dropped_ms: int = 0  #: the leader confirmed that
    requests: int = 0  #: to set it: one that was repeated may come late, and set it anew
    with_topic: bool = False  #: its topic was removed: its shard hears of that later


class Claim(NamedTuple):
    """A record that was published under a unique name."""

    value: bytes
    name: bytes
    replaces: bool
    delay_ms: int


class Claimed(NamedTuple):
    """The answer to a claim."""

    claim: Claim
    asked_ms: int
    kept: bool  #: another record has the name
    offset: int  #: of the record that has it; -1 = it is scheduled, or not known


class JoinAsked(NamedTuple):
    """A request to publish a record when others have ended."""

    asked_ms: int  #: when it was sent first
    parts: tuple[tuple[int, int], ...]  #: partition and offset of each
    count: int  #: that must have ended
    timeout_ms: int


class Cancelled(NamedTuple):
    """A cancel that a leader confirmed."""

    time_ms: int  #: of the answer, when it was sent
    partition: int
    offset: int


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
        #: the longest time that a request with this job took to reach a leader
        self.way_ms: dict[bytes, int] = {}
        self.mode = self.expire = ""  #: options of the group that takes jobs, and of its topic
        self.dedup_ms = 0  #: dedup window of that topic
        #: error of right wall clocks; one node's clock may be wrong by any amount
        self.clock_error_ms = 100
        self.wall_ms = 0  #: leader time at the beginning
        self.plans: list[Plan] = []
        self.named = 0  #: partition of the records with unique names
        self.claims: dict[bytes, Claim] = {}  #: by value
        self.claimed: list[Claimed] = []
        self.cancelled: list[Cancelled] = []
        self.joining = 0  #: partition of the records that wait for jobs
        self.joins: dict[bytes, JoinAsked] = {}  #: by value
        self.joined: list[bytes] = []  #: values whose joins were confirmed
        self.keeps_results = False  #: consumers send a result with each ack
        self.keeps_progress = False  #: consumers report how far they are
        self.reports: dict[str, Reported] = {}  #: by text
        self.heard_jobs: list[JobHeard] = []
        #: by consumer, the highest credit in records that it had at a time
        self.lent: Counter[str] = Counter()
        self.late_ms = 0  #: the most by which a serving leader's time was late
        self.retention_ms = 0  #: retention of the topic that all parties use
        self.end_ms = 0
        self.released: list[Released] = []
        self.begun: list[Begun] = []
        self.started: list[StartedRow] = []
        self.topics: list[TopicSaid] = []
        self.used: list[TopicUsed] = []
        #: shards of the partitions that only regular clients use
        self.shard_of: dict[int, int] = {}
        self.rosters: list[RosterSaid] = []
        self.copies: list[Copy] = []
        self.broken: list[str] = []  #: invariants that a copy's trace broke, in order of time
        #: how often things happened in the run: takeovers, crashes, ...
        self.counts: dict[str, int] = {}

    def took(self, values: tuple[bytes, ...], way_ms: int) -> None:
        for value in values:
            if value in self.jobs:
                self.way_ms[value] = max(way_ms, self.way_ms.get(value, 0))

    def copies_of(self, partition: int) -> list[Copy]:
        """Copies of the partition's shard."""
        return [copy for copy in self.copies if copy.shard == self.shard_of.get(partition, 0)]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
