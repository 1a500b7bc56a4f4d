"""Key order of a group in one partition: which keys are busy, and with whom. Key hash 0 is no key and always
free.

A key belongs to one consumer while it holds records of it, and that gets them in order. A failed record keeps
its key closed until it is done; records on disk behind it keep it closed for those that came later.
"""

from gossipq.types import Offset, SessionId

Owner = tuple[SessionId, int]


class Key:
    __slots__ = ("failed", "held", "last", "owner", "parked_from")

    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.held: set[Offset] = set()  #: in flight
        self.last: Offset = -1  #: the highest of them
        self.failed: set[Offset] = set()  #: wait for another attempt
        self.parked_from: Offset | None = None  #: the first that waits on disk

    @property
    def idle(self) -> bool:
        return not self.held and not self.failed and self.parked_from is None


class Keys:
    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[int, Key] = {}

    def allows(self, key_hash: int, offset: Offset, owner: Owner) -> bool:
        """Whether this consumer may have a record of the key now."""
        key = self._keys.get(key_hash)
        if key is None or not key_hash:
            return True
        if key.held and (key.owner != owner or offset < key.last):
            return False  # also not to its owner, while that has a later one
        if key.failed and offset > min(key.failed):
            return False
        return key.parked_from is None or offset < key.parked_from

    def _key(self, key_hash: int) -> Key:
        return self._keys.setdefault(key_hash, Key())

    def took(self, key_hash: int, offset: Offset, owner: Owner) -> None:
        if key_hash:
            key = self._key(key_hash)
            key.owner = owner
            key.held.add(offset)
            key.last = max(key.last, offset)

    def failed(self, key_hash: int, offset: Offset) -> None:
        """A record of the key waits for another attempt."""
        if key_hash:
            self._key(key_hash).failed.add(offset)

    def parked(self, key_hash: int, offset: Offset) -> None:
        """A record of the key waits on disk, and so do all behind it."""
        if key_hash:
            key = self._key(key_hash)
            key.parked_from = offset if key.parked_from is None else min(offset, key.parked_from)

    def unparked(self, key_hash: int, next_first: Offset | None) -> None:
        """Records of the key were read back; on disk go on from `next_first`."""
        if key_hash in self._keys:
            self._keys[key_hash].parked_from = next_first
            self._forget(key_hash)

    def let_go(self, key_hash: int, offset: Offset) -> None:
        """A record of the key is no longer in flight."""
        key = self._keys.get(key_hash)
        if key is not None:
            key.held.discard(offset)
            if offset == key.last:
                key.last = max(key.held, default=-1)

    def done(self, key_hash: int, offset: Offset) -> None:
        """A record of the key is acked, dead or void."""
        key = self._keys.get(key_hash)
        if key is not None:
            key.failed.discard(offset)

    def on_disk(self, key_hash: int) -> Offset | None:
        """The first record of the key that waits on disk."""
        key = self._keys.get(key_hash)
        return None if key is None else key.parked_from

    def opens(self, key_hash: int, first: Offset) -> bool:
        """Whether what waits behind the key, from `first` on, may go on."""
        key = self._keys.get(key_hash)
        if key is None:
            return True
        self._forget(key_hash)
        return not key.held and (not key.failed or first <= min(key.failed))

    def trim(self, first: Offset) -> list[int]:
        """What lies below `first` is gone; returns the keys that this concerns."""
        touched = []
        for key_hash, key in self._keys.items():
            if (key.failed and min(key.failed) < first) or (
                key.parked_from is not None and key.parked_from < first
            ):
                key.failed = {offset for offset in key.failed if offset >= first}
                key.parked_from = None if key.parked_from is None else max(first, key.parked_from)
                touched.append(key_hash)
        return touched

    def _forget(self, key_hash: int) -> None:
        if self._keys[key_hash].idle:
            del self._keys[key_hash]
