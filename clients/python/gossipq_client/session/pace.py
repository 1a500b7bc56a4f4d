"""How fast a consumer is, and how many records it should have before it: about a second of its work.

Counted is the time in which records waited for it, not that in which it waited for records. Pure: times are
handed in.
"""

CREDIT_START = 64  #: before anything is known
CREDIT_MIN, CREDIT_MAX = 4, 8_000
AHEAD_MS = 1_000  #: the credit covers this much work
LOOK_MS = 250  #: of work tell how fast it is
STUCK_MS = 2_000  #: without a record, while some wait: it has become slow
GROWTH = 4  #: times as much at once
NEARBY = 4 / 3  #: a smaller change is ignored


class Pace:
    __slots__ = ("_busy_ms", "_mark_ms", "_records", "target")

    def __init__(self) -> None:
        self.target = CREDIT_START  #: records that it should have before it
        self._records = self._busy_ms = self._mark_ms = 0

    def waits(self, now_ms: int) -> None:
        """From now on records wait for it: none did before."""
        self._mark_ms = now_ms

    def took(self, count: int, now_ms: int) -> bool:
        """The consumer took `count` more waiting records. Returns True
        if the target has changed.
        """
        self._records += count
        self._busy_ms += now_ms - self._mark_ms
        self._mark_ms = now_ms
        if self._busy_ms < LOOK_MS and self._records < self.target:
            return False
        return self._judge()

    def look(self, now_ms: int) -> bool:
        """Called while records wait. Returns True if the current record takes so long
        that the target has changed.
        """
        if now_ms - self._mark_ms < STUCK_MS:
            return False
        return self.took(0, now_ms)

    def _judge(self) -> bool:
        per_look = self._records * AHEAD_MS // max(1, self._busy_ms)
        found = max(CREDIT_MIN, min(per_look, self.target * GROWTH, CREDIT_MAX))
        self._records = self._busy_ms = 0
        if self.target / NEARBY < found < self.target * NEARBY:
            return False
        changed, self.target = found != self.target, found
        return changed
