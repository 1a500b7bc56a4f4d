"""Key order of a group in one partition: which keys are busy, and with which consumer. Key hash 0
means "no key" and is always free.

While a consumer holds records of a key, the key belongs to it, and it gets the key's records in
order. A failed record keeps its key closed until it is done. Records on disk keep the key closed
for later ones. Most calls are for all records of a slice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from gossipq import limits
from gossipq.core.storage import RangeMap
from gossipq.types import Offset, SessionId

Owner = tuple[SessionId, int]


class KeyRuns(NamedTuple):
    """How many records of a key a consumer may hold at a time."""

    each: int  #: records of one key
    more: int  #: records with an earlier one of their key in flight, or without a key, all together


ONE_OF_EACH, UNBOUNDED = KeyRuns(1, 0), KeyRuns(limits.CREDIT_MAX, limits.CREDIT_MAX)
NO_KEY = 0
FREE_KEYS_MAX = 4_096  #: free keys of which something is still remembered


class Keys:
    __slots__ = (
        "_counts", "_failed", "_held", "_last", "_owners", "_parked_from", "_parking", "_sole", "_top",
    )  # fmt: skip

    def __init__(self) -> None:
        self._held: dict[Offset, int] = {}  # key of each record in flight
        # of keys with records in flight: how many, their owner, and the highest since the key was
        # free. Owners and highest offsets of other keys are outdated
        self._counts: Counter[int] = Counter()
        self._owners: dict[int, Owner] = {}
        self._last: dict[int, Offset] = {}
        self._top: Offset = 0  # no record at or above it was in flight yet
        # the one owner of all records in flight; None if that is not certain
        self._sole: Owner | None = None
        # key -> its records that wait for another attempt
        self._failed: dict[int, set[Offset]] = {}
        # key -> offset below which no record of it waits on disk
        self._parked_from: dict[int, Offset] = {}
        # key -> first offsets of its records on their way to disk
        self._parking: dict[int, set[Offset]] = {}

    def allowed(
        self,
        hashes: Sequence[int],
        first: Offset,
        owner: Owner,
        waiting: Mapping[int, RangeMap[int]],
        runs: KeyRuns = ONE_OF_EACH,
    ) -> int:
        """How many of the records from offset `first` on this consumer may have now, up to the
        first that it may not have. `hashes` are their keys, `waiting` has the records that wait in
        memory by key, and `runs` bounds the records of a key that it may hold at a time.
        """
        owners, last, failed, parked_from = self._owners, self._last, self._failed, self._parked_from
        closed, counts = bool(failed or parked_from or waiting), self._counts
        bounded = runs is not UNBOUNDED
        if not bounded and not closed and first >= self._top and (not counts or self._sole == owner):
            return len(hashes)
        more = max(0, runs.more - len(self._held) + len(counts))
        before = dict[int, int]()  # how many records of a key come before
        for offset, key in enumerate(hashes, first):
            held = counts.get(key, 0)
            if held and (owners[key] != owner or offset < last[key]):
                return offset - first  # not even for its owner, while that had a later one
            if bounded and key:
                held += before.get(key, 0)
                if held >= runs.each or (held and not more):
                    return offset - first
                more -= held > 0
                before[key] = before.get(key, 0) + 1
            if closed and key:
                behind = waiting.get(key)
                if (
                    (behind is not None and behind.starts[0] < offset)
                    or (key in failed and offset > min(failed[key]))
                    or (key in parked_from and offset >= parked_from[key])
                ):
                    return offset - first
        return len(hashes)

    def barred(self, key_hash: int, offset: Offset, session: SessionId) -> bool:
        """True if no consumer of this session may hold the record: others have its key, or an
        earlier record of the key failed.
        """
        owner, failed = self._owners.get(key_hash), self._failed.get(key_hash)
        held = key_hash in self._counts and owner is not None and owner[0] != session
        return held or (failed is not None and offset > min(failed))

    def blocker(self, key_hash: int) -> tuple[SessionId, Offset]:
        """Return what keeps a key closed: the session that holds its records, or b"" and the offset of its
        first record that failed or waits on disk; -1 if there is none.
        """
        if key_hash in self._counts:
            return self._owners[key_hash][0], -1
        offsets = [*self._failed.get(key_hash, ())]
        if key_hash in self._parked_from:
            offsets.append(self._parked_from[key_hash])
        return b"", min(offsets, default=-1)

    def hold(self, hashes: Sequence[int], first: Offset, owner: Owner) -> None:
        """Records from `first` on are in flight with this consumer."""
        end = first + len(hashes)
        offsets = range(first, end)
        if not self._held.keys().isdisjoint(offsets):
            self.release(first, end)
        held, counts, last = self._held, self._counts, self._last
        self._sole = owner if not counts or self._sole == owner else None
        if first >= self._top:
            self._top = end
            last.update(zip(hashes, offsets, strict=True))
        else:
            self._top = max(self._top, end)
            for key, offset in zip(hashes, offsets, strict=True):
                if key not in counts or offset > last[key]:
                    last[key] = offset
        held.update(zip(offsets, hashes, strict=True))
        counts.update(hashes)
        counts.pop(NO_KEY, None)
        self._owners.update(dict.fromkeys(hashes, owner))

    def release(self, first: Offset, end: Offset) -> list[int]:
        """Records are no longer in flight. Returns keys without further records in flight."""
        counts, free = self._counts, list[int]()
        for key in filter(None, map(self._held.pop, range(first, end), repeat(NO_KEY))):
            left = counts[key] - 1
            if left:
                counts[key] = left
            else:
                counts.pop(key)
                free.append(key)
        if not counts:
            self._owners = {}
            self._last = {}
            self._top = 0
            self._sole = None
        elif len(self._last) > FREE_KEYS_MAX + 2 * len(counts):
            self._owners = {key: self._owners[key] for key in counts}
            self._last = {key: self._last[key] for key in counts}
        return free

    def failed(self, key_hash: int, offset: Offset) -> None:
        """A record of the key waits for another attempt."""
        if key_hash:
            self._failed.setdefault(key_hash, set()).add(offset)

    def done(self, key_hash: int, offset: Offset) -> None:
        """A record of the key is acked, dead or void."""
        failed = self._failed.get(key_hash)
        if failed is not None:
            failed.discard(offset)
            if not failed:
                del self._failed[key_hash]

    def done_many(self, hashes: Sequence[int], first: Offset) -> None:
        """Records from `first` on are acked, dead or void. `hashes` are their keys."""
        if self._failed.keys().isdisjoint(hashes):
            return  # one key that failed must not cost a call for each record of the others
        for offset, key_hash in enumerate(hashes, first):
            self.done(key_hash, offset)

    @property
    def some_failed(self) -> bool:
        """True if `done` can change anything."""
        return bool(self._failed)

    def parks(self, key_hash: int, offset: Offset) -> None:
        """An entry is being stored by which a record of the key, and later ones, wait on disk."""
        self._parking.setdefault(key_hash, set()).add(offset)
        self._parked_from[key_hash] = min(offset, self._parked_from.get(key_hash, offset))

    def parked(self, key_hash: int, offset: Offset) -> None:
        """A record of the key, and all later ones, wait on disk."""
        parking = self._parking.get(key_hash, set())
        parking.discard(offset)
        if not parking:
            self._parking.pop(key_hash, None)
        self._parked_from[key_hash] = min(offset, self._parked_from.get(key_hash, offset))

    def unparked(self, key_hash: int, next_first: Offset | None) -> None:
        """Records of the key were read back; those left on disk begin at `next_first`, or at
        those on their way there.
        """
        firsts = [*self._parking.get(key_hash, ()), *([] if next_first is None else [next_first])]
        if firsts:
            self._parked_from[key_hash] = min(firsts)
        else:
            self._parked_from.pop(key_hash, None)

    @property
    def on_disk(self) -> Mapping[int, Offset]:
        """Key -> lower bound of its offsets on disk; some of these records may have left."""
        return self._parked_from

    def opens(self, key_hash: int, first: Offset) -> bool:
        """True if records that wait behind the key, from `first` on, may continue."""
        failed = self._failed.get(key_hash)
        return key_hash not in self._counts and (failed is None or first <= min(failed))

    def trim(self, first: Offset) -> list[int]:
        """Forgets records below `first`, which are gone; returns the keys that this concerns."""
        touched: dict[int, None] = {}
        for key_hash, failed in list(self._failed.items()):
            gone = [offset for offset in failed if offset < first]
            for offset in gone:
                self.done(key_hash, offset)
                touched[key_hash] = None
        for key_hash, offset in self._parked_from.items():
            if offset < first:
                self._parked_from[key_hash] = first
                touched[key_hash] = None
        return list(touched)
