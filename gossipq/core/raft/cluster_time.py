"""Cluster time: leader time from one leader to the next. It never falls, and no single wall clock moves it.

Boot time is enough while anybody's goes on: every Append tells the leader's time, each copy keeps how far
that is ahead of its own boot time (its *anchor*), and a new leader goes on from the latest anchor that
anybody has. Only when nobody's boot time knows, as after a boot of all machines, the wall clocks of the
voters count, and then by majority.

An anchor is *sure* when it goes back to a leader that had a sure one, or that had heard a majority of clocks
that agree, or all of them. A leader without a sure one takes what is latest (the last entry, any anchor, what
a majority of the wall clocks have passed) and steps forward as it hears more; what is stored meanwhile would
be early after such a step, so it waits a moment for more clocks before it serves. With a sure one it goes by
boot time, slewed by at most one thousandth towards the majority.

All shards of a cluster have one time. So a shard that is not sure takes the latest time of those beside it,
in the same process, that are: else the first leader of a shard that was without one for long would go by what
few wall clocks it hears, and one of these may be wrong.
"""

from typing import NamedTuple

import msgspec

from gossipq.peer_messages import Appended, Vote
from gossipq.types import Now
from gossipq.values import Message

SLEW_MS = 1_000  #: a leader looks that often whether its time should go a little faster, or slower
AGREE_MS = 2_000  #: wall clocks that are no further apart agree
WAIT_MS = 3_000  #: a leader that is not sure waits so long for more clocks
MARK_US = 100_000  #: an anchor that has moved by so much is stored again
MS_MAX = 2**48  #: a time beyond it, from a peer, is none
#: thousandths by which an anchor falls until it is heard again: twice what its leader may be slewed
DECAY = 2


class ClockRow(msgspec.Struct, array_like=True, frozen=True):
    """Leader time at some moment of this machine's boot: a restart goes on from there."""

    boot: str  #: names that boot
    boot_ms: int
    time_ms: int  #: leader time
    sure: bool = True


class Reading(NamedTuple):
    """What one copy says of time, at one moment of its own."""

    wall_ms: int
    est_ms: int  #: leader time by its anchor; 0: it has none
    sure: bool


class _Clock(NamedTuple):
    """A reading of another copy against this copy's boot time."""

    wall_ahead_ms: int  #: too low by what the reading was on its way
    est_ahead_ms: int | None  #: the same
    sure: bool
    way_ms: int  #: that, at the most


def passed(clocks: list[int], voters: int) -> int | None:
    """The largest time that a majority of `voters` have passed, by the `clocks` that were heard; None: too
    few."""
    quorum = voters // 2 + 1
    return sorted(clocks, reverse=True)[quorum - 1] if len(clocks) >= quorum else None


def agree(clocks: list[int], voters: int) -> bool:
    """Whether a majority of the `voters` agree, by the `clocks` that were heard."""
    quorum, falling = voters // 2 + 1, sorted(clocks, reverse=True)
    return any(high - low <= AGREE_MS for high, low in zip(falling, falling[quorum - 1 :], strict=False))


class ClusterTime:
    """One copy's. `begin` hands in the clocks of a turn; who leads, and who votes, is the replica's to
    say."""

    def __init__(self, me: str, boot: str, row: ClockRow | None) -> None:
        """`boot` names this run of the machine; `row` is what this copy has stored, perhaps under another
        boot."""
        if row is not None and row.boot != boot:
            row = None
        self._me, self._boot = me, boot
        self._now = Now(row.boot_ms if row else 0, 0)
        self._heard_ms = self._now.boot_ms  # boot time at which the anchor was true
        self._ahead_us = (row.time_ms - row.boot_ms) * 1_000 if row else None
        self.sure = row is not None and row.sure
        self._marked = (self._ahead_us, self.sure)  # as it is stored
        self._floor_ms = 0  # of a leader: time of the last entry before its own
        self._led_ms = 0  # and since when it leads
        self._clocks: dict[str, _Clock] = {}  # of the others, since this copy follows nobody

    def begin(self, now: Now) -> None:
        """The clocks of this turn. Boot time that goes back is that of another machine: it knows nothing."""
        if now.boot_ms < self._now.boot_ms:
            self._ahead_us, self.sure = None, False
            self._marked = None, False
            self._heard_ms = now.boot_ms
        self._now = now

    def known_ahead_ms(self, now: Now) -> int | None:
        """Leader time minus boot time, for the other shards of this process; None: this one is not sure, or
        `now` is of another machine."""
        return self.ahead_ms if self.sure and now.boot_ms >= self._now.boot_ms else None

    def adopt(self, ahead_ms: int, leads: bool) -> None:
        """Another shard of this process is sure of this. The time of who leads does not fall."""
        own_us = self._ahead_us if leads and self._ahead_us is not None else 1_000 * ahead_ms
        self._ahead_us, self.sure = max(own_us, 1_000 * ahead_ms), True
        self._heard_ms = self._now.boot_ms

    @property
    def ahead_ms(self) -> int:
        """Leader time minus boot time; without an anchor there is none, and this is 0."""
        return (self._ahead_us or 0) // 1_000

    @property
    def now_ms(self) -> int:
        """Leader time of this turn; 0: without an anchor."""
        return 0 if self._ahead_us is None else self._now.boot_ms + self.ahead_ms

    def reading(self) -> Reading:
        """What this copy tells the others."""
        return Reading(self._now.wall_ms, self.now_ms, self.sure)

    def told(self) -> tuple[int, bool]:
        """What an Append of this turn says."""
        return self.now_ms, self.sure

    def stamped(self, message: Message, no_space: bool) -> Message:
        """An answer to another copy, with the clocks as they are when it leaves."""
        wall_ms, est_ms, sure = self.reading()
        if isinstance(message, Appended):
            times = {"wall_ms": wall_ms, "est_ms": est_ms, "sure": sure}
            return msgspec.structs.replace(message, **times, no_space=no_space)
        if isinstance(message, Vote):
            return msgspec.structs.replace(message, wall_ms=wall_ms, est_ms=est_ms, sure=sure)
        return message

    def mark(self) -> ClockRow | None:
        """What should be stored now; None: what is stored will do."""
        ahead_us, (stored_us, sure) = self._ahead_us, self._marked
        if ahead_us is None:
            return None
        if stored_us is not None and sure == self.sure and abs(ahead_us - stored_us) < MARK_US:
            return None
        self._marked = ahead_us, self.sure
        return ClockRow(self._boot, self._now.boot_ms, self.now_ms, self.sure)

    # --- following ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """This copy does not lead, and does not stand: what others said of their clocks is of the past."""
        self._clocks.clear()

    def heard_leader(self, time_ms: int, sure: bool) -> None:
        """The leader's time as it was when it wrote that: never later than it is."""
        if not 0 < time_ms < MS_MAX or (self.sure and not sure):
            return  # such a leader has not heard of our anchor yet
        ahead_us, elapsed_ms = (time_ms - self._now.boot_ms) * 1_000, self._now.boot_ms - self._heard_ms
        if self._ahead_us is not None and sure == self.sure:
            ahead_us = max(ahead_us, self._ahead_us - DECAY * elapsed_ms)
        self._ahead_us, self.sure, self._heard_ms = ahead_us, sure, self._now.boot_ms

    # --- standing and leading -------------------------------------------------------------------------------

    def heard_copy(self, name: str, reading: Reading | Appended | Vote, sent_ms: int | None = None) -> None:
        """Another copy has read its clocks; `sent_ms`: it was asked then, by this copy's boot time."""
        if not (0 < reading.wall_ms < MS_MAX and 0 <= reading.est_ms < MS_MAX):
            return
        boot_ms = self._now.boot_ms
        est_ahead_ms = reading.est_ms - boot_ms if reading.est_ms else None
        way_ms = 0 if sent_ms is None else max(0, boot_ms - sent_ms)
        self._clocks[name] = _Clock(reading.wall_ms - boot_ms, est_ahead_ms, reading.sure, way_ms)

    def lead(self, voters: list[str], last_ms: int) -> None:
        """A leadership begins; `last_ms` is the time of the last entry."""
        boot_ms = self._now.boot_ms
        known = [clock for clock in self._clocks.values() if clock.sure or not self.sure]
        ahead_us = [1_000 * clock.est_ahead_ms for clock in known if clock.est_ahead_ms is not None]
        own_us = [] if self._ahead_us is None else [self._ahead_us]
        self._ahead_us = max([(last_ms - boot_ms) * 1_000, *own_us, *ahead_us])
        self._floor_ms, self._led_ms, self._heard_ms = last_ms, boot_ms, boot_ms
        self.correct(voters)

    def correct(self, voters: list[str]) -> None:
        """A leader that has heard something goes by it: all at once while it is not sure, slowly when it
        is."""
        boot_ms = self._now.boot_ms
        if self._ahead_us is None:  # boot time went back
            self.lead(voters, self._floor_ms)
            return
        clocks = [self._clocks[name].wall_ahead_ms for name in voters if name in self._clocks]
        if self._me in voters:
            clocks.append(self._now.wall_ms - boot_ms)
        aim_ms = passed(clocks, len(voters))
        if self.sure:
            self._slew(boot_ms - self._heard_ms, aim_ms if len(voters) > 1 else None)
            return
        known = [clock.est_ahead_ms for clock in self._clocks.values() if clock.sure]
        ahead_ms = [each for each in known if each is not None]
        if ahead_ms:
            self.sure = True
        elif aim_ms is not None:
            ahead_ms = [aim_ms]
            enough = len(clocks) == len(voters) or agree(clocks, len(voters))
            self.sure = enough and boot_ms + aim_ms >= self._floor_ms  # else they are known to be wrong
        self._ahead_us = max([self._ahead_us, *(1_000 * each for each in ahead_ms)])
        self._heard_ms = boot_ms

    def _slew(self, elapsed_ms: int, aim_ms: int | None) -> None:
        """Towards `aim_ms` minus boot time; one clock alone gives no aim, and moves nothing."""
        if elapsed_ms < SLEW_MS or self._ahead_us is None:
            return
        away_us = 0 if aim_ms is None else aim_ms * 1_000 - self._ahead_us
        self._ahead_us += max(-elapsed_ms, min(elapsed_ms, away_us))
        self._heard_ms += elapsed_ms

    @property
    def wait_ms(self) -> int | None:
        """Boot time until which a leader waits for more clocks; None: it does not."""
        if self.sure or self._now.boot_ms >= self._led_ms + WAIT_MS:
            return None
        return self._led_ms + WAIT_MS

    def off_ms(self, name: str) -> int:
        """How far the wall clock of a copy is ahead of leader time, at least; 0: nothing is known."""
        if name == self._me:
            return self._now.wall_ms - self.now_ms
        clock = self._clocks.get(name)
        if clock is None:
            return 0
        low_ms = clock.wall_ahead_ms - self.ahead_ms
        return low_ms if low_ms > 0 else min(0, low_ms + clock.way_ms)
