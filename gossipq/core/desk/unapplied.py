"""Entries in a copy's log that are not applied yet, and the memory they use."""

from collections import deque
from collections.abc import Iterable, Iterator

from gossipq.core.storage import Entry
from gossipq.types import Index

ENTRY_BYTES = 256  #: of an entry besides its payload and body


class Unapplied:
    """Oldest first. `bytes` is their approximate size in memory."""

    __slots__ = ("bytes", "entries")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: deque[Entry] = deque()
        self.bytes = 0
        self.extend(entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.bytes += ENTRY_BYTES + len(entry.payload) + len(entry.body)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def cut(self, first: Index) -> None:
        """Entries from `first` on were removed from the log."""
        while self.entries and self.entries[-1].index >= first:
            self.bytes -= _size(self.entries.pop())

    def take(self, last: Index) -> list[Entry]:
        """Remove and yield the entries up to `last`."""
        entries, taken = self.entries, []
        while entries and entries[0].index <= last:
            entry = entries.popleft()
            self.bytes -= ENTRY_BYTES + len(entry.payload) + len(entry.body)
            taken.append(entry)
        return taken


def _size(entry: Entry) -> int:
    return ENTRY_BYTES + len(entry.payload) + len(entry.body)
