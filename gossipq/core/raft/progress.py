"""A leader's knowledge of one other copy, and the limit of unanswered bytes to it."""

from collections import deque

from gossipq import limits
from gossipq.types import Index

PROBE, STREAM, SNAPSHOT = "probe", "stream", "snapshot"
NEVER_MS = -(2**62)


class Progress:
    """State of replication to one copy.

    PROBE: one Append at a time until one matches. STREAM: many, each continuing the last. SNAPSHOT:
    heartbeats only, while the state is being sent.
    """

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
        self.matched_ms = NEVER_MS  #: boot time at which `match` was confirmed last
        self.knew: Index = 0  #: for SNAPSHOT: commit index of a copy that lost its state
        self.next: Index = next_index  #: first entry not sent yet
        self.full = full  #: True if it stores bodies
        self.state = PROBE
        self.flying = False  #: for PROBE: an Append is unanswered
        self.bytes = 0  #: for STREAM: unanswered bytes
        self.told: Index = 0  #: commit index that it was sent
        self.heard_ms = now_ms  #: boot time of its last answer, or of the start
        self.acked_ms = NEVER_MS  #: send time of the newest round that it answered
        #: True if it had all committed entries, answers and stores: confirms wait for it
        self.synced = False
        #: log end of the leader's disk at `owed_ms`, which this copy had not stored then
        self.owed: Index = 0
        self.owed_ms = now_ms
        self.no_space = False  #: True if its store refuses publishes
        # (last index, bytes) of unanswered Appends
        self._flight: deque[tuple[Index, int]] = deque()

    def may_send(self) -> bool:
        if self.state == STREAM:
            return (
                len(self._flight) < limits.IN_FLIGHT_APPENDS_MAX
                and self.bytes < limits.IN_FLIGHT_APPEND_BYTES_MAX
            )
        return self.state == PROBE and not self.flying

    def sent(self, end: Index, size: int) -> None:
        """Entries up to `end` were sent."""
        if self.state == STREAM:
            if end > self.next:
                self._flight.append((end - 1, size))
                self.bytes += size
            self.next = max(self.next, end)
        else:
            self.flying = True

    def heard(self, now_ms: int, sent_ms: int) -> None:
        """It answered, in this term, a message sent at `sent_ms`."""
        self.heard_ms = now_ms
        self.acked_ms = max(self.acked_ms, sent_ms)

    def judge(self, saved: Index, now_ms: int) -> None:
        """Clear `synced` if the copy is silent, or answers without storing.

        It must have stored by now what the leader had on disk one election timeout ago. `saved` is
        the end of the leader's log on disk now.
        """
        if self.match >= self.owed:
            self.owed, self.owed_ms = saved, now_ms
        self.synced &= now_ms < min(self.heard_ms, self.owed_ms) + limits.ELECTION_MS

    def has_lost(self, rejected: Index, sent_ms: int) -> bool:
        """True if the copy lost entries that it had confirmed to be on disk.

        It rejects an Append that continues them, and that was sent after the confirmation.
        """
        return 0 < rejected <= self.match and sent_ms > self.matched_ms

    def lose(self) -> None:
        """Its disk is older than it was: assume that it has nothing."""
        self.match = 0
        self.synced = False
        self.matched_ms = NEVER_MS

    def accepted(self, match: Index, now_ms: int) -> None:
        if match >= self.match:
            self.match, self.matched_ms = match, now_ms
        while self._flight and self._flight[0][0] <= self.match:
            self.bytes -= self._flight.popleft()[1]
        if self.state == PROBE:
            self._reset(STREAM)
        self.next = max(self.next, self.match + 1)

    def probe(self, next_index: Index) -> None:
        """Search for the point where the logs match, from `next_index` on."""
        self._reset(PROBE)
        self.next = max(self.match + 1, next_index)

    def carried(self, index: Index, now_ms: int) -> None:
        """It installed a snapshot up to `index`: continue with the log behind it."""
        self.match, self.matched_ms = max(self.match, index), now_ms
        self.probe(index + 1)

    def carry(self) -> None:
        """The log no longer reaches back far enough: send a snapshot."""
        self._reset(SNAPSHOT)
        self.synced = False

    def _reset(self, state: str) -> None:
        self.state = state
        self.flying = False
        self.bytes = 0
        self._flight.clear()
