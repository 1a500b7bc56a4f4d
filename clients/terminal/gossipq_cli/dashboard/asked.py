"""What the dashboard asks a node beyond its snapshots, and the answers; plain values, so that views and keys
stay pure."""

from typing import NamedTuple


class Page(NamedTuple):
    """The newest records of a topic, `back` records before the end."""

    topic: str
    partition: int = -1  #: -1 = all
    back: int = 0
    most: int = 20


class Find(NamedTuple):
    """Records whose value contains `text`, or with `key=...` those of a key; all with "". `first` and `end`
    are times ("-10m", a date) or offsets; "" = all there are."""

    topic: str
    text: str
    first: str = ""
    end: str = ""


class Open(NamedTuple):
    """One record: its content, where it stands, what happened to it."""

    ref: str


class Stand(NamedTuple):
    """Why a group stands still, and its newest dead letters."""

    topic: str
    group: str


class Subject(NamedTuple):
    """What a verb is for: a row that is shown, by its kind and its names (`verbs` has the kinds)."""

    kind: str
    names: tuple[str, ...]


class Act(NamedTuple):
    """Does something with it: a verb of `verbs`, and what was typed for it."""

    verb: str
    subject: Subject
    text: str = ""


class Try(NamedTuple):
    """What an act would do. It changes nothing."""

    act: Act


def of_record(ref: str) -> Subject:
    return Subject("record", (ref,))


Ask = Page | Find | Open | Stand | Act | Try


class Record(NamedTuple):
    """A record in a list. `value` is its beginning; a `gone` one was voided or removed."""

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
    looked: int = 0  #: by a search
    total: int = 0
    more: bool = False


class Stands(NamedTuple):
    """For one group, "" = all."""

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
    """The dead letters of a group that died of one thing."""

    reason: str
    error: str  #: the last one of the consumer
    letters: int
    time_ms: int  #: of the newest, unix
    ref: str  #: of the newest


class Standing(NamedTuple):
    """Per partition: (number, state, because, next)."""

    rows: list[tuple[int, str, str, str]]
    dead: list[Dead]  #: the newest first
    more: bool = False  #: there are more than were looked at


class Done(NamedTuple):
    text: str


class Failed(NamedTuple):
    text: str
    hint: str = ""


Answer = Records | Opened | Standing | Done | Failed
