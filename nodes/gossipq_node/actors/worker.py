"""The worker: one core, its shards, its store. One turn is one transaction at most, and nothing is sent before what it
promises is on disk.

A failed write leaves memory ahead of disk, and a shard that stops leaves half of what it did in the open transaction. Then
nothing of the turn is sent, and the shards are opened again from disk by the code that opened them first; clients greet again
and resend.
"""

import logging

from msgspec import structs

from gossipq import limits
from gossipq.clock import Clock
from gossipq.core.delivery import within
from gossipq.core.effects import refusal
from gossipq.core.raft import Dice
from gossipq.core.requests import Client
from gossipq.core.shard import Shard
from gossipq.core.storage import Bodies, Entry
from gossipq.errors import (
    BadBatch,
    BadRequest,
    Busy,
    CorruptLog,
    GossipqError,
    NotLeader,
    ProtocolError,
    Refused,
    StoreError,
    UnknownKind,
    UnknownVerb,
)
from gossipq.messages import Bye, Done, Hello, Ping, Pong, Publish
from gossipq.operator_messages import Kick
from gossipq.peer_messages import View
from gossipq.types import BatchInfo, Now, Origin
from gossipq.values import Message
from gossipq.wire import batch as batches
from gossipq.wire.frames import Header, decode, encode
from gossipq.wire.opener import Opener
from gossipq_node.actors import answering
from gossipq_node.actors.alarming import Alarming
from gossipq_node.actors.cluster import Cluster
from gossipq_node.actors.sending import Sender, header_of
from gossipq_node.actors.sessions import Sessions
from gossipq_node.actors.space import Space
from gossipq_node.actors.tally import Tally
from gossipq_node.actors.timings import Timings
from gossipq_node.ports import Incoming, Mailbox, Measure, Store, Use
from gossipq_node.settings import WorkerSettings, shard_settings, welcome

HOUSEKEEPING_MS = 1_000
MAINTENANCE_MS = 30_000
LEAVE_MS = 2_500  #: for handing over before the end
LEAVE_AT_ONCE = 2  #: shards of a worker that are handed over at the same time: each is without a leader for less long
CATCHING_UP_MAX = 2  #: shards of a worker that bring new copies up to date at once
RECOVER_MS = 500  #: between two attempts to open the store again
FIRST_PEER_VERB = 96

DAMAGE = (CorruptLog, UnknownKind)  #: a shard that raises one of these stops

log = logging.getLogger(__name__)


class ShardStopped(Exception):
    """One shard cannot go on. What it did in this turn lies half in the open transaction, and must not last."""

    def __init__(self, shard: int, error: GossipqError) -> None:
        super().__init__(shard, error)
        self.shard, self.error = shard, error


class Worker:
    def __init__(
        self,
        settings: WorkerSettings,
        mailbox: Mailbox,
        store: Store,
        clock: Clock,
        dice: Dice | None = None,
        measure: Measure = Use,
    ) -> None:
        self._settings, self._mailbox, self._store, self._clock, self._dice = settings, mailbox, store, clock, dice
        self._shard_settings, self._opener = shard_settings(settings), Opener()
        self._cluster = Cluster(settings, mailbox, self._opener)
        self._damaged: dict[int, str] = {}  # shards that stopped, and why
        self._loaded = False  # shards have stood on what is in the store's transaction
        self._shards: dict[int, Shard] = {}
        self._touched: dict[int, Shard] = {}
        self._due: dict[int, int | None] = {}
        self._local: list[tuple[int, Message]] = []  # between shards of this worker
        self._sessions, self._timings = Sessions(), Timings()
        self._sender = Sender(settings, mailbox, self._cluster, self._local, self._timings)
        self._alarming = Alarming(settings.node, settings.worker)
        self._turned_us = 0
        self._waiting: set[int] = set()  # shards with something for the lazy log
        self._catching_up: set[int] = set()  # shards with new copies
        self._lazy_ms: int | None = None
        self._housekeeping_ms = self._maintenance_ms = 0
        self._open_ms: int | None = 0  # when to open the shards (again); None: they are open
        self._tally = Tally(limits.MINUTE_MS // HOUSEKEEPING_MS, measure)
        self._leave_ms: int | None = None  # until when leadership is handed over before the end
        self._space = Space(settings)
        self._state = "starting"

    @property
    def ready(self) -> bool:
        """The shards are open."""
        return self._open_ms is None

    # --- the loop ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        if self._local:
            return 0
        times = [self._housekeeping_ms, self._open_ms, self._lazy_ms, *self._due.values()]
        return min(at for at in times if at is not None)

    def turn(self, arrived: list[Incoming], now: Now) -> None:
        self._tally.turns += 1
        self._turned_us = self._clock.ticks_us()
        try:
            if self._open_ms is not None and now.boot_ms >= self._open_ms:
                self._open(now)
        except (StoreError, ShardStopped) as error:  # what has arrived is answered all the same
            self._start_over(error, now)
        try:
            for message in arrived:
                self._receive(message, now)
            self._between_shards(now)
            for shard_id, at_ms in self._due.items():
                if at_ms is not None and at_ms <= now.boot_ms:
                    self._touch(shard_id, now)
            if now.boot_ms >= self._housekeeping_ms:
                self._keep_house(now)
            self._finish(now)
        except (StoreError, ShardStopped) as error:
            self._start_over(error, now)

    def _between_shards(self, now: Now) -> None:
        local, self._local[:] = list(self._local), []
        for shard_id, message in local:
            shard = self._touch(shard_id, now)
            if shard is not None:
                shard.step((), 0, None, message)

    def _touch(self, shard_id: int, now: Now) -> Shard | None:
        """The shard, with the clocks of this turn."""
        shard = self._touched.get(shard_id)
        if shard is None and (shard := self._shards.get(shard_id)) is not None:
            self._touched[shard_id] = shard
            shard.begin(now)
        return shard

    def _finish(self, now: Now) -> None:
        """Stores what the turn promises, then sends what that made true."""
        touched = self._touched
        promised = False
        for shard in touched.values():
            try:
                shard.tick()
                shard.gather()
                self._cluster.replicate(shard)
            except DAMAGE as error:
                raise ShardStopped(shard.id, error) from error
            promised |= shard.promised
            self._timings.logged(shard.id, shard.last, self._turned_us)
        self._cluster.flush()  # the others store while this one does
        if self.ready and (promised or (self._lazy_ms is not None and now.boot_ms >= self._lazy_ms)):
            self._sync(now)
        self._touched = {}
        self._cluster.answer_all(touched.values())
        for shard in touched.values():
            self._take(shard, now)
        self._cluster.flush()

    def _take(self, shard: Shard, now: Now) -> None:
        """Sends what is true now."""
        shard.replica.now_ms = self._clock.now().boot_ms  # the sync may have outlasted a lease
        try:
            effects = shard.take()
            self._sender.send(shard, effects)
        except DAMAGE as error:
            raise ShardStopped(shard.id, error) from error
        self._timings.confirmed(shard.id, shard.ledger.applied, self._clock.ticks_us())
        for session in effects.returning:
            self._sessions.expect(session, now.boot_ms)
        self._look_around(shard, now)
        self._pace(shard)
        self._due[shard.id] = shard.next_deadline()
        if shard.pending and self.ready:
            self._waiting.add(shard.id)
            self._lazy_ms = self._lazy_ms or now.boot_ms + limits.LEASE_LOG_MS

    def _look_around(self, shard: Shard, now: Now) -> None:
        """Other leaders and another roster are news for the frontdoor."""
        led, changed = self._cluster.learn_from(shard)
        if changed:
            self._aim()
        if led or changed:
            self._housekeeping_ms = now.boot_ms

    def _pace(self, shard: Shard) -> None:
        """Not too many new copies at once."""
        if shard.leading and shard.moving.adding:
            self._catching_up.add(shard.id)
        else:
            self._catching_up.discard(shard.id)
        shard.moving.free = len(self._catching_up - {shard.id}) < CATCHING_UP_MAX

    def _led(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.leading]

    def _aim(self) -> None:
        """The roster changed: the shards may have other copies to strive for."""
        for shard_id, shard in self._shards.items():
            shard.target = self._cluster.targets.get(shard_id)
            self._due[shard_id] = 0

    def _sync(self, now: Now) -> None:
        """One transaction for all shards that have something to write."""
        self._lazy_ms = None
        for shard_id in self._waiting:
            self._touch(shard_id, now)
        self._waiting.clear()
        writers = [shard for shard in self._touched.values() if shard.promised or shard.pending]
        for shard in writers:
            try:
                shard.write(now)
            except DAMAGE as error:
                raise ShardStopped(shard.id, error) from error
        started_us = self._clock.ticks_us()
        self._store.commit()
        took_us = self._clock.ticks_us() - started_us
        self._timings.commit.add(took_us)
        self._tally.committed(took_us)
        for shard in writers:
            shard.stored()

    # --- opening, failing -------------------------------------------------------------------------------------------

    def _open(self, now: Now) -> None:
        """Opens every shard from disk and takes its next term. Raises StoreError when the disk refuses that."""
        self._load()
        for shard_id, shard in self._shards.items():
            try:
                returning = shard.lead(now)
            except DAMAGE as error:
                raise ShardStopped(shard_id, error) from error
            for session in returning:
                self._sessions.expect(session, now.boot_ms)
            self._waiting.add(shard_id)
        self._sync(now)
        self._due = {shard.id: shard.next_deadline() for shard in self._shards.values()}
        self._open_ms = None
        if self._state == "recovering":
            log.warning("worker %d serves again", self._settings.worker)
            self._space.hold(now)
        self._set_state("ready", now)

    def _load(self) -> None:
        """The shards as the disk has them: what was not committed is forgotten. Raises StoreError."""
        bodies = Bodies(limits.RECENT_BYTES_MAX)
        self._shards, self._touched, self._due, self._waiting, self._catching_up = {}, {}, {}, set(), set()
        if self._loaded:  # not the first time: once LMDB was closed, malloc keeps blocks that large messages leave
            self._store.abort()
        self._loaded = True
        for shard_id in self._settings.owned:
            if shard_id in self._damaged:
                continue
            try:
                shard = Shard(shard_id, self._shard_settings, self._store.tables(shard_id), bodies, self._opener, self._dice)
            except DAMAGE as error:
                self._stop_shard(shard_id, error)
                continue
            shard.full, shard.target = self._space.full, self._cluster.targets.get(shard_id)
            self._shards[shard_id] = shard

    def _stop_shard(self, shard_id: int, error: GossipqError) -> None:
        """One damaged shard stops; the others go on."""
        log.critical("worker %d: shard %d stops: %s", self._settings.worker, shard_id, error)
        self._damaged[shard_id] = str(error)
        self._sessions.forget_connections()  # who greets and asks again is told

    def _start_over(self, error: StoreError | ShardStopped, now: Now) -> None:
        """Nothing that is in memory lasts, nothing of this turn is sent: a later turn opens the shards from disk."""
        for shard in self._shards.values():
            self._tally.add(shard)
        self._shards, self._touched, self._due = {}, {}, {}
        self._local.clear()
        self._timings.forget()
        self._lazy_ms = None
        if isinstance(error, ShardStopped):
            self._stop_shard(error.shard, error.error)
            self._open_ms = 0  # the others are fine: the next turn
        else:
            self._fail(error, now)

    def _fail(self, error: StoreError, now: Now) -> None:
        """The disk refused."""
        if self._state == "starting":
            raise error
        if self._state != "recovering":
            log.error("worker %d: a write failed, starting over from disk: %s", self._settings.worker, error)
            self._sessions = Sessions()
        self._space.refused(f"the disk refused a write: {error}")
        self._open_ms = now.boot_ms + RECOVER_MS
        self._set_state("recovering", now)
        try:
            self._load()
        except StoreError:
            self._shards = {}

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive(self, message: Incoming, now: Now) -> None:
        origin = message.origin
        if self._mailbox.from_peer(origin):
            self._from_peers(message, now)
            return
        header = None
        try:
            header, request = decode(message.control)
            client = self._sessions.get(origin, now.boot_ms)
            if type(request) is Publish and client is not None:
                self._publish(message, header, client, request, now)
            elif request.verb >= FIRST_PEER_VERB:
                raise UnknownVerb(f"verb {request.verb} is for nodes only")
            elif isinstance(request, Hello):
                self._greet(origin, header, request, now)
            elif client is None:
                raise BadRequest("this connection has no session", hint="say HELLO first")
            else:
                self._from_client(message, header, client, request, now)
        except StoreError:
            raise
        except GossipqError as error:
            if isinstance(error, ProtocolError):
                self._tally.bad_frames += 1
            self._refuse(origin, header or header_of(message.control), error)

    def _publish(self, message: Incoming, header: Header, client: Client, request: Publish, now: Now) -> None:
        info = self._verified(message.batch)
        shard = self._shard(header, now)
        refused = shard.refused
        shard.publish(message.origin, header.request_id, client, request, info, message.batch)
        if shard.refused == refused:
            self._sessions.sent(message.origin, info.count, info.size)
            self._timings.read(header.shard)

    @staticmethod
    def _verified(batch: bytes) -> BatchInfo:
        """Raises BadBatch, TooLarge."""
        info = batches.verify(batch)
        if info.size > limits.BATCH_BYTES_HARD_MAX:
            raise BadBatch(f"batch of {info.size} bytes; at most {limits.BATCH_BYTES_HARD_MAX}")
        return info

    def _shard(self, header: Header, now: Now) -> Shard:
        """Raises NotLeader when it lives elsewhere, Busy while this worker starts over."""
        shard = self._touch(header.shard, now)
        if shard is not None:
            return shard
        if header.shard in self._damaged:
            raise Refused(
                f"shard {header.shard} stopped: {self._damaged[header.shard]}", hint="gossipq store verify --data DIR"
            )
        if header.shard in self._settings.owned:
            raise Busy("this worker is reading its disk", retry_after_ms=RECOVER_MS)
        raise NotLeader(f"shard {header.shard} is not led by worker {self._settings.worker}")

    def _from_peers(self, message: Incoming, now: Now) -> None:
        """Nobody waits for an answer that says no."""
        try:
            for header, request, entries, frame in self._cluster.open(message, now.boot_ms):
                if isinstance(request, View):
                    if self._cluster.learn(request):
                        self._aim()
                elif (shard := self._touch(header.shard, now)) is not None:
                    self._from_copy(shard, header, request, entries, frame)
        except StoreError:
            raise
        except GossipqError as error:
            self._tally.bad_frames += 1
            self._cluster.complain(str(error), now.boot_ms)

    def _from_copy(self, shard: Shard, header: Header, request: Message, entries: list[Entry], frame: bytes) -> None:
        try:
            shard.step((), header.request_id, None, request, header.term, entries, frame)
        except DAMAGE as error:
            raise ShardStopped(shard.id, error) from error

    def _greet(self, origin: Origin, header: Header, hello: Hello, now: Now) -> None:
        if len(hello.session) != 16:
            raise BadRequest(f"a session is 16 bytes, not {len(hello.session)}")
        self._sessions.greet(origin, hello, now.boot_ms)
        answer = welcome(self._settings, self._cluster.view.routes(), self._cluster.view.nodes())
        self._mailbox.reply(origin, encode(answer, header.shard, header.request_id))

    def _from_client(self, message: Incoming, header: Header, client: Client, request: Message, now: Now) -> None:
        origin = message.origin
        if isinstance(request, Ping):
            self._mailbox.reply(origin, encode(Pong(), header.shard, header.request_id))
        elif isinstance(request, Bye):
            session = self._sessions.bye(origin)
            if session is not None:
                self._end_session(session, now)
        elif isinstance(request, answering.QUESTIONS):
            reply = answering.answer(request, self._settings, self._led(), self._sessions, now)
            self._mailbox.reply(origin, encode(reply, header.shard, header.request_id))
        elif isinstance(request, Kick):
            self._mailbox.reply(origin, encode(self._kick(request, now), header.shard, header.request_id))
        else:
            if message.batch:
                self._verified(message.batch)
            self._shard(header, now).step(origin, header.request_id, client, request, batch=message.batch)

    def _kick(self, request: Kick, now: Now) -> Done:
        within("for_ms", request.for_ms, 0, limits.KICK_MS_MAX)
        known = self._sessions.kick(request.session, now.boot_ms + request.for_ms)
        if known:
            self._end_session(request.session, now, silent=True)
        return Done(int(known))

    def _end_session(self, session: bytes, now: Now, silent: bool = False) -> None:
        for shard_id, shard in self._shards.items():
            if shard.dispatch.holds(session):
                self._touch(shard_id, now)
                shard.end_session(session, silent)

    def _refuse(self, origin: Origin, header: Header | None, error: GossipqError) -> None:
        self._tally.refused += 1
        shard, request_id = (header.shard, header.request_id) if header else (0, 0)
        self._sender.refuse(origin, shard, request_id, refusal(error))

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def _keep_house(self, now: Now) -> None:
        self._housekeeping_ms = now.boot_ms + HOUSEKEEPING_MS
        silent = self._sessions.silent(now.boot_ms)
        for session in silent:
            self._end_session(session, now, silent=True)
        if len(silent) == limits.SESSIONS_ENDED_PER_TURN:
            self._housekeeping_ms = now.boot_ms  # there may be more
        if now.boot_ms >= self._maintenance_ms:
            self._maintenance_ms = now.boot_ms + MAINTENANCE_MS
            self._store.maintain()
        if self.ready:
            self._check_space(now)
        self._cluster.seek_leaders(self._shards.values(), now.boot_ms)
        self._alarming.look((shard.ledger for shard in self._led()), now)
        self._report()

    def _check_space(self, now: Now) -> None:
        """Who has space leads; who has none refuses publishes."""
        space = self._space
        space.look(self._store.usage(), now)
        self._alarming.space(space.free_bytes, space.reserve_bytes)
        if any(shard.full != space.full for shard in self._shards.values()):
            log.warning("worker %d: %s", self._settings.worker, space.full or "there is space again")
            for shard_id, shard in self._shards.items():
                shard.full = space.full
                shard.leave(bool(space.full))
                self._due[shard_id] = 0
        self._state = "full" if space.full else "ready"

    def _set_state(self, state: str, now: Now) -> None:
        self._state = state
        self._housekeeping_ms = now.boot_ms

    def _report(self) -> None:
        """To the frontdoor: counters for `status`, alarms, and who leads what."""
        shards, full, tally = list(self._shards.values()), self._space.full, self._tally
        row = tally.row(self._settings, self._state, shards, len(self._sessions), self._mailbox, self._space.file_bytes)
        row = structs.replace(row, detail="; ".join([*([full] if full else []), *self._damaged.values()]))
        alarms = self._alarming.raised(self._state, full, tally.commit_us, self._damaged)
        self._cluster.report(row, shards, self._timings.rows(), alarms)

    # --- the end ----------------------------------------------------------------------------------------------------

    def leave(self, now: Now) -> None:
        """The node ends: others shall lead before it does."""
        self._leave_ms = now.boot_ms + LEAVE_MS

    def leaving(self) -> bool:
        """The next shards are handed over. Whether there is one, and time for it."""
        if self._leave_ms is None or self._clock.now().boot_ms >= self._leave_ms or not self.ready:
            return False
        led = [shard_id for shard_id, shard in self._shards.items() if shard.moving.can_leave()]
        for shard_id in led[:LEAVE_AT_ONCE]:
            if self._shards[shard_id].leave():
                self._due[shard_id] = 0
        return bool(led)

    def stop(self) -> None:
        """What waits for the lazy log goes to disk."""
        if self.ready:
            try:
                self._sync(self._clock.now())
            except (StoreError, ShardStopped) as error:
                log.error("worker %d: the last write failed: %s", self._settings.worker, error)
