"""Leader time: one clock for the cluster that never falls and that no single wall clock moves.

Every Append has the leader's time. Each copy keeps the difference to its own boot time, its
*anchor*. A new leader continues from the latest anchor of any copy. Only if no anchor is left, as
after a boot of all machines, the wall clocks of the voters decide, by majority.

An anchor is *sure* if it comes from a leader with a sure anchor, or from one that heard a majority
of agreeing clocks, or all clocks. A leader without a sure anchor takes the latest known time: the
last entry, any anchor, or what a majority of wall clocks has passed. It steps forward as it hears
more. Records that it stored before such a step would be due early, so it waits a moment for more
clocks before it serves. With a sure anchor it follows boot time, slewed by at most one thousandth
towards the majority.

All shards of a cluster share one time. A shard that is not sure takes the latest time of the sure
shards in its process. Otherwise a shard that had no leader for a long time would rely on few wall
clocks, one of which may be wrong.
"""

from typing import NamedTuple

import msgspec

from gossipq.peer_messages import Appended, Vote
from gossipq.types import Now
from gossipq.values import Message

SLEW_MS = 1_000  #: interval at which a leader decides whether to slew its time
AGREE_MS = 2_000  #: wall clocks within this difference agree
WAIT_MS = 3_000  #: a leader that is not sure waits this long for more clocks
MARK_US = 100_000  #: an anchor is stored again after it moved this far
MS_MAX = 2**48  #: later times from a peer are ignored
#: thousandths by which an anchor falls until it is heard again: twice the leader's maximum slew
DECAY = 2


class ClockRow(msgspec.Struct, array_like=True, frozen=True):
    """Leader time at one moment of this machine's boot, from which a restart continues."""

    boot: str  #: id of that boot
    boot_ms: int
    time_ms: int  #: leader time
    sure: bool = True


class Reading(NamedTuple):
    """The clocks of one copy at one moment."""

    wall_ms: int
    est_ms: int  #: leader time by its anchor; 0: it has none
    sure: bool


class _Clock(NamedTuple):
    """A reading of another copy, relative to this copy's boot time."""

    wall_ahead_ms: int  #: too low by the transit time of the reading
    est_ahead_ms: int | None  #: likewise
    sure: bool
    way_ms: int  #: upper bound of that transit time


def passed(clocks: list[int], voters: int) -> int | None:
    """Return the largest time that a majority of `voters` has passed, or None if too few were
    heard.
    """
    quorum = voters // 2 + 1
    return sorted(clocks, reverse=True)[quorum - 1] if len(clocks) >= quorum else None


def agree(clocks: list[int], voters: int) -> bool:
    """True if a majority of the `voters` agree, among the `clocks` that were heard."""
    quorum, falling = voters // 2 + 1, sorted(clocks, reverse=True)
    return any(high - low <= AGREE_MS for high, low in zip(falling, falling[quorum - 1 :], strict=False))


class ClusterTime:
    """The leader time of one copy. `begin` sets the clocks of a turn; the replica says who
    leads.
    """

    def __init__(self, me: str, boot: str, row: ClockRow | None) -> None:
        """`boot` is the id of this boot of the machine. `row` is the stored row, perhaps of another
        boot.
        """
        if row is not None and row.boot != boot:
            row = None
        self._me, self._boot = me, boot
        self._now = Now(row.boot_ms if row else 0, 0)
        self._heard_ms = self._now.boot_ms  # boot time at which the anchor was true
        self._ahead_us = (row.time_ms - row.boot_ms) * 1_000 if row else None
        self.sure = row is not None and row.sure
        self._marked = (self._ahead_us, self.sure)  # as stored
        self._floor_ms = 0  # for a leader: time of the last entry before its own
        self._led_ms = 0  # start of its leadership
        # clocks of other copies, heard since this copy lost its leader
        self._clocks: dict[str, _Clock] = {}

    def begin(self, now: Now) -> None:
        """Set the clocks of this turn. If boot time fell, this is another machine: forget the
        anchor.
        """
        if now.boot_ms < self._now.boot_ms:
            self._ahead_us, self.sure = None, False
            self._marked = None, False
            self._heard_ms = now.boot_ms
        self._now = now

    def known_ahead_ms(self, now: Now) -> int | None:
        """Leader time minus boot time, for other shards of this process.

        None if this shard is not sure, or if `now` belongs to another machine.
        """
        return self.ahead_ms if self.sure and now.boot_ms >= self._now.boot_ms else None

    def adopt(self, ahead_ms: int, leads: bool) -> None:
        """Take the time of another shard of this process that is sure. A leader's time does not
        fall.
        """
        own_us = self._ahead_us if leads and self._ahead_us is not None else 1_000 * ahead_ms
        self._ahead_us, self.sure = max(own_us, 1_000 * ahead_ms), True
        self._heard_ms = self._now.boot_ms

    @property
    def ahead_ms(self) -> int:
        """Leader time minus boot time; 0 without an anchor."""
        return (self._ahead_us or 0) // 1_000

    @property
    def now_ms(self) -> int:
        """Leader time of this turn; 0 without an anchor."""
        return 0 if self._ahead_us is None else self._now.boot_ms + self.ahead_ms

    def reading(self) -> Reading:
        """The clocks that this copy sends to others."""
        return Reading(self._now.wall_ms, self.now_ms, self.sure)

    def told(self) -> tuple[int, bool]:
        """Leader time, and whether it is sure, for an Append of this turn."""
        return self.now_ms, self.sure

    def stamped(self, message: Message, no_space: bool) -> Message:
        """Return an answer to another copy, with the clocks at the time of sending."""
        wall_ms, est_ms, sure = self.reading()
        if isinstance(message, Appended):
            times = {"wall_ms": wall_ms, "est_ms": est_ms, "sure": sure}
            return msgspec.structs.replace(message, **times, no_space=no_space)
        if isinstance(message, Vote):
            return msgspec.structs.replace(message, wall_ms=wall_ms, est_ms=est_ms, sure=sure)
        return message

    def mark(self) -> ClockRow | None:
        """Return the row to store now, or None if the stored one is good enough."""
        ahead_us, (stored_us, sure) = self._ahead_us, self._marked
        if ahead_us is None:
            return None
        if stored_us is not None and sure == self.sure and abs(ahead_us - stored_us) < MARK_US:
            return None
        self._marked = ahead_us, self.sure
        return ClockRow(self._boot, self._now.boot_ms, self.now_ms, self.sure)

    # --- following ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """This copy neither leads nor stands: forget the clocks of others."""
        self._clocks.clear()

    def heard_leader(self, time_ms: int, sure: bool) -> None:
        """The leader sent its time. By now it is later, never earlier."""
        if not 0 < time_ms < MS_MAX or (self.sure and not sure):
            return  # the leader does not know our anchor yet
        ahead_us, elapsed_ms = (time_ms - self._now.boot_ms) * 1_000, self._now.boot_ms - self._heard_ms
        if self._ahead_us is not None and sure == self.sure:
            ahead_us = max(ahead_us, self._ahead_us - DECAY * elapsed_ms)
        self._ahead_us, self.sure, self._heard_ms = ahead_us, sure, self._now.boot_ms

    # --- standing and leading -------------------------------------------------------------------------------

    def heard_copy(self, name: str, reading: Reading | Appended | Vote, sent_ms: int | None = None) -> None:
        """Another copy sent its clocks. `sent_ms` is this copy's boot time when it asked."""
        if not (0 < reading.wall_ms < MS_MAX and 0 <= reading.est_ms < MS_MAX):
            return
        boot_ms = self._now.boot_ms
        est_ahead_ms = reading.est_ms - boot_ms if reading.est_ms else None
        way_ms = 0 if sent_ms is None else max(0, boot_ms - sent_ms)
        self._clocks[name] = _Clock(reading.wall_ms - boot_ms, est_ahead_ms, reading.sure, way_ms)

    def lead(self, voters: list[str], last_ms: int) -> None:
        """A leadership begins. `last_ms` is the time of the last entry."""
        boot_ms = self._now.boot_ms
        known = [clock for clock in self._clocks.values() if clock.sure or not self.sure]
        ahead_us = [1_000 * clock.est_ahead_ms for clock in known if clock.est_ahead_ms is not None]
        own_us = [] if self._ahead_us is None else [self._ahead_us]
        self._ahead_us = max([(last_ms - boot_ms) * 1_000, *own_us, *ahead_us])
        self._floor_ms, self._led_ms, self._heard_ms = last_ms, boot_ms, boot_ms
        self.correct(voters)

    def correct(self, voters: list[str]) -> None:
        """Correct a leader's time by new clocks: at once while it is not sure, else slowly."""
        boot_ms = self._now.boot_ms
        if self._ahead_us is None:  # boot time fell
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
            # otherwise the clocks are known to be wrong
            self.sure = enough and boot_ms + aim_ms >= self._floor_ms
        self._ahead_us = max([self._ahead_us, *(1_000 * each for each in ahead_ms)])
        self._heard_ms = boot_ms

    def _slew(self, elapsed_ms: int, aim_ms: int | None) -> None:
        """Slew towards `aim_ms` (leader minus boot time). None, as with a single clock, moves
        nothing.
        """
        if elapsed_ms < SLEW_MS or self._ahead_us is None:
            return
        away_us = 0 if aim_ms is None else aim_ms * 1_000 - self._ahead_us
        self._ahead_us += max(-elapsed_ms, min(elapsed_ms, away_us))
        self._heard_ms += elapsed_ms

    @property
    def wait_ms(self) -> int | None:
        """Boot time until which a leader waits for more clocks, or None."""
        if self.sure or self._now.boot_ms >= self._led_ms + WAIT_MS:
            return None
        return self._led_ms + WAIT_MS

    def off_ms(self, name: str) -> int:
        """Return the lead of a copy's wall clock over leader time, at least; 0: unknown."""
        if name == self._me:
            return self._now.wall_ms - self.now_ms
        clock = self._clocks.get(name)
        if clock is None:
            return 0
        low_ms = clock.wall_ahead_ms - self.ahead_ms
        return low_ms if low_ms > 0 else min(0, low_ms + clock.way_ms)
