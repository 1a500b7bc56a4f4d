"""The worker: one core, its shards, its store. One turn is one transaction at most, and nothing is sent before what it
promises is on disk.

A failed commit leaves memory ahead of disk. Then nothing of the turn is sent, sessions are forgotten, and the shards are
opened again from disk by the code that opened them first; clients greet again and resend.
"""

import logging
import os
from collections import deque

from gossipq import limits
from gossipq.clock import Clock
from gossipq.core.bodies import Bodies
from gossipq.core.consuming import Client
from gossipq.core.counts import stats
from gossipq.core.settings import ShardSettings
from gossipq.core.shard import Shard, refusal
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
from gossipq.messages import Bye, Hello, Ping, Pong, Publish, Stats, StatsReply
from gossipq.peer_messages import Report
from gossipq.types import BatchInfo, Now, Origin
from gossipq.values import Message, Route, WorkerStats
from gossipq.wire import batch as batches
from gossipq.wire.frames import Header, decode, encode, peek
from gossipq.wire.opener import Opener
from gossipq_node.actors.sending import Sender
from gossipq_node.actors.sessions import Sessions
from gossipq_node.ports import Incoming, Mailbox, Store
from gossipq_node.settings import WorkerSettings, welcome

HOUSEKEEPING_MS = 1_000
MAINTENANCE_MS = 30_000
RECOVER_MS = 500  #: between two attempts to open the store again
FULL_HOLD_MS = 2_000  #: publishes stay refused this long after a disk refused a write
FIRST_PEER_VERB = 96

log = logging.getLogger(__name__)


class Worker:
    def __init__(self, settings: WorkerSettings, mailbox: Mailbox, store: Store, clock: Clock) -> None:
        self._settings, self._mailbox, self._store, self._clock = settings, mailbox, store, clock
        self._shard_settings = ShardSettings(
            settings.voter,
            settings.predecessors,
            settings.shards,
            settings.auto_create,
            settings.topic,
            settings.group,
            settings.virtual,
            settings.boot,
        )
        self._opener = Opener()
        self._damaged: dict[int, str] = {}  # shards that stopped, and why
        self._shards: dict[int, Shard] = {}
        self._touched: dict[int, Shard] = {}
        self._due: dict[int, int | None] = {}
        self._local: list[tuple[int, Message]] = []  # between shards of this worker
        self._sessions = Sessions()
        self._sender = Sender(settings, mailbox, self._local)
        self._waiting: set[int] = set()  # shards with something for the lazy log
        self._lazy_ms: int | None = None
        self._housekeeping_ms = self._maintenance_ms = 0
        self._open_ms: int | None = 0  # when to open the shards (again); None: they are open
        self._dead: deque[int] = deque([0], maxlen=limits.MINUTE_MS // HOUSEKEEPING_MS)  # dead letters, second by second
        self._full_ms = 0  # publishes are refused until then
        self._full = ""
        self._state = "starting"
        self._file_bytes = 0
        self._turns = self._commits = self._commit_us = self._bad = 0
        self._totals = dict.fromkeys(("published", "delivered", "acked", "refused", "dead"), 0)  # of shards that were dropped

    @property
    def ready(self) -> bool:
        """Every shard leads."""
        return self._open_ms is None

    # --- the loop ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        if self._local:
            return 0
        times = [self._housekeeping_ms, self._open_ms, self._lazy_ms, *self._due.values()]
        return min(at for at in times if at is not None)

    def turn(self, arrived: list[Incoming], now: Now) -> None:
        self._turns += 1
        try:
            if self._open_ms is not None and now.boot_ms >= self._open_ms:
                self._open(now)
        except StoreError as error:  # what has arrived is answered all the same
            self._fail(error, now)
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
        except StoreError as error:
            self._fail(error, now)

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
        for shard in list(touched.values()):
            try:
                shard.tick()
                shard.gather()
            except CorruptLog as error:
                del touched[shard.id]
                self._stop_shard(shard.id, error)
                continue
            promised |= shard.promised
        if self.ready and (promised or (self._lazy_ms is not None and now.boot_ms >= self._lazy_ms)):
            self._sync(now)
        self._touched = {}
        for shard in touched.values():
            try:
                effects = shard.take()
                self._sender.send(shard, effects)
            except (CorruptLog, UnknownKind) as error:
                self._stop_shard(shard.id, error)
                continue
            for session in effects.returning:
                self._sessions.expect(session, now.boot_ms)
            self._due[shard.id] = shard.next_deadline()
            if shard.pending and self.ready:
                self._waiting.add(shard.id)
                if self._lazy_ms is None:
                    self._lazy_ms = now.boot_ms + limits.LEASE_LOG_MS

    def _sync(self, now: Now) -> None:
        """One transaction for all shards that have something to write."""
        self._lazy_ms = None
        for shard_id in self._waiting:
            self._touch(shard_id, now)
        self._waiting.clear()
        writers = [shard for shard in self._touched.values() if shard.promised or shard.pending]
        for shard in writers:
            shard.write(now)
        started_us = self._clock.ticks_us()
        self._store.commit()
        self._commit_us += (self._clock.ticks_us() - started_us - self._commit_us) // 16
        self._commits += 1
        for shard in writers:
            shard.stored()

    # --- opening, failing -------------------------------------------------------------------------------------------

    def _open(self, now: Now) -> None:
        """Opens every shard from disk and takes its next term. Raises StoreError when the disk refuses that."""
        self._load()
        for shard_id, shard in self._shards.items():
            try:
                returning = shard.lead(now)
            except (CorruptLog, UnknownKind) as error:
                self._stop_shard(shard_id, error)
                self._store.abort()  # what it had applied by then
                self._open(now)
                return
            for session in returning:
                self._sessions.expect(session, now.boot_ms)
            self._waiting.add(shard_id)
        self._sync(now)
        self._due = {shard.id: shard.next_deadline() for shard in self._shards.values()}
        self._open_ms = None
        if self._state == "recovering":
            log.warning("worker %d serves again, publishes refused for %d ms", self._settings.worker, FULL_HOLD_MS)
            self._full_ms = now.boot_ms + FULL_HOLD_MS
        self._set_state("ready", now)

    def _load(self) -> None:
        bodies = Bodies(limits.RECENT_BYTES_MAX)
        self._shards, self._touched, self._due = {}, {}, {}
        self._waiting.clear()
        for shard_id in self._settings.owned:
            if shard_id in self._damaged:
                continue
            try:
                shard = Shard(shard_id, self._shard_settings, self._store.tables(shard_id), bodies, self._opener)
            except (CorruptLog, UnknownKind) as error:
                self._stop_shard(shard_id, error)
                continue
            shard.full = self._full
            self._shards[shard_id] = shard

    def _stop_shard(self, shard_id: int, error: GossipqError) -> None:
        """One damaged shard stops; the others go on."""
        log.critical("worker %d: shard %d stops: %s", self._settings.worker, shard_id, error)
        self._damaged[shard_id] = str(error)
        self._shards.pop(shard_id, None)
        self._due.pop(shard_id, None)
        self._sessions.forget_connections()  # who greets and asks again is told

    def _fail(self, error: StoreError, now: Now) -> None:
        """The disk refused: memory is ahead of it and is dropped."""
        if self._state == "starting":
            raise error
        if self._state != "recovering":
            log.error("worker %d: a write failed, starting over from disk: %s", self._settings.worker, error)
        for shard in self._shards.values():
            self._add_totals(shard)
        self._local.clear()
        self._lazy_ms = None
        if self._state != "recovering":
            self._sessions = Sessions()
        self._full = f"the disk refused a write: {error}"
        self._open_ms = now.boot_ms + RECOVER_MS
        self._set_state("recovering", now)
        try:
            self._store.abort()
            self._load()
        except StoreError:
            self._shards = {}

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive(self, message: Incoming, now: Now) -> None:
        origin = message.origin
        header = None
        try:
            header, request = decode(message.control)
            client = self._sessions.get(origin, now.boot_ms)
            if type(request) is Publish and client is not None:
                self._publish(message, header, client, request, now)
            elif request.verb >= FIRST_PEER_VERB:
                self._from_peer(origin, header, request, now)
            elif isinstance(request, Hello):
                self._greet(origin, header, request, now)
            elif client is None:
                raise BadRequest("this connection has no session", hint="say HELLO first")
            else:
                self._from_client(message, header, client, request, now)
        except GossipqError as error:
            if isinstance(error, ProtocolError):
                self._bad += 1
            self._refuse(origin, header or _header_of(message.control), error)

    def _publish(self, message: Incoming, header: Header, client: Client, request: Publish, now: Now) -> None:
        info = self._verified(message.batch)
        self._shard(header, now).publish(message.origin, header.request_id, client, request, info, message.batch)

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

    def _from_peer(self, origin: Origin, header: Header, request: Message, now: Now) -> None:
        if not self._mailbox.from_peer(origin):
            raise UnknownVerb(f"verb {request.verb} is for nodes only")
        shard = self._touch(header.shard, now)
        if shard is None:
            return
        try:
            shard.step((), header.request_id, None, request, header.term)
        except CorruptLog as error:
            self._touched.pop(shard.id, None)
            self._stop_shard(shard.id, error)

    def _greet(self, origin: Origin, header: Header, hello: Hello, now: Now) -> None:
        if len(hello.session) != 16:
            raise BadRequest(f"a session is 16 bytes, not {len(hello.session)}")
        self._sessions.greet(origin, hello, now.boot_ms)
        answer = welcome(self._settings, self._routes())
        self._mailbox.reply(origin, encode(answer, header.shard, header.request_id))

    def _routes(self) -> list[Route]:
        """All shards; with the terms of those that this worker leads."""
        mine = self._shards
        return [
            Route(route.shard, mine[route.shard].term, route.endpoint) if route.shard in mine else route
            for route in self._settings.routes
        ]

    def _from_client(self, message: Incoming, header: Header, client: Client, request: Message, now: Now) -> None:
        origin = message.origin
        if isinstance(request, Ping):
            self._mailbox.reply(origin, encode(Pong(), header.shard, header.request_id))
        elif isinstance(request, Bye):
            session = self._sessions.bye(origin)
            if session is not None:
                self._end_session(session, now)
        elif isinstance(request, Stats):
            parts = [stats(s.ledger, s.dispatch, self._settings.worker, request.topics) for s in self._shards.values()]
            reply = StatsReply([row for rows, _ in parts for row in rows], [row for _, rows in parts for row in rows])
            self._mailbox.reply(origin, encode(reply, header.shard, header.request_id))
        else:
            if message.batch:
                self._verified(message.batch)
            self._shard(header, now).step(origin, header.request_id, client, request, batch=message.batch)

    def _end_session(self, session: bytes, now: Now, silent: bool = False) -> None:
        for shard_id, shard in self._shards.items():
            if shard.dispatch.holds(session):
                self._touch(shard_id, now)
                shard.end_session(session, silent)

    def _refuse(self, origin: Origin, header: Header | None, error: GossipqError) -> None:
        self._totals["refused"] += 1
        shard, request_id = (header.shard, header.request_id) if header else (0, 0)
        self._mailbox.reply(origin, encode(refusal(error), shard, request_id))

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def _keep_house(self, now: Now) -> None:
        self._housekeeping_ms = now.boot_ms + HOUSEKEEPING_MS
        for session in self._sessions.silent(now.boot_ms):
            self._end_session(session, now, silent=True)
        if now.boot_ms >= self._maintenance_ms:
            self._maintenance_ms = now.boot_ms + MAINTENANCE_MS
            self._store.maintain()
        if self.ready:
            self._check_space(now)
        self._report()

    def _check_space(self, now: Now) -> None:
        """Publishes are refused while the map or the disk is nearly full; acks and removals go on."""
        usage, settings = self._store.usage(), self._settings
        reserve = max(settings.disk_reserve_bytes, usage.disk_bytes * settings.disk_reserve_percent // 100)
        free_bytes = usage.disk_free_bytes + max(0, usage.file_bytes - usage.used_bytes)  # a file never shrinks: it is reused
        if usage.used_bytes >= usage.map_bytes // 100 * limits.MAP_FULL_PERCENT:
            self._full = f"the store holds {usage.used_bytes} of {usage.map_bytes} bytes of its map"
        elif free_bytes < reserve:
            self._full = f"the disk has {free_bytes} bytes free, {reserve} are kept in reserve"
        elif now.boot_ms >= self._full_ms:
            self._full = ""
        self._file_bytes = usage.file_bytes
        if any(shard.full != self._full for shard in self._shards.values()):
            log.warning("worker %d: %s", self._settings.worker, self._full or "there is space again")
        for shard in self._shards.values():
            shard.full = self._full
        self._state = "full" if self._full else "ready"

    def _set_state(self, state: str, now: Now) -> None:
        self._state = state
        self._housekeeping_ms = now.boot_ms

    def _add_totals(self, shard: Shard) -> None:
        for name, count in self._counts(shard).items():
            self._totals[name] += count

    @staticmethod
    def _counts(shard: Shard) -> dict[str, int]:
        return {
            "published": shard.published,
            "delivered": shard.dispatch.delivered,
            "acked": shard.acked,
            "refused": shard.refused,
            "dead": shard.dead,
        }

    def _report(self) -> None:
        """To the frontdoor, for `status`."""
        totals = dict(self._totals)
        for shard in self._shards.values():
            for name, count in self._counts(shard).items():
                totals[name] += count
        self._dead.append(totals["dead"])
        settings = self._settings
        leading = [shard for shard in self._shards.values() if shard.leading]
        row = WorkerStats(
            worker=settings.worker,
            pid=os.getpid(),
            endpoint=settings.endpoint,
            state=self._state,
            restarts=settings.restarts,
            leading=len(leading),
            sessions=len(self._sessions),
            bad_frames=self._bad + self._mailbox.bad_frames,
            dropped=self._mailbox.dropped,
            turns=self._turns,
            commits=self._commits,
            commit_us=self._commit_us,
            store_bytes=self._file_bytes,
            dead_per_minute=self._dead[-1] - self._dead[0],
            detail="; ".join([*([self._full] if self._full else []), *self._damaged.values()]),
            **totals,
        )
        routes = [Route(shard.id, shard.term, settings.endpoint) for shard in leading]
        self._mailbox.send(settings.frontdoor, encode(Report(row, routes)))

    def stop(self) -> None:
        """What waits for the lazy log goes to disk."""
        if self.ready:
            try:
                self._sync(self._clock.now())
            except StoreError as error:
                log.error("worker %d: the last write failed: %s", self._settings.worker, error)


def _header_of(control: bytes) -> Header | None:
    """Of a frame whose rest cannot be read: who sent it wants to know which request that was."""
    try:
        return peek(control)
    except ProtocolError:
        return None
