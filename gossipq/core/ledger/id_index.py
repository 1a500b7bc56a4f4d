"""Ids in memory: which entries brought them. As bytes in buckets, 17 to 25 bytes an id; a dict of them takes
100."""

from array import array
from collections.abc import Collection
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from gossipq.types import Index, PartitionKey

NAME = Struct("8s")  #: the hash of an id, as bytes
NO_NAME = bytes(NAME.size)  #: of a record without an id
ENTRY = Struct("=Q")  #: behind the name in a row: the entry that brought it
ROW = Struct("=8sQ")
BUCKETS = 1 << 16  #: of each shard that has ids
IDS_MAX = 1 << 20  #: of a shard: as many as one partition remembers by default, and a batch more
PASSED_MAX = 16  #: rows of an id that count for nothing; more of them do not wait for the hand
ENTRY_IDS_MIN = 16  #: an entry takes the room of so many at least: who opens the shard reads a row for each


class Brought(NamedTuple):
    """What is known of an entry that brought ids."""

    time_ms: int  #: leader time
    ids: int


@lru_cache(maxsize=16)
def _all_names(count: int) -> Struct:
    """Takes so many apart in one call, in a sixth of the time that one after the other takes."""
    return Struct("8s" * count)


def names_of(hashes: "array[int] | bytes") -> tuple[bytes, ...]:
    return _all_names(memoryview(hashes).nbytes // NAME.size).unpack(hashes)


class IdIndex:
    """Of one shard. A bucket has its rows in the order in which they came. Rows of entries that are forgotten
    stay until the hand that goes round comes by; they count for nothing."""

    def __init__(self) -> None:
        self._buckets = [b""] * BUCKETS
        self._entries: dict[PartitionKey, dict[Index, Brought]] = {}  # oldest first
        self._live: set[Index] = set()  # entries of all partitions
        self._ids = self._forgotten = 0  # rows that count, and that do not
        self._taken = 0  # of IDS_MAX
        self._hand = 0

    def entries(self, partition: PartitionKey) -> dict[Index, Brought]:
        """Those that brought ids of this partition, oldest first."""
        return self._entries.get(partition, {})

    def has_room(self, count: int) -> bool:
        """For an entry with so many ids. All copies of the shard say the same."""
        return self._taken + max(count, ENTRY_IDS_MIN) <= IDS_MAX

    def add(self, partition: PartitionKey, index: Index, time_ms: int, names: Collection[bytes]) -> None:
        """Ids that differ, of an entry that comes after all others of its partition."""
        self._add(partition, index, time_ms, names, self._places(names))

    def add_unless_known(
        self, partition: PartitionKey, index: Index, time_ms: int, names: Collection[bytes]
    ) -> bool:
        """The same, of ids none of which is here. False: one of them may be, and none was added."""
        places = self._places(names)
        buckets = itemgetter(*places, 0)(self._buckets)  # two or more: it gives them as a tuple
        # a look at all of them at once: that is a fifth faster than to wait for memory one after the other
        b"".join(buckets)
        if max(map(bytes.find, buckets, names)) >= 0:
            return False
        del buckets
        self._add(partition, index, time_ms, names, places)
        return True

    @staticmethod
    def _places(names: Collection[bytes]) -> list[int]:
        """Their buckets. Python's hash of bytes has a secret: nobody can choose ids that share one."""
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
        """The last entry of this partition that brought it."""
        entries, place = self.entries(partition), hash(name) & (BUCKETS - 1)
        bucket, passed = self._buckets[place], 0
        at = bucket.rfind(name)
        while at >= 0:
            if at % ROW.size == 0:  # else it is parts of two numbers
                (index,) = ENTRY.unpack_from(bucket, at + NAME.size)
                if index in entries:
                    return int(index)
                passed += index not in self._live
            at = bucket.rfind(name, 0, at + NAME.size - 1)
        if passed > PASSED_MAX:  # an id that comes again and again, and is forgotten each time
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

    def drop(self, partition: PartitionKey) -> None:
        """The partition is gone."""
        for index in list(self.entries(partition)):
            self.forget(partition, index)

    def _sweep(self, added: int) -> None:
        """The hand goes on. It goes round twice while as many ids come as there are."""
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
            if self._forgotten > usual:  # they lie behind those of a partition that remembers for longer
                self._pick(self._hand)
            self._hand = (self._hand + 1) % BUCKETS

    def _pick(self, place: int) -> None:
        """A bucket keeps just the rows that count."""
        rows = list(ROW.iter_unpack(self._buckets[place]))
        kept = [row for row in rows if row[1] in self._live]
        self._buckets[place] = b"".join(starmap(ROW.pack, kept))
        self._forgotten -= len(rows) - len(kept)
