"""Entries of a shard's log, their layout on disk and between nodes, and the summary of a log.

A row of the `log` table, key = index (8 bytes, big endian):

    offset  bytes  field (little endian)
    0       8      term
    8       8      leader time, unix milliseconds, never falling
    16      1      kind
    17      1      version of the kind's payload
    18      2      reserved, 0
    20      4      CRC-32 of the body, 0 = no body
    24      8      chain: BLAKE2b-64 over the previous entry's chain, bytes 0 to 23, and the payload
    32      ..     payload

The body (a sealed batch) is in the `body` table under the same key. If two entries have equal
chains, their logs are equal up to there.
"""

from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from gossipq.core.storage import payloads
from gossipq.core.storage.tables import Table
from gossipq.errors import CorruptLog
from gossipq.types import DELAY, BatchInfo, Index, PartitionKey, Term

HEAD = Struct("<QqBBHI")
CHAIN_BYTES = 8
ROW_HEAD_BYTES = HEAD.size + CHAIN_BYTES
NO_CHAIN = bytes(CHAIN_BYTES)
INDEX_KEY = Struct(">Q")
PUBLISH_PAYLOAD, DUE_PAYLOAD = Struct("<QIII16sQqI"), Struct("<qq")

# kinds of entries; numbers never change
NOOP, CONFIG, PUBLISH, TOPIC, GROUP, LEASE, ACK, TRIM, META_TOPIC, FORGET = range(1, 11)
RELEASE, FAIL, PARK, DEAD, REPLAY, PURGE, VOID, RESCHEDULE, EDIT, REQUEUE, STEP = range(11, 22)
MEMBER, INSTALLED, OPTIONS = 22, 23, 24
ROLLUP, REGROUP = 40, 41
ACCESS = 42
SCHEDULE, TICK = 43, 44
RESULT, EXPIRE_RESULTS, PROGRESS = 50, 51, 52
PAUSE_FLOWS = 53
JOIN, JOIN_ENDS, JOINED = 60, 61, 62
VERSION = 2  #: highest payload version that this code writes and reads, for every kind


class Entry(msgspec.Struct, frozen=True, gc=False):
    index: Index
    term: Term
    time_ms: int
    kind: int
    payload: bytes
    body: bytes
    body_crc: int
    chain: bytes
    version: int = 1


def seal(
    prev_chain: bytes, index: int, term: int, time_ms: int, kind: int, payload: bytes, body: bytes, crc: int
) -> Entry:
    """Return the next entry, after the one with chain `prev_chain`."""
    version = 2 if kind in SINCE_2 else 1
    head = HEAD.pack(term, time_ms, kind, version, 0, crc)
    chain = blake2b(prev_chain + head + payload, digest_size=CHAIN_BYTES).digest()
    return Entry(index, term, time_ms, kind, payload, body, crc, chain, version)


def chained(prev_chain: bytes, entry: Entry) -> bool:
    """True if `entry` is undamaged and follows the entry with chain `prev_chain`."""
    head = HEAD.pack(entry.term, entry.time_ms, entry.kind, entry.version, 0, entry.body_crc)
    return blake2b(prev_chain + head + entry.payload, digest_size=CHAIN_BYTES).digest() == entry.chain


def encode_row(entry: Entry) -> bytes:
    head = HEAD.pack(entry.term, entry.time_ms, entry.kind, entry.version, 0, entry.body_crc)
    return head + entry.chain + entry.payload


def encode_rows(entries: list[Entry]) -> list[tuple[bytes, bytes]]:
    """Return key and row of each entry, for the log table."""
    rows = []
    for entry in entries:
        head = HEAD.pack(entry.term, entry.time_ms, entry.kind, entry.version, 0, entry.body_crc)
        rows.append((INDEX_KEY.pack(entry.index), head + entry.chain + entry.payload))
    return rows


def decode_row(index: Index, row: bytes, body: bytes = b"") -> Entry:
    if len(row) < ROW_HEAD_BYTES:
        raise CorruptLog(f"log row {index} has {len(row)} bytes")
    term, time_ms, kind, version, _, crc = HEAD.unpack_from(row)
    return Entry(
        index, term, time_ms, kind, row[ROW_HEAD_BYTES:], body, crc, row[HEAD.size : ROW_HEAD_BYTES], version
    )


class Due(NamedTuple):
    """Leader time at which a scheduled batch was sealed, and at which its first record is due."""

    base_ms: int
    due_ms: int


def publish_payload(partition: PartitionKey, info: BatchInfo, due: Due | None = None) -> bytes:
    """Return the payload of PUBLISH: the header of its batch.

    With it a plain batch is applied without opening the body. `due` is set if the batch has a DELAY
    column.
    """
    fixed = PUBLISH_PAYLOAD.pack(
        partition,
        info.count,
        info.size,
        info.crc,
        info.producer,
        info.sequence,
        info.publish_ms,
        info.columns,
    )
    return fixed + (DUE_PAYLOAD.pack(*due) if due else b"") + info.route


def parse_publish(payload: bytes) -> tuple[PartitionKey, BatchInfo, Due | None]:
    partition, count, size, crc, producer, sequence, publish_ms, columns = PUBLISH_PAYLOAD.unpack_from(
        payload
    )
    end, due = PUBLISH_PAYLOAD.size, None
    if columns & DELAY:
        due = Due(*DUE_PAYLOAD.unpack_from(payload, end))
        end += DUE_PAYLOAD.size
    return partition, BatchInfo(count, size, crc, producer, sequence, publish_ms, columns, payload[end:]), due


class EntryKind(NamedTuple):
    """The properties that all entries of a kind share."""

    decode: Callable[[bytes], Any]  #: their payload
    version: int = 1  #: in which this code writes it
    #: applying one leaves rows that must be deleted later
    is_swept: bool = False


def _kind(payload: type, version: int = 1, is_swept: bool = False) -> EntryKind:
    return EntryKind(msgspec.msgpack.Decoder(payload).decode, version, is_swept)


def _decode_noop(payload: bytes) -> payloads.RequestKey | None:
    return msgspec.msgpack.decode(payload, type=payloads.RequestKey) if payload else None


#: The table of kinds. Kinds of version 2 contain ranges, and ACK contains failures.
KINDS: dict[int, EntryKind] = {
    NOOP: EntryKind(_decode_noop),
    CONFIG: _kind(payloads.CopySet),
    PUBLISH: EntryKind(parse_publish),
    TOPIC: _kind(payloads.TopicChange, is_swept=True),
    GROUP: _kind(payloads.GroupChange),
    LEASE: _kind(payloads.LeaseRows, version=2),
    ACK: _kind(payloads.AckRanges, version=2),
    TRIM: _kind(payloads.Trim, is_swept=True),
    META_TOPIC: _kind(payloads.TopicChange),
    FORGET: _kind(payloads.Forget),
    RELEASE: _kind(payloads.Release),
    FAIL: _kind(payloads.Fail, version=2),
    PARK: _kind(payloads.Park),
    DEAD: _kind(payloads.Dead),
    REPLAY: _kind(payloads.Letters),
    PURGE: _kind(payloads.Letters),
    VOID: _kind(payloads.Void),
    RESCHEDULE: _kind(payloads.DueChange),
    EDIT: _kind(payloads.Void),
    REQUEUE: _kind(payloads.Letters),
    STEP: _kind(payloads.AckAndPublish),
    MEMBER: _kind(payloads.RosterChange),
    INSTALLED: _kind(payloads.InstalledTopics),
    OPTIONS: _kind(payloads.Options),
    ROLLUP: _kind(payloads.Rollup),
    REGROUP: _kind(payloads.Regroup, is_swept=True),
    ACCESS: _kind(payloads.NewAccess),
    SCHEDULE: _kind(payloads.ScheduleChange),
    TICK: _kind(payloads.TickDone),
    RESULT: _kind(payloads.AckWithResults),
    EXPIRE_RESULTS: _kind(payloads.ExpireResults),
    PROGRESS: _kind(payloads.ProgressReports),
    PAUSE_FLOWS: _kind(payloads.PauseFlows),
    JOIN: _kind(payloads.JoinBegun),
    JOIN_ENDS: _kind(payloads.PartsEnded),
    JOINED: _kind(payloads.JoinDone),
}
SINCE_2 = frozenset(kind for kind, row in KINDS.items() if row.version == 2)
SWEPT = frozenset(kind for kind, row in KINDS.items() if row.is_swept)


def message_of(entry: Entry) -> Any:
    """Decode the payload of an entry of a kind that this code knows."""
    return KINDS[entry.kind].decode(entry.payload)


class LogState:
    """Summary of a log: its bounds, and the term of each part."""

    __slots__ = ("chain", "epochs", "first", "last", "term", "time_ms")

    def __init__(self) -> None:
        self.first: Index = 1  #: lowest index whose row still exists
        self.last: Index = 0
        self.term: Term = 0  #: of the last entry
        self.time_ms = 0  #: of the last entry
        self.chain = NO_CHAIN  #: of the last entry
        self.epochs: list[tuple[Term, Index]] = []  #: (term, its first index), rising

    @classmethod
    def load(cls, table: Table, first: Index, chain: bytes, epochs: list[tuple[Term, Index]]) -> "LogState":
        """Read the existing rows and check their chain. Raises CorruptLog.

        `chain` is that of the entry before `first`.
        """
        state = cls()
        state.first = first
        state.last = first - 1
        state.chain = chain
        state.epochs = list(epochs)
        state.term = next((term for term, at in reversed(epochs) if at < first), 0)
        state.epochs = [(term, at) for term, at in epochs if at < first]
        for row_key, row in table.scan(INDEX_KEY.pack(first), INDEX_KEY.pack(2**64 - 1)):
            entry = decode_row(INDEX_KEY.unpack(row_key)[0], row)
            if entry.index != state.last + 1 or not chained(state.chain, entry):
                raise CorruptLog(f"log row {entry.index} does not continue row {state.last}")
            state.took(entry)
        return state

    def took(self, entry: Entry) -> None:
        """Record that `entry` is the last one now."""
        if entry.term != self.term:
            self.epochs.append((entry.term, entry.index))
        self.last = entry.index
        self.term = entry.term
        self.time_ms = entry.time_ms
        self.chain = entry.chain

    def term_at(self, index: Index) -> Term | None:
        """Return the term of an index: 0 if it is too old to know, None beyond the last entry."""
        if index > self.last:
            return None
        for term, first in reversed(self.epochs):
            if index >= first:
                return term
        return 0

    def below(self, index: Index, term: Term) -> Index:
        """Return the highest index up to `index` with a term of at most `term`.

        Two logs can be equal up to there.
        """
        index = min(index, self.last)
        for epoch, first in reversed(self.epochs):
            if first <= index:
                if epoch <= term:
                    return index
                index = first - 1
        return index

    def cut(self, last: Index, chain: bytes, time_ms: int) -> None:
        """Record that entry `last`, with this chain and leader time, is the last one now."""
        self.epochs = [(term, first) for term, first in self.epochs if first <= last]
        self.last = last
        self.chain = chain
        self.time_ms = time_ms
        self.term = self.epochs[-1][0] if self.epochs else 0

    def compact(self) -> list[tuple[Term, Index]]:
        """Forget the terms of entries before `first`, except the newest such term, and return
        that.
        """
        kept = [(term, at) for term, at in self.epochs if at < self.first][-1:]
        self.epochs = kept + [(term, at) for term, at in self.epochs if at >= self.first]
        return kept

    def restart(self, at: Index, term: Term, chain: bytes, time_ms: int) -> None:
        """Begin an empty log that continues after entry `at`."""
        self.first = at + 1
        self.last = at
        self.term = term
        self.chain = chain
        self.time_ms = time_ms
        self.epochs = [(term, at)]
