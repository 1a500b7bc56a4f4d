"""What a consumer holds: delivered slices, and which of their records are done."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from gossipq.types import Offset, PartitionKey
from gossipq.wire.batch import HEADERS, KEYS, Batch

if TYPE_CHECKING:
    from gossipq_client.credit import Part

Ranges = list[tuple[Offset, Offset]]  #: half-open, rising, apart

_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


class Held:
    """Records `first` .. `end` of one delivered batch whose record 0 has offset `base`."""

    __slots__ = (
        "_headers",
        "_keys",
        "_values",
        "attempt",
        "base",
        "batch",
        "charge",
        "deadline_ms",
        "done",
        "end",
        "first",
        "left",
        "lost",
        "part",
        "partition",
        "taken",
    )

    def __init__(
        self, part: "Part", partition: PartitionKey, base: Offset, first: Offset, end: Offset, batch: Batch, attempt: int
    ) -> None:
        self.part, self.partition, self.base, self.batch, self.attempt = part, partition, base, batch, attempt
        self.first = self.taken = first  #: below `taken` the user has them
        self.end = end
        self.left = end - first  #: records that are neither acked nor given back
        self.charge = 0  #: bytes of credit it holds until it is wholly taken
        self.deadline_ms = 0
        self.done: list[list[Offset]] = []
        self.lost: Ranges = []
        self._values: list[bytes] | None = None
        self._keys: list[bytes] | None = None
        self._headers: list[bytes] | None = None

    def values(self) -> list[bytes]:
        """Values of the whole batch, opened once."""
        if self._values is None:
            self._values = self.batch.values()
        return self._values

    def value(self, offset: Offset) -> bytes:
        return self.values()[offset - self.base]

    def key(self, offset: Offset) -> bytes | None:
        if self._keys is None:
            self._keys = self.batch.column(KEYS) or []
        return self._keys[offset - self.base] if self._keys else None

    def headers(self, offset: Offset) -> dict[str, str | bytes]:
        if self._headers is None:
            self._headers = self.batch.column(HEADERS) or []
        raw = self._headers[offset - self.base] if self._headers else b""
        return _decode_headers(raw) if raw else {}

    def finish(self, first: Offset, end: Offset) -> Ranges:
        """Marks records as done; returns those that were not before."""
        done = self.done
        if not done:
            done.append([first, end])
        elif done[-1][1] == first:
            done[-1][1] = end
        else:
            return self._finish_between(first, end)
        self.left -= end - first
        return [(first, end)]

    def _finish_between(self, first: Offset, end: Offset) -> Ranges:
        fresh = subtract([(first, end)], self.done)
        self.done = sorted([*self.done, *map(list, fresh)])
        self.left -= sum(b - a for a, b in fresh)
        return fresh

    def open_ranges(self, first: Offset, end: Offset) -> Ranges:
        """What of [first, end) is not done."""
        return subtract([(max(first, self.first), min(end, self.end))], self.done)

    def is_lost(self, offset: Offset) -> bool:
        return any(first <= offset < end for first, end in self.lost)


class Piece:
    """Records of one held slice that the user took together."""

    __slots__ = ("end", "first", "held")

    def __init__(self, held: Held, first: Offset, end: Offset) -> None:
        self.held, self.first, self.end = held, first, end

    def __len__(self) -> int:
        return self.end - self.first

    def values(self) -> list[bytes]:
        values, base = self.held.values(), self.held.base
        if self.first == base and self.end - base == len(values):
            return values
        return values[self.first - base : self.end - base]


def subtract(ranges: Iterable[tuple[Offset, Offset]], taken: Iterable[Iterable[Offset]]) -> Ranges:
    """`ranges` without `taken`; both half-open."""
    left = [(first, end) for first, end in ranges if first < end]
    for low, high in taken:
        left = [
            piece for first, end in left for piece in ((first, min(end, low)), (max(first, high), end)) if piece[0] < piece[1]
        ]
    return left


def merge(ranges: Iterable[tuple[PartitionKey, Offset, Offset]]) -> list[tuple[PartitionKey, Offset, Offset]]:
    """Sorted by partition and offset, adjacent ones joined."""
    merged: list[tuple[PartitionKey, Offset, Offset]] = []
    for partition, first, end in sorted(ranges):
        if merged and merged[-1][0] == partition and merged[-1][2] >= first:
            merged[-1] = partition, merged[-1][1], max(end, merged[-1][2])
        else:
            merged.append((partition, first, end))
    return merged
