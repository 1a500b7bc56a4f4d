"""Single records for operators: the answers SHOWN and DEAD_LETTERS, opened."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from gossipq.times import time_of
from gossipq.types import HEADERS, IDS, KEYS, Offset, partition_of
from gossipq.values import DeadLetter as LetterRow
from gossipq.values import Ref
from gossipq.wire.batch import Batch
from gossipq_client.values import inputs, own_options, payloads, refs


class LookedAt:
    """A record for display. Unreadable headers are shown and raise no error."""

    __slots__ = ()
    headers: dict[str, str | bytes]

    @property
    def headers_shown(self) -> dict[str, str | bytes]:
        """The same as `headers`; a delivered record has its always
        readable headers under this name.
        """
        return self.headers


@dataclass(frozen=True, slots=True)
class StoredRecord(LookedAt):
    """One stored record. `offset` is -1 before the record gets one; `ref` names it
    always.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    value: bytes
    key: bytes | None
    headers: dict[str, str | bytes]
    route: str
    id: str | None  #: the id that its producer gave
    publish_time: datetime  #: when its producer sealed the batch
    stored_time: datetime
    header_bytes: bytes = b""  #: the headers as they are stored
    id_bytes: bytes | None = None  #: the id as it is stored
    own_options: dict[str, float | int | str] = field(default_factory=dict)  #: as in a delivered record


@dataclass(frozen=True, slots=True)
class DeadLetter(LookedAt):
    """A record that a group will not get again, and the reason.

    Without values, neighbours with the same fate come as one, with their
    `count`.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    group: str
    reason: str  #: "failures", "rejected", "expired", "undecodable"
    error: str  #: error text of the last consumer
    attempts: int
    failures: int
    time: datetime  #: when it became a dead letter
    count: int = 1
    value: bytes = b""
    key: bytes | None = None
    headers: dict[str, str | bytes] = field(default_factory=dict)
    route: str = ""
    id: str | None = None  #: the id that its producer gave
    publish_time: datetime | None = None  #: when its producer sealed the batch; None without values
    header_bytes: bytes = b""  #: the headers as they are stored
    id_bytes: bytes | None = None  #: as in a delivered record
    own_options: dict[str, float | int | str] = field(default_factory=dict)  #: as those of a delivered record


class Opened:
    """A batch that is opened to get its single records."""

    def __init__(self, raw: bytes | memoryview) -> None:
        """Opens the batch. Raises BadBatch."""
        self.batch = batch = Batch(raw)
        self.values = batch.values()
        self.route, self.publish_time = batch.route.decode(errors="replace"), time_of(batch.info.publish_ms)
        self._keys, self._headers, self._ids = batch.column(KEYS), batch.column(HEADERS), batch.column(IDS)

    def key(self, at: int) -> bytes | None:
        return self._keys[at] if self._keys is not None else None

    def header_bytes(self, at: int) -> bytes:
        return self._headers[at] if self._headers is not None else b""

    def headers(self, at: int) -> dict[str, str | bytes]:
        return payloads.headers_shown(self.header_bytes(at))

    def id(self, at: int) -> str | None:
        return inputs.id_text(self._ids[at]) if self._ids is not None else None

    def id_bytes(self, at: int) -> bytes | None:
        return (self._ids[at] or None) if self._ids is not None else None

    def own_options(self, at: int) -> dict[str, float | int | str]:
        return own_options(self.batch, at)


def stored_record(topic: str, ref: Ref, time_ms: int, opened: Opened) -> StoredRecord:
    return StoredRecord(
        topic=topic,
        partition=partition_of(ref.partition),
        offset=ref.offset,
        ref=refs.text_of(topic, ref),
        value=opened.values[0],
        key=opened.key(0),
        headers=opened.headers(0),
        route=opened.route,
        id=opened.id(0),
        publish_time=opened.publish_time,
        stored_time=time_of(time_ms),
        header_bytes=opened.header_bytes(0),
        id_bytes=opened.id_bytes(0),
        own_options=opened.own_options(0),
    )


def dead_letters(topic: str, row: LetterRow, opened: Opened | None) -> list[DeadLetter]:
    """One letter for each record of the batch; without the batch one for all."""
    if opened is None:
        return [_letter(topic, row, row.offset, row.count)]
    return [_letter(topic, row, row.offset + at, 1, opened, at) for at in range(row.count)]


def _letter(
    topic: str, row: LetterRow, offset: Offset, count: int, opened: Opened | None = None, at: int = 0
) -> DeadLetter:
    number = partition_of(row.partition)
    letter = DeadLetter(
        topic=topic,
        partition=number,
        offset=offset,
        ref=refs.text(topic, number, offset),
        group=row.group,
        reason=row.reason,
        error=row.error,
        attempts=row.attempts,
        failures=row.failures,
        time=time_of(row.time_ms),
        count=count,
    )
    if opened is None:
        return letter
    return replace(
        letter,
        value=opened.values[at],
        key=opened.key(at),
        headers=opened.headers(at),
        route=opened.route,
        id=opened.id(at),
        publish_time=opened.publish_time,
        header_bytes=opened.header_bytes(at),
        id_bytes=opened.id_bytes(at),
        own_options=opened.own_options(at),
    )
