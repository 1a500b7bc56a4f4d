"""One copy of a shard: its log, its ledger, and the `Leader` while it leads.

`turn` drives it; its docstring has the order of calls.

If one copy is a quorum, entries are applied in the transaction that appends them. Otherwise they
are applied with the next sync; after a crash they are replayed from the log. After a failed commit
the shard is dropped and opened again from its tables.

A copy *leads* after its election and *serves* after its own NOOP is committed; then dispatch is
rebuilt. When it stops leading, the leader is dropped with all volatile state.

A damaged batch stops its shard and no other one. Wrong bytes are never delivered, and the rest of
the node continues.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVarTuple

from msgspec import Struct

from gossipq import limits
from gossipq.core.copies import Mail, Peers, Reconfiguration, Target, open_ledger
from gossipq.core.delivery import Delivery, Dispatch
from gossipq.core.desk import INTERNAL, INTERNAL_HINT, Desk, Fault, Request, Unapplied
from gossipq.core.effects import Effects
from gossipq.core.leader import SERVES, WAITS, Leader
from gossipq.core.ledger import AppliedEntry, Ledger, Sweeper
from gossipq.core.raft import LEADER, NOTHING_UNSAVED, Dice, Replication, Unsaved, campaign
from gossipq.core.requests import IsShown, stats, subscriptions
from gossipq.core.storage import Bodies, Columns, ShardSettings, Tables, log, payloads
from gossipq.errors import (
    CorruptLog,
    GossipqError,
    Internal,
    NotLeader,
    StoreError,
    UnknownKind,
    UnknownVerb,
)
from gossipq.operator_messages import Growth
from gossipq.peer_messages import Stray
from gossipq.types import Index, Now, SessionId
from gossipq.values import (
    AccessTable,
    CopyStats,
    GroupStats,
    GrowthRow,
    Member,
    PartitionStats,
    TopicInfo,
)
from gossipq.values import Consuming as Consumes
from gossipq.verbs import LEADER_ROOMS, LEADERS_ROOMS, ROOMS, Room

Told = TypeVarTuple("Told")
CONTAINED_AGAIN_MS = 10_000  #: a second fault of its own within this time stops a shard
KEEP_NONE = 2**63  #: an index behind every log row: none is kept for other copies
SWEEP_ROWS = 1_024  #: rows deleted in one turn, about 5 ms at most


class Ready(Struct, frozen=True):
    """A shard's part of a turn before `advance`."""

    #: it has state to write, which must be committed before anything follows from it
    must_sync: bool
    unsaved: Unsaved  #: log rows to cut, entries to append, and a changed term or vote
    appends: list[Replication]  #: for followers; they may be sent before the commit


class Shard:
    def __init__(
        self,
        shard: int,
        settings: ShardSettings,
        tables: Tables,
        bodies: Bodies,
        columns: Columns,
        dice: Dice | None = None,
    ) -> None:
        """Open `tables`. `dice` randomise election timeouts. Raises CorruptLog, UnknownKind."""
        self.id = shard
        self._settings = settings
        self._tables = tables
        self._bodies = bodies
        self._delivered = 0  # deliveries in earlier terms of this copy
        self._due_ms: int | None = None  # boot time of the next tick with work, as told last
        self._standing = "", 0  # leader and term at this shard's last turn
        self._quiet = False  # nothing came in this turn and nothing was due: the tick was skipped
        self._complain_ms = 0  # when a bad message of another copy may be logged again
        self._contained_ms: int | None = None  # when a part of a turn last failed
        self.leadership: Leader | None = None  #: while this copy leads
        self.ledger = open_ledger(shard, tables, columns)
        self.peers = Peers(shard, settings, tables, bodies, self.ledger, dice)
        self.replica = self.peers.replica
        self._effects = Effects()
        self.desk = Desk(shard, self.replica, columns, self._effects, settings.clock_step_ms)
        self.reconfiguration = Reconfiguration(self.desk, self.peers)
        self._open(self.ledger)

    def _open(self, ledger: Ledger) -> None:
        """Create everything that depends on the ledger; again after a snapshot replaced it."""
        self.ledger = self.peers.ledger = ledger
        self.desk.unapplied = Unapplied(self.peers.after(ledger.applied))
        self._applied: list[AppliedEntry] = []
        self._sweeper = Sweeper(self._tables, ledger, self.replica.log, whole=not self.replica.hollow)
        self._drop_leader()

    def _new_leader(self) -> Leader:
        """Return a leader with empty rooms."""
        desk, peers, moves = self.desk, self.peers, self.reconfiguration
        return Leader(desk, self.ledger, peers, moves, self._settings, self._tables)

    def _drop_leader(self) -> None:
        self.leadership = None
        self.desk.stirred, self._quiet = True, False

    # --- leading --------------------------------------------------------------------------------------------

    @property
    def last(self) -> Index:
        """Index of the newest entry."""
        return self.replica.log.last

    @property
    def leading(self) -> bool:
        return self.replica.role == LEADER

    @property
    def term(self) -> int:
        return self.replica.hard.term

    @property
    def serving(self) -> bool:
        """True if it leads, has all committed entries, knows the time, and is not handing over."""
        leader = self.leadership
        return leader is not None and leader.state is SERVES and not self.replica.handing

    def lead(self, now: Now) -> None:
        """Start after opening. A quorum of one leads at once; others wait for an election."""
        self.begin(now)
        self.replica.election.heard(now.boot_ms, first=False)
        if not self.replica.sole:
            return
        self._apply(self.replica.log.last)
        self._applied.clear()
        self.replica.lead()
        self._take_over().start()

    def _take_over(self) -> Leader:
        """Log the first entry of a leadership. Requests wait until it is committed (Raft 6.4)."""
        now, config = self._now, self.replica.config
        self._drop_leader()
        self.leadership = leader = self._new_leader()
        self.begin(now)
        if self.replica.config_index == 0 and self.ledger.meta.voters != config.voters:
            self.desk.propose(log.CONFIG, payloads.encode(config))
        self.desk.propose(log.NOOP, b"")
        return leader

    def _follow_replica(self) -> None:
        """Start or end leadership as the replica decided."""
        leader = self.leadership
        if self.leading:
            if leader is None or leader.term != self.term:
                self._resign()
                self._take_over()
        elif leader is not None:
            self._resign()

    def _resign(self) -> None:
        """End leadership. Open requests may be stored or not: the next leader knows."""
        leader = self.leadership
        self._effects.abandoned += self.desk.pending.abandon()
        if leader is not None:
            self._effects.abandoned += leader.waiting()
            self._delivered += leader.dispatch.turn.delivered
        self.reconfiguration.resign()
        self.peers.reset()
        self._drop_leader()

    # --- copies ---------------------------------------------------------------------------------------------

    @property
    def target(self) -> Target | None:
        """The copies that this shard should have; the leader moves towards it."""
        return self.reconfiguration.target

    @target.setter
    def target(self, target: Target | None) -> None:
        self.reconfiguration.target, self.desk.stirred = target, True

    def leave(self, leaving: bool = True) -> bool:
        """Hand leadership over (or stop doing so), because this copy stops or lacks disk space.

        Returns whether that changed.
        """
        self.desk.stirred = True
        return self.reconfiguration.leave(leaving)

    def copies(self) -> list[CopyStats]:
        """Return every copy, the leader first; empty unless leading."""
        return self.reconfiguration.copies() if self.leading else []

    @property
    def dispatch(self) -> Dispatch:
        """Leases and subscriptions of the leader. Raises NotLeader."""
        return self._leading().dispatch

    # --- questions ------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """The leading copy as far as this one knows; "" = unknown."""
        return self.replica.leader

    @property
    def voters(self) -> list[str]:
        return self.replica.config.voters

    @property
    def applied(self) -> Index:
        """Entries up to this index are in the ledger."""
        return self.ledger.applied

    @property
    def delivered(self) -> int:
        """Number of delivered records."""
        return self._delivered + (
            self.leadership.dispatch.turn.delivered if self.leadership is not None else 0
        )

    @property
    def adding(self) -> bool:
        """True if it leads and brings new copies up to date."""
        return self.leading and bool(self.reconfiguration.adding)

    def may_add(self, free: bool) -> None:
        """Set whether another copy may begin to catch up; a worker limits that over its shards."""
        self.reconfiguration.free = free

    def can_leave(self) -> bool:
        """True if this copy leads and another one could."""
        return self.reconfiguration.can_leave()

    def stray(self, now_ms: int) -> Stray | None:
        """Return a question to the leader if this copy has not heard one for long, else None."""
        return self.peers.stray(now_ms)

    @property
    def blind(self) -> bool:
        """True if this copy does not apply its log: a witness, or during a snapshot."""
        return self._settings.witness or self.replica.hollow

    def roster(self) -> tuple[Index, Iterable[Member]]:
        """Return version and nodes of the roster; meta shard only."""
        return self.ledger.cluster.roster_version, self.ledger.cluster.members.values()

    def knows(self, session: SessionId) -> bool:
        """True if a session has state here that ends with it."""
        return self.leadership is not None and self.leadership.dispatch.holds(session)

    def sessions(self) -> set[SessionId]:
        """Return the sessions that have state here which ends with them."""
        return self.leadership.dispatch.sessions() if self.leadership is not None else set()

    def undelivered(self, delivery: Delivery) -> None:
        """A delivery could not be sent: the client is gone or does not read."""
        self.desk.stirred = True
        if self.leadership is not None:
            self.leadership.dispatch.undelivered(delivery)

    @property
    def access(self) -> AccessTable:
        """Users and roles; meta shard only."""
        return self.ledger.cluster.access

    def held_topics(self) -> list[TopicInfo]:
        """Topics that have partitions here."""
        return list(self.ledger.topics.values())

    def registered(self) -> tuple[list[TopicInfo], set[int]]:
        """Return topics with a name, and ids of those that shards are being told of; meta shard
        only.
        """
        return list(self.ledger.cluster.names.values()), set(self.ledger.cluster.installing)

    def topic_name(self, topic_id: int) -> str:
        """Return the name of a topic with partitions here, else ""."""
        info = self.ledger.topics.get(topic_id)
        return info.name if info is not None else ""

    def stats(
        self, worker: int, topics: IsShown, after: tuple[int, int], rows_max: int
    ) -> tuple[list[PartitionStats], list[GroupStats], tuple[int, int] | None]:
        """Return counters of partitions and groups of the shown topics, behind `after`, on the leader.

        The third value is the position of the last row if more follow.
        """
        if (leader := self.leadership) is None:
            return [], [], None
        return stats(self.ledger, leader.dispatch, leader.idle, worker, topics, after, rows_max)

    def growth(
        self, request: Growth, topics: Collection[str], after: tuple[int, int], rows_max: int
    ) -> tuple[list[GrowthRow], tuple[int, int] | None]:
        """Return roll-ups of `topics` behind `after`, and the position of the
        last row if more may follow.
        """
        return self.ledger.growth.rows(topics, request.hours, request.since_ms, after, rows_max)

    def subscriptions(self, session: SessionId) -> list[Consumes]:
        """Return the subscriptions of a session, on the leader."""
        if (leader := self.leadership) is None:
            return []
        return subscriptions(self.ledger, leader.dispatch, session, self.desk.boot_ms)

    # --- faults ---------------------------------------------------------------------------------------------

    def _contain_request(self, request: Request, error: Exception, last: Index, untouched: bool) -> None:
        """A request met a fault of this node. Undo it.

        Entries proposed after `last` are removed. The volatile state is rebuilt, because the
        request may have left it half changed, unless `untouched`.
        """
        self.desk.key = b""
        self._effects.faults.append(Fault(type(request.message).__name__, error))
        if not untouched:
            self._lead_anew(last)
        self._effects.withdraw(request.origin, request.request_id)
        self.desk.refuse(request, Internal(INTERNAL, hint=INTERNAL_HINT))

    def _guarded(self, what: str, part: Callable[[*Told], None], *told: *Told) -> bool:
        """Run a part of a turn that changes only volatile state. False: it failed and was undone.

        The second failure in a short time is raised: this copy stops.
        """
        last, boot_ms = self.replica.log.last, self.desk.boot_ms
        try:
            part(*told)
            return True
        except GossipqError:
            raise
        except Exception as error:
            if self._contained_ms is not None and boot_ms < self._contained_ms + CONTAINED_AGAIN_MS:
                raise
            self._contained_ms = boot_ms
            self._effects.faults.append(Fault(what, error))
            self._lead_anew(last)
            return False

    def _lead_anew(self, last: Index) -> None:
        """Remove entries after `last`, drop all volatile state, and take over leadership again.

        Log and ledger are intact, because only entries change the ledger.
        """
        self.replica.retract(last)
        self.desk.unapplied.cut(last + 1)
        self._resign()
        if self.leading:
            self._take_over()

    # --- input ----------------------------------------------------------------------------------

    def begin(self, now: Now, ahead_ms: Callable[[], int | None] | None = None) -> None:
        """Set the clocks of this turn, before any step.

        `ahead_ms` tells leader time minus boot time as the shards of this process know it. It is
        asked if this one is not sure of it.
        """
        self._now = now
        desk = self.desk
        time = self.replica.time
        others_ms = None
        if ahead_ms is not None and time.known_ahead_ms(now) is None:
            others_ms = ahead_ms()
        self.replica.begin(now, bool(desk.full), others_ms)
        desk.leader_ms = max(self.replica.log.time_ms, time.now_ms)
        desk.timer_ms = time.timer_ms
        desk.boot_ms = now.boot_ms
        if (leader := self.leadership) is None:
            return
        leader.dispatch.begin(desk.boot_ms, desk.leader_ms, desk.timer_ms)
        if leader.state is not SERVES:
            # the same state from which `leader_ms` was taken
            leader.timed = time.wait_ms is None
            if leader.state is WAITS and leader.timed:
                self._guarded("takeover", leader.start)

    def _leading(self) -> Leader:
        """Return the leader. Raises NotLeader."""
        if self.leadership is None:
            raise NotLeader(f"this worker is not the leader of shard {self.id}")
        return self.leadership

    def publish(self, request: Request) -> bool:
        """Publish a verified batch. Refusals are answered, never raised: False. Raises StoreError.

        A copy without others reports a full store even while it does not lead.
        """
        last, desk, message = self.replica.log.last, self.desk, request.message
        desk.stirred |= bool(message.acks)
        try:
            leader = self.leadership
            if leader is None or leader.state is not SERVES or self.replica.handing:
                if not (desk.full and self.replica.sole):
                    self._leading().check_serving()
                leader = leader or self._new_leader()  # it only tells of the full store
            if desk.unapplied.bytes >= limits.UNAPPLIED_BYTES_MAX:
                leader.check_room()
            leader.publishing.publish(request)
            return True
        except StoreError:
            raise
        except GossipqError as error:
            desk.refuse(request, error)
        except Exception as error:
            self._contain_request(request, error, last, self.last == last and not message.acks)
        return False

    def step(self, request: Request) -> None:
        """Handle any other message. Refusals and faults are answered, never raised.

        Raises StoreError, and errors that must stop this copy: CorruptLog, UnknownKind, and any
        fault in a message of another copy.
        """
        last, message = self.replica.log.last, request.message
        room = ROOMS[type(message)]
        if room is Room.COPIES:
            self._step_copy(request)
            return
        self.desk.stirred = True
        try:
            if room not in LEADER_ROOMS:
                raise UnknownVerb(f"verb {message.verb} is no request")
            if room in LEADERS_ROOMS and not self.serving:
                return  # its sender repeats it
            leader = self._leading()
            if not (getattr(message, "idempotency_key", b"") and leader.repeat(request)):
                leader.serve(request)
        except StoreError:
            raise
        except GossipqError as error:
            self.desk.refuse(request, error)
        except Exception as error:
            self._contain_request(request, error, last, room is Room.EXPLAINING)
        finally:
            self.desk.key = b""

    def _step_copy(self, request: Request) -> None:
        """Handle a message of another copy. A bad one is dropped, and logged once a minute."""
        try:
            self._from_copy(request)
        except (StoreError, CorruptLog, UnknownKind):
            raise
        except GossipqError as error:
            if self.desk.boot_ms >= self._complain_ms:
                self._complain_ms = self.desk.boot_ms + limits.MINUTE_MS
                self.desk.warn(f"dropped what another copy sent: {error}")
            self.desk.refuse(request, error)

    def renews(self, session: SessionId) -> bool:
        """True if a ping of that session extends leases here."""
        return self.leadership is not None and self.leadership.dispatch.renews(session)

    def renew(self, session: SessionId) -> None:
        """Extend the leases of a session that was heard."""
        self.desk.stirred = True
        if self.leadership is not None:
            renew = self.leadership.dispatch.renew
            self._guarded("leases of a session", renew, session, self.desk.boot_ms)

    def end_session(self, session: SessionId, silent: bool = False) -> None:
        self.desk.stirred = True
        if self.leadership is not None:
            self._guarded("end of a session", self.leadership.dispatch.end_session, session, silent)

    # --- peers ----------------------------------------------------------------------------------------------

    def _from_copy(self, request: Request) -> None:
        message, unapplied = request.message, self.desk.unapplied
        if self.replica.sole and self.leading and type(message) is not Stray:
            return  # there are no other copies
        changed = self.peers.step(request.term, message, list(request.entries), request.batch)
        if changed == 0:
            # before the state is replaced, because requests that wait must be told
            self._follow_replica()
            self._open(open_ledger(self.id, self._tables, self.desk.columns))
        elif changed is not None:
            unapplied.cut(changed)
            unsaved = self.replica.unsaved
            unapplied.extend(unsaved[changed - unsaved[0].index :])
        self.desk.promised |= changed is not None or self.replica.hollow
        self._follow_replica()
        self._effects.warnings += self.replica.warnings
        self.replica.warnings.clear()

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next tick with work."""
        leader, now_ms = self.leadership, self.desk.boot_ms
        if self.desk.promised:
            self._due_ms = now_ms
            return now_ms
        if leader is not None and not leader.moved and leader.state is SERVES and self.replica.sole:
            # plain publishes to the only copy: no room and no other copy has another deadline
            self._due_ms = leader.rooms_due_ms
            return self._due_ms
        due_ms = self.peers.deadline_ms()
        if leader is not None:
            rooms_ms = None
            if leader.state is WAITS:
                wait_ms = self.replica.time.wait_ms
                rooms_ms = now_ms if wait_ms is None else wait_ms
            elif leader.serving:
                rooms_ms = leader.next_deadline()
                moves_ms = self.reconfiguration.next_deadline()
                if moves_ms is not None and (rooms_ms is None or moves_ms < rooms_ms):
                    rooms_ms = moves_ms
            if rooms_ms is not None and (due_ms is None or rooms_ms < due_ms):
                due_ms = rooms_ms
        self._due_ms = due_ms
        return due_ms

    def tick(self) -> None:
        """Advance timers, and log what dispatch has collected."""
        leader, boot_ms = self.leadership, self.desk.boot_ms
        if leader is None or leader.state is not SERVES or not self.replica.sole:
            campaign.tick(self.replica)
            self._follow_replica()
            self.reconfiguration.observe(boot_ms)
        self._quiet = not self.desk.stirred and (self._due_ms is None or boot_ms < self._due_ms)
        if self._quiet:
            return
        leader = self.leadership
        serves = leader is not None and leader.serving
        self.desk.stirred = self.leading and not serves  # looked at again when this copy serves
        if leader is not None and serves:
            self._guarded("tick", leader.tick)

    # --- storing --------------------------------------------------------------------------------------------

    @property
    def promised(self) -> bool:
        """True if this turn must sync."""
        replica = self.replica
        return (
            self.desk.promised
            or replica.hard_changed
            or bool(replica.answers and replica.dirty)
            or self.peers.wants_spool
        )

    @property
    def pending(self) -> bool:
        """True if something can be written with the next sync."""
        ledger, leader = self.ledger, self.leadership
        if ledger.dirty or ledger.free or self._sweeper.behind or self.peers.emptying:
            return True
        if self.desk.unapplied.entries and not self.replica.hollow:
            return True
        return leader is not None and bool(leader.dispatch.holdings.unlogged)

    def ready(self, sync: bool) -> Ready:
        """Prepare the commit. `sync`: the worker will commit, so lazy writes such as leases
        join.
        """
        must_sync, leader = sync and (self.desk.promised or self.promised or self.pending), self.leadership
        if must_sync and leader is not None and leader.dispatch.holdings.unlogged and leader.serving:
            self._guarded("leases", leader.outbox.log_leases)
        appends = self.replica.outgoing() if self.replica.progress else []
        return Ready(must_sync, self.replica.take_unsaved() if must_sync else NOTHING_UNSAVED, appends)

    def write(self, ready: Ready) -> None:
        """Write everything into the open transaction; a quorum of one applies it there too."""
        replica, ledger, peers = self.replica, self.ledger, self.peers
        peers.write(ready.unsaved)
        if replica.sole and replica.role == LEADER:
            self._apply(replica.log.last)
        self._sweeper.keep_from = peers.keep_from() if replica.progress else KEEP_NONE
        self._sweeper.sweep(SWEEP_ROWS)
        ledger.flush()
        if ledger.keeping or peers.sending:
            ledger.keep_bodies(peers.sending, peers.backups.point is not None)
        if ledger.free:
            ledger.free_bodies(SWEEP_ROWS)

    def body(self, index: Index) -> tuple[bytes | None, bool]:
        """Return the batch at a log index, and whether it comes from disk and must be checked."""
        body = self._bodies.get(self.id, index)
        return (self._tables.body.get(log.INDEX_KEY.pack(index)), True) if body is None else (body, False)

    def _apply(self, end: Index) -> None:
        applied, ledger = self._applied, self.ledger
        apply = ledger.skip if self._settings.witness else ledger.apply
        for entry in self.desk.unapplied.take(end):
            outcome = apply(entry)
            applied.append((entry, ledger.payload, outcome))
        if ledger.slices.unwritten:
            ledger.slices.write()

    def stored(self) -> None:
        """The transaction is on disk: answer what it committed."""
        self.desk.promised = False
        if (self.replica.progress or self.peers.backups.askers) and self.peers.wants_spool:
            copied = self.peers.copied
            begun = self.peers.spool()
            for asker, told in begun:
                self.desk.reply(asker, told)
            if begun and not copied:
                self.ledger.keep_bodies(False)  # kept for the previous point
            self.ledger.keep_bodies(self.peers.sending, self.peers.backups.point is not None)
        self.replica.stored()
        if self.replica.sole:
            self._answer_all()

    def _answer_all(self) -> None:
        if not self._applied:
            return
        applied, self._applied = self._applied, []
        for entry, _, _ in applied:
            if entry.kind != log.PUBLISH:
                self.desk.stirred = True
                self._sweeper.behind |= entry.kind in log.SWEPT
        if self.leadership is not None:
            self._guarded("answers", self.leadership.answer, applied)

    def answers(self) -> list[Mail]:
        """Return answers to other copies, after the commit."""
        return self.peers.mail() if self.replica.answers or self.peers.copying else []

    def advance(self, boot_ms: int) -> Effects:
        """Apply committed entries, deliver records, and return all effects that may be sent now.

        `boot_ms` is now: the commit may have outlasted a lease. Raises UnknownKind, CorruptLog.
        """
        replica = self.replica
        if boot_ms != replica.now_ms:
            replica.at(boot_ms)
        if not replica.sole:
            self._apply(0 if replica.hollow else replica.commit)
            self._answer_all()
        desk, leader = self.desk, self.leadership
        effects, self._effects = self._effects, Effects()
        desk.answers = self._effects
        standing = replica.leader, replica.hard.term
        effects.routine = self._quiet and not desk.stirred and standing == self._standing
        self._standing = standing
        effects.term = replica.hard.term
        effects.last = replica.log.last
        effects.applied = self.ledger.applied
        if leader is not None:
            leader.moved |= not effects.routine
            awake = leader.dispatch.awake or leader.outbox.ready
            if awake and leader.serving and replica.holds_lease:
                leader.moved = True
                if not self._guarded("deliveries", leader.hand_out, effects):
                    effects.deliveries, effects.notices = [], []
        if replica.answers or self.peers.copying:
            effects.answers = self.peers.mail()
        return effects
