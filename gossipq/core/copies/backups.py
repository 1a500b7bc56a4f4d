"""Backups of a shard: the leader makes a *point*, which is the state after one entry, and sends it.

The state rows of a point are those of one commit, as in a snapshot. Batches never change, so a
backup fetches only those newer than its previous point; a list of indexes says which still exist.
Each answer is one bounded part. The client sets the pace, because it asks for each part.
"""

from collections.abc import Collection, Sequence

import msgspec

from gossipq import limits
from gossipq.core.copies.snapshot import Spool
from gossipq.core.desk import Asker, Request
from gossipq.core.raft import LogPoint
from gossipq.core.storage import INDEX_KEY, Reader, Table
from gossipq.errors import BadRequest, WrongState
from gossipq.export_messages import BackedUp, BackUp
from gossipq.types import Index, Term

IDLE_MS = limits.MINUTE_MS  #: a point is dropped after this time without a request
KEPT_ROWS = 20_000  #: indexes in one answer: about 5 ms
_encode = msgspec.msgpack.Encoder().encode


class OpenPoint:
    def __init__(
        self,
        index: Index,
        term: Term,
        place: LogPoint,
        state: Reader,
        bodies: Table,
        now_ms: int,
        left_over: Collection[Index] = (),
    ) -> None:
        """Make a point, right after the commit that left `state` as it is after entry `index`.

        `left_over` are entries whose batches still exist but are not part of the point. They were
        kept for the previous point, and are deleted with the next writes.
        """
        self.index = index
        self._term = term
        self._place = place
        self.asked_ms = now_ms
        self._left_over = frozenset(left_over)
        self._spool, self._bodies = Spool(state), bodies
        self._number, self._part = -1, b""  # the newest part of the state that was sent

    @property
    def reading(self) -> bool:
        return self._spool.reading

    def close(self) -> None:
        self._spool.close()

    def read(self) -> None:
        """Read the next state rows, as many as one turn allows."""
        self._spool.read(limits.SNAPSHOT_ROWS_PER_TURN)

    def told(self, more: int = -1) -> BackedUp:
        return BackedUp(self.index, self._term, self._place.chain, self._place.time_ms, more)

    def part(self, message: BackUp) -> tuple[BackedUp, bytes]:
        """Return a part of the point. Raises BadRequest."""
        if message.kind == "state":
            return self._state(message.at)
        first, end = INDEX_KEY.pack(max(0, min(message.at, self.index + 1))), INDEX_KEY.pack(self.index + 1)
        if message.kind == "kept":
            return self._kept(first, end)
        if message.kind == "batches":
            return self._batches(first, end)
        raise BadRequest(f"a backup has no {message.kind!r}", hint="state, kept or batches")

    def _state(self, number: int) -> tuple[BackedUp, bytes]:
        spool = self._spool
        if number == self._number + 1:
            while spool.reading and not spool.parts:
                self.read()
            self._number, self._part = number, spool.parts.popleft() if spool.parts else b""
        elif number != self._number:
            raise BadRequest(f"part {number} is asked for after {self._number}", hint="part after part")
        return self.told(number + 1 if self._part else -1), self._part

    def _kept(self, first: bytes, end: bytes) -> tuple[BackedUp, bytes]:
        indexes: list[Index] = []
        for number, key in enumerate(self._bodies.scan_keys(first, end)):
            (index,) = INDEX_KEY.unpack(key)
            if number == KEPT_ROWS:
                return self.told(index), _encode(indexes)
            if index not in self._left_over:
                indexes.append(index)
        return self.told(), _encode(indexes)

    def _batches(self, first: bytes, end: bytes) -> tuple[BackedUp, bytes]:
        rows: list[tuple[Index, bytes]] = []
        size = 0
        for key, body in self._bodies.scan(first, end):
            if size + len(body) > limits.SNAPSHOT_PART_BYTES and rows:
                return self.told(INDEX_KEY.unpack(key)[0]), _encode(rows)
            rows.append((INDEX_KEY.unpack(key)[0], body))
            size += len(body)
        return self.told(), _encode(rows)


class Backups:
    """The backups of one leader: at most one point at a time."""

    def __init__(self) -> None:
        self.point: OpenPoint | None = None  #: while there is one, batches must not be deleted
        #: requests for a new point, which is made at the next commit
        self.askers: list[Asker] = []

    def serve(self, request: Request, now_ms: int) -> tuple[BackedUp, bytes] | None:
        """Return a part, or None if a new point is made at the next commit. Raises WrongState,
        BadRequest.
        """
        message: BackUp = request.message
        if not message.index:
            self.askers.append(request)
            return None
        point = self.point
        if point is None or point.index != message.index:
            raise WrongState(f"the point at entry {message.index} is gone", hint="make another one")
        point.asked_ms = now_ms
        return point.part(message)

    def begin(self, point: OpenPoint) -> Sequence[tuple[Asker, BackedUp]]:
        """Replace the old point by a new one, after a commit. Returns the answers to send."""
        self._end()
        self.point = point
        askers, self.askers = self.askers, []
        return [(asker, point.told()) for asker in askers]

    def tick(self, now_ms: int) -> None:
        """Read more of the state, or drop a point without recent requests."""
        if self.point is not None and now_ms >= self.point.asked_ms + IDLE_MS:
            self._end()
        elif self.point is not None and self.point.reading:
            self.point.read()

    def next_deadline(self) -> int | None:
        if self.point is None:
            return None
        return 0 if self.point.reading else self.point.asked_ms + IDLE_MS

    def reset(self) -> list[Asker]:
        """This copy lost leadership. Returns the requests that wait."""
        self._end()
        askers, self.askers = self.askers, []
        return askers

    def _end(self) -> None:
        if self.point is not None:
            self.point.close()
        self.point = None
