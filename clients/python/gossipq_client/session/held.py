"""Slices that a consumer holds, and which of their records are done.

After a lost connection the client tells the leader what it holds. Records that were lost on the way
come back at once instead of after their lease, and leases that the leader had not logged stay with
their holder.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from gossipq.types import ATTEMPTS, HEADERS, IDS, KEY_HASH, KEYS, UNIQUES, Offset, PartitionKey
from gossipq.wire.batch import Batch
from gossipq_client.values import results

if TYPE_CHECKING:
    from gossipq_client.session.credit import Part

Ranges = list[tuple[Offset, Offset]]  #: half-open, rising, not touching
ALOUD_ATTEMPT = 3
NO_OFFSETS: frozenset[Offset] = frozenset()


class SharedBatch(Batch):
    """A batch that several slices share; opened columns are kept."""

    __slots__ = ("_opened",)

    def __init__(self, raw: bytes | memoryview) -> None:
        super().__init__(raw)
        self._opened: dict[int, list[bytes] | None] = {}

    def values(self) -> list[bytes]:
        found = self.column(0)
        assert found is not None, "the values are always present"
        return found

    def column(self, bit: int) -> list[bytes] | None:
        if bit not in self._opened:
            self._opened[bit] = super().column(bit)
        return self._opened[bit]


class Held:
    """Records `first` .. `end` of one delivered batch, whose record 0 has offset `base`."""

    __slots__ = (
        "_hashes",
        "_headers",
        "_ids",
        "_keys",
        "again",
        "attempt",
        "base",
        "batch",
        "cancelled",
        "charge",
        "deadline_ms",
        "done",
        "end",
        "failures",
        "first",
        "keep_all_ms",
        "keeps_ms",
        "late",
        "lease_ms",
        "left",
        "longer",
        "lost",
        "opened",
        "part",
        "partition",
        "taken",
        "waiting",
    )

    def __init__(
        self,
        part: "Part",
        partition: PartitionKey,
        base: Offset,
        first: Offset,
        end: Offset,
        batch: Batch,
        attempt: int,
    ) -> None:
        self.part, self.partition, self.base, self.batch, self.attempt = part, partition, base, batch, attempt
        self.first = self.taken = first  #: the user has the records below `taken`
        self.end = end
        self.failures = 0
        self.again = False  #: delivered before as this attempt, which had not begun
        #: records below `taken` that user code has not begun
        self.waiting: frozenset[Offset] = NO_OFFSETS
        self.left = end - first  #: records that are neither acked nor given back
        self.charge = 0  #: bytes of credit that it holds until it is taken completely
        self.deadline_ms = self.lease_ms = 0
        self.late = False  #: a record that was published later has come before it
        self.done: list[list[Offset]] = []
        self.longer: dict[Offset, int] = {}  #: offset -> deadline that the user asked for
        #: records that other consumers have, or that were given back before the user began them
        self.lost: Ranges = []
        self.cancelled: Ranges = []  #: those of them that are void: their jobs were cancelled
        self._hashes: array[int] | None = None
        self.opened: list[bytes] | None = None  #: the result of `values`, after its first call
        self._keys: list[bytes] | None = None
        self._headers: list[bytes] | None = None
        self._ids: list[bytes] | None = None
        #: how long the result of each record is kept, 0 = it is not; None = unknown, or `keeps_ms` tells
        self.keep_all_ms: int | None = None if batch.info.columns & HEADERS else 0
        self.keeps_ms: list[int] | None = None

    def values(self) -> list[bytes]:
        """Values of the whole batch, opened once."""
        if self.opened is None:
            self.opened = self.batch.values()
        return self.opened

    def value(self, offset: Offset) -> bytes:
        return self.values()[offset - self.base]

    def key(self, offset: Offset) -> bytes | None:
        if self._keys is None:
            self._keys = self.batch.column(KEYS) or []
        return self._keys[offset - self.base] if self._keys else None

    def header_bytes(self, offset: Offset) -> bytes:
        if self._headers is None:
            self._headers = self.batch.column(HEADERS) or []
        return self._headers[offset - self.base] if self._headers else b""

    def keep_ms(self, offset: Offset) -> int:
        """How long the result of a record is kept, by its stored headers; 0 = it is not kept."""
        if self.keep_all_ms is not None:
            return self.keep_all_ms
        if self.keeps_ms is None:
            headers = self.batch.column(HEADERS) or [b""]
            if headers.count(headers[0]) == len(headers):  # so it is in most batches: they are read once
                self.keep_all_ms = results.keep_ms_of(headers[0])
                return self.keep_all_ms
            self.keeps_ms = [results.keep_ms_of(each) for each in headers]
        return self.keeps_ms[offset - self.base]

    def id(self, offset: Offset) -> bytes:
        """The id of a record, or b""."""
        if self._ids is None:
            self._ids = self.batch.column(IDS) or []
        return self._ids[offset - self.base] if self._ids else b""

    def unique(self, offset: Offset) -> bytes:
        """The unique name of a record, or b""."""
        names = self.batch.column(UNIQUES)
        return names[offset - self.base] if names else b""

    def attempts_max(self, offset: Offset) -> int:
        """Failures after which the record is a dead letter; 0 if it is never redelivered."""
        if not self.part.subscription.leased:
            return 0
        said = self.batch.fixed(ATTEMPTS)
        return (said[offset - self.base] if said else 0) or self.part.attempts_max

    def key_hash(self, offset: Offset) -> int:
        """The key hash of a record, or 0 without a key."""
        hashes = self._key_hashes()
        return hashes[offset - self.base] if hashes else 0

    def of_key(self, key_hash: int, first: Offset) -> Ranges:
        """Ranges of a key's open records, from `first` on."""
        hashes, base = self._key_hashes(), self.base
        found: Ranges = []
        at, stop = max(first, self.first) - base, self.end - base
        with suppress(ValueError):  # no more of them
            while True:
                at = hashes.index(key_hash, at, stop) + 1
                found += self.open_ranges(base + at - 1, base + at)
        return found

    def _key_hashes(self) -> "array[int]":
        if self._hashes is None:
            self._hashes = self.batch.fixed(KEY_HASH) or array("I")
        return self._hashes

    def finish(self, first: Offset, end: Offset) -> Ranges:
        """Marks records as done; returns those that were not done before. All or none."""
        done = self.done
        if done and done[-1][1] == first:
            done[-1][1] = end
            self.left -= end - first
            return [(first, end)]
        fresh = self.undone(first, end)
        more, left = done.copy(), self.left - sum(b - a for a, b in fresh)
        for low, high in fresh:
            at = bisect_right(more, low, key=_first)
            before, after = at > 0 and more[at - 1][1] == low, at < len(more) and more[at][0] == high
            joined = [more[at - 1][0] if before else low, more[at][1] if after else high]
            more[at - before : at + after] = [joined]
        self.done, self.left = more, left
        return fresh

    def undone(self, first: Offset, end: Offset) -> Ranges:
        """The ranges that `finish` would mark."""
        done = self.done
        if not done or done[-1][1] <= first:
            return [(first, end)]
        at = max(0, bisect_right(done, first, key=_first) - 1)
        return subtract([(first, end)], done[at : bisect_left(done, end, lo=at, key=_first)])

    @property
    def untaken(self) -> int:
        return self.end - self.taken

    @property
    def begins_aloud(self) -> bool:
        """True if the leader must know before user code begins the record: it was delivered
        before or had two attempts, so it may kill its consumer at once.
        `Consuming._tell_hands` reports the others.
        """
        return self.again or self.attempt >= ALOUD_ATTEMPT

    def in_hand(self) -> Ranges:
        """The records that user code has begun and not finished."""
        waiting = [(offset, offset + 1) for offset in self.waiting]
        return subtract(self.open_ranges(self.first, self.taken), [*waiting, *self.lost])

    def cut(self, end: Offset) -> Ranges:
        """Ends the slice before records that the user has not begun; returns
        the open ones that were cut.
        """
        ranges = self.open_ranges(end, self.end)
        self.end = end
        self.left -= sum(high - low for low, high in ranges)
        return ranges

    def cut_last(self, count: int) -> tuple[int, Ranges]:
        """Ends the slice `count` records earlier, but not before records that the user has begun.
        Returns the number of records cut, and the open ones among them.

        A thread that iterates moves `taken` and then looks at `end`; this method does it the other
        way round. So no record both stays with the user and is given back.
        """
        before = self.end
        self.end = before - count
        self.end = end = max(self.end, min(self.taken, before))
        ranges = subtract([(max(end, self.first), before)], self.done)
        self.left -= sum(high - low for low, high in ranges)
        return before - end, ranges

    def open_ranges(self, first: Offset, end: Offset) -> Ranges:
        """The open ranges of [first, end)."""
        return subtract([(max(first, self.first), min(end, self.end))], self.done)

    def to_extend(self, now_ms: int) -> Ranges:
        """The open records that are not lost. Leaves out those for which the user asked for more
        time, until that is half a lease away.
        """
        later = [
            (at, at + 1)
            for at, deadline_ms in self.longer.items()
            if deadline_ms - self.lease_ms // 2 > now_ms
        ]
        return subtract(self.open_ranges(self.first, self.end), [*later, *self.lost])

    def is_lost(self, offset: Offset) -> bool:
        return any(first <= offset < end for first, end in self.lost)

    def lose(self, ranges: Ranges) -> None:
        """Other consumers have these records."""
        self.lost = join([*self.lost, *ranges])

    def is_cancelled(self, offset: Offset) -> bool:
        return any(first <= offset < end for first, end in self.cancelled)

    def cancel(self, ranges: Ranges) -> None:
        """The jobs of these records were cancelled: nothing that is said of them counts any more."""
        self.cancelled = join([*self.cancelled, *ranges])
        self.give_up(ranges)

    def give_up(self, ranges: Ranges) -> None:
        """The user settles these records no more: they are void, or given back before the user begins."""
        self.lose(ranges)
        for first, end in ranges:
            self.finish(first, end)


def _first(done: list[Offset]) -> Offset:
    return done[0]


class Piece:
    """Records of one held slice that the user took together."""

    __slots__ = ("end", "first", "held")

    def __init__(self, held: Held, first: Offset, end: Offset) -> None:
        self.held, self.first, self.end = held, first, end

    def __len__(self) -> int:
        return self.end - self.first

    def values(self) -> list[bytes]:
        base = self.held.base
        return self.held.values()[self.first - base : self.end - base]


def subtract(ranges: Iterable[tuple[Offset, Offset]], taken: Iterable[Iterable[Offset]]) -> Ranges:
    """`ranges` without `taken`; both half-open."""
    left = [(first, end) for first, end in ranges if first < end]
    for low, high in taken:
        left = [
            piece
            for first, end in left
            for piece in ((first, min(end, low)), (max(first, high), end))
            if piece[0] < piece[1]
        ]
    return left


def join(ranges: Iterable[tuple[Offset, Offset]]) -> Ranges:
    """Rising ranges, adjacent ones joined."""
    return [(first, end) for _, first, end in merge((0, first, end) for first, end in ranges)]


def merge(ranges: Iterable[tuple[PartitionKey, Offset, Offset]]) -> list[tuple[PartitionKey, Offset, Offset]]:
    """Sorted by partition and offset, adjacent ones joined."""
    merged: list[tuple[PartitionKey, Offset, Offset]] = []
    where, low, high = -1, 0, -1
    for each in sorted(ranges):
        partition, first, end = each
        if first > high or partition != where:
            where, low, high = each
            merged.append(each)
        elif end > high:
            high = end
            merged[-1] = where, low, high
    return merged
