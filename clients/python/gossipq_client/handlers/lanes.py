"""Which record a worker takes next: the next one there is, and in a key-ordered group never two of one key at
a time."""

from collections import deque

from gossipq.types import Offset, PartitionKey
from gossipq_client.session import Consuming, Held, Subscription

Item = tuple[Held, Offset]
Key = tuple[PartitionKey, int]  #: (partition, key hash)


class Lanes:
    """Hands out the records of one subscription. A record whose key is being worked on waits in the lane of
    that key."""

    def __init__(self, consuming: Consuming, subscription: Subscription) -> None:
        self.subscription = subscription
        self._consuming = consuming
        self._waiting: dict[Key, deque[Item]] = {}  #: by the keys that are being worked on
        self._free: deque[Item] = deque()  #: their key has become free
        self._parked = 0  #: records in `_waiting`

    @property
    def more(self) -> bool:
        """Whether `take` may find something."""
        return bool(self._free) or (bool(self.subscription.ready) and not self._full)

    @property
    def empty(self) -> bool:
        return not self._free and not self._parked

    @property
    def _full(self) -> bool:
        """As much waits behind other records as was ever lent."""
        return self._parked >= self.subscription.credit_records

    def take(self) -> Item | None:
        """The next record to begin with; `done` when it is settled."""
        item = self._next()
        if item is not None:
            self._consuming.begin(item[0], item[1], item[1] + 1)
        return item

    def _next(self) -> Item | None:
        self._consuming.resume(self.subscription)
        while self._free:
            held, offset = self._free.popleft()
            held.waiting = held.waiting - {offset}
            if not held.is_lost(offset):
                return held, offset
            self.done(held, offset)
        while not self._full:
            held_next = self._consuming.front(self.subscription)
            if held_next is None:
                return None
            held, offset = held_next, held_next.taken
            held.taken += 1
            self._consuming.took(self.subscription, held, 1)
            if not held.is_lost(offset) and not self._wait(held, offset):
                return held, offset
        return None

    def _wait(self, held: Held, offset: Offset) -> bool:
        """Whether the record has to wait for another of its key; if not, its key is taken now."""
        key = self._key(held, offset)
        if key is None:
            return False
        lane = self._waiting.get(key)
        if lane is None:
            self._waiting[key] = deque()
            return False
        lane.append((held, offset))
        held.waiting = held.waiting | {offset}
        self._parked += 1
        return True

    def _key(self, held: Held, offset: Offset) -> Key | None:
        key_hash = held.key_hash(offset) if self.subscription.key_ordered else 0
        return (held.partition, key_hash) if key_hash else None

    def done(self, held: Held, offset: Offset) -> None:
        """The record is settled: the next of its key may begin."""
        key = self._key(held, offset)
        lane = self._waiting.get(key) if key is not None else None
        if lane:
            self._parked -= 1
            self._free.append(lane.popleft())
        elif key is not None:
            self._waiting.pop(key, None)

    def give_back(self) -> None:
        """Everything that waits, uncounted."""
        for held, offset in [*self._free, *(item for lane in self._waiting.values() for item in lane)]:
            self._consuming.nack(held, offset, offset + 1)
        self._free.clear()
        self._waiting.clear()
        self._parked = 0
