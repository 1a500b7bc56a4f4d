"""Rows that each describe a run of neighbouring records.

A row is found by any offset inside it, and is split when a part is taken out.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import U64
from gossipq.core.storage import Table
from gossipq.types import Offset


class RunRow(Protocol):
    """A row that ends at `end`. `record` is the place of its first record in its batch.

    With `ranges` it covers only those.
    """

    @property
    def end(self) -> Offset: ...
    @property
    def record(self) -> int: ...
    @property
    def ranges(self) -> list[tuple[Offset, Offset]]: ...


PREFIX_BYTES = 17  #: of row keys: their kind, a partition, a group

R = TypeVar("R", bound=RunRow)


class Found(NamedTuple, Generic[R]):
    first: Offset
    row: R

    @property
    def end(self) -> Offset:
        return self.row.end

    @property
    def total(self) -> int:
        ranges = self.row.ranges
        return sum(end - first for first, end in ranges) if ranges else self.row.end - self.first

    def part(self, first: Offset, end: Offset) -> "Found[R]":
        if (first, end) == (self.first, self.row.end):
            return self
        changed = msgspec.structs.replace(self.row, end=end, record=self.row.record + first - self.first)  # type: ignore[type-var]
        return Found(first, changed)


class Runs(Generic[R]):
    """Rows under one prefix of `PREFIX_BYTES`, by their first offset."""

    __slots__ = ("_decode", "_prefix", "_state")

    def __init__(self, state: Table, prefix: bytes, decode: Callable[[bytes], R]) -> None:
        self._state = state
        self._prefix = prefix
        self._decode = decode

    def _found(self, row_key: bytes, row: bytes) -> Found[R]:
        return Found(U64.unpack_from(row_key, PREFIX_BYTES)[0], self._decode(row))

    def scan(self, first: Offset = 0) -> Iterator[Found[R]]:
        """Yield what begins at `first` or behind it. Subclasses yield runs instead of rows."""
        return self._rows(first)

    def _rows(self, first: Offset) -> Iterator[Found[R]]:
        """Yield rows that begin at `first` or behind it."""
        for row_key, row in self._state.scan(self._prefix + U64.pack(first), records.after(self._prefix)):
            yield self._found(row_key, row)

    def at(self, offset: Offset) -> Found[R] | None:
        """Return the row, or in subclasses the run, that contains an offset."""
        return self.row_at(offset)

    def row_at(self, offset: Offset) -> Found[R] | None:
        """Return the row that contains an offset."""
        row_key = self._prefix + U64.pack(offset)
        begins = self._state.get(row_key)
        if begins is not None:  # the common case; a search costs more
            found = Found(offset, self._decode(begins))
            return found if offset < found.end else None
        row = self._state.floor(row_key)
        if row is None or not row[0].startswith(self._prefix):
            return None
        found = self._found(*row)
        return found if offset < found.end else None

    def row_before(self, offset: Offset) -> Found[R] | None:
        """Return the last row that begins below an offset."""
        row = self._state.floor(self._prefix + U64.pack(offset - 1)) if offset > 0 else None
        return self._found(*row) if row is not None and row[0].startswith(self._prefix) else None

    def within(self, first: Offset, end: Offset) -> Iterator[Found[R]]:
        """Yield rows in [first, end), cut at its bounds."""
        for found in self._reaching(first, end):
            yield from self.pieces(found, first, end)

    def _reaching(self, first: Offset, end: Offset) -> Iterator[Found[R]]:
        """Yield whole rows that overlap [first, end)."""
        before = self.row_at(first)
        if before is not None:
            yield before
            first = before.end
        if first < end:
            for found in self._rows(first):
                if found.first >= end:
                    return
                yield found

    @staticmethod
    def pieces(whole: Found[R], first: Offset, end: Offset) -> list[Found[R]]:
        """Return the records of a row in [first, end), run by run."""
        return [whole.part(max(whole.first, first), min(whole.end, end))]

    def overlap(self, first: Offset, end: Offset) -> list[Found[R]]:
        """Return the rows of `within` as a list."""
        return list(self.within(first, end))

    def put(self, first: Offset, row: R) -> None:
        self._state.put(self._prefix + U64.pack(first), records.encode(row))

    def put_many(self, rows: list[tuple[Offset, R]]) -> None:
        prefix, encode = self._prefix, records.encode
        self._state.put_many([(prefix + U64.pack(first), encode(row)) for first, row in rows])

    def delete(self, found: Found[R]) -> None:
        self._state.delete(self._prefix + U64.pack(found.first))

    def take(self, first: Offset, end: Offset) -> list[Found[R]]:
        """Remove [first, end), splitting rows at its bounds. Returns the removed parts."""
        begins = self.row_at(first)
        # a record that was stored alone
        if begins is not None and (begins.first, begins.end) == (first, end):
            self.delete(begins)
            return self.pieces(begins, first, end)
        parts: list[Found[R]] = []
        for whole in list(self._reaching(first, end)):
            taken = self.pieces(whole, first, end)
            if taken:
                parts += taken
                self.delete(whole)
                self.leave(whole, whole.first, first)
                self.leave(whole, end, whole.end)
        return parts

    def leave(self, whole: Found[R], first: Offset, end: Offset) -> None:
        """Write back the part [first, end) of a removed row."""
        if first < end:
            self.put(*whole.part(first, end))
