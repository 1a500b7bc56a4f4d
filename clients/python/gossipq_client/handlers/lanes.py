"""Chooses the next record for a worker. In a key-ordered group it never starts two records of
one key at the same time.
"""

from collections import deque

from gossipq.types import Offset, PartitionKey
from gossipq_client.session import Consuming, Held, Subscription

Item = tuple[Held, Offset]
Key = tuple[PartitionKey, int]  #: (partition, key hash)


class Lanes:
    """Gives the records of one subscription to workers. A record waits in its key's lane while
    another record of that key is being handled.
    """

    def __init__(self, consuming: Consuming, subscription: Subscription) -> None:
        self.subscription = subscription
        self._consuming = consuming
        self._waiting: dict[Key, deque[Item]] = {}  #: records by the key that is being handled
        self._free: deque[Item] = deque()  #: records whose key has become free
        self._parked = 0  #: records in `_waiting`

    @property
    def more(self) -> bool:
        """True if `take` may find a record."""
        return bool(self._free) or (bool(self.subscription.ready) and not self._full)

    @property
    def empty(self) -> bool:
        return not self._free and not self._parked

    @property
    def _full(self) -> bool:
        """True if as many records wait as the subscription granted credit for."""
        return self._parked >= self.subscription.credit_records

    def take(self) -> Item | None:
        """The next record to begin; call `done` when it is settled."""
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
        """True if the record must wait for another of its key; otherwise takes the key."""
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
        """The record is settled: the next record of its key may begin."""
        key = self._key(held, offset)
        lane = self._waiting.get(key) if key is not None else None
        if lane:
            self._parked -= 1
            self._free.append(lane.popleft())
        elif key is not None:
            self._waiting.pop(key, None)

    def give_back(self) -> None:
        """Gives all waiting records back, without counting a failure."""
        for held, offset in [*self._free, *(item for lane in self._waiting.values() for item in lane)]:
            self._consuming.nack(held, offset, offset + 1)
        self._free.clear()
        self._waiting.clear()
        self._parked = 0
