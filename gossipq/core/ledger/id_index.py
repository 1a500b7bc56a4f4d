"""Index of ids in memory: the entry that stored each id.

Buckets of bytes take 17 to 25 bytes an id, a dict about 100.

A row for each id lies at a random place of LMDB, and took two thirds of a node's time for a record.
"""

from array import array
from collections.abc import Collection
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from gossipq import limits
from gossipq.types import Index, PartitionKey

NAME = Struct("8s")  #: the hash of an id, as bytes
NO_NAME = bytes(NAME.size)  #: for a record without an id
ENTRY = Struct("=Q")  #: behind the hash in a row: the entry that stored it
ROW = Struct("=8sQ")
BUCKETS = 1 << 16  #: of each shard that has ids
IDS_MAX = 1 << 20  #: of a shard: the default of one partition, and one more batch
assert IDS_MAX == limits.UNIQUES_MAX  # they have an index like this of their own
PASSED_MAX = 16  #: more forgotten rows of one id are removed at once, without waiting for the sweep
#: an entry takes the room of at least this many, because opening the shard reads a row for each
ENTRY_IDS_MIN = 16


class Brought(NamedTuple):
    """An entry that stored ids."""

    time_ms: int  #: leader time
    ids: int


@lru_cache(maxsize=16)
def _all_names(count: int) -> Struct:
    """A struct that unpacks `count` hashes in one call: six times faster than one by one."""
    return Struct("8s" * count)


def names_of(hashes: "array[int] | bytes") -> tuple[bytes, ...]:
    return _all_names(memoryview(hashes).nbytes // NAME.size).unpack(hashes)


class IdIndex:
    """The ids of one shard. A bucket has its rows in order of arrival.

    Removal is lazy, like a clock algorithm: rows of forgotten entries are ignored, and deleted when
    the sweep (`_hand`) reaches their bucket.
    """

    def __init__(self) -> None:
        self._buckets = [b""] * BUCKETS
        self._entries: dict[PartitionKey, dict[Index, Brought]] = {}  # oldest first
        self._live: set[Index] = set()  # entries of all partitions
        self._ids = self._forgotten = 0  # rows in use, and rows of forgotten entries
        self._taken = 0  # of IDS_MAX
        self._hand = 0

    def entries(self, partition: PartitionKey) -> dict[Index, Brought]:
        """Entries with ids of this partition, oldest first."""
        return self._entries.get(partition, {})

    def has_room(self, count: int) -> bool:
        """True if an entry with `count` ids fits. The answer is the same on all copies of the
        shard.
        """
        return self._taken + max(count, ENTRY_IDS_MIN) <= IDS_MAX

    def add(self, partition: PartitionKey, index: Index, time_ms: int, names: Collection[bytes]) -> None:
        """Add different ids of an entry. It must be newer than all entries of its partition."""
        self._add(partition, index, time_ms, names, self._places(names))

    def add_unless_known(
        self, partition: PartitionKey, index: Index, time_ms: int, names: Collection[bytes]
    ) -> bool:
        """Like `add`, if none of the ids is here. False: one may be here, and nothing was added."""
        places = self._places(names)
        # at least two, because one would not be returned as a tuple
        buckets = itemgetter(*places, 0)(self._buckets)
        # read all buckets first: a fifth faster than waiting for memory once per id
        b"".join(buckets)
        if max(map(bytes.find, buckets, names)) >= 0:
            return False
        del buckets
        self._add(partition, index, time_ms, names, places)
        return True

    @staticmethod
    def _places(names: Collection[bytes]) -> list[int]:
        """Return the buckets of ids. Python's bytes hash is keyed, so no client can choose
        collisions.
        """
        last = BUCKETS - 1
        return [each & last for each in map(hash, names)]

    def _add(
        self, partition: PartitionKey, index: Index, time_ms: int, names: Collection[bytes], places: list[int]
    ) -> None:
        buckets, entry = self._buckets, ENTRY.pack(index)
        for place, name in zip(places, names, strict=True):
            buckets[place] += name + entry
        self._entries.setdefault(partition, {})[index] = Brought(time_ms, len(names))
        self._live.add(index)
        self._ids += len(names)
        self._taken += max(len(names), ENTRY_IDS_MIN)
        if self._forgotten:
            self._sweep(len(names))

    def newest(self, partition: PartitionKey, name: bytes) -> Index | None:
        """Return the last entry of this partition with this id."""
        entries, place = self.entries(partition), hash(name) & (BUCKETS - 1)
        bucket, passed = self._buckets[place], 0
        at = bucket.rfind(name)
        while at >= 0:
            if at % ROW.size == 0:  # otherwise the match spans two numbers
                (index,) = ENTRY.unpack_from(bucket, at + NAME.size)
                if index in entries:
                    return int(index)
                passed += index not in self._live
            at = bucket.rfind(name, 0, at + NAME.size - 1)
        if passed > PASSED_MAX:  # an id that is stored and forgotten again and again
            self._pick(place)
        return None

    def forget(self, partition: PartitionKey, index: Index) -> None:
        entries = self._entries[partition]
        count = entries.pop(index).ids
        if not entries:
            del self._entries[partition]
        self._live.remove(index)
        self._ids -= count
        self._taken -= max(count, ENTRY_IDS_MIN)
        self._forgotten += count

    def remove(self, partition: PartitionKey, index: Index, names: Collection[bytes]) -> None:
        """Remove some ids of an entry at once. At least one must stay; `forget` removes all."""
        entry = ENTRY.pack(index)
        for place, name in zip(self._places(names), names, strict=True):
            bucket, row = self._buckets[place], name + entry
            at = bucket.find(row)
            while at % ROW.size:  # a match across two rows
                at = bucket.find(row, at + 1)
            self._buckets[place] = bucket[:at] + bucket[at + ROW.size :]
        before = self._entries[partition][index]
        left = self._entries[partition][index] = before._replace(ids=before.ids - len(names))
        self._ids -= len(names)
        self._taken -= max(before.ids, ENTRY_IDS_MIN) - max(left.ids, ENTRY_IDS_MIN)

    def drop(self, partition: PartitionKey) -> None:
        """Forget a removed partition."""
        for index in list(self.entries(partition)):
            self.forget(partition, index)

    def _sweep(self, added: int) -> None:
        """Move the sweep on: two rounds for as many new ids as the index has."""
        live, buckets, usual = self._live, self._buckets, max(self._ids, BUCKETS)
        for _ in range(min(BUCKETS, -(-2 * added * BUCKETS // usual))):
            bucket = buckets[self._hand]
            entries = memoryview(bucket).cast("Q")[1::2].tolist()
            gone = 0
            for index in entries:
                if index in live:
                    break
                gone += 1
            if gone:
                buckets[self._hand] = bucket[gone * ROW.size :]
                self._forgotten -= gone
            if self._forgotten > usual:  # behind rows of a partition that remembers for longer
                self._pick(self._hand)
            self._hand = (self._hand + 1) % BUCKETS

    def _pick(self, place: int) -> None:
        """Keep only the valid rows of a bucket."""
        rows = list(ROW.iter_unpack(self._buckets[place]))
        kept = [row for row in rows if row[1] in self._live]
        self._buckets[place] = b"".join(starmap(ROW.pack, kept))
        self._forgotten -= len(rows) - len(kept)
