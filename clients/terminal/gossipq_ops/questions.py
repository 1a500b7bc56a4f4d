"""Questions of the dashboard beyond its snapshots, and answers; plain values for pure code."""

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


Ask = Page | Find | Open | Stand | Act | Try


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


class Standing(NamedTuple):
    """Per partition: (number, state, reason, next command)."""

    rows: list[tuple[int, str, str, str]]
    dead: list[Dead]  #: the newest first
    more: bool = False  #: True if more exist than were examined


class Done(NamedTuple):
    text: str
    undo: Act | None = None  #: takes it back; None: nothing does, or nothing was done


class Failed(NamedTuple):
    text: str
    hint: str = ""


Answer = Records | Opened | Standing | Done | Failed
