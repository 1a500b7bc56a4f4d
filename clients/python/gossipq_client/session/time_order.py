"""Reading partitions in the order of publish time: what came of each waits until nothing earlier can come
of the others, or until they have been waited for long enough. Without I/O; times are handed in."""

from collections import deque
from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from gossipq.types import PartitionKey

Item = TypeVar("Item")


class TimeOrder(Generic[Item]):
    """Items of one partition keep their order. The next is, of the first ones of all partitions, the one with
    the lowest publish time.

    It waits for partitions of which nothing is here, each for `late_after_ms` from when it came or from when
    the last of that partition left, whichever is later. So what comes within that time is in order; what does
    not is late when something published after it has left.
    """

    def __init__(self, late_after_ms: int) -> None:
        self._late_after_ms = late_after_ms
        # (publish time, boot time of its arrival, item), the oldest first; no queue is empty
        self._queues: dict[PartitionKey, deque[tuple[int, int, Item]]] = {}
        self._fronts: list[tuple[int, PartitionKey]] = []  # a heap: of each queue, the time of its first
        self._emptied_ms: dict[PartitionKey, int] = {}  # when the last of a partition left
        self._left_ms = 0  # the highest publish time that has left

    def __iter__(self) -> Iterator[Item]:
        return (item for queue in self._queues.values() for _, _, item in queue)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, partition: PartitionKey, publish_ms: int, item: Item, now_ms: int) -> None:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = deque()
            heappush(self._fronts, (publish_ms, partition))
        queue.append((publish_ms, now_ms, item))

    def due_ms(self, awaited: Collection[PartitionKey]) -> int | None:
        """When the next may leave; None: nothing is here. `awaited`: the partitions that may bring more."""
        if not self._fronts:
            return None
        arrived_ms = self._queues[self._fronts[0][1]][0][1]
        silent = [partition for partition in awaited if partition not in self._queues]
        since = [max(arrived_ms, self._emptied_ms.get(partition, 0)) for partition in silent]
        return max(since) + self._late_after_ms if since else arrived_ms

    def next(self, awaited: Collection[PartitionKey], now_ms: int) -> tuple[Item, bool] | None:
        """The next item, which leaves, and whether it is late; None: not yet."""
        due_ms = self.due_ms(awaited)
        if due_ms is None or due_ms > now_ms:
            return None
        publish_ms, partition = heappop(self._fronts)
        queue = self._queues[partition]
        item = queue.popleft()[2]
        if queue:
            heappush(self._fronts, (queue[0][0], partition))
        else:
            del self._queues[partition]
            self._emptied_ms[partition] = now_ms
        late, self._left_ms = publish_ms < self._left_ms, max(publish_ms, self._left_ms)
        return item, late

    def clear(self) -> None:
        """All that is here goes."""
        self._queues.clear()
        self._fronts.clear()
