"""The leader of a shard: the rooms that serve requests, made at an election and dropped at its end.

The log and the ledger belong to the copy (`Shard`) and outlast a leader. Everything here is volatile.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

from msgspec import structs

from gossipq import limits
from gossipq.core.copies import Peers, Reconfiguration
from gossipq.core.delivery import MOVES, Dispatch, Outbox
from gossipq.core.desk import Desk, Request
from gossipq.core.effects import Effects
from gossipq.core.ledger import (
    AppliedEntry,
    Counted,
    Ledger,
    Outcome,
    Published,
    Regrouped,
    Released,
    TopicChanged,
    Voided,
    stored_by,
)
from gossipq.core.register import Roster, TopicRegister
from gossipq.core.requests import (
    ConsumeRequests,
    ExplainRequests,
    IdleGroups,
    JobRequests,
    JoinRequests,
    LimitRequests,
    MendRequests,
    PublishRequests,
    ScheduleRequests,
    TopicsHere,
    Upkeep,
    WatchRequests,
)
from gossipq.core.storage import Entry, ShardSettings, Tables, log
from gossipq.errors import BadRequest, Busy, NoSession, NotLeader
from gossipq.messages import AskAccess, Done
from gossipq.peer_messages import TopicInstalled
from gossipq.types import META_SHARD, Origin
from gossipq.verbs import META_ROOMS, ROOMS, SESSION_ROOMS, SETTLES, Room

TAKEOVER_MS = 50  #: a client waits this long during a takeover or hand-over


class LeaderState(Enum):
    """A leader serves after its first entry is committed and leader time is known."""

    STARTS = "its first entry is not committed yet"
    WAITS = "leader time is not known yet"
    SERVES = "it serves"


STARTS, WAITS, SERVES = LeaderState


class Serves(Protocol):
    """A room that serves requests."""

    def serve(self, request: Request) -> None:
        """Raises the error with which the request must be refused."""


class Timed(Protocol):
    """A room with timers."""

    def next_deadline(self) -> int | None:
        """Boot time of the next tick with work."""

    def tick(self) -> None: ...


class Leader:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        peers: Peers,
        reconfiguration: Reconfiguration,
        settings: ShardSettings,
        tables: Tables,
    ) -> None:
        self.term = desk.replica.hard.term  #: in which this copy leads
        self.state = STARTS
        self.timed = False  #: leader time is certain, or was waited for long enough
        self.moved = True  #: something happened that may have changed the next deadline of the rooms
        self.rooms_due_ms: int | None = None  #: the last answer of `next_deadline`
        self._desk = desk
        self._ledger = ledger
        self._replica = desk.replica
        self._peers, self._reconfiguration = peers, reconfiguration
        self._is_meta = desk.shard == META_SHARD
        self.dispatch = dispatch = Dispatch(ledger, settings.group)
        self.idle = IdleGroups(desk, ledger, dispatch)
        self.outbox = Outbox(desk, dispatch)
        self._upkeep = Upkeep(desk, ledger, tables, dispatch)
        self._register = TopicRegister(desk, ledger.cluster, settings)
        self._roster = Roster(desk, ledger.cluster, desk.replica, settings)
        topics = TopicsHere(desk, ledger)
        consuming = ConsumeRequests(desk, ledger, dispatch, topics, settings, self.idle)
        self.publishing = PublishRequests(
            desk, ledger, dispatch, topics, consuming, self._upkeep, reconfiguration
        )
        self._mending = MendRequests(desk, ledger, dispatch, topics, consuming, self.publishing)
        self._schedules = ScheduleRequests(desk, ledger, dispatch, topics, self.publishing, settings.calendar)
        explaining = ExplainRequests(desk, ledger, dispatch, topics, self.idle)
        self._jobs = JobRequests(desk, ledger, topics, explaining)
        limiting = LimitRequests(desk, ledger, dispatch)
        self._joins = JoinRequests(desk, ledger, topics, self.publishing, settings.shards)
        self._rooms: Mapping[Room, Serves] = {
            Room.CONSUMING: consuming,
            Room.MENDING: self._mending,
            Room.SCHEDULING: self._schedules,
            Room.JOBS: self._jobs,
            Room.JOINING: self._joins,
            Room.WATCHING: WatchRequests(self._joins, self._jobs),
            Room.EXPLAINING: explaining,
            Room.RECONFIGURATION: reconfiguration,
            Room.INSTALLING: topics,
            Room.LIMITING: limiting,
            Room.REGISTER: self._register,
            Room.ROSTER: self._roster,
        }
        #: the rooms with timers, in the order of their ticks. Dispatch comes before them.
        meta_timed: tuple[Timed, ...] = (self._register, self._roster) if self._is_meta else ()
        asked: tuple[Timed, ...] = (self._mending, self._schedules, self._jobs, limiting)
        self._timed = (*meta_timed, self._upkeep, *asked, self.idle, reconfiguration)

    @property
    def serving(self) -> bool:
        """True if it has all committed entries, knows the time, and is not handing over."""
        return self.state is SERVES and not self._replica.handing

    def start(self) -> None:
        """Begin to serve: rebuild the volatile state from the ledger."""
        desk = self._desk
        self.state = SERVES
        self._upkeep.start()
        self._schedules.lead()
        self._joins.lead()
        if self._is_meta:
            self._register.lead()
            self._roster.lead()
        desk.answers.returning |= self.dispatch.rebuild(desk.boot_ms, desk.leader_ms, desk.timer_ms)

    def waiting(self) -> list[tuple[Origin, int]]:
        """Return every request without an answer that waits for no entry, and (origin, 0) for the
        connection of each subscription. Called when this leader ends, once.
        """
        return [
            *self.outbox.waiting(),
            *self._register.waiting(),
            *self._mending.waiting(),
            *self._jobs.waiting(),
            *((asker.origin, asker.request_id) for asker in self._peers.backups.reset()),
            *((origin, 0) for origin in {s.origin for s in self.dispatch.subscriptions.values()}),
        ]

    # --- requests -------------------------------------------------------------------------------

    def check_serving(self, reads: bool = False) -> None:
        """Raise Busy unless this leader serves.

        `reads`: the answer depends on the ledger, so the lease must hold (Raft 6.4.1).
        """
        if not self.serving or (reads and not self._replica.holds_lease):
            raise Busy(f"shard {self._desk.shard} is changing its leader", retry_after_ms=TAKEOVER_MS)

    def check_room(self) -> None:
        """Raise Busy if too many bytes wait for the disks of the other copies."""
        if self._desk.crowded:
            text = (
                f"{self._desk.unapplied.bytes} bytes of shard {self._desk.shard} wait for the disks of its "
            )
            raise Busy(f"{text}other copies", retry_after_ms=TAKEOVER_MS)

    def serve(self, request: Request) -> None:
        """Serve a request. Raises the error with which it must be refused."""
        kind, room = type(request.message), ROOMS[type(request.message)]
        if room in META_ROOMS and not self._is_meta:
            raise NotLeader(f"shard {self._desk.shard} does not answer {kind.__name__}")
        self.check_serving(reads=kind not in SETTLES and room is not Room.RECONFIGURATION)
        if room in SESSION_ROOMS and request.client is None:
            raise NoSession("no session", hint="say HELLO first")
        if request.batch and room in (Room.MENDING, Room.SCHEDULING):
            self.check_room()
        if room is Room.BACKUPS:
            self._back_up(request)
        else:
            self._rooms[room].serve(request)

    def _back_up(self, request: Request) -> None:
        part = self._peers.backups.serve(request, self._desk.boot_ms)
        if part is not None:
            told, rows = part
            self._desk.enclose(request, told, [rows])

    def repeat(self, request: Request) -> bool:
        """Answer a request whose idempotency key is known. False: it is new, and its key is noted.

        Keys of different sessions are different.
        """
        self.check_serving(reads=True)
        asked: bytes = request.message.idempotency_key
        if len(asked) > limits.IDEMPOTENCY_KEY_BYTES_MAX:
            text = f"an idempotency key of {len(asked)} bytes"
            raise BadRequest(text, hint=f"at most {limits.IDEMPOTENCY_KEY_BYTES_MAX} are allowed")
        key = (request.client.session if request.client is not None else b"") + asked
        found = self._ledger.repeats.find(key)
        if found is None:
            self._desk.key = key
            return False
        index, done = found
        room = ROOMS[type(request.message)]
        if (published := stored_by(done)) is not None:
            self._desk.confirm(request, index, published)
        elif room is Room.REGISTER:
            self._register.repeat(request)
        elif room is Room.ROSTER:
            self._roster.serve(structs.replace(request, message=AskAccess()))
        else:
            ref = done.ref or getattr(request.message, "ref", None)
            self._desk.reply(request, Done(done.count, ref))
        return True

    # --- time -----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next tick with work in a room."""
        if self.moved:
            self.moved = False
            self.rooms_due_ms = self._next_of_rooms()
        return self.rooms_due_ms

    def _next_of_rooms(self) -> int | None:
        due_ms = self.dispatch.next_deadline(self._replica.time.timer_ahead_ms)
        rooms_ms = [room.next_deadline() for room in self._timed]
        for at_ms in (self._peers.backups.next_deadline(), *rooms_ms):
            if at_ms is not None and (due_ms is None or at_ms < due_ms):
                due_ms = at_ms
        if self._joins.known or self._joins.inherited:
            at_ms = self._joins.next_deadline()
            if at_ms is not None and (due_ms is None or at_ms < due_ms):
                due_ms = at_ms
        return due_ms

    def tick(self) -> None:
        """Advance the timers of the rooms, and log what dispatch has collected."""
        boot_ms = self._desk.boot_ms
        self.dispatch.tick(boot_ms, self._desk.timer_ms)
        self._peers.backups.tick(boot_ms)
        for room in self._timed:
            room.tick()
        if self._joins.known or self._joins.inherited:
            self._joins.tick()
        if self.serving:
            self.outbox.gather()

    # --- what is applied ------------------------------------------------------------------------

    def answer(self, applied: list[AppliedEntry]) -> None:
        """Update the volatile state after applied entries, then answer their requests, in one pass."""
        publishes, woken = self._desk.pending.publishes, -1
        for entry, payload, outcome in applied:
            if entry.kind != log.PUBLISH:
                self._answer_one(entry, payload, outcome)
                woken = -1
            elif self.state is SERVES:
                if isinstance(outcome, Published) and outcome.added:
                    self._desk.counts.published += outcome.added
                    if outcome.runs is not None:
                        self.moved = True  # the schedule may have another first record
                        self._replaced(outcome)
                    if outcome.partition != woken:
                        woken = outcome.partition
                        self.dispatch.wake(woken)
                asker = publishes.pop(entry.index, None)
                if asker is not None:
                    self._desk.confirm(asker, entry.index, outcome)

    def _answer_one(self, entry: Entry, payload: Any, outcome: Outcome) -> None:
        if self.state is not SERVES:
            if entry.kind == log.NOOP and entry.term == self.term:
                self.state = WAITS
                if self.timed:  # otherwise from the next turn on, when leader time is known
                    self.start()
            return
        if isinstance(outcome, Published):
            self._desk.counts.published += outcome.added
            self._replaced(outcome)
            if outcome.added:
                self.dispatch.wake(outcome.partition)
        elif not outcome.error or entry.kind in MOVES:
            self._follow(entry, payload, outcome)
        self._desk.pending.resolve(entry.index, outcome)
        if self._jobs.waiters:
            self._jobs.applied(entry.kind, payload)

    def _replaced(self, outcome: Published) -> None:
        """Take the records that left for others of their unique names from their consumers."""
        for offset in outcome.replaced:
            self.dispatch.void(outcome.partition, offset)
            if self._jobs.waiters:
                self._jobs.left(outcome.partition, offset)

    def _follow(self, entry: Entry, payload: Any, outcome: Outcome) -> None:
        kind = entry.kind
        if isinstance(outcome, Released):
            self._upkeep.released()
            for partition in outcome.partitions:
                self.dispatch.wake(partition)
        elif kind in MOVES:
            self.dispatch.applied(kind, payload)
            if isinstance(outcome, Counted):
                self._desk.counts.dead += outcome.count if kind == log.DEAD and entry.body else 0
                self._desk.counts.acked += outcome.count if kind in (log.ACK, log.RESULT) else 0
        elif isinstance(outcome, Voided):
            self.dispatch.voided(payload)
        elif isinstance(outcome, Regrouped):
            self._abandon(self.dispatch.drop_group(outcome.group_id))
        elif kind == log.META_TOPIC and isinstance(outcome, TopicChanged):
            self._register.applied(outcome)
        elif isinstance(outcome, TopicChanged):
            self._installed(outcome)
        elif kind == log.GROUP:
            self.dispatch.changed(payload)
        elif kind == log.CONFIG:
            self._reconfiguration.applied()
        elif kind == log.TRIM:
            self.dispatch.trim(payload.partition)
        elif kind == log.MEMBER:
            self._roster.applied()

    def _abandon(self, origins: set[Origin]) -> None:
        """Subscriptions ended that clients believe to be running: tell them, so that they subscribe
        again.
        """
        self._desk.answers.abandoned += [(origin, 0) for origin in sorted(origins)]

    def _installed(self, outcome: TopicChanged) -> None:
        """Tell the register that this version of a topic, or its removal, is logged here."""
        info = outcome.info
        if outcome.deleted:
            self._abandon(self.dispatch.drop_topic(info.id))
        version = -info.id if outcome.deleted else info.version
        self._desk.tell(META_SHARD, TopicInstalled(info.id, version, self._desk.shard))

    def hand_out(self, effects: Effects) -> None:
        """Deliver records to the consumers with credit."""
        dispatch, outbox = self.dispatch, self.outbox
        ready, deliveries = outbox.take_ready(), dispatch.run()
        effects.deliveries = ready + [delivery for delivery in deliveries if not delivery.late]
        if late := [delivery for delivery in deliveries if delivery.late]:
            outbox.after_commit(late)
            self._desk.promised = True
        if dispatch.notices:
            behind = outbox.behind  # AT_END must not overtake a delivery
            effects.notices = [notice for notice in dispatch.notices if notice[0] not in behind]
            dispatch.notices = [notice for notice in dispatch.notices if notice[0] in behind]
        if dispatch.unfinished and not self._desk.crowded:
            self._desk.promised = True  # another turn logs them
