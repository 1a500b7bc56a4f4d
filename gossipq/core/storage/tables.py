"""The storage of a shard as the core sees it: three tables of sorted bytes in one open
transaction.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class Reader(Protocol):
    """A snapshot of the rows at the last commit."""

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows with first <= key < end in order. Raises StoreError if the store was
        reopened.
        """

    def close(self) -> None:
        """End the snapshot. Do it within seconds: the store keeps all pages that a reader can
        see.
        """


class Table(Protocol):
    """Sorted byte keys to byte values.

    A scan can be stopped at any point. The table must not change while a scan runs.
    """

    def get(self, key: bytes) -> bytes | None: ...
    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the existing rows of those keys. Fast if the keys are in order."""

    def put(self, key: bytes, value: bytes) -> None: ...
    def put_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Like `put` of each. Fast if the rows are in order."""

    def append_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Like `put_many`, for rising keys above all existing ones. Other keys are a fault of the
        caller.
        """

    def delete(self, key: bytes) -> bool: ...
    def delete_many(self, keys: Iterable[bytes], prefix: bytes) -> None:
        """Delete the rows of those keys whose values begin with `prefix`. Fast if they are in
        order.
        """

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows with first <= key < end, in order."""

    def scan_keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys of a scan. Values are not read."""

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key <= `key`."""

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        """Delete at most `rows_max` rows of [first, end), lowest first. Returns how many."""

    def reader(self) -> Reader:
        """Open a snapshot. Call it right after a commit, because it does not see later changes."""


class Tables(Protocol):
    """The tables of one shard. Keys of `log` and `body` are the log index, 8 bytes, big endian."""

    @property
    def log(self) -> Table: ...
    @property
    def body(self) -> Table: ...
    @property
    def state(self) -> Table: ...


class MemoryTable:
    """A table in memory, for tests: a dict and its sorted keys."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = bytes(value)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return {key: self.rows[key] for key in keys if key in self.rows}

    def put_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            self.put(key, value)

    def append_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            assert not self.keys or key > self.keys[-1], "append goes above all other keys"
            self.keys.append(key)
            self.rows[key] = bytes(value)

    def delete(self, key: bytes) -> bool:
        if key not in self.rows:
            return False
        del self.rows[key]
        del self.keys[bisect_left(self.keys, key)]
        return True

    def delete_many(self, keys: Iterable[bytes], prefix: bytes) -> None:
        for key in keys:
            if self.rows.get(key, b"").startswith(prefix):
                self.delete(key)

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys[bisect_left(self.keys, first) : bisect_left(self.keys, end)]:
            yield key, self.rows[key]

    def scan_keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        return iter(self.keys[bisect_left(self.keys, first) : bisect_left(self.keys, end)])

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        at = bisect_left(self.keys, key + b"\0")
        return (self.keys[at - 1], self.rows[self.keys[at - 1]]) if at else None

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        low = bisect_left(self.keys, first)
        gone = self.keys[low : min(bisect_left(self.keys, end), low + rows_max)]
        for key in gone:
            del self.rows[key]
        del self.keys[low : low + len(gone)]
        return len(gone)

    def reader(self) -> "MemoryTable":
        twin = MemoryTable()
        twin.rows, twin.keys = dict(self.rows), list(self.keys)
        return twin

    def close(self) -> None:
        """End of a reader: nothing to release."""


class MemoryTables:
    """Tables for tests and simulation. `copy` returns what a disk would have at this moment."""

    def __init__(self) -> None:
        self.log = MemoryTable()
        self.body = MemoryTable()
        self.state = MemoryTable()

    def copy(self) -> "MemoryTables":
        twin = MemoryTables()
        for mine, other in ((self.log, twin.log), (self.body, twin.body), (self.state, twin.state)):
            other.rows, other.keys = dict(mine.rows), list(mine.keys)
        return twin
