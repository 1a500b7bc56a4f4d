"""How many records a member of a shared group may hold before its handlers start them.

The bound follows the work that the member finishes. So a slow consumer leaves records at the node,
where a consumer that joins later finds them, and a fast one is not slowed down. It is decided
here, because not every client library gives records back.
"""

from gossipq import limits

PERIOD_MS = 1_000  #: after this time the bound is adapted to the pace


class Prefetch:
    """The bound of one member, `most` records."""

    __slots__ = ("_finished", "_since_ms", "most")

    def __init__(self, finished: int, boot_ms: int) -> None:
        self.most = limits.PREFETCH_START
        self._finished, self._since_ms = finished, boot_ms

    def shift(self, finished: int) -> None:
        """The count of finished records changes by that many, and no work was done."""
        self._finished += finished

    def is_due(self, boot_ms: int) -> bool:
        return boot_ms - self._since_ms >= PERIOD_MS

    def adapt(self, finished: int, boot_ms: int) -> None:
        """Grow at once if as many records as the bound allows were finished. After a period, the
        bound becomes PREFETCH_GROWTH periods of work. `finished` counts all records that the
        handlers of the member have started or finished.
        """
        count, took_ms = finished - self._finished, boot_ms - self._since_ms
        if took_ms >= PERIOD_MS:
            most = limits.PREFETCH_GROWTH * count * PERIOD_MS // took_ms
            if took_ms >= 2 * PERIOD_MS:  # it had nothing to do, and its work may be another one now
                most = min(most, limits.PREFETCH_START)
        elif count >= self.most:
            most = limits.PREFETCH_GROWTH * self.most
        else:
            return
        self.most = max(limits.PREFETCH_MIN, min(most, limits.PREFETCH_MAX))
        self._finished, self._since_ms = finished, boot_ms

    def room(self, unstarted: int) -> int:
        """How many records more the member may get; it holds `unstarted` now. At PREFETCH_MAX it
        has no bound but its credit.
        """
        return limits.CREDIT_MAX if self.most >= limits.PREFETCH_MAX else self.most - unstarted

    @property
    def resume_at(self) -> int:
        """Return how many records may be left unstarted when a member that reached its bound gets more. With
        a higher number, each record that starts would cause a delivery of its own.
        """
        return self.most - max(1, self.most // limits.PREFETCH_GROWTH)
