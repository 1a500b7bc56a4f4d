"""What the leader knows of one other copy, and how much it may have on the way to it."""

from collections import deque

from gossipq import limits
from gossipq.types import Index

PROBE, STREAM, SNAPSHOT = "probe", "stream", "snapshot"
NEVER_MS = -(2**62)


class Progress:
    """PROBE: one Append at a time until one fits. STREAM: many, each from where the last one ended. SNAPSHOT:
    only signs of life, while the state is carried over."""

    __slots__ = (
        "_flight",
        "acked_ms",
        "bytes",
        "flying",
        "full",
        "heard_ms",
        "knew",
        "match",
        "matched_ms",
        "next",
        "no_space",
        "owed",
        "owed_ms",
        "state",
        "synced",
        "told",
    )

    def __init__(self, next_index: Index, full: bool, now_ms: int) -> None:
        self.match: Index = 0  #: on its disk and equal to our log
        self.matched_ms = NEVER_MS  #: boot time at which that was heard last
        self.knew: Index = 0  #: SNAPSHOT: commit index of a copy that has lost its state
        self.next: Index = next_index  #: first entry not sent yet
        self.full = full  #: keeps bodies
        self.state = PROBE
        self.flying = False  #: PROBE: an Append is unanswered
        self.bytes = 0  #: STREAM: on the way
        self.told: Index = 0  #: commit index it was sent
        self.heard_ms = now_ms  #: boot time of its last answer, or of the start
        self.acked_ms = NEVER_MS  #: when the newest round that it answered was sent
        self.synced = False  #: it had all that was committed, answers and stores: confirms wait for it
        #: what the leader had on its disk at `owed_ms`, and this copy had not stored before
        self.owed: Index = 0
        self.owed_ms = now_ms
        self.no_space = False  #: it said that its store takes no publishes
        self._flight: deque[tuple[Index, int]] = deque()  # (last index, bytes) of unanswered Appends

    def may_send(self) -> bool:
        if self.state == STREAM:
            return (
                len(self._flight) < limits.IN_FLIGHT_APPENDS_MAX
                and self.bytes < limits.IN_FLIGHT_APPEND_BYTES_MAX
            )
        return self.state == PROBE and not self.flying

    def sent(self, end: Index, size: int) -> None:
        """Entries up to `end` are on the way."""
        if self.state == STREAM:
            if end > self.next:
                self._flight.append((end - 1, size))
                self.bytes += size
            self.next = max(self.next, end)
        else:
            self.flying = True

    def heard(self, now_ms: int, sent_ms: int) -> None:
        """It answered, in this term, what was sent at `sent_ms`."""
        self.heard_ms = now_ms
        self.acked_ms = max(self.acked_ms, sent_ms)

    def judge(self, saved: Index, now_ms: int) -> None:
        """A copy is synced no more when it falls silent, and when it answers and does not store: what the
        leader had on its disk one election timeout ago, `saved` then, it should have by now."""
        if self.match >= self.owed:
            self.owed, self.owed_ms = saved, now_ms
        self.synced &= now_ms < min(self.heard_ms, self.owed_ms) + limits.ELECTION_MS

    def has_lost(self, rejected: Index, sent_ms: int) -> bool:
        """Whether it does not have any more what it said that it had on its disk: it rejects what continues
        that, asked at `sent_ms`, after it had said so."""
        return 0 < rejected <= self.match and sent_ms > self.matched_ms

    def lose(self) -> None:
        """Its disk is an older one: nothing is known to be there."""
        self.match, self.synced, self.matched_ms = 0, False, NEVER_MS

    def accepted(self, match: Index, now_ms: int) -> None:
        if match >= self.match:
            self.match, self.matched_ms = match, now_ms
        while self._flight and self._flight[0][0] <= self.match:
            self.bytes -= self._flight.popleft()[1]
        if self.state == PROBE:
            self._reset(STREAM)
        self.next = max(self.next, self.match + 1)

    def probe(self, next_index: Index) -> None:
        """Looks for where the logs meet, from there on."""
        self._reset(PROBE)
        self.next = max(self.match + 1, next_index)

    def carried(self, index: Index, now_ms: int) -> None:
        """It has installed a snapshot up to `index`: the log goes on behind it."""
        self.match, self.matched_ms = max(self.match, index), now_ms
        self.probe(index + 1)

    def carry(self) -> None:
        """The log cannot help it: a snapshot is on its way."""
        self._reset(SNAPSHOT)
        self.synced = False

    def _reset(self, state: str) -> None:
        self.state, self.flying, self.bytes = state, False, 0
        self._flight.clear()
