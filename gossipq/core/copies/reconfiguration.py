"""Changes of a shard's copies and leader, requested by an operator or by the shard's target."""

from collections import deque

from gossipq import limits
from gossipq.core.copies.peers import Peers
from gossipq.core.copies.placement import Target
from gossipq.core.copies.transitions import KnownCopies, next_change, way_out
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import Outcome
from gossipq.core.raft import LEADER
from gossipq.core.storage import log, payloads
from gossipq.errors import Busy, NotLeader, Refused
from gossipq.messages import Acked
from gossipq.peer_messages import ChangeVoters, Transfer
from gossipq.types import Index
from gossipq.values import CopyStats

#: a copy that lost leadership this often within FALLS_MS does not get it back during that time
FALLS_MAX = 3
FALLS_MS = 10 * limits.MINUTE_MS
TRIAL_LOOK_MS = 20  #: interval at which the trial of the next leader is checked


class Reconfiguration:
    def __init__(self, desk: Desk, peers: Peers) -> None:
        self._desk = desk
        self._peers = peers
        self._replica = peers.replica
        self._target: Target | None = None
        self.free = True  #: True if another copy of this shard may begin to catch up
        self._leaving = False
        self._stay_ms = 0  # a leaving copy that got leadership back keeps it until then
        self._falls: dict[str, deque[int]] = {}  # boot times at which copies lost leadership
        self._leader = ""  # the last known leader
        self._handing = ""  # the copy to which leadership is being handed over
        # copies that did not take leadership: excluded until when, and for how long
        self._unfit: dict[str, tuple[int, int]] = {}
        self._forget()

    def _forget(self) -> None:
        self._look_ms: int | None = 0  # when to look for the next step
        # the preferred leader, and since when it has been synced
        self._kept_up: tuple[str, int] | None = None
        # the copy on trial, the entry that it must store, and the deadline
        self._trial: tuple[str, Index, int] | None = None

    @property
    def target(self) -> Target | None:
        return self._target

    @target.setter
    def target(self, target: Target | None) -> None:
        if target != self._target:
            self._target, self._look_ms = target, 0

    def leave(self, leaving: bool) -> bool:
        """Set whether this copy should hand leadership over. True if that changed."""
        if leaving == self._leaving:
            return False
        self._leaving = leaving
        self._look_ms = 0
        self._stay_ms = 0
        return True

    def can_leave(self, soon: bool = False) -> bool:
        """True if this copy leads and another could. `soon`: it may still have to catch up."""
        if self._replica.role != LEADER:
            return False
        known = self._known(self._replica.now_ms)
        return (
            self._way_out(known._replace(synced=known.answering) if soon else known, self._replica.now_ms)
            is not None
        )

    def _way_out(self, known: KnownCopies, now_ms: int) -> ChangeVoters | Transfer | None:
        stays = self._leaving and now_ms < self._stay_ms
        return None if stays else way_out(self._replica.config, known)

    # --- requests -------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Serve a request. Raises Busy, BadRequest."""
        message: ChangeVoters | Transfer = request.message
        if isinstance(message, Transfer):
            self._peers.hand_over(message.to)
            self._desk.reply(request, Acked())
        else:
            self._desk.pending.add(self._change(message), self._changed, request)

    def _change(self, message: ChangeVoters) -> Index:
        return self._desk.propose(log.CONFIG, payloads.encode(self._peers.check_change(message)))

    def _changed(self, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._desk.reply(asker, Acked())

    def applied(self) -> None:
        """A CONFIG is committed: the next one may follow."""
        self._look_ms = 0

    def resign(self) -> None:
        """This copy lost leadership."""
        self._stay_ms = self._replica.now_ms + limits.HAND_BACK_MS
        self._forget()

    # --- steering -------------------------------------------------------------------------------------------

    def observe(self, now_ms: int) -> None:
        """On every copy: remember which copies lost leadership."""
        leader = self._replica.leader
        if leader and leader != self._leader:
            if self._leader:
                self._falls.setdefault(self._leader, deque(maxlen=FALLS_MAX)).append(now_ms)
            self._leader = leader
        if self._handing and leader and not self._replica.handing:
            if leader == self._replica.me:
                self._doubt(self._handing, now_ms)
            else:
                self._unfit.pop(leader, None)
            self._handing = ""

    def _doubt(self, name: str, now_ms: int) -> None:
        """The copy could not take leadership: exclude it for a while, twice as long each time."""
        _, pause_ms = self._unfit.get(name, (0, limits.HAND_BACK_MS // 2))
        pause_ms = min(2 * pause_ms, FALLS_MS)
        self._unfit[name] = now_ms + pause_ms, pause_ms

    def next_deadline(self) -> int | None:
        return self._look_ms

    def tick(self) -> None:
        """Advance a serving leader: take the next step towards the target."""
        now_ms = self._desk.boot_ms
        if self._look_ms is None or now_ms < self._look_ms:
            return
        self._look_ms = None
        replica = self._replica
        known = self._known(now_ms)
        step = self._way_out(known, now_ms) if self._leaving else None
        if step is None and self._target is not None:
            step = next_change(replica.config, self._for_now(self._target, known), known)
        if step is not None:
            self._take(step, now_ms)
        elif self._leaving or self._unfinished():
            soon = known.answering - known.synced or len(replica.config.voters) % 2 == 0
            self._look_ms = now_ms + (limits.STEER_MS if soon else limits.SECOND_MS)

    def _take(self, step: ChangeVoters | Transfer, now_ms: int) -> None:
        self._look_ms = now_ms + limits.STEER_MS
        try:
            if isinstance(step, Transfer):
                self._try_out(step.to, now_ms)
            else:
                self._change(step)
        except (Busy, NotLeader):
            pass  # to be tried again later
        except Refused as error:
            self._desk.warn(f"shard {self._desk.shard} cannot get the copies that it should have: {error}")

    def _try_out(self, name: str, now_ms: int) -> None:
        """Test the next leader: it must store an entry, while this leader continues.

        So a copy that cannot store causes no interruption.
        """
        self._peers.check_hand_over(name)
        self._look_ms = now_ms + TRIAL_LOOK_MS
        if self._trial is None or self._trial[0] != name or now_ms > self._trial[2] + limits.SECOND_MS:
            self._trial = name, self._desk.propose(log.NOOP, b""), now_ms + limits.TRANSFER_READY_MS
            return
        _, index, until_ms = self._trial
        if self._replica.progress[name].match >= index:
            self._trial, self._handing = None, name
            self._peers.hand_over(name)
        elif now_ms >= until_ms:
            self._trial = None
            self._doubt(name, now_ms)

    def _unfinished(self) -> bool:
        target, config = self._target, self._replica.config
        return target is not None and (
            target.voters != config.voters
            or set(target.learners) != set(config.learners)
            or target.voters[0] != self._replica.me
        )

    def _known(self, now_ms: int) -> KnownCopies:
        replica = self._replica
        me, others = replica.me, replica.progress
        answering = {
            me,
            *(name for name, other in others.items() if now_ms < other.heard_ms + limits.LEADER_LEASE_MS),
        }
        synced = {me, *(name for name, other in others.items() if other.synced)}
        unfit = {name for name, (until_ms, _) in self._unfit.items() if now_ms < until_ms}
        unfit |= {name for name, other in others.items() if other.no_space}
        return KnownCopies(
            me=me,
            answering=answering,
            synced=synced,
            free=self.free,
            kept_up=self._kept_up_long(synced - unfit, now_ms),
            unfit=unfit,
        )

    def _kept_up_long(self, synced: set[str], now_ms: int) -> bool:
        """True if leadership may go back to the preferred leader."""
        first = self._target.voters[0] if self._target else ""
        if first not in synced:
            self._kept_up = None
            return False
        if self._kept_up is None or self._kept_up[0] != first:
            self._kept_up = first, now_ms
        return (
            not self.lost_leadership_often(first, now_ms) and now_ms >= self._kept_up[1] + limits.HAND_BACK_MS
        )

    def lost_leadership_often(self, name: str, now_ms: int) -> bool:
        """True if the copy lost leadership too often to get it back for now."""
        falls = self._falls.get(name)
        return falls is not None and len(falls) == FALLS_MAX and falls[0] > now_ms - FALLS_MS

    def _for_now(self, target: Target, known: KnownCopies) -> Target:
        """A standby that took over keeps leadership for a while, alone: the other node may fail
        again.
        """
        stays = len(target.voters) == 1 and known.me in target.learners and not known.kept_up
        return target.led_by(known.me) if stays else target

    # --- what is seen ---------------------------------------------------------------------------------------

    @property
    def adding(self) -> int:
        """Number of copies that are catching up."""
        replica = self._replica
        return sum(
            not other.synced and replica.now_ms < other.heard_ms + limits.LEADER_LEASE_MS
            for other in replica.progress.values()
        )

    def copies(self) -> list[CopyStats]:
        """Return every copy of the shard, the leader first."""
        replica, config = self._replica, self._replica.config
        term, last, now_ms = replica.hard.term, replica.log.last, replica.now_ms
        saved, off_ms = replica.saved, replica.time.off_ms
        mine = CopyStats(
            shard=self._desk.shard,
            term=term,
            copy=replica.me,
            role="leader",
            match=saved,
            behind=last - saved,
            silent_ms=0,
            synced=True,
            clock_ms=off_ms(replica.me),
        )
        rows = [mine]
        for name, other in replica.progress.items():
            role = (
                "witness" if name in config.witnesses else "follower" if name in config.voters else "learner"
            )
            its = CopyStats(
                shard=self._desk.shard,
                term=term,
                copy=name,
                role=role,
                match=other.match,
                behind=last - other.match,
                silent_ms=max(0, now_ms - other.heard_ms),
                synced=other.synced,
                clock_ms=off_ms(name),
            )
            rows.append(its)
        return rows
