"""The worker: one core, its shards, its store. It takes what has come, and sends what its turn made true.

A failed write leaves memory ahead of disk, and a shard that stops leaves half of what it did in the open
transaction. Then nothing of the turn is sent, and `core.turn` opens the shards again from disk; clients greet
again and resend.

A worker forgets the connections of a stopped shard. So its clients greet the node again and are
told why, instead of waiting.
"""

import logging

from msgspec import structs

from gossipq import limits
from gossipq.clock import Clock
from gossipq.core.delivery import within
from gossipq.core.desk import INTERNAL, INTERNAL_HINT, Request, refusal
from gossipq.core.effects import Effects
from gossipq.core.raft import Dice
from gossipq.core.shard import Shard
from gossipq.core.storage import Bodies, Calendar, NoCalendar
from gossipq.core.turn import OPEN, RECOVER_MS, ShardStopped, Turn
from gossipq.errors import (
    BadBatch,
    Busy,
    Forbidden,
    GossipqError,
    Internal,
    NoSession,
    NotLeader,
    OutOfMemory,
    ProtocolError,
    Refused,
    StoreError,
    UnknownVerb,
)
from gossipq.messages import (
    Bye,
    Done,
    Entrust,
    Hello,
    Ping,
    Pong,
    Publish,
    PublishPlain,
    Reset,
    WhoAmI,
)
from gossipq.operator_messages import Kick
from gossipq.peer_messages import AccessTold, Greet, Prove, View
from gossipq.types import META_SHARD, BatchInfo, Now, Origin, ShardId
from gossipq.values import Message
from gossipq.verbs import OF_NODES, SETTLES
from gossipq.wire import batch as batches
from gossipq.wire import ownership, plain
from gossipq.wire.frames import Header, decode, encode
from gossipq.wire.opener import Opener
from gossipq_node.actors import worker_stats
from gossipq_node.actors.cluster import OtherNodes
from gossipq_node.actors.door import Door
from gossipq_node.actors.faults import Faults
from gossipq_node.actors.guard import NameOf
from gossipq_node.actors.intake import Intake
from gossipq_node.actors.sender import Sender, header_of, unread
from gossipq_node.actors.sessions import Session, Sessions
from gossipq_node.actors.space import Space
from gossipq_node.actors.tally import Tally
from gossipq_node.actors.timings import Timings
from gossipq_node.actors.worker_alarms import WorkerAlarms
from gossipq_node.ports import Incoming, Mailbox, Measure, Store, Use
from gossipq_node.settings import WorkerSettings, shard_settings, welcome

HOUSEKEEPING_MS = 1_000
LEAVE_MS = 2_500  #: time to hand over shards before the end
LEAVE_AT_ONCE = (
    2  #: shards of a worker that are handed over at the same time: each is without a leader for less long
)
CATCHING_UP_MAX = 2  #: shards of a worker that copy their state to new copies at a time
#: deadlines of a worker beside those of its shards
HOUSEKEEPING, ABSENT, MAIL = "housekeeping", "absent sessions", "mail that waits"
GIVEN_UP = "others told of a roster that the meta shard does not have: this node goes by its own log again"
TOO_MUCH = "this connection has sent more than its publish window"
WINDOW_MS = 50  #: pause of a client that sent more than its window

log = logging.getLogger(__name__)


class Worker:
    def __init__(
        self,
        settings: WorkerSettings,
        mailbox: Mailbox,
        store: Store,
        clock: Clock,
        dice: Dice | None = None,
        measure: Measure = Use,
        calendar: Calendar | None = None,
    ) -> None:
        """Without a calendar, schedules by cron expressions are refused."""
        self._settings = settings
        self._mailbox = mailbox
        self._store = store
        self._clock = clock
        self._dice = dice
        self._shard_settings, self._opener = shard_settings(settings, calendar or NoCalendar()), Opener()
        self._cluster = OtherNodes(settings, mailbox, self._opener)
        self._turn = Turn(settings.owned, self._open_shard, self._abort)
        self._intake = Intake(mailbox, settings.window_bytes)
        self._bodies = Bodies(limits.RECENT_BYTES_MAX)
        self._now = Now(0, 0)
        self._sessions, self._timings = self._no_sessions(), Timings()
        self._door = Door(settings, mailbox)
        self._guard = self._door.guard
        self._faults = Faults(f"worker {settings.worker}")
        self._sender = Sender(
            settings,
            mailbox,
            self._cluster,
            self._timings,
            self._faults,
            lambda origin: self._sessions.resets(origin),
        )
        self._alarms = WorkerAlarms(settings.node, settings.worker)
        self._turned_us = 0
        self._came: dict[ShardId, int] = {}  # batches that came in this turn, by shard
        self._catching_up: set[int] = set()  # shards with new copies
        self._due = self._turn.due  #: boot time at which each part of this worker has work
        self._due[HOUSEKEEPING] = 0
        self._tally = Tally(limits.MINUTE_MS // HOUSEKEEPING_MS, measure)
        self._leave_ms: int | None = None  # until when leadership is handed over before the end
        self._space = Space(settings)
        self._state = "starting"

    def _no_sessions(self) -> Sessions:
        return Sessions(self._settings.speaks_for_nodes, self._settings.quota)

    @property
    def ready(self) -> bool:
        """The shards are open."""
        return self._turn.is_open

    # --- the loop -------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        return min(self._due.values())

    def turn(self, arrived: list[Incoming] | None, now: Now) -> None:
        """Run one turn over the shards, in the order of `core.turn`. None: it opens them."""
        turn, cluster = self._turn, self._cluster
        if arrived is not None and OPEN in self._due and turn.must_open(now):
            self.turn(None, now)
        self._now, self._turned_us = now, self._clock.ticks_us()
        self._tally.turns += 1
        try:
            turn.begin(now)
            if arrived is None:
                turn.open()
            else:
                self._work(arrived, now)
            turn.tick()
            for shard, appends in turn.ready():
                cluster.replicate(shard, appends)
            if cluster.parcels:
                cluster.flush()  # other copies store while this one does
            if turn.must_commit:
                turn.write()
                self._commit()
                turn.stored()
            for shard, answers in turn.answers():
                cluster.answer(shard, answers)
            if cluster.parcels:
                cluster.flush()
            for shard in turn.finish():
                # the lease of a leader may have ended during the commit
                effects = turn.advance(shard, self._clock.now().boot_ms)
                self._send(shard, effects)
                turn.sent(shard)
            if cluster.parcels:
                cluster.flush()
            if arrived is None:
                self._opened()
        except Exception as error:
            self._start_over(turn.failure(error))
        while turn.unnoticed:
            self._note_stopped(turn.unnoticed.pop())

    def _work(self, arrived: list[Incoming], now: Now) -> None:
        taken, refused = self._intake.take(arrived)
        self._due.pop(MAIL, None)
        if self._intake.waiting:
            self._due[MAIL] = 0
        for message in refused:
            self._refuse(message.origin, header_of(message.control), Busy(TOO_MUCH, retry_after_ms=WINDOW_MS))
        for message in taken:
            self._receive(message, now)
        for origin in self._intake.gone():
            self._sessions.lost(origin, now.boot_ms)
        if self._sessions.absent:
            for session in self._sessions.over(now.boot_ms):
                self._turn.end_session(session, silent=True)
        self._due.pop(ABSENT, None)
        if (absent_ms := self._sessions.next_deadline_ms() if self._sessions.absent else None) is not None:
            self._due[ABSENT] = absent_ms
        if now.boot_ms >= self._due[HOUSEKEEPING]:
            self._keep_house(now)

    def _led(self) -> list[Shard]:
        return [shard for shard in self._turn.shards.values() if shard.leading]

    # --- parts of a turn ------------------------------------------------------------------------------------

    def _open_shard(self, shard_id: ShardId) -> Shard:
        """Raises StoreError, CorruptLog, UnknownKind."""
        tables = self._store.tables(shard_id)
        shard = Shard(shard_id, self._shard_settings, tables, self._bodies, self._opener, self._dice)
        shard.desk.full, shard.target = self._space.full, self._cluster.targets.get(shard_id)
        return shard

    def _abort(self) -> None:
        self._bodies = Bodies(limits.RECENT_BYTES_MAX)
        self._store.abort()

    def _commit(self) -> None:
        started_us = self._clock.ticks_us()
        self._store.commit()
        took_us = self._clock.ticks_us() - started_us
        self._timings.commit.add(took_us)
        self._tally.committed(took_us)

    def _send(self, shard: Shard, effects: Effects) -> None:
        for fault in effects.faults:
            self._faults.met(fault.what, shard.id, fault.error)
        if came := self._came.pop(shard.id, 0):
            self._timings.read(shard.id, effects.last, came, self._turned_us)
        self._sender.send(shard, effects)
        self._timings.confirmed(shard.id, effects.applied, self._clock.ticks_us())
        for session in effects.returning:
            self._sessions.expect(session, self._now.boot_ms)
        if not effects.routine:
            self._look_around(shard)
            self._pace(shard)

    def _look_around(self, shard: Shard) -> None:
        """Other leaders and another roster are news for the frontdoor."""
        led, changed = self._cluster.learn_from(shard)
        if changed:
            self._aim()
        if shard.id == META_SHARD and self._guard.learn(shard.access):
            self._admit_again(self._now)
            self._cluster.tell_access(shard.access)
        if led or changed:
            self._due[HOUSEKEEPING] = self._now.boot_ms

    def _pace(self, shard: Shard) -> None:
        """Not too many new copies at once."""
        if shard.adding:
            self._catching_up.add(shard.id)
        else:
            self._catching_up.discard(shard.id)
        shard.may_add(len(self._catching_up - {shard.id}) < CATCHING_UP_MAX)

    def _aim(self) -> None:
        """Pass the new targets to the shards after a change of the roster."""
        for shard_id, shard in self._turn.shards.items():
            shard.target = self._cluster.targets.get(shard_id)
            self._turn.wake(shard_id)

    def _admit_again(self, now: Now) -> None:
        """Check all sessions again after a change of users or roles, or an expiry. A session with fewer
        rights than before starts over: it greets again, and subscribes to what it still may read."""
        for session in self._sessions:
            if self._guard.is_node(session.key) or not session.origins:
                continue
            try:
                rights = self._guard.again(session.shown, session.acts_for, now)
            except Forbidden:
                self._turn.end_session(self._sessions.end(session), silent=True)
                continue
            if session.may_less(rights):
                self._turn.end_session(self._sessions.end(session), silent=True)
            else:
                session.client = structs.replace(session.client, rights=rights)
        self._reset("users or roles have changed")

    def _end_expired(self, now: Now) -> None:
        """Of tokens."""
        if self._guard.closed and any(
            0 < session.client.rights.expires_ms <= now.wall_ms
            for session in self._sessions
            if session.client.rights is not None
        ):
            self._admit_again(now)

    # --- opening, failing -----------------------------------------------------------------------------------

    def _opened(self) -> None:
        if self._state == "recovering":
            log.warning("worker %d serves again", self._settings.worker)
            self._space.opened(self._now)
        self._set_state("ready")

    def _start_over(self, failure: StoreError | ShardStopped) -> None:
        """Drop the memory of all shards. Raises a StoreError while this worker has never served."""
        for shard in self._turn.shards.values():
            self._tally.add(shard)
        self._timings.forget()
        self._came.clear()
        self._catching_up.clear()
        if isinstance(failure, StoreError):
            self._note_refused(failure)
        self._turn.start_over(failure)

    def _note_stopped(self, stopped: ShardStopped) -> None:
        """One damaged shard stops; the others continue."""
        shard, error = stopped.shard, stopped.error
        log.critical("worker %d: shard %d stops: %s", self._settings.worker, shard, error)
        if not isinstance(error, GossipqError):
            self._faults.met("a part of a turn", shard, error)
        self._sessions.forget_connections()  # clients that greet and ask again are told
        self._reset("a shard of this worker has stopped")

    def _note_refused(self, error: StoreError) -> None:
        """The disk refused a write, or no memory was left."""
        if self._state == "starting":
            raise error
        if self._state != "recovering":
            what = "memory is short" if isinstance(error, OutOfMemory) else "a write failed"
            log.error("worker %d: %s, starting over from disk: %s", self._settings.worker, what, error)
            self._sessions.forget_connections()
            self._reset("the worker starts over from its disk")
            self._sessions = self._no_sessions()
        if isinstance(error, OutOfMemory):
            self._space.short = str(error)
        else:
            self._space.refused(f"the disk refused a write: {error}")
        self._set_state("recovering")

    def _reset(self, why: str) -> None:
        """Send RESET to connections whose session has ended here."""
        for origin in self._sessions.take_reset():
            said = Reset(list(self._settings.owned), why)
            self._mailbox.reply(origin, encode(said, self._settings.owned[0]))

    # --- messages -------------------------------------------------------------------------------------------

    def _receive(self, message: Incoming, now: Now) -> None:
        origin, header, request = message.origin, None, None
        session = self._sessions.get(origin, now.boot_ms)
        if session is None and not self._mailbox.from_client(origin):
            self._from_peers(message, now)
            return
        try:
            header, request = decode(message.control)
            if session is None:
                self._door.charge(message, header.verb, self._mailbox.address(origin), None, now)
            else:
                client = session.client
                self._door.charge(message, header.verb, client.address, client.rights, now)
                if client.rights is not None:
                    names = self._topic_names(header.shard)
                    owner = client.session if ownership.is_owned(client.session) else b""
                    self._guard.check(client.rights, request, names, client.address, now, owner)
            if type(request) is Publish and session is not None:
                self._publish(message.origin, message.batch, header, session, request)
            elif type(request) is PublishPlain and session is not None:
                self._publish_plain(message, header, session, request, now)
            elif isinstance(request, Greet | Prove):
                self._cluster.greeted(message, request, now.boot_ms)
            elif type(request) in OF_NODES:
                raise UnknownVerb(f"verb {request.verb} is for nodes only")
            elif isinstance(request, Hello):
                self._greet(origin, header, request, now)
            elif isinstance(request, Bye) and request.lost:
                self._sessions.lost(origin, now.boot_ms)
            elif session is None:
                if not isinstance(request, Bye):  # BYE has no answer
                    raise NoSession("this connection has no session", hint="say HELLO first")
            else:
                self._from_client(message, header, session, request, now)
        except GossipqError as error:
            if self._turn.ends(error):
                raise
            if isinstance(error, ProtocolError):
                self._tally.bad_frames += 1
            self._refuse(origin, header or header_of(message.control), error)
        except Exception as error:
            if self._turn.ends(error):
                raise
            self._faults.met(type(request).__name__, header.shard if header else None, error)
            self._refuse(origin, header or header_of(message.control), Internal(INTERNAL, hint=INTERNAL_HINT))

    def _publish(
        self, origin: Origin, batch: bytes, header: Header, session: Session, request: Publish
    ) -> None:
        info = _verified(session, batch)
        shard = self._turn.touch(header.shard) or self._shard(header)
        asked = Request(request, origin, header.request_id, session.client, batch, info)
        if self._turn.publish(shard, asked):
            session.batches += 1
            session.published += info.count
            session.bytes += info.size
            self._came[header.shard] = self._came.get(header.shard, 0) + 1

    def _publish_plain(
        self, message: Incoming, header: Header, session: Session, request: PublishPlain, now: Now
    ) -> None:
        """Seals the records, and goes on as with a batch. Raises BadBatch, BadRequest, TooLarge."""
        producer = batches.NO_PRODUCER
        if request.sequence:
            producer = session.producer(request.producer)
        batch = plain.seal(request, message.batch, producer, now.wall_ms)
        sealed = Publish(request.partition, request.level, 0, request.subscription, request.acks)
        self._publish(message.origin, batch, header, session, sealed)

    def _shard(self, header: Header) -> Shard:
        """Raises NotLeader when it lives elsewhere, Busy while this worker starts over, Refused when it has
        stopped."""
        shard = self._turn.touch(header.shard)
        if shard is not None:
            return shard
        if (why := self._turn.stopped.get(header.shard)) is not None:
            raise Refused(f"shard {header.shard} stopped: {why}", hint="gossipq store verify --data DIR")
        if header.shard in self._settings.owned:
            raise Busy("this worker is reading its disk", retry_after_ms=RECOVER_MS)
        raise self._not_led(header.shard)

    def _not_led(self, shard: ShardId) -> NotLeader:
        return NotLeader(f"shard {shard} is not led by worker {self._settings.worker}")

    def _term(self, shard: ShardId) -> int | None:
        """Return the term in which this worker leads a shard; None if it does not lead it."""
        found = self._turn.shards.get(shard)
        return found.term if found is not None and found.leading else None

    def _check_greeted(self, origin: Origin, shard: ShardId) -> None:
        """Raise NotLeader or NoSession if the client still relies on an earlier term of a shard: nothing
        told it that its subscriptions there have ended."""
        term = self._term(shard)
        if not self._sessions.knows(origin, shard, term or 0):
            if term is None:
                raise self._not_led(shard)
            raise NoSession(f"shard {shard} has another leader by now", hint="say HELLO on it first")

    def _from_peers(self, message: Incoming, now: Now) -> None:
        """Handle messages of other processes. Errors are logged, because peers do not read refusals."""
        try:
            for header, request, entries, frame in self._cluster.open(message, now.boot_ms):
                if isinstance(request, AccessTold):
                    if self._guard.learn(request.table):
                        self._admit_again(now)
                elif isinstance(request, View):
                    if self._cluster.learn(request, now.boot_ms):
                        self._aim()
                elif (shard := self._turn.touch(header.shard)) is not None:
                    asked = Request(request, term=header.term, entries=entries, batch=frame)
                    self._turn.step(shard, asked)
                elif header.shard in self._turn.stopped:
                    self._cluster.overhear(header, request)
        except GossipqError as error:
            if self._turn.ends(error):
                raise
            self._tally.bad_frames += 1
            self._cluster.complain(str(error), now.boot_ms)
        except Exception as error:
            if self._turn.ends(error):
                raise
            self._faults.met("a message of a node", None, error)

    def _topic_names(self, shard: ShardId) -> NameOf:
        found = self._turn.shards.get(shard)
        return found.topic_name if found is not None else lambda topic_id: ""

    def _greet(self, origin: Origin, header: Header, hello: Hello, now: Now) -> None:
        address, rights = self._mailbox.address(origin), self._door.greet(origin, hello, now)
        if self._sessions.greet(origin, hello, now.boot_ms, address, rights):
            self._turn.end_session(hello.session, silent=True)
            self._reset("the session may do less than before")
        if (term := self._term(header.shard)) is not None:
            self._sessions.greeted(origin, header.shard, term)
        answer = welcome(self._settings, self._cluster.view.routes(), self._cluster.view.nodes())
        self._door.answer(origin, header, answer)

    def _from_client(
        self, message: Incoming, header: Header, session: Session, request: Message, now: Now
    ) -> None:
        origin, client = message.origin, session.client
        if isinstance(request, Ping):
            self._check_greeted(origin, header.shard)
            self._door.answer(origin, header, Pong())
            if self._sessions.renews(origin, now.boot_ms):
                self._turn.renew(client.session)
        elif isinstance(request, Bye):
            ended = self._sessions.bye(origin)
            if ended is not None:
                self._turn.end_session(ended)
        elif type(request) not in SETTLES and self._mailbox.crowded(origin):
            raise unread()
        elif isinstance(request, worker_stats.QUESTIONS):
            led = self._led()
            for shard in led:
                self._turn.touch(shard.id)
            reply = worker_stats.answer(request, self._settings, led, self._sessions, now, client.rights)
            self._door.answer(origin, header, reply)
        elif isinstance(request, Entrust):
            self._door.answer(origin, header, self._door.entrust(origin, request, now))
        elif isinstance(request, WhoAmI):
            self._door.answer(origin, header, self._guard.identity(client.rights))
        elif isinstance(request, Kick):
            self._door.answer(origin, header, self._kick(request, now))
        elif (challenge := self._door.challenge(origin, client.rights, request)) is not None:
            self._door.answer(origin, header, challenge)
        else:
            if message.batch:
                _verified(session, message.batch)
            asked = Request(request, origin, header.request_id, client, message.batch)
            self._turn.step(self._shard(header), asked)

    def _kick(self, request: Kick, now: Now) -> Done:
        within("for_ms", request.for_ms, 0, limits.KICK_MS_MAX)
        known = self._sessions.kick(request.session, now.boot_ms + request.for_ms)
        for session in known:
            self._turn.end_session(session, silent=True)
        self._reset("an operator has ended the session")
        return Done(len(known))

    def _refuse(self, origin: Origin, header: Header | None, error: GossipqError) -> None:
        self._tally.refused += not isinstance(
            error, NoSession
        )  # not a fault: a client without a session greets and asks again
        shard, request_id = (header.shard, header.request_id) if header else (0, 0)
        self._sender.refuse(origin, shard, request_id, refusal(error))

    # --- housekeeping ---------------------------------------------------------------------------------------

    def _keep_house(self, now: Now) -> None:
        self._due[HOUSEKEEPING] = now.boot_ms + HOUSEKEEPING_MS
        for part in (
            self._maintain,
            self._end_silent,
            self._end_expired,
            self._check_space,
            self._look,
            self._report,
        ):
            try:
                part(now)
            except Exception as error:
                if self._turn.ends(error):
                    raise
                self._faults.met("housekeeping", None, error)

    def _end_silent(self, now: Now) -> None:
        """End silent sessions, including those that only a shard knows. Otherwise these would stay members of
        their groups for ever."""
        for session in self._turn.sessions():
            self._sessions.expect(session, now.boot_ms)
        for session in self._sessions.sending(now.boot_ms, self._mailbox.moving):
            self._turn.renew(session)
        silent = self._sessions.silent(now.boot_ms)
        for session in silent:
            self._turn.end_session(session, silent=True)
        self._reset("nothing was heard of the session for too long")
        if len(silent) == limits.SESSIONS_ENDED_PER_TURN:
            self._due[HOUSEKEEPING] = now.boot_ms  # there may be more

    def _maintain(self, now: Now) -> None:
        """Let the store do housekeeping, while this turn has no changes yet."""
        self._store.maintain()

    def _look(self, now: Now) -> None:
        """Look for stray copies, doubtful rosters, and alarms of groups."""
        self._cluster.seek_leaders(self._turn.shards.values(), now.boot_ms)
        if self._cluster.doubt(self._turn.shards.get(META_SHARD), now.boot_ms):
            log.warning("worker %d: %s", self._settings.worker, GIVEN_UP)
            self._aim()
        self._alarms.look((shard.ledger for shard in self._led()), now)

    def _check_space(self, now: Now) -> None:
        """Update the publish gate, and hand over leadership if the disk is nearly full."""
        if not self.ready:
            return
        space = self._space
        space.look(self._store.usage(), now)
        self._alarms.space(space.free_bytes, space.reserve_bytes)
        if space.hoards:
            self._store.shrink()
            self._turn.store_soon()
        if any(shard.desk.full != space.full for shard in self._turn.shards.values()):
            log.warning("worker %d: %s", self._settings.worker, space.full or "there is space again")
            for shard_id, shard in self._turn.shards.items():
                shard.desk.full = space.full
                shard.leave(bool(space.full))
                self._turn.wake(shard_id)
        self._state = "full" if space.full else "ready"

    def _set_state(self, state: str) -> None:
        self._state = state
        self._due[HOUSEKEEPING] = self._now.boot_ms

    def _report(self, now: Now) -> None:
        """Send counters for `status`, alarms, and the known leaders to the frontdoor."""
        shards, full, tally = list(self._turn.shards.values()), self._space.full, self._tally
        row = tally.row(
            self._settings, self._state, shards, len(self._sessions), self._mailbox, self._space.file_bytes
        )
        leaderless, away = self._cluster.leaderless(shards, self._turn.stopped, now.boot_ms)
        row = structs.replace(
            row,
            detail="; ".join(filter(None, [full, self._space.short, *self._turn.stopped.values()])),
            leaderless=leaderless,
            away=away,
            stopped=sorted(self._turn.stopped),
            disk_free_bytes=self._space.disk_free_bytes,
            disk_reserve_bytes=self._space.reserve_bytes,
            faults=self._faults.count,
            over_quota=self._door.over_quota,
        )
        if META_SHARD in self._turn.shards and self._guard.users.version:
            self._cluster.tell_access(
                self._guard.users.table
            )  # a process that was restarted has no table yet
        alarms = self._alarms.raised(self._state, self._space, tally.commit_us, self._turn.stopped)
        audit = self._guard.take_audit(now)
        self._cluster.report(row, shards, self._timings.rows(), alarms, audit, now.boot_ms)

    # --- the end --------------------------------------------------------------------------------------------

    def leave(self, now: Now) -> None:
        """Begin to hand over all shards, because the node stops."""
        self._leave_ms = now.boot_ms + LEAVE_MS

    def leaving(self) -> bool:
        """Hand over the next shards. Return False if there are none, or the time is over."""
        if self._leave_ms is None or self._now.boot_ms >= self._leave_ms or not self.ready:
            return False
        led = [shard_id for shard_id, shard in self._turn.shards.items() if shard.can_leave()]
        for shard_id in led[:LEAVE_AT_ONCE]:
            if self._turn.shards[shard_id].leave():
                self._turn.wake(shard_id)
        return bool(led)

    def stop(self) -> None:
        """Commit lazy writes."""
        turn = self._turn
        if not turn.is_open:
            return
        try:
            for shard, appends in turn.ready(sync=True):
                self._cluster.replicate(shard, appends)
            turn.write()
            self._commit()
            turn.stored()
        except Exception as error:
            text = turn.failure(error)
            log.error("worker %d: the last write failed: %s", self._settings.worker, text)


def _verified(session: Session, batch: bytes) -> BatchInfo:
    """Raises BadBatch, TooLarge, BadRequest when it names a producer of another session."""
    info = batches.verify(batch)
    if info.producer not in session.producers:
        session.check_producer(info.producer)
    if info.size > limits.BATCH_BYTES_HARD_MAX:
        raise BadBatch(f"batch of {info.size} bytes; at most {limits.BATCH_BYTES_HARD_MAX}")
    return info
