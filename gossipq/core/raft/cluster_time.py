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

Delays, pauses and leases end by another time, *timer time*. By leader time they would end early
where a leader is slewed forward, or starts from a better anchor than the leader before it had.
Timer time never gains on boot time, over all leaders of a shard. A leader keeps timer time minus
boot time. A new leader starts with the value that the leader of its last entry sent with that
entry; this is never more than that leader had. So timer time loses the transit time of a message
at each takeover: delays that wait at that moment end late by this, and none ends early.
"""

from typing import NamedTuple

import msgspec

from gossipq.peer_messages import Appended, Vote
from gossipq.types import Now, Term
from gossipq.values import Message

SLEW_MS = 1_000  #: interval at which a leader decides whether to slew its time
AGREE_MS = 2_000  #: wall clocks within this difference agree
WAIT_MS = 3_000  #: a leader that is not sure waits this long for more clocks
MARK_US = 100_000  #: an anchor is stored again after it moved this far
MS_MAX = 2**48  #: later times from a peer are ignored
#: thousandths by which an anchor falls until it is heard again: twice the leader's maximum slew
DECAY = 2
FALL_MS = 3  #: maximum by which leader time is slewed back at once, and timer time with it
#: subtracted from timer time in a message: both boot times are rounded, and it may have fallen
MARGIN_MS = 1 + FALL_MS
SLACK_US = 20_000  #: a follower stores timer time lower by this, so that it is seldom stored again


class ClockRow(msgspec.Struct, array_like=True, frozen=True):
    """Leader time at one moment of this machine's boot, from which a restart continues."""

    boot: str  #: id of that boot
    boot_ms: int
    time_ms: int  #: leader time
    sure: bool = True
    behind_ms: int = 0  #: leader time minus timer time; equal to `time_ms` if timer time is unknown


class Reading(NamedTuple):
    """The clocks of one copy at one moment."""

    wall_ms: int
    est_ms: int  #: leader time by its anchor; 0: it has none
    sure: bool
    behind_ms: int = 0  #: that minus timer time; equal to `est_ms` if timer time is unknown


class _Clock(NamedTuple):
    """A reading of another copy, relative to this copy's boot time."""

    wall_ahead_ms: int  #: too low by the transit time of the reading
    est_ahead_ms: int | None  #: likewise
    sure: bool
    way_ms: int  #: upper bound of that transit time
    timer_ahead_ms: int | None  #: too low by the transit time and MARGIN_MS; None: unknown


class _Told(NamedTuple):
    """Timer time minus boot time, as the leader of a term sent it; never more than it is."""

    term: Term
    ahead_us: int
    heard_ms: int


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
        #: timer time minus boot time, for the entries of this copy; None: unknown
        self._timer_us: int | None = None
        if row is not None and row.behind_ms < row.time_ms:
            self._timer_us = (row.time_ms - row.behind_ms - row.boot_ms) * 1_000
        self._told: _Told | None = None  # the same, from the leader that this copy follows
        self._marked = (self._ahead_us, self.sure)  # as stored
        self._marked_timer_us = self._timer_us
        self._floor_ms = 0  # for a leader: time of the last entry before its own
        self._led_ms = 0  # start of its leadership
        self._leads = False
        # clocks of other copies, heard since this copy lost its leader
        self._clocks: dict[str, _Clock] = {}

    def begin(self, now: Now) -> None:
        """Set the clocks of this turn. If boot time fell, this is another machine: forget the
        anchor.
        """
        if now.boot_ms < self._now.boot_ms:
            self._ahead_us, self.sure = None, False
            self._marked = None, False
            self._timer_us = self._marked_timer_us = self._told = None
            self._heard_ms = now.boot_ms
        self._now = now

    def known_ahead_ms(self, now: Now) -> int | None:
        """Leader time minus boot time, for other shards of this process.

        None if this shard is not sure, or if `now` belongs to another machine.
        """
        return (self._ahead_us or 0) // 1_000 if self.sure and now.boot_ms >= self._now.boot_ms else None

    def adopt(self, ahead_ms: int, leads: bool) -> None:
        """Take the time of another shard of this process that is sure. A leader's time does not
        fall.
        """
        own_us = self._ahead_us if leads and self._ahead_us is not None else 1_000 * ahead_ms
        self._ahead_us, self.sure = max(own_us, 1_000 * ahead_ms), True
        self._heard_ms = self._now.boot_ms
        if leads:
            self.pin()

    @property
    def ahead_ms(self) -> int:
        """Leader time minus boot time; 0 without an anchor."""
        return (self._ahead_us or 0) // 1_000

    @property
    def now_ms(self) -> int:
        """Leader time of this turn; 0 without an anchor."""
        return 0 if self._ahead_us is None else self._now.boot_ms + self._ahead_us // 1_000

    @property
    def timer_ahead_ms(self) -> int:
        """Timer time minus boot time. Timer time is never ahead of leader time, and equal to it until
        something is due by it.
        """
        timer_us, ahead_us = self._timer_us, self._ahead_us or 0
        if timer_us is None and self._told is not None:
            timer_us = self._told.ahead_us
        return (ahead_us if timer_us is None else min(ahead_us, timer_us)) // 1_000

    @property
    def _known_timer_us(self) -> int | None:
        if self._timer_us is None and self._told is not None:
            return self._told.ahead_us
        return self._timer_us

    @property
    def timer_ms(self) -> int:
        """Timer time of this turn; 0 without an anchor."""
        ahead_us, timer_us = self._ahead_us, self._timer_us
        if ahead_us is None:
            return 0
        if timer_us is None:  # of a copy that does not lead, or with nothing due
            return self._now.boot_ms + self.timer_ahead_ms
        return self._now.boot_ms + min(ahead_us, timer_us) // 1_000

    @property
    def _behind_ms(self) -> int:
        """Leader time minus timer time, for other copies; all of leader time if unknown."""
        return self.now_ms if self._known_timer_us is None else self.ahead_ms - self.timer_ahead_ms

    def pin(self) -> None:
        """Fix timer time minus boot time: something is due by it now, or the leader is sure.

        From now on it does not step forward with leader time.
        """
        if self._timer_us is None:
            self._timer_us = self._ahead_us

    def reading(self) -> Reading:
        """The clocks that this copy sends to others."""
        return Reading(self._now.wall_ms, self.now_ms, self.sure, self._behind_ms)

    def told(self) -> tuple[int, bool, int]:
        """Leader time, whether it is sure, and how far timer time is behind it, for an Append of
        this turn.
        """
        return self.now_ms, self.sure, self._behind_ms

    def stamped(self, message: Message, no_space: bool) -> Message:
        """Return an answer to another copy, with the clocks at the time of sending."""
        if isinstance(message, Appended):
            return msgspec.structs.replace(message, **self.reading()._asdict(), no_space=no_space)
        if isinstance(message, Vote):
            return msgspec.structs.replace(message, **self.reading()._asdict())
        return message

    def mark(self) -> ClockRow | None:
        """Return the row to store now, or None if the stored one is good enough."""
        ahead_us, (stored_us, sure) = self._ahead_us, self._marked
        if ahead_us is None:
            return None
        timer_us, slack_us = self._timer_us, 0 if self._leads else SLACK_US
        if timer_us is not None:
            timer_us = min(timer_us, ahead_us)
        same = stored_us is not None and sure == self.sure and abs(ahead_us - stored_us) < MARK_US
        if same and self._is_timer_marked(timer_us, slack_us):
            return None
        self._marked = ahead_us, self.sure
        behind_ms = self.now_ms
        if timer_us is not None:
            self._marked_timer_us = timer_us - slack_us
            behind_ms = self.ahead_ms - self._marked_timer_us // 1_000
        return ClockRow(self._boot, self._now.boot_ms, self.now_ms, self.sure, behind_ms)

    def _is_timer_marked(self, timer_us: int | None, slack_us: int) -> bool:
        """Say if the stored timer time is not ahead of this, and not far behind."""
        if timer_us is None or self._marked_timer_us is None:
            return timer_us is None
        return 0 <= timer_us - self._marked_timer_us <= 3 * slack_us

    # --- following ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """This copy neither leads nor stands: forget the clocks of others."""
        self._clocks.clear()
        self._leads = False

    def heard_leader(self, time_ms: int, sure: bool, term: Term = 0, behind_ms: int = 0) -> None:
        """The leader of `term` sent its time. By now it is later, never earlier.

        `behind_ms` is its leader time minus its timer time.
        """
        if not 0 <= behind_ms <= time_ms < MS_MAX or not time_ms:
            return
        if behind_ms < time_ms:  # else its timer time is not fixed
            self._hear_timer(term, time_ms - behind_ms)
        if self.sure and not sure:
            return  # the leader does not know our anchor yet
        ahead_us, elapsed_ms = (time_ms - self._now.boot_ms) * 1_000, self._now.boot_ms - self._heard_ms
        if self._ahead_us is not None and sure == self.sure:
            ahead_us = max(ahead_us, self._ahead_us - DECAY * elapsed_ms)
        self._ahead_us = ahead_us
        self.sure = sure
        self._heard_ms = self._now.boot_ms

    def _hear_timer(self, term: Term, timer_ms: int) -> None:
        boot_ms, told = self._now.boot_ms, self._told
        ahead_us = 1_000 * (timer_ms - MARGIN_MS - boot_ms)
        if told is not None and told.term == term:  # an earlier message may have been faster
            ahead_us = max(ahead_us, told.ahead_us - DECAY * (boot_ms - told.heard_ms))
        self._told = _Told(term, ahead_us, boot_ms)

    def settle(self, term: Term) -> None:
        """The leader of `term` has every entry of this copy, or sent some of them just now. So its
        timer time counts from now on.

        Before, that of the leader of the last entry counts. If this copy leads next, it releases
        what is due by that.
        """
        if self._told is not None and self._told.term == term:
            self._timer_us = self._told.ahead_us

    # --- standing and leading -------------------------------------------------------------------------------

    def heard_copy(self, name: str, reading: Reading | Appended | Vote, sent_ms: int | None = None) -> None:
        """Another copy sent its clocks. `sent_ms` is this copy's boot time when it asked."""
        if not (0 < reading.wall_ms < MS_MAX and 0 <= reading.est_ms < MS_MAX):
            return
        boot_ms = self._now.boot_ms
        est_ahead_ms = reading.est_ms - boot_ms if reading.est_ms else None
        way_ms = 0 if sent_ms is None else max(0, boot_ms - sent_ms)
        timer_ahead_ms = None
        if est_ahead_ms is not None and 0 <= reading.behind_ms < reading.est_ms:
            timer_ahead_ms = est_ahead_ms - reading.behind_ms - MARGIN_MS
        self._clocks[name] = _Clock(
            reading.wall_ms - boot_ms, est_ahead_ms, reading.sure, way_ms, timer_ahead_ms
        )

    def lead(self, voters: list[str], last_ms: int) -> None:
        """A leadership begins. `last_ms` is the time of the last entry."""
        boot_ms = self._now.boot_ms
        known = [clock for clock in self._clocks.values() if clock.sure or not self.sure]
        ahead_us = [1_000 * clock.est_ahead_ms for clock in known if clock.est_ahead_ms is not None]
        own_us = [] if self._ahead_us is None else [self._ahead_us]
        self._ahead_us = max([(last_ms - boot_ms) * 1_000, *own_us, *ahead_us])
        self._floor_ms = last_ms
        self._led_ms = boot_ms
        self._heard_ms = boot_ms
        self._hold_timer(self._known_timer_us)
        self._told, self._leads = None, True
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
        timers_ms = [clock.timer_ahead_ms for clock in self._clocks.values()]
        timer_ms = min((each for each in timers_ms if each is not None), default=None)
        if self._timer_us is None and timer_ms is not None:  # its machine booted, and others know
            self._hold_timer(1_000 * timer_ms)
        if self.sure:
            self.pin()
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
        if self.sure:
            self.pin()

    def _slew(self, elapsed_ms: int, aim_ms: int | None) -> None:
        """Slew towards `aim_ms` (leader minus boot time). None, as with a single clock, moves
        nothing.
        """
        if elapsed_ms < SLEW_MS or self._ahead_us is None:
            return
        away_us = 0 if aim_ms is None else aim_ms * 1_000 - self._ahead_us
        self._ahead_us += max(-min(elapsed_ms, 1_000 * FALL_MS), min(elapsed_ms, away_us))
        self._heard_ms += elapsed_ms
        self._hold_timer(self._timer_us)

    def _hold_timer(self, timer_us: int | None) -> None:
        """Set timer time, at most to leader time: an entry has leader time, and releases only what
        is due by then.
        """
        if timer_us is not None and self._ahead_us is not None:
            self._timer_us = min(timer_us, self._ahead_us)

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
