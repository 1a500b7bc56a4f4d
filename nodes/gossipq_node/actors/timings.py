"""How long publishing, delivering and committing take: counts by bound, filled by batch, slice and turn,
never by record.

Timings are recorded for each turn and batch, never for each record. The batches of a turn wait in a
queue until its last entry is applied, so one code serves nodes with one copy and with several.
"""

from bisect import bisect_left
from collections import deque

from gossipq.limits import TIMING_BOUNDS_US
from gossipq.types import Index
from gossipq.values import Timing

WAITING_MAX = (
    1_024  #: turns of a shard that are not answered; what another leader answers stays here until then
)


class Histogram:
    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(TIMING_BOUNDS_US) + 1)
        self.sum_us = 0

    def add(self, took_us: int, times: int = 1) -> None:
        self.counts[bisect_left(TIMING_BOUNDS_US, took_us)] += times
        self.sum_us += took_us * times


class Timings:
    """Of one worker, since it started."""

    def __init__(self) -> None:
        self.publish = Histogram()
        self.delivery = Histogram()
        self.commit = Histogram()
        #: by shard: (last entry, batches, when they were read)
        self._waiting: dict[int, deque[tuple[Index, int, int]]] = {}

    def read(self, shard: int, last: Index, batches: int, read_us: int) -> None:
        """Batches have come in the turn that began at `read_us`; the log holds it at `last` or before."""
        waiting = self._waiting.get(shard)
        if waiting is None:
            waiting = self._waiting[shard] = deque(maxlen=WAITING_MAX)
        waiting.append((last, batches, read_us))

    def confirmed(self, shard: int, applied: Index, now_us: int) -> None:
        """Entries up to `applied` are answered."""
        waiting = self._waiting.get(shard)
        while waiting and waiting[0][0] <= applied:
            _, batches, read_us = waiting.popleft()
            self.publish.add(now_us - read_us, batches)

    def forget(self) -> None:
        """Forget the batches that wait for a confirm, since the store was reopened and they get none."""
        self._waiting.clear()

    def rows(self) -> list[Timing]:
        named = (("publish", self.publish), ("delivery", self.delivery), ("commit", self.commit))
        return [Timing(name, list(histogram.counts), histogram.sum_us) for name, histogram in named]
