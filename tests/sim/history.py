"""What happened in a run, as it was seen from outside and from each copy: the only thing that checkers look at."""

from typing import NamedTuple


class Confirmed(NamedTuple):
    time_ms: int
    producer: bytes
    sequence: int
    values: tuple[bytes, ...]
    partition: int
    offset: int
    copies: int


class Pushed(NamedTuple):
    """Records that a leader handed to a consumer, at the moment when it did."""

    time_ms: int
    term: int
    consumer: str  #: "" = a reader
    partition: int
    offset: int
    attempt: int
    values: tuple[bytes, ...]
    lease_ms: int
    newest_term: int  #: that anybody led at that moment


class Seen(NamedTuple):
    """What a reader got, in its order."""

    reader: str
    term: int
    partition: int
    offset: int
    values: tuple[bytes, ...]


class AckConfirmed(NamedTuple):
    time_ms: int
    partition: int
    first: int
    end: int


class Released(NamedTuple):
    """A consumer has nothing of a range any more (it gave it back, or started over), as its leader knows."""

    time_ms: int
    consumer: str
    partition: int
    first: int
    end: int


class TopicSaid(NamedTuple):
    """What the register answered: the id of a name, negative when it is gone; 0 = somebody asked for its end."""

    asked_ms: int
    time_ms: int
    name: str
    topic_id: int


class Copy(NamedTuple):
    """The dump of one full copy at the end: all that its tables hold."""

    name: str
    applied: int
    chains: dict[int, bytes]  #: of the kept log rows up to `applied`
    digest: str
    records: dict[int, dict[int, bytes | None]]  #: partition -> offset -> value; None: its batch is missing
    firsts: dict[int, int]  #: partition -> offset below which retention has removed everything
    cursors: dict[tuple[int, int], dict[str, int]]
    topics: dict[str, int]


class History:
    """Lists in order of time."""

    def __init__(self) -> None:
        self.attempted: set[bytes] = set()
        self.attempts: dict[tuple[bytes, int], tuple[bytes, ...]] = {}
        self.confirmed: list[Confirmed] = []
        self.pushed: list[Pushed] = []
        self.seen: list[Seen] = []
        self.acks: list[AckConfirmed] = []
        self.released: list[Released] = []
        self.topics: list[TopicSaid] = []
        self.copies: list[Copy] = []
        self.broken: list[str] = []  #: invariants that a copy's trace broke, as they broke
        self.counts: dict[str, int] = {}  #: what the run really had: takeovers, crashes, ...

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
