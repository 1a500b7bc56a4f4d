"""Questions of the dashboard beyond its snapshots, and answers; plain values for pure code."""

from collections.abc import Sequence
from typing import NamedTuple


class Page(NamedTuple):
    """The newest records of a topic, `back` records before the end."""

    topic: str
    partition: int = -1  #: -1 = all
    back: int = 0
    most: int = 20


class Find(NamedTuple):
    """Records whose value contains `text`, or with `key=...` those of a key; "" = all.

    `first` and `end` are times ("-10m", a date) or offsets; "" = no bound.
    """

    topic: str
    text: str
    first: str = ""
    end: str = ""


class Open(NamedTuple):
    """One record: its content, its state, its history."""

    ref: str


class Stand(NamedTuple):
    """Why a group waits, and its newest dead letters."""

    topic: str
    group: str


class Work(NamedTuple):
    """The jobs of a group: those that run or are retried, errors of failed ones, and schedules."""

    topic: str
    group: str
    most: int = 50  #: jobs of which the answer tells the state


class Runs(NamedTuple):
    """The last ticks of a schedule, as jobs of a group ("" = of the only one)."""

    topic: str
    group: str
    name: str


class Subject(NamedTuple):
    """The target of a verb: the kind of a row and its names (`verbs` lists the kinds)."""

    kind: str
    names: tuple[str, ...]


class Act(NamedTuple):
    """Execute a verb of `verbs` on a subject, with the text that was typed for it."""

    verb: str
    subject: Subject
    text: str = ""


class Try(NamedTuple):
    """Ask what an act would do. Changes nothing."""

    act: Act


def of_record(ref: str) -> Subject:
    return Subject("record", (ref,))


Ask = Page | Find | Open | Stand | Work | Runs | Act | Try


class Record(NamedTuple):
    """A record in a list. `value` is its beginning. `gone`: it was voided or removed."""

    ref: str
    topic: str
    partition: int
    offset: int
    time_ms: int = 0
    key: bytes | None = None
    value: bytes = b""
    size: int = 0
    gone: bool = False


class Records(NamedTuple):
    records: list[Record]
    looked: int = 0  #: records that a search has examined
    total: int = 0
    more: bool = False


class Stands(NamedTuple):
    """The state of a record for one group, "" = all."""

    group: str
    state: str
    because: str
    next: str
    time_ms: int = 0
    attempts: int = 0
    failures: int = 0


class Taken(NamedTuple):
    """A step of a trace."""

    time_ms: int
    what: str
    group: str = ""
    consumer: str = ""
    attempt: int = 0
    reason: str = ""


class Opened(NamedTuple):
    ref: str
    fields: list[tuple[str, str]]
    value: bytes
    size: int
    stands: list[Stands]
    steps: list[Taken]
    lines: list[str]  #: policies with their origin


class Dead(NamedTuple):
    """Dead letters of a group with the same reason."""

    reason: str
    error: str  #: the consumer's last error
    letters: int
    time_ms: int  #: of the newest, in unix milliseconds
    ref: str  #: of the newest


class Flow(NamedTuple):
    """A flow of a group of order "fair" in one partition."""

    flow: str
    partition: int
    waiting: int
    oldest_ms: int
    in_flight: int
    waits_for: str  #: "limit", "rate", "pause", or "" if its records can be delivered


class Standing(NamedTuple):
    """Per partition: (number, state, reason, next command)."""

    rows: list[tuple[int, str, str, str]]
    dead: list[Dead]  #: the newest first
    more: bool = False  #: True if more exist than were examined
    flows: Sequence[Flow] = ()  #: those with the most waiting records, and those that wait longest


class Job(NamedTuple):
    """A record that a group works at."""

    ref: str
    group: str
    state: str  #: "running" or "retrying"
    because: str
    consumer: str
    time_ms: int  #: unix ms: since when it runs, or when it is tried again; 0 = unknown
    attempt: int
    failures: int
    progress: float  #: 0 to 1; -1 = none was reported
    text: str  #: reported with it


class JobError(NamedTuple):
    """Failed jobs of a group whose errors differ in numbers and ids only."""

    topic: str
    group: str
    name: str  #: of the error, as in `gossipq job errors`
    error: str  #: of the newest one
    jobs: int
    last_ms: int  #: unix ms of the newest one
    ref: str  #: the newest one


class Planned(NamedTuple):
    """A schedule."""

    topic: str
    name: str
    when: str
    next_ms: int  #: unix ms of its next tick; 0 = it is paused, or has ended
    ticks: int
    paused: bool


class Working(NamedTuple):
    jobs: list[Job]  #: the running ones first, the longest of them first
    errors: list[JobError]  #: the most frequent first
    schedules: list[Planned]  #: by their next ticks
    #: records that run or are retried, also those that are not in `jobs`; as far as they were counted
    total: int = 0
    more: bool = False  #: True if more records exist than were examined


class Ran(NamedTuple):
    """A tick of a schedule, and the state of its record."""

    tick_ms: int
    ref: str  #: "" = the tick got no record, because the last one was not done
    state: str  #: as in `gossipq job show`; "skipped"; "gone" = the record is not kept any more
    begin_ms: int = 0  #: unix ms of the delivery, while it runs; 0 = unknown
    end_ms: int = 0  #: unix ms of its end; 0 = it has not ended
    because: str = ""
    progress: float = -1.0


class Ticked(NamedTuple):
    schedule: Planned
    runs: list[Ran]  #: the newest first
    next_ms: list[int]


class Done(NamedTuple):
    text: str
    undo: Act | None = None  #: takes it back; None: nothing does, or nothing was done


class Failed(NamedTuple):
    text: str
    hint: str = ""


Answer = Records | Opened | Standing | Working | Ticked | Done | Failed
