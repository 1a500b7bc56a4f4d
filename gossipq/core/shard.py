"""One shard: replica, ledger and dispatch. `turn` drives it; its docstring has the order of calls.

If one copy is a quorum, entries are applied in the transaction that appends them. Otherwise they
are applied with the next sync; after a crash they are replayed from the log. After a failed commit
the shard is dropped and opened again from its tables.

A copy *leads* after its election and *serves* after its own NOOP is committed; then dispatch is
rebuilt. When it stops leading, all volatile state is dropped at once.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVarTuple

from msgspec import Struct

from gossipq import limits
from gossipq.core.copies import Mail, Peers, Reconfiguration, Target, Unapplied, open_ledger
from gossipq.core.delivery import MOVES, Delivery, Dispatch, Outbox
from gossipq.core.effects import INTERNAL, INTERNAL_HINT, Effects, Fault, refusal
from gossipq.core.ledger import (
    Counted,
    Ledger,
    Outcome,
    Published,
    Regrouped,
    Released,
    Sweeper,
    TopicChanged,
    Upkeep,
    Voided,
    stored_by,
)
from gossipq.core.raft import (
    LEADER,
    NOTHING_UNSAVED,
    Dice,
    Pending,
    Replication,
    Requester,
    Unsaved,
    campaign,
)
from gossipq.core.register import Roster, TopicRegister
from gossipq.core.requests import (
    Client,
    ConsumeRequests,
    ExplainRequests,
    IdleGroups,
    MendRequests,
    PublishRequests,
    ScheduleRequests,
    Shown,
    stats,
    subscriptions,
)
from gossipq.core.storage import Bodies, Columns, Due, Entry, ShardSettings, Tables, log, payloads
from gossipq.errors import (
    BadRequest,
    Busy,
    CorruptLog,
    GossipqError,
    Internal,
    NoSession,
    NotLeader,
    StoreError,
    UnknownKind,
    UnknownVerb,
    from_code,
)
from gossipq.export_messages import BackUp
from gossipq.messages import AskAccess, Done, Publish
from gossipq.operator_messages import Growth
from gossipq.peer_messages import ChangeVoters, InstallTopic, Stray, TopicInstalled, Transfer
from gossipq.types import META_SHARD, BatchInfo, Index, Now, Origin, PartitionKey, SessionId
from gossipq.values import (
    AccessTable,
    CopyStats,
    GroupStats,
    GrowthRow,
    Member,
    Message,
    PartitionStats,
    TopicInfo,
)
from gossipq.values import Consuming as Consumes
from gossipq.verbs import LEADER_ROOMS, META_ROOMS, ROOMS, SETTLES, Room

Told = TypeVarTuple("Told")
CONTAINED_AGAIN_MS = 10_000  #: a second fault of its own within this time stops a shard
SWEPT = frozenset((log.TRIM, log.TOPIC, log.REGROUP))  #: entries that leave rows to delete
KEEP_NONE = 2**63  #: an index behind every log row: none is kept for other copies
SWEEP_ROWS = 1_024  #: rows deleted in one turn, about 5 ms at most
TAKEOVER_MS = 50  #: a client waits this long during a takeover or hand-over
AGAIN_MS = 20  #: a client waits this long if another entry came before its own


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
        self.id, self._settings, self._tables, self._bodies, self._columns = (
            shard,
            settings,
            tables,
            bodies,
            columns,
        )
        self.full = ""  #: why publishes are refused for lack of space; "" = they are not
        self.published = self.acked = self.refused = self.dead = 0
        self._delivered = 0  # deliveries in earlier terms of this copy
        self.boot_ms = self.leader_ms = self.timer_ms = 0  #: times of this turn
        self._timed = False  # leader time is certain, or was waited for long enough
        self._promised = False
        self._due_ms: int | None = None  # boot time of the next tick with work, as told last
        self._rooms_due_ms: int | None = None  # the part of it for the rooms of a leader
        self._moved = True  # something happened that may have changed that
        self._standing = "", 0  # leader and term at this shard's last turn
        # idempotency key of the current request: its first entry follows a NOOP with it
        self._key = b""
        self._complain_ms = 0  # when a bad message of another copy may be logged again
        self._contained_ms: int | None = None  # when a part of a turn last failed
        self._effects = Effects()
        self.ledger = open_ledger(shard, tables, columns)
        self.peers = Peers(shard, settings, tables, bodies, self.ledger, dice)
        self.replica = self.peers.replica
        self._pending: Pending[Outcome] = Pending()
        self.reconfiguration = Reconfiguration(self, shard, self.peers, self._pending)
        self._open(self.ledger)

    def _open(self, ledger: Ledger) -> None:
        """Create everything that depends on the ledger; again after a snapshot replaced it."""
        self.ledger = self.peers.ledger = ledger
        self._unapplied = Unapplied(self.peers.after(ledger.applied))
        self._outcomes: list[tuple[Entry, Outcome]] = []
        self._sweeper = Sweeper(self._tables, ledger, self.replica.log, whole=not self.replica.hollow)
        self._forget()

    def _forget(self) -> None:
        """Reset the volatile state of a leader, which stays empty on other copies."""
        settings, ledger, pending = self._settings, self.ledger, self._pending
        self.dispatch = Dispatch(ledger, settings.group)
        self._register = TopicRegister(self, ledger, settings, pending)
        self._idle = IdleGroups(self, ledger, self.dispatch, pending)
        self._consuming = ConsumeRequests(self, ledger, self.dispatch, settings, pending, self._idle)
        self._admitting = PublishRequests(
            self, ledger, self.dispatch, self._consuming, self._columns, pending
        )
        self._explaining = ExplainRequests(self, ledger, self.dispatch, self._idle)
        self._mending = MendRequests(self, ledger, self.dispatch, pending)
        self._schedules = ScheduleRequests(
            self, ledger, self.dispatch, pending, self._columns, settings.calendar
        )
        self._outbox = Outbox(self, self.dispatch, pending)
        self._roster = Roster(self, ledger, self.replica, settings, pending)
        self._upkeep = Upkeep(self, ledger, self._tables)
        self._led = 0  # term in which this copy leads
        self._whole = False  # its NOOP is committed, so all earlier entries are
        self._serving = False
        self._stirred = True  # something other than a plain publish came, so a tick is needed
        self._quiet = False  # nothing came in this turn and nothing was due: the tick was skipped

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
        return self._serving and not self.replica.handing

    def lead(self, now: Now) -> None:
        """Start after opening. A quorum of one leads at once; others wait for an election."""
        self.begin(now)
        self.replica.election.heard(now.boot_ms, first=False)
        if not self.replica.sole:
            return
        self._apply(self.replica.log.last)
        self._outcomes.clear()
        self.replica.lead()
        self._take_over()
        self._serve()

    def _take_over(self) -> None:
        """Log the first entry of a leadership. Requests wait until it is committed (Raft 6.4)."""
        now, config = self._now, self.replica.config
        self._forget()
        self._led = self.term
        self.begin(now)
        if self.replica.config_index == 0 and self.ledger.meta.voters != config.voters:
            self.propose(log.CONFIG, payloads.encode(config))
        self.propose(log.NOOP, b"")

    def _serve(self) -> None:
        self._serving = True
        self._upkeep.start()
        self._schedules.lead()
        if self.id == META_SHARD:
            self._register.lead()
            self._roster.lead()
        self._effects.returning |= self.dispatch.rebuild(self.boot_ms, self.leader_ms, self.timer_ms)

    def _follow_replica(self) -> None:
        """Start or end leadership as the replica decided."""
        if self.leading:
            if self._led != self.term:
                self._resign()
                self._take_over()
        elif self._led:
            self._resign()

    def _resign(self) -> None:
        """End leadership. Open requests may be stored or not: the next leader knows."""
        self._effects.abandoned += [
            *self._pending.abandon(),
            *self._outbox.waiting(),
            *self._register.waiting(),
            *self._mending.waiting(),
            *self.peers.backups.reset(),
        ]
        self._effects.abandoned += [
            (origin, 0) for origin in {s.origin for s in self.dispatch.subscriptions.values()}
        ]
        self.reconfiguration.resign()
        self.peers.reset()
        self._delivered += self.dispatch.turn.delivered
        self._forget()

    def propose(
        self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"", body_crc: int = 0
    ) -> Index:
        """Append an entry. `promise` asks for a sync in this turn. `body_crc` is the CRC in the
        header of the body, if the caller has read it.
        """
        if self._key:
            key, self._key = self._key, b""
            self.propose(log.NOOP, payloads.encode(payloads.RequestKey(key)), promise)
        self._promised |= promise
        if body and not body_crc:
            body_crc = self._columns.crc(body)
        entry = self.replica.propose(kind, payload, body, body_crc, self.leader_ms)
        self._unapplied.append(entry)
        return entry.index

    # --- copies ---------------------------------------------------------------------------------------------

    @property
    def target(self) -> Target | None:
        """The copies that this shard should have; the leader moves towards it."""
        return self.reconfiguration.target

    @target.setter
    def target(self, target: Target | None) -> None:
        self.reconfiguration.target, self._stirred = target, True

    def leave(self, leaving: bool = True) -> bool:
        """Hand leadership over (or stop doing so), because this copy stops or lacks disk space.

        Returns whether that changed.
        """
        self._stirred = True
        return self.reconfiguration.leave(leaving)

    def copies(self) -> list[CopyStats]:
        """Return every copy, the leader first; empty unless leading."""
        return self.reconfiguration.copies() if self.leading else []

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
        return self._delivered + self.dispatch.turn.delivered

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
        return self.ledger.roster_version, self.ledger.members.values()

    def knows(self, session: SessionId) -> bool:
        """True if a session has state here that ends with it."""
        return self.dispatch.holds(session)

    def sessions(self) -> set[SessionId]:
        """Return the sessions that have state here which ends with them."""
        return self.dispatch.sessions()

    def undelivered(self, delivery: Delivery) -> None:
        """A delivery could not be sent: the client is gone or does not read."""
        self._stirred = True
        self.dispatch.undelivered(delivery)

    @property
    def access(self) -> AccessTable:
        """Users and roles; meta shard only."""
        return self.ledger.access

    def held_topics(self) -> list[TopicInfo]:
        """Topics that have partitions here."""
        return list(self.ledger.topics.values())

    def registered(self) -> tuple[list[TopicInfo], set[int]]:
        """Return topics with a name, and ids of those that shards are being told of; meta shard
        only.
        """
        return list(self.ledger.names.values()), set(self.ledger.installing)

    def topic_name(self, topic_id: int) -> str:
        """Return the name of a topic with partitions here, else ""."""
        info = self.ledger.topics.get(topic_id)
        return info.name if info is not None else ""

    def stats(
        self, worker: int, topics: Shown, after: tuple[int, int], rows_max: int
    ) -> tuple[list[PartitionStats], list[GroupStats], tuple[int, int] | None]:
        """Return counters of partitions and groups of the shown topics, behind `after`.

        The third value is the position of the last row if more follow.
        """
        return stats(self.ledger, self.dispatch, self._idle, worker, topics, after, rows_max)

    def growth(
        self, request: Growth, topics: Collection[str], after: tuple[int, int], rows_max: int
    ) -> tuple[list[GrowthRow], tuple[int, int] | None]:
        """Return roll-ups of `topics` behind `after`, and the position of the
        last row if more may follow.
        """
        return self.ledger.growth.rows(topics, request.hours, request.since_ms, after, rows_max)

    def subscriptions(self, session: SessionId) -> list[Consumes]:
        """Return the subscriptions of a session."""
        return subscriptions(self.ledger, self.dispatch, session, self.boot_ms)

    # --- faults ---------------------------------------------------------------------------------------------

    def _contain_request(
        self,
        origin: Origin,
        request_id: int,
        message: Message,
        error: Exception,
        last: Index,
        untouched: bool,
    ) -> None:
        """A request met a fault of this node. Undo it.

        Entries proposed after `last` are removed. The volatile state is rebuilt, because the
        request may have left it half changed, unless `untouched`.
        """
        self._key = b""
        self._effects.faults.append(Fault(type(message).__name__, error))
        if not untouched:
            self._lead_anew(last)
        self._effects.withdraw(origin, request_id)
        self.refuse(origin, request_id, Internal(INTERNAL, hint=INTERNAL_HINT))

    def _guarded(self, what: str, part: Callable[[*Told], None], *told: *Told) -> bool:
        """Run a part of a turn that changes only volatile state. False: it failed and was undone.

        The second failure in a short time is raised: this copy stops.
        """
        last = self.replica.log.last
        try:
            part(*told)
            return True
        except GossipqError:
            raise
        except Exception as error:
            if self._contained_ms is not None and self.boot_ms < self._contained_ms + CONTAINED_AGAIN_MS:
                raise
            self._contained_ms = self.boot_ms
            self._effects.faults.append(Fault(what, error))
            self._lead_anew(last)
            return False

    def _lead_anew(self, last: Index) -> None:
        """Remove entries after `last`, drop all volatile state, and take over leadership again.

        Log and ledger are intact, because only entries change the ledger.
        """
        self.replica.retract(last)
        self._unapplied.cut(last + 1)
        self._resign()
        if self.leading:
            self._take_over()

    # --- input ----------------------------------------------------------------------------------

    def known_ahead_ms(self, now: Now) -> int | None:
        """Leader time minus boot time if this copy is sure of it, else None."""
        return self.replica.time.known_ahead_ms(now)

    def begin(self, now: Now, ahead_ms: Callable[[], int | None] | None = None) -> None:
        """Set the clocks of this turn, before any step.

        `ahead_ms` tells leader time minus boot time as the shards of this process know it. It is
        asked if this one is not sure of it.
        """
        self._now, time = now, self.replica.time
        others_ms = None
        if ahead_ms is not None and time.known_ahead_ms(now) is None:
            others_ms = ahead_ms()
        self.replica.begin(now, bool(self.full), others_ms)
        self.leader_ms = max(self.replica.log.time_ms, time.now_ms)
        self.timer_ms = time.timer_ms
        self.boot_ms = now.boot_ms
        self.dispatch.begin(self.boot_ms, self.leader_ms, self.timer_ms)
        # the same state from which `leader_ms` was taken
        self._timed = time.wait_ms is None
        if self._whole and self._timed and not self._serving:
            self._guarded("takeover", self._serve)

    def due_after(self, delay_ms: int) -> int:
        """Return when something that waits from now on is due, in timer time."""
        self.replica.time.pin()
        # boot time is rounded down, and may be a whole step later than it says
        return self.timer_ms + (delay_ms + self._settings.clock_step_ms if delay_ms else 0)

    def _check_serving(self, reads: bool = False) -> None:
        """Raise NotLeader or Busy unless this copy serves.

        `reads`: the answer depends on the ledger, so the lease must hold (Raft 6.4.1).
        """
        if not self.leading:
            raise NotLeader(f"this worker is not the leader of shard {self.id}")
        if not self.serving or (reads and not self.replica.holds_lease):
            raise Busy(f"shard {self.id} is changing its leader", retry_after_ms=TAKEOVER_MS)

    @property
    def crowded(self) -> bool:
        """True if entries that wait for other copies have filled their share of memory."""
        return self._unapplied.bytes >= limits.UNAPPLIED_BYTES_MAX

    def _no_room(self) -> Busy:
        return Busy(
            f"{self._unapplied.bytes} bytes of shard {self.id} wait for the disks of its other copies",
            retry_after_ms=TAKEOVER_MS,
        )

    def publish(
        self,
        origin: Origin,
        request_id: int,
        client: Client | None,
        message: Publish,
        info: BatchInfo,
        batch: bytes,
    ) -> None:
        """Publish a verified batch. Refusals are answered, never raised. Raises StoreError.

        A copy without others reports a full store even while it does not lead.
        """
        last = self.replica.log.last
        self._stirred |= bool(message.acks)
        try:
            serves = self._serving and not self.replica.handing
            if not serves and not (self.full and self.replica.sole):
                self._check_serving()
            if self.crowded:
                raise self._no_room()
            self._admitting.publish(origin, request_id, client, message, info, batch)
        except StoreError:
            raise
        except GossipqError as error:
            self.refuse(origin, request_id, error)
        except Exception as error:
            untouched = self.last == last and not message.acks
            self._contain_request(origin, request_id, message, error, last, untouched)

    def due_of(self, info: BatchInfo, batch: bytes, age_ms: int) -> Due | None:
        return self._admitting.due_of(info, batch, age_ms)

    def require_space(self, partition: PartitionKey, info: BatchInfo) -> None:
        self._admitting.require_space(partition, info)

    def peek(self, batch: bytes) -> BatchInfo:
        return self._columns.peek(batch)

    def unknown(self, partition: PartitionKey) -> GossipqError:
        return self._admitting.unknown(partition)

    def admit_group(self, client: Client, partitions: int) -> None:
        self._consuming.admit_group(client, partitions)

    def make_room(self, partition: PartitionKey, size_bytes: int) -> bool:
        self._stirred = True  # the next tick removes old records
        return self._upkeep.make_room(partition, size_bytes)

    def step(
        self,
        origin: Origin,
        request_id: int,
        client: Client | None,
        message: Message,
        term: int = 0,
        entries: list[Entry] | None = None,
        batch: bytes = b"",
    ) -> None:
        """Handle any other message. Refusals and faults are answered, never raised.

        `batch` is the second frame. `term` and `entries` come with messages of other copies. Raises
        StoreError, and errors that must stop this copy: CorruptLog, UnknownKind, and any fault in a
        message of another copy.
        """
        last, room = self.last, ROOMS[type(message)]
        self._stirred |= room is not Room.COPIES  # copies are examined when they are due
        try:
            if room is Room.COPIES:
                self._from_copy(term, message, entries or [], batch)
            elif getattr(message, "idempotency_key", b"") and self._repeated(
                origin, request_id, client, message
            ):
                return
            elif room in LEADER_ROOMS:
                self._check_serving(reads=type(message) not in SETTLES)
                if client is None:
                    raise NoSession("no session", hint="say HELLO first")
                if room is Room.CONSUMING:
                    self._consuming.step(origin, request_id, client, message, self.boot_ms)
                elif room is Room.MENDING:
                    if batch and self.crowded:
                        raise self._no_room()
                    self._mending.step(origin, request_id, client, message, batch)
                elif room is Room.SCHEDULING:
                    if batch and self.crowded:
                        raise self._no_room()
                    self._schedules.step(origin, request_id, client, message, batch)
                else:
                    self._explaining.step(origin, request_id, message)
            else:
                self._serve_cluster(origin, request_id, client, message)
        except StoreError:
            raise
        except GossipqError as error:
            if room is Room.COPIES:
                if isinstance(error, CorruptLog | UnknownKind):
                    raise
                self._complain(error)
            self.refuse(origin, request_id, error)
        except Exception as error:
            if room is Room.COPIES:
                raise
            self._contain_request(origin, request_id, message, error, last, room is Room.EXPLAINING)
        finally:
            self._key = b""

    def _serve_cluster(
        self, origin: Origin, request_id: int, client: Client | None, message: Message
    ) -> None:
        """Serve requests to the register, the roster and the copies. Raises Refused."""
        room = ROOMS[type(message)]
        if isinstance(message, BackUp):
            self._back_up(Requester(origin, request_id), client, message)
        elif isinstance(message, InstallTopic):
            if self.serving:
                self._admitting.install(message.topic, message.deleted)
        elif isinstance(message, ChangeVoters | Transfer):
            self._check_serving()
            self.reconfiguration.serve(origin, request_id, message)
        elif self.id == META_SHARD and room in META_ROOMS:
            self._check_serving(reads=True)
            if room is Room.ROSTER:
                self._roster.serve(origin, request_id, message)
            else:
                if client is None:
                    self._register.serve(origin, request_id, message, ())
                else:
                    who = client.payers, client.rights, client.node
                    self._register.serve(origin, request_id, message, *who)
        elif room in META_ROOMS:
            raise NotLeader(f"shard {self.id} does not answer {type(message).__name__}")
        else:
            raise UnknownVerb(f"verb {message.verb} is no request")

    def _repeated(self, origin: Origin, request_id: int, client: Client | None, message: Message) -> bool:
        """Answer a request whose idempotency key is known. False: it is new, and its key is noted.

        Keys of different sessions are different.
        """
        self._check_serving(reads=True)
        asked: bytes = message.idempotency_key  # type: ignore[attr-defined]
        if len(asked) > limits.IDEMPOTENCY_KEY_BYTES_MAX:
            text = f"an idempotency key of {len(asked)} bytes"
            raise BadRequest(text, hint=f"at most {limits.IDEMPOTENCY_KEY_BYTES_MAX} are allowed")
        key = (client.session if client is not None else b"") + asked
        found = self.ledger.repeats.find(key)
        if found is None:
            self._key = key
            return False
        index, done = found
        if (published := stored_by(done)) is not None:
            self.answer_publish(origin, request_id, index, published)
        elif ROOMS[type(message)] is Room.REGISTER:
            self._register.repeat(origin, request_id, message)
        elif ROOMS[type(message)] is Room.ROSTER:
            self._roster.serve(origin, request_id, AskAccess())
        else:
            self.reply(origin, request_id, Done(done.count, done.ref or getattr(message, "ref", None)))
        return True

    def _back_up(self, asker: Requester, client: Client | None, message: BackUp) -> None:
        self._check_serving(reads=True)
        if client is None:
            raise NoSession("no session", hint="say HELLO first")
        part = self.peers.backups.serve(asker, message, self.boot_ms)
        if part is not None:
            told, rows = part
            self.enclose(*asker, told, [rows])

    def refuse(self, origin: Origin, request_id: int, error: GossipqError) -> None:
        self.refused += 1
        self.reply(origin, request_id, refusal(error))

    def _complain(self, error: GossipqError) -> None:
        """Log a bad message of another copy, at most once a minute. It is not answered."""
        if self.boot_ms >= self._complain_ms:
            self._complain_ms = self.boot_ms + limits.MINUTE_MS
            self.warn(f"dropped what another copy sent: {error}")

    def reply(self, origin: Origin, request_id: int, message: Message) -> None:
        if origin:
            self._effects.replies.append((origin, request_id, message))

    def refuse_by(self, asker: Requester, outcome: Outcome) -> None:
        """An entry was refused when it was applied: tell the requester why."""
        if asker.origin:
            again_ms = AGAIN_MS if outcome.error == Busy.code else 0
            self.refuse(
                *asker, from_code(outcome.error, outcome.why, retry_after_ms=again_ms, detail=outcome.detail)
            )

    def answer(self, asker: Requester, outcome: Outcome, reply: Message) -> None:
        """Send the reply of an applied entry, or its refusal."""
        if outcome.error:
            self.refuse_by(asker, outcome)
        else:
            self.reply(*asker, reply)

    def enclose(self, origin: Origin, request_id: int, message: Message, bodies: list[bytes]) -> None:
        """Reply with batches in the second frame. Raises Busy if this turn has sent enough."""
        if self._effects.enclosed_bytes > limits.ENCLOSED_BYTES_PER_TURN:
            raise Busy(f"shard {self.id} reads what others asked for", retry_after_ms=AGAIN_MS)
        self._effects.enclosed_bytes += sum(map(len, bodies))
        self._effects.enclosed.append((origin, request_id, message, bodies))

    def answer_publish(self, origin: Origin, request_id: int, index: Index, outcome: Outcome) -> None:
        """Confirm a batch that is applied and stored, or refuse it."""
        if not isinstance(outcome, Published):
            self.refuse_by(Requester(origin, request_id), outcome)
            return
        copies = self.replica.copies(index) if self.replica.progress else 1
        row = request_id, outcome.offset, copies, outcome.duplicate
        self._effects.confirms.setdefault(origin, []).append(row)
        if outcome.runs is not None:
            self._effects.runs.setdefault(origin, []).append((request_id, outcome.runs))

    def unapplied(self) -> Iterable[Entry]:
        """Entries not applied yet, oldest first."""
        return self._unapplied

    def renews(self, session: SessionId) -> bool:
        """True if a ping of that session extends leases here."""
        return self.dispatch.renews(session)

    def renew(self, session: SessionId) -> None:
        """Extend the leases of a session that was heard."""
        self._stirred = True
        self._guarded("leases of a session", self.dispatch.renew, session, self.boot_ms)

    def tell(self, shard: int, message: Message) -> None:
        self._effects.told.append((shard, message))

    def end_session(self, session: SessionId, silent: bool = False) -> None:
        self._stirred = True
        self._guarded("end of a session", self.dispatch.end_session, session, silent)

    # --- peers ----------------------------------------------------------------------------------------------

    def _from_copy(self, term: int, message: Message, entries: list[Entry], rows: bytes) -> None:
        if self.replica.sole and self.leading and type(message) is not Stray:
            return  # there are no other copies
        changed = self.peers.step(term, message, entries, rows)
        if changed == 0:
            # before the state is replaced, because requests that wait must be told
            self._follow_replica()
            self._open(open_ledger(self.id, self._tables, self._columns))
        elif changed is not None:
            self._unapplied.cut(changed)
            unsaved = self.replica.unsaved
            self._unapplied.extend(unsaved[changed - unsaved[0].index :])
        self._promised |= changed is not None or self.replica.hollow
        self._follow_replica()
        self._effects.warnings += self.replica.warnings
        self.replica.warnings.clear()

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next tick with work."""
        if self._promised:
            self._due_ms = self.boot_ms
        elif self._moved or not (self._serving and self.replica.sole):
            self._due_ms = self._next_due_ms()
        else:  # plain publishes to the only copy: no room and no other copy has another deadline
            self._due_ms = self._rooms_due_ms
        return self._due_ms

    def _next_due_ms(self) -> int | None:
        due = [self.peers.deadline_ms()]
        if self.serving:
            if self._moved:
                self._moved = False
                self._rooms_due_ms = self._next_of_rooms()
            due += [self._rooms_due_ms, self.reconfiguration.next_deadline()]
        elif self._whole and not self._serving:
            wait_ms = self.replica.time.wait_ms
            due.append(self.boot_ms if wait_ms is None else wait_ms)
        return min([at for at in due if at is not None], default=None)

    def _next_of_rooms(self) -> int | None:
        ahead_ms = self.replica.time.timer_ahead_ms
        due = [
            self._upkeep.next_deadline(ahead_ms),
            self.dispatch.next_deadline(ahead_ms),
            self._mending.next_deadline(),
            self.peers.backups.next_deadline(),
            self.reconfiguration.next_deadline(),
        ]
        if self._schedules.armed:  # a shard without schedules pays for no call
            due.append(self._schedules.next_deadline())
        if self.id == META_SHARD:
            due += [self._register.next_deadline(), self._roster.next_deadline()]
        return min([at for at in due if at is not None], default=None)

    def tick(self) -> None:
        """Advance timers, and log what dispatch has collected."""
        if not (self.replica.sole and self._serving):
            campaign.tick(self.replica)
            self._follow_replica()
            self.reconfiguration.observe(self.boot_ms)
        self._quiet = not self._stirred and (self._due_ms is None or self.boot_ms < self._due_ms)
        if self._quiet:
            return
        self._stirred = self.leading and not self.serving  # looked at again when this copy serves
        if self.serving:
            self._guarded("tick", self._tick_leader)

    def _tick_leader(self) -> None:
        self.dispatch.tick(self.boot_ms, self.timer_ms)
        if self.id == META_SHARD:
            self._register.tick(self.boot_ms)
            self._roster.tick(self.boot_ms)
        self._upkeep.release()
        if self._upkeep.due:
            self.dispatch.expire_records()
            self._upkeep.retain(len(self.replica.config.voters))
        self._mending.tick()
        if self._schedules.armed:
            self._schedules.tick()
        self.peers.backups.tick(self.boot_ms)
        self._idle.tick()
        self.reconfiguration.tick(self.boot_ms)
        if self.serving:
            self._outbox.gather()

    # --- storing --------------------------------------------------------------------------------------------

    @property
    def promised(self) -> bool:
        """True if this turn must sync."""
        replica = self.replica
        return (
            self._promised
            or replica.hard_changed
            or bool(replica.answers and replica.dirty)
            or self.peers.wants_spool
        )

    @property
    def pending(self) -> bool:
        """True if something can be written with the next sync."""
        ledger, behind = self.ledger, self._sweeper.behind or self.peers.emptying
        unapplied = bool(self._unapplied.entries) and not self.replica.hollow
        unlogged = bool(self.dispatch.holdings.unlogged)
        return ledger.dirty or bool(ledger.free) or behind or unapplied or unlogged

    def ready(self, sync: bool) -> Ready:
        """Prepare the commit. `sync`: the worker will commit, so lazy writes such as leases
        join.
        """
        must_sync = sync and (self._promised or self.promised or self.pending)
        if must_sync and self.dispatch.holdings.unlogged and self.serving:
            self._guarded("leases", self._outbox.log_leases)
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
        outcomes = self._outcomes
        apply = self.ledger.skip if self._settings.witness else self.ledger.apply
        for entry in self._unapplied.take(end):
            outcomes.append((entry, apply(entry)))
        if self.ledger.slices.unwritten:
            self.ledger.slices.write()

    def stored(self) -> None:
        """The transaction is on disk: answer what it committed."""
        self._promised = False
        if (self.replica.progress or self.peers.backups.askers) and self.peers.wants_spool:
            copied = self.peers.copied
            begun = self.peers.spool()
            for asker, told in begun:
                self.reply(*asker, told)
            if begun and not copied:
                self.ledger.keep_bodies(False)  # kept for the previous point
            self.ledger.keep_bodies(self.peers.sending, self.peers.backups.point is not None)
        self.replica.stored()
        if self.replica.sole:
            self._answer_all()

    def _answer_all(self) -> None:
        if not self._outcomes:
            return
        outcomes, self._outcomes = self._outcomes, []
        for entry, _ in outcomes:
            if entry.kind != log.PUBLISH:
                self._stirred = True
                self._sweeper.behind |= entry.kind in SWEPT
        self._guarded("answers", self._answer_each, outcomes)

    def _answer_each(self, outcomes: list[tuple[Entry, Outcome]]) -> None:
        """Answer all entries of a turn in one pass, whoever asked for them."""
        publishes, woken = self._pending.publishes, -1
        for entry, outcome in outcomes:
            if entry.kind != log.PUBLISH:
                self._answer(entry, outcome)
                woken = -1
            elif self._serving:
                if isinstance(outcome, Published) and outcome.added:
                    self.published += outcome.added
                    self._moved |= outcome.runs is not None  # the schedule may have another first record
                    if outcome.partition != woken:
                        woken = outcome.partition
                        self.dispatch.wake(woken)
                asker = publishes.pop(entry.index, None)
                if asker is not None:
                    self.answer_publish(*asker, entry.index, outcome)

    def warn(self, text: str) -> None:
        self._effects.warnings.append(text)

    def _answer(self, entry: Entry, outcome: Outcome) -> None:
        """Update the volatile state after an applied entry, then answer its requests."""
        if not self._serving:
            if entry.kind == log.NOOP and entry.term == self._led:
                self._whole = True
                if self._timed:  # otherwise from the next turn on, when leader time is known
                    self._serve()
            return
        if isinstance(outcome, Published):
            self.published += outcome.added
            if outcome.added:
                self.dispatch.wake(outcome.partition)
        elif not outcome.error or entry.kind in MOVES:
            self._follow(entry, outcome)
        self._pending.resolve(entry.index, outcome)

    def _follow(self, entry: Entry, outcome: Outcome) -> None:
        kind = entry.kind
        if isinstance(outcome, Released):
            self._upkeep.released()
            for partition in outcome.partitions:
                self.dispatch.wake(partition)
        elif kind in MOVES:
            self.dispatch.applied(entry)
            if isinstance(outcome, Counted):
                self.dead += outcome.count if kind == log.DEAD and entry.body else 0
                self.acked += outcome.count if kind == log.ACK else 0
        elif isinstance(outcome, Voided):
            self.dispatch.voided(entry)
        elif isinstance(outcome, Regrouped):
            self._abandon(self.dispatch.drop_group(outcome.group_id))
        elif kind == log.META_TOPIC and isinstance(outcome, TopicChanged):
            self._register.applied(outcome)
        elif isinstance(outcome, TopicChanged):
            self._installed(outcome)
        elif kind == log.GROUP:
            self.dispatch.changed(entry)
        elif kind == log.CONFIG:
            self.reconfiguration.applied()
        elif kind == log.TRIM:
            self.dispatch.trim(entry)
        elif kind == log.MEMBER:
            self._roster.applied()

    def _abandon(self, origins: set[Origin]) -> None:
        """Subscriptions ended that clients believe to be running: tell them, so that they subscribe
        again.
        """
        self._effects.abandoned += [(origin, 0) for origin in sorted(origins)]

    def _installed(self, outcome: TopicChanged) -> None:
        """Tell the register that this version of a topic, or its removal, is logged here."""
        info = outcome.info
        if outcome.deleted:
            self._abandon(self.dispatch.drop_topic(info.id))
            self._sweeper.behind = True
        self.tell(META_SHARD, TopicInstalled(info.id, -info.id if outcome.deleted else info.version, self.id))

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
        effects, self._effects = self._effects, Effects()
        standing = replica.leader, replica.hard.term
        effects.routine = self._quiet and not self._stirred and standing == self._standing
        self._standing = standing
        effects.term, effects.last, effects.applied = replica.hard.term, replica.log.last, self.ledger.applied
        self._moved |= not effects.routine
        if (self.dispatch.awake or self._outbox.ready) and self.serving and replica.holds_lease:
            self._moved = True
            if not self._guarded("deliveries", self._hand_out, effects):
                effects.deliveries, effects.notices = [], []
        if replica.answers or self.peers.copying:
            effects.answers = self.peers.mail()
        return effects

    def _hand_out(self, effects: Effects) -> None:
        dispatch, gathering = self.dispatch, self._outbox
        ready, deliveries = gathering.take_ready(), dispatch.run()
        effects.deliveries = ready + [delivery for delivery in deliveries if not delivery.late]
        if late := [delivery for delivery in deliveries if delivery.late]:
            gathering.after_commit(late)
            self._promised = True
        if dispatch.notices:
            behind = gathering.behind  # AT_END must not overtake a delivery
            effects.notices = [notice for notice in dispatch.notices if notice[0] not in behind]
            dispatch.notices = [notice for notice in dispatch.notices if notice[0] in behind]
        if dispatch.unfinished and not self.crowded:
            self._promised = True  # another turn logs them
