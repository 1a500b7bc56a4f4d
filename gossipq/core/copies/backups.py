"""What the leader of a shard hands out for a backup: a *point*, which is the shard as it was after one entry.

The state rows of a point are those of one commit, as of a snapshot for a copy. Batches never change, so they
are handed out by log index, and who has those of an older point asks for the later ones only; which of all
are still there at this point is told by their indexes. Each answer is one bounded piece, and the next one
comes when it is asked for: who makes the backup sets the pace.
"""

from collections.abc import Collection, Sequence

import msgspec

from gossipq import limits
from gossipq.core.copies.snapshot import Spool
from gossipq.core.raft import LogPoint, Requester
from gossipq.core.storage import INDEX_KEY, Tables
from gossipq.errors import BadRequest, WrongState
from gossipq.export_messages import BackedUp, BackUp
from gossipq.types import Index, Term

IDLE_MS = limits.MINUTE_MS  #: a point is given up when nobody has asked for so long
KEPT_ROWS = 20_000  #: indexes in one answer: some 5 ms
_encode = msgspec.msgpack.Encoder().encode


class OpenPoint:
    def __init__(
        self,
        index: Index,
        term: Term,
        place: LogPoint,
        tables: Tables,
        now_ms: int,
        left_over: Collection[Index] = (),
    ) -> None:
        """Right after the commit that left `tables` as they are after `index`. `left_over`: entries whose
        batches are there and no part of the point: those that were kept for the point before go with the next
        writes."""
        self.index, self._term, self._place, self.asked_ms = index, term, place, now_ms
        self._left_over = frozenset(left_over)
        self._spool, self._bodies = Spool(tables.state.reader()), tables.body
        self._number, self._part = -1, b""  # the newest part of the state that was handed out

    @property
    def reading(self) -> bool:
        return self._spool.reading

    def close(self) -> None:
        self._spool.close()

    def read(self) -> None:
        """The next state rows, as far as one turn goes."""
        self._spool.read(limits.SNAPSHOT_ROWS_PER_TURN)

    def told(self, more: int = -1) -> BackedUp:
        return BackedUp(self.index, self._term, self._place.chain, self._place.time_ms, more)

    def part(self, message: BackUp) -> tuple[BackedUp, bytes]:
        """Raises BadRequest."""
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
    """Of one leader: at most one point at a time."""

    def __init__(self) -> None:
        self._point: OpenPoint | None = None
        self._askers: list[Requester] = []  # who waits for the next commit, to have a point made

    @property
    def wanted(self) -> bool:
        return bool(self._askers)

    @property
    def active(self) -> bool:
        """Batches have to stay where they are."""
        return self._point is not None

    def serve(self, asker: Requester, message: BackUp, now_ms: int) -> tuple[BackedUp, bytes] | None:
        """A part; None: a point comes with the next commit. Raises WrongState, BadRequest."""
        if not message.index:
            self._askers.append(asker)
            return None
        point = self._point
        if point is None or point.index != message.index:
            raise WrongState(f"the point at entry {message.index} is gone", hint="make another one")
        point.asked_ms = now_ms
        return point.part(message)

    def begin(self, point: OpenPoint) -> Sequence[tuple[Requester, BackedUp]]:
        """A commit has come: the point before it is given up. Returns who is told."""
        self._end()
        self._point = point
        askers, self._askers = self._askers, []
        return [(asker, point.told()) for asker in askers]

    def tick(self, now_ms: int) -> None:
        """Reads on, and gives up what nobody asks for."""
        if self._point is not None and now_ms >= self._point.asked_ms + IDLE_MS:
            self._end()
        elif self._point is not None and self._point.reading:
            self._point.read()

    def next_deadline(self) -> int | None:
        if self._point is None:
            return None
        return 0 if self._point.reading else self._point.asked_ms + IDLE_MS

    def reset(self) -> list[Requester]:
        """This copy does not lead any more: who waits hears of it."""
        self._end()
        askers, self._askers = self._askers, []
        return askers

    def _end(self) -> None:
        if self._point is not None:
            self._point.close()
        self._point = None
