"""Cache of the newest entries of all shards that a worker leads, for copies that are behind."""

from collections import OrderedDict

from gossipq.core.storage.log import Entry
from gossipq.types import Index


class Recent:
    """One bound in bytes for the shelves of all shards. The oldest entry is dropped first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        #: bytes of each entry, oldest first
        self.order: OrderedDict[tuple[Shelf, Index], int] = OrderedDict()

    def shelf(self) -> "Shelf":
        """Return a new shelf, for one shard."""
        return Shelf(self)


class Shelf:
    """Cached entries of one shard. Other shelves can displace them."""

    __slots__ = ("_entries", "_recent")

    def __init__(self, recent: Recent) -> None:
        self._recent = recent
        self._entries: dict[Index, Entry] = {}

    def get(self, index: Index) -> Entry | None:
        return self._entries.get(index)

    def put(self, entry: Entry, size: int) -> None:
        """Add an entry of `size` bytes."""
        self.pop(entry.index)
        recent = self._recent
        self._entries[entry.index] = entry
        recent.order[self, entry.index] = size
        recent.bytes += size
        while recent.bytes > recent.bytes_max:
            shelf, index = next(iter(recent.order))
            shelf.pop(index)

    def pop(self, index: Index) -> None:
        if self._entries.pop(index, None) is not None:
            self._recent.bytes -= self._recent.order.pop((self, index))

    def clear(self) -> None:
        for index in list(self._entries):
            self.pop(index)
