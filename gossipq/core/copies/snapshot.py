"""Snapshots: a shard's state for a copy that is too far behind for the log.

The sender reads the state rows of one commit over several turns, so they belong to one log index.
Then follow the batches by ranges of log index, then "end". The receiver is *hollow* from the first
part until "end": it votes by its old log, but neither leads nor applies. If it restarts, the
snapshot does too.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gossipq import limits
from gossipq.core.ledger import Ledger, records
from gossipq.core.raft import LogPoint
from gossipq.core.storage import INDEX_KEY, Columns, CopySet, Reader, Table, Tables
from gossipq.errors import ProtocolError
from gossipq.peer_messages import Installed, Snapshot
from gossipq.types import Index, Term

WIPE_ROWS = 20_000  #: rows deleted in one turn
#: longest pause before a part is sent again to a receiver with a slow disk
AGAIN_MS_MAX = 8 * limits.SECOND_MS
_encode = msgspec.msgpack.Encoder().encode
_state_rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_body_rows = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode
SnapshotName = tuple[Term, Index, int]


class Spool:
    """The state rows of one commit, packed into parts over several turns.

    Reading millions of rows takes seconds. The parts are kept in memory, because the store keeps
    all pages that a reader sees, and the receiver may be slow.
    """

    def __init__(self, reader: Reader) -> None:
        self.parts: deque[bytes] = deque()
        self._reader: Reader | None = reader
        self._next = b""  # key of the first unread row

    @property
    def reading(self) -> bool:
        return self._reader is not None

    def read(self, rows_max: int) -> None:
        """Read the next rows, without those that each copy has for itself."""
        if self._reader is None:
            return
        rows: list[tuple[bytes, bytes]] = []
        size = count = 0
        for row in self._reader.scan(self._next, b"\xff" * 8):
            if count == rows_max:
                self._next = row[0]
                break
            count += 1
            if row[0] in records.OWN_ROWS:
                continue
            rows.append(row)
            size += len(row[0]) + len(row[1])
            if size >= limits.SNAPSHOT_PART_BYTES:
                self.parts.append(_encode(rows))
                rows, size = [], 0
        else:
            self.close()
        if rows:
            self.parts.append(_encode(rows))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None


def wipe(state: Table, rows_max: int) -> int:
    """Delete at most `rows_max` rows that a snapshot replaces. Returns how many."""
    count, low = 0, b""
    for own in (*records.OWN_ROWS, b"\xff" * 8):
        count += state.delete_range(low, own, rows_max - count)
        low = own + b"\0"
    return count


class OwnRows:
    """The state table of a hollow copy: only the copy's own rows are visible."""

    def __init__(self, state: Table) -> None:
        self._state = state

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key) if key in records.OWN_ROWS else None

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return self._state.get_many(key for key in keys if key in records.OWN_ROWS)

    def put(self, key: bytes, value: bytes) -> None:
        if key in records.OWN_ROWS:
            self._state.put(key, value)

    def put_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._state.put_many([row for row in rows if row[0] in records.OWN_ROWS])

    append_many = put_many

    def delete(self, key: bytes) -> bool:
        return False

    def delete_many(self, keys: Iterable[bytes], prefix: bytes) -> None:
        """Does nothing: no rows are visible."""

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def scan_keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        return iter(())

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        return None

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        return 0

    def reader(self) -> Reader:
        return self._state.reader()


class HollowTables:
    def __init__(self, tables: Tables) -> None:
        self.log = tables.log
        self.body = tables.body
        self.state = OwnRows(tables.state)


def open_ledger(shard: int, tables: Tables, columns: Columns) -> Ledger:
    """Return the ledger of a copy; an empty one while a snapshot is being installed."""
    hollow = tables.state.get(records.INSTALLING) is not None
    return Ledger(shard, HollowTables(tables) if hollow else tables, columns)


class Sending:
    """A snapshot being sent to one copy."""

    __slots__ = ("_again_ms", "_body_next", "_config", "_full", "_me", "_place", "_rows", "_spool",
                 "_wait_ms", "index", "number", "part", "spooled_ms", "term")  # fmt: skip

    def __init__(
        self,
        me: str,
        index: Index,
        term: Term,
        place: LogPoint,
        config: CopySet,
        tables: Tables,
        full: bool,
        now_ms: int,
    ) -> None:
        """`tables` have the state after `index` committed. A witness (`full` False) gets no
        rows.
        """
        self.index = index
        self.term = term
        self.spooled_ms = now_ms
        self._me = me
        self._place = place
        self._config = config
        self._full = full
        self._spool = Spool(tables.state.reader()) if full else None
        self._rows = tables.body
        self._body_next: Index = 0
        self.number = 0  #: of the part that was sent last
        self.part: tuple[Snapshot, bytes] | None = None
        self._wait_ms = now_ms  # when to send the part, again or for the first time
        self._again_ms = limits.HEARTBEAT_MS  #: time until it is sent again

    @property
    def deadline_ms(self) -> int:
        """Boot time of the next step."""
        return 0 if self._spool is not None and self._spool.reading else self._wait_ms

    def close(self) -> None:
        """Stop sending."""
        if self._spool is not None:
            self._spool.close()

    def due(self, now_ms: int) -> tuple[Snapshot, bytes] | None:
        """Return the part to send now, or None. Reads more rows, as many as one turn allows."""
        spool = self._spool
        if spool is not None:
            spool.read(limits.SNAPSHOT_ROWS_PER_TURN)
        waits = spool is not None and spool.reading and not spool.parts and self.part is None
        if waits or now_ms < self._wait_ms:
            return None
        message, rows = self.part or self._make()
        self.part = msgspec.structs.replace(message, sent_ms=now_ms), rows
        self._wait_ms, self._again_ms = now_ms + self._again_ms, min(2 * self._again_ms, AGAIN_MS_MAX)
        return self.part

    def _make(self) -> tuple[Snapshot, bytes]:
        kind, first, end, rows = "end", 0, 0, b""
        if self._spool is not None and self._spool.parts:
            kind, rows = "state", self._spool.parts.popleft()
        elif self._full and self._body_next <= self.index:
            kind, first = "body", self._body_next
            found, end = self._read(first)
            rows, self._body_next = _encode(found), end
        config, place = self._config, self._place
        message = Snapshot(
            leader=self._me,
            index=self.index,
            term=self.term,
            chain=place.chain,
            time_ms=place.time_ms,
            voters=config.voters,
            witnesses=config.witnesses,
            learners=config.learners,
            number=self.number,
            kind=kind,
            first=first,
            end=end,
            spooled_ms=self.spooled_ms,
        )
        return message, rows

    def _read(self, first: Index) -> tuple[list[tuple[Index, bytes]], Index]:
        found, size = [], 0
        for key, body in self._rows.scan(INDEX_KEY.pack(first), INDEX_KEY.pack(self.index + 1)):
            found.append((INDEX_KEY.unpack(key)[0], body))
            size += len(body)
            if size >= limits.SNAPSHOT_PART_BYTES:
                return found, found[-1][0] + 1
        return found, self.index + 1

    def answered(self, answer: Installed, now_ms: int) -> bool:
        """Handle an answer. False: the receiver lost its place, and the snapshot starts over."""
        if self.part is None or answer.index != self.index or answer.sent_ms < self.spooled_ms:
            return True
        if answer.number == self.number + 1:
            # a paced snapshot leaves room for appends on the same link and disk
            pause_ms = len(self.part[1]) * 1_000 // limits.SNAPSHOT_BYTES_PER_S
            self.number = answer.number
            self.part = None
            self._wait_ms = now_ms + pause_ms
            self._again_ms = limits.HEARTBEAT_MS
        elif answer.sent_ms != self.part[0].sent_ms:
            return True  # answers an earlier attempt
        elif answer.number == self.number:
            self._wait_ms = now_ms
        else:
            return False
        return True


class Receiving:
    """A snapshot being received: the number of the next part."""

    __slots__ = ("name", "number")

    def __init__(self, name: SnapshotName) -> None:
        self.name, self.number = name, 0

    def take(self, message: Snapshot, rows: bytes, tables: Tables) -> bool:
        """Store a part. False: it must be sent again. Raises ProtocolError."""
        # rows may be left: the sender repeats the part, and each attempt deletes some in a turn of its own
        if message.number == 0 and wipe(tables.state, WIPE_ROWS) == WIPE_ROWS:
            return False
        # a list, so that all of a part is checked before its first row is stored
        for table, key, value in list(_rows(message, rows, tables)):
            table.put(key, value)
        self.number += 1
        return True


def _rows(message: Snapshot, rows: bytes, tables: Tables) -> Iterator[tuple[Table, bytes, bytes]]:
    """Yield the rows of a part, after all of it was checked."""
    try:
        if message.kind == "state":
            found = _state_rows(rows)
            if any(key in records.OWN_ROWS for key, _ in found):
                raise ProtocolError(f"the snapshot of {message.leader} brings rows that are each copy's own")
            yield from ((tables.state, key, value) for key, value in found)
        elif message.kind == "body":
            bodies = _body_rows(rows)
            if any(not message.first <= index < message.end for index, _ in bodies):
                raise ProtocolError(f"the snapshot of {message.leader} brings batches from outside its range")
            tables.body.delete_range(INDEX_KEY.pack(message.first), INDEX_KEY.pack(message.end), 2**31)
            yield from ((tables.body, INDEX_KEY.pack(index), body) for index, body in bodies)
        elif message.kind != "end":
            raise ProtocolError(f"a part of a snapshot is of kind {message.kind!r}")
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the snapshot of {message.leader} cannot be read: {error}") from None
