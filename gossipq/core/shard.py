"""One shard: replica, ledger and dispatch behind one door. In: `step`, `tick`; out: `Effects`.

A turn of the worker, for each shard that something happened to:

    step(...) any number of times, tick(now)
    gather(now)             what dispatch collected becomes entries
    replication()           may be sent at once
    write(now)              only in a turn that syncs: everything goes into the open transaction
        (the worker commits: one sync for all its shards)
    stored(now)             what is on disk now is committed, applied, and answered
    take(now) -> Effects    hands out records; the worker sends it all

With a quorum of one, applying belongs to the same transaction as appending. Nothing is kept from a failed commit: the
worker drops the shard and opens it again from its tables.
"""

from collections import deque

import msgspec

from gossipq import limits
from gossipq.core import log, payloads, records
from gossipq.core.admitting import Admitting
from gossipq.core.bodies import Bodies
from gossipq.core.columns import Columns
from gossipq.core.consuming import Client, Consuming
from gossipq.core.dispatch import MOVES, Delivery, Dispatch
from gossipq.core.effects import Effects, Replication
from gossipq.core.explaining import Explaining
from gossipq.core.holding import Failed, Waiter
from gossipq.core.leadertime import LeaderTime
from gossipq.core.ledger import Ledger
from gossipq.core.log import Due, Entry, LogState
from gossipq.core.mending import Mending
from gossipq.core.replica import LEADER, HardState, Replica
from gossipq.core.retention import Sweeper, idle_producers, plan
from gossipq.core.settings import ShardSettings
from gossipq.core.storing import Published
from gossipq.core.tables import Tables
from gossipq.core.topics import REGISTER_VERBS, TopicRegister
from gossipq.errors import (
    BadRequest,
    GossipqError,
    NotLeader,
    UnknownVerb,
)
from gossipq.messages import Acked, Publish, Refused
from gossipq.peer_messages import Append, Appended, InstallTopic, TopicInstalled
from gossipq.types import (
    META_SHARD,
    BatchInfo,
    Index,
    Now,
    Origin,
    PartitionKey,
    SessionId,
    topic_id_of,
)
from gossipq.values import Message, TopicInfo

RETENTION_CHECK_MS = 1_000
TOPIC_ASK_MS = 200
SWEEP_ROWS = 1_024  #: deleted in one turn, about 5 ms at the most
FORGET_CHECK_MS = limits.HOUR_MS


def refusal(error: GossipqError) -> Refused:
    return Refused(error.code, error.message, error.hint, error.retry_after_ms, error.detail)


class Shard:
    def __init__(self, shard: int, settings: ShardSettings, tables: Tables, bodies: Bodies, columns: Columns) -> None:
        """Opens what `tables` hold. Raises CorruptLog, UnknownKind."""
        self.id, self._settings, self._tables, self._bodies, self._columns = shard, settings, tables, bodies, columns
        self.ledger = Ledger(shard, tables, columns)
        meta = self.ledger.meta
        state = LogState.load(tables.log, meta.log_first, meta.chain, meta.epochs)
        row = tables.state.get(records.HARD)
        hard = msgspec.msgpack.decode(row, type=HardState) if row else HardState()
        replaced = [[], *([name] for name in settings.predecessors)]
        voters = [settings.me] if meta.voters in replaced else meta.voters
        self.replica = Replica(settings.me, voters, hard, state)
        self.replica.commit = self.ledger.applied
        self.dispatch = Dispatch(self.ledger, settings.group)
        self.full = ""  #: why publishes are refused for want of space; "" = they are not
        self.published = self.acked = self.refused = self.dead = 0
        self._sweeper = Sweeper(tables, self.ledger, state)
        self._register = TopicRegister(
            self, self.ledger, settings.shards, settings.auto_create, settings.topic, settings.virtual
        )
        self._consuming = Consuming(self, self.ledger, self.dispatch, settings.group)
        self._admitting = Admitting(self, self.ledger, self.dispatch, self._consuming, columns)
        self._explaining = Explaining(self, self.ledger, self.dispatch)
        self._mending = Mending(self, self.ledger, self.dispatch)
        self._effects = Effects()
        self._unapplied: deque[Entry] = deque(self._read(self.ledger.applied + 1, state.last + 1))
        self._outcomes: list[tuple[Entry, object]] = []
        self._waiters: dict[Index, list[Waiter]] = {}
        self._late: dict[Index, list[Delivery]] = {}  # go out when an entry is stored
        self._releasing = False
        self._time = LeaderTime(tables.state, settings.boot)
        self._boot_ms = self._clock_ms = 0  # of this turn: boot time, leader time
        self._promised = False
        self._retain_ms = self._forget_ms = 0

    # --- leading ---------------------------------------------------------------------------------------------------

    @property
    def boot_ms(self) -> int:
        """Boot time of this turn."""
        return self._boot_ms

    @property
    def leader_ms(self) -> int:
        """Leader time of this turn."""
        return self._clock_ms

    @property
    def leading(self) -> bool:
        return self.replica.role == LEADER

    @property
    def term(self) -> int:
        return self.replica.hard.term

    def lead(self, now: Now) -> set[SessionId]:
        """Takes the next term. Serves from the moment its first entry is stored; returns sessions that hold records."""
        self.replica.lead(self.term + 1)
        self._time.start(now, self.replica.log.time_ms)
        self.begin(now)
        if self.ledger.meta.voters != self.replica.voters:
            self.propose(log.CONFIG, payloads.encode(payloads.Config(self.replica.voters)))
        self.propose(log.NOOP, b"")
        self._retain_ms, self._forget_ms = now.boot_ms, now.boot_ms + FORGET_CHECK_MS
        if self.id == META_SHARD:
            self._register.lead()
        return self.dispatch.rebuild(now.boot_ms, self._clock_ms)

    def propose(self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"") -> Index:
        """Appends an entry; `promise` asks for a sync in this turn."""
        self._promised |= promise
        entry = self.replica.propose(kind, payload, body, self._columns.crc(body) if body else 0, self._clock_ms)
        self._unapplied.append(entry)
        return entry.index

    # --- one door in -----------------------------------------------------------------------------------------------

    def begin(self, now: Now) -> None:
        """The clocks of this turn; before any step."""
        self._clock_ms = max(self.replica.log.time_ms, self._time.at(now.boot_ms))
        self._boot_ms = now.boot_ms
        self.dispatch.begin(self._boot_ms, self._clock_ms)

    def publish(
        self, origin: Origin, request_id: int, client: Client | None, message: Publish, info: BatchInfo, batch: bytes
    ) -> None:
        """A verified batch. A refusal is answered, never raised."""
        try:
            self._admitting.publish(origin, request_id, client, message, info, batch)
        except GossipqError as error:
            self.refuse(origin, request_id, error)

    def due_of(self, info: BatchInfo, batch: bytes, age_ms: int) -> Due | None:
        return self._admitting.due_of(info, batch, age_ms)

    def peek(self, batch: bytes) -> BatchInfo:
        return self._columns.peek(batch)

    def unknown(self, partition: PartitionKey) -> GossipqError:
        return self._admitting.unknown(partition)

    def retain_soon(self) -> None:
        self._retain_ms = self._boot_ms - RETENTION_CHECK_MS

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
        """Any other message. A refusal is answered, never raised."""
        try:
            if self._for_leader(message):
                if not self.leading:
                    raise NotLeader(f"shard {self.id} is led elsewhere")
                if client is None:
                    raise BadRequest("no session", hint="say HELLO first")
                if self._consuming.serves(message):
                    self._consuming.step(origin, request_id, client, message, self._boot_ms)
                elif self._mending.serves(message):
                    self._mending.step(origin, request_id, client, message, batch)
                else:
                    self._explaining.step(origin, request_id, message)
            elif isinstance(message, InstallTopic):
                self._on_install(message)
            elif isinstance(message, Append):
                self._on_append(term, message, entries or [])
            elif isinstance(message, Appended):
                self._on_appended(term, message)
            elif self.id == META_SHARD and self.leading and type(message) in REGISTER_VERBS:
                if error := self._register.serve(origin, request_id, message):
                    raise error
            elif type(message) in REGISTER_VERBS:
                raise NotLeader(f"shard {self.id} does not answer {type(message).__name__}")
            else:
                raise UnknownVerb(f"verb {message.verb} is no request")
        except GossipqError as error:
            self.refuse(origin, request_id, error)

    def _for_leader(self, message: Message) -> bool:
        return any(room.serves(message) for room in (self._consuming, self._mending, self._explaining))

    def refuse(self, origin: Origin, request_id: int, error: GossipqError) -> None:
        self.refused += 1
        self.reply(origin, request_id, refusal(error))

    def reply(self, origin: Origin, request_id: int, message: Message) -> None:
        if origin:
            self._effects.replies.append((origin, request_id, message))

    def enclose(self, origin: Origin, request_id: int, message: Message, bodies: list[bytes]) -> None:
        """A reply with batches in its second frame."""
        self._effects.enclosed.append((origin, request_id, message, bodies))

    def confirm(self, origin: Origin, request_id: int, index: Index, outcome: Published) -> None:
        copies = 1 + sum(progress.match >= index for progress in self.replica.progress.values())
        self._effects.confirms.setdefault(origin, []).append((request_id, outcome.offset, copies, outcome.duplicate))
        if outcome.runs is not None:
            self._effects.runs.setdefault(origin, []).append((request_id, outcome.runs))

    def tell(self, shard: int, message: Message) -> None:
        self._effects.told.append((shard, message))

    def end_session(self, session: SessionId, silent: bool = False) -> None:
        self.dispatch.end_session(session, silent)

    # --- peers -----------------------------------------------------------------------------------------------------

    def _on_install(self, message: InstallTopic) -> None:
        info = message.topic
        if not self.leading:
            return
        version = -info.id if message.deleted else info.version
        known = self.ledger.topics.get(info.id)
        if message.deleted and known is None:
            self._admitting.gone(info.id)
            self.tell(META_SHARD, TopicInstalled(info.id, version, self.id))
        elif not message.deleted and known is not None and known.version >= info.version:
            self.tell(META_SHARD, TopicInstalled(info.id, version, self.id))
        else:
            self.propose(log.TOPIC, payloads.encode(payloads.Topic(info, message.deleted)))

    def _on_append(self, term: int, message: Append, entries: list[Entry]) -> None:
        before = next(iter(self._read(message.prev_index, message.prev_index + 1)), None)
        self.replica.on_append(term, message, entries, before)
        self._promised = True
        fresh = self.replica.unsaved
        while self._unapplied and fresh and self._unapplied[-1].index >= fresh[0].index:
            self._unapplied.pop()
        self._unapplied.extend(fresh)

    def _on_appended(self, term: int, message: Appended) -> None:
        if self.replica.observe(term):
            self.replica.on_appended(message)

    # --- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next tick that has something to do."""
        if self._promised:
            return self._boot_ms
        ahead_ms = self._time.ahead_ms
        scheduled_ms = self.ledger.schedule.next_ms() if self.leading and not self._releasing else None
        due = [
            self._retain_ms + RETENTION_CHECK_MS if self.leading else None,
            self.dispatch.next_deadline(ahead_ms),
            self._register.next_deadline(),
            None if scheduled_ms is None else scheduled_ms - ahead_ms,
        ]
        return min((at for at in due if at is not None), default=None)

    def tick(self) -> None:
        if not self.leading:
            return
        self.dispatch.tick(self._boot_ms, self._clock_ms)
        self._register.tick(self._boot_ms)
        self._release()
        if self._boot_ms >= self._retain_ms + RETENTION_CHECK_MS:
            self._retain_ms = self._boot_ms
            self._retain()

    def _release(self) -> None:
        """What is due gets its offsets."""
        next_ms = self.ledger.schedule.next_ms()
        if next_ms is None or next_ms > self._clock_ms or self._releasing:
            return
        rows = self.ledger.schedule.plan(self._clock_ms, self.ledger.opened)
        if rows:
            self._releasing = True
            self.propose(log.RELEASE, payloads.encode(payloads.Release(rows)))

    def _retain(self) -> None:
        self.dispatch.expire_fronts()
        for partition in self.ledger.partitions:
            trim = plan(self.ledger, partition, self._clock_ms)
            if trim is not None:
                self.propose(log.TRIM, payloads.encode(trim), promise=False)
                self._retain_ms = self._boot_ms - RETENTION_CHECK_MS + limits.LEASE_LOG_MS  # there may be more
        if self._boot_ms >= self._forget_ms:
            self._forget_ms = self._boot_ms + FORGET_CHECK_MS
            idle = idle_producers(self._tables, self._clock_ms - limits.PRODUCER_IDLE_MS)
            if idle:
                self.propose(log.FORGET, payloads.encode(payloads.Forget(idle)), promise=False)

    # --- storing ---------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """What dispatch collected becomes entries: one per group and consumer, one for each dead letter."""
        for (group_id, consumer), acks in self.dispatch.holding.take_acks().items():
            if acks.ranges:
                entry = payloads.Ack(group_id, consumer, acks.ranges)
                self._waits(self.propose(log.ACK, payloads.encode(entry)), *acks.waiters)
                self.acked += sum(end - first for _, first, end in acks.ranges)
            else:
                for waiter in acks.waiters:
                    self.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))
        failed, self.dispatch.holding.failed = self.dispatch.holding.failed, []
        for each in failed:
            self._fail(each)
        parking, self.dispatch.serving.parking = self.dispatch.serving.parking, {}
        for group_id, rows in parking.items():
            if rows:
                self.propose(log.PARK, payloads.encode(payloads.Park(group_id, rows)))

    def _fail(self, failed: Failed) -> None:
        rows, burials = self.dispatch.serving.failing.sort_out(failed, self._clock_ms)
        indexes = [self.propose(log.DEAD, payloads.encode(burial.dead), body=burial.body) for burial in burials]
        if rows:
            indexes.append(self.propose(log.FAIL, payloads.encode(payloads.Fail(failed.view.group.id, rows))))
        waiter = failed.waiter
        if waiter is not None:
            waiter.entries -= 1
            for index in indexes:
                self._waits(index, waiter)
            if not waiter.entries:  # the records are gone meanwhile
                self.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))

    def _waits(self, index: Index, *waiters: Waiter) -> None:
        for waiter in waiters:
            waiter.entries += 1
        self._waiters.setdefault(index, []).extend(waiters)

    @property
    def promised(self) -> bool:
        """Whether this turn must sync."""
        return self._promised

    @property
    def pending(self) -> bool:
        """Whether something waits to ride with the next sync."""
        return bool(self._unapplied) or self.ledger.dirty or self.dispatch.holding.unlogged or self._sweeper.behind

    def replication(self) -> list[Replication]:
        """Appends for the followers; may leave before this copy has stored them."""
        return [
            Replication(out.to, out.append, out.entries if out.entries is not None else self._read(out.first, out.end))
            for out in self.replica.outgoing()
        ]

    def _read(self, first: Index, end: Index) -> list[Entry]:
        return [
            log.decode_row(log.INDEX_KEY.unpack(key)[0], row, self._tables.body.get(key) or b"")
            for key, row in self._tables.log.scan(log.INDEX_KEY.pack(first), log.INDEX_KEY.pack(end))
        ]

    def write(self, now: Now) -> None:
        """Everything that waits goes into the open transaction; with a quorum of one it is applied there too."""
        if self.leading:
            self._log_leases()
            self._time.mark(now.boot_ms)
        unsaved = self.replica.take_unsaved()
        if unsaved.hard is not None:
            self._tables.state.put(records.HARD, records.encode(unsaved.hard))
        if unsaved.cut_from is not None:
            low, high = log.INDEX_KEY.pack(unsaved.cut_from), log.INDEX_KEY.pack(2**64 - 1)
            for table in (self._tables.log, self._tables.body):
                table.delete_range(low, high, 2**31)
        append_log, append_body, pack = self._tables.log.append, self._tables.body.append, log.INDEX_KEY.pack
        for entry in unsaved.entries:
            key = pack(entry.index)
            append_log(key, log.encode_row(entry))
            if entry.body:
                append_body(key, entry.body)
                self._bodies.put(self.id, entry.index, entry.body)
        if self.replica.sole:
            self._apply(self.replica.log.last)
        self._sweeper.sweep(SWEEP_ROWS)
        self.ledger.flush()

    def body(self, index: Index) -> tuple[bytes | None, bool]:
        """The stored batch at a log index, and whether it comes from disk and must be checked."""
        body = self._bodies.get(self.id, index)
        return (self._tables.body.get(log.INDEX_KEY.pack(index)), True) if body is None else (body, False)

    def _apply(self, end: Index) -> None:
        unapplied, outcomes, apply = self._unapplied, self._outcomes, self.ledger.apply
        while unapplied and unapplied[0].index <= end:
            entry = unapplied.popleft()
            outcome = apply(entry)
            outcomes.append((entry, outcome))

    def stored(self) -> None:
        """The transaction is on disk: what is committed by that is answered."""
        self._promised = False
        self._effects.answers += self.replica.stored()
        if not self.replica.sole:
            self._apply(self.replica.commit)
        outcomes, self._outcomes = self._outcomes, []
        for entry, outcome in outcomes:
            self._answer(entry, outcome)

    def warn(self, text: str) -> None:
        self._effects.warnings.append(text)

    def _log_leases(self) -> list[Index]:
        leases = self.dispatch.holding.take_leases(self._boot_ms, self._clock_ms)
        return [self.propose(log.LEASE, payloads.encode(payloads.Lease(group_id, rows))) for group_id, rows in leases.items()]

    def _answer(self, entry: Entry, outcome: object) -> None:
        for waiter in self._waiters.pop(entry.index, ()):
            waiter.entries -= 1
            if not waiter.entries:
                self.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))
        self._effects.deliveries += self._late.pop(entry.index, ())
        if isinstance(outcome, Published):
            self.published += outcome.added
            self._admitting.applied(entry.index, outcome)
        elif entry.kind == log.RELEASE and isinstance(outcome, set):
            self._releasing = False
            for partition in outcome:
                self.dispatch.wake(partition)
        elif entry.kind in MOVES:
            self.dispatch.settled(entry)
            if entry.kind == log.DEAD and entry.body and isinstance(outcome, int):
                self.dead += outcome
        elif entry.kind == log.TOPIC and isinstance(outcome, payloads.Topic):
            self._installed(outcome)
        elif entry.kind == log.GROUP and isinstance(outcome, payloads.Group):
            self._consuming.applied(entry.index, self._boot_ms)
            self.dispatch.changed(outcome.topic_id, outcome.name)
        elif entry.kind == log.TRIM:
            self._sweeper.behind = True
            self.dispatch.trim()
        elif entry.kind == log.META_TOPIC and isinstance(outcome, payloads.Topic):
            self._register.applied(outcome)
        self._mending.applied(entry, outcome)

    def _installed(self, payload: payloads.Topic) -> None:
        info: TopicInfo = payload.info
        if payload.deleted:
            for partition in [p for group in self.dispatch.groups.values() for p in group.views if topic_id_of(p) == info.id]:
                self.dispatch.drop_partition(partition)
            self._sweeper.behind = True
        self.tell(META_SHARD, TopicInstalled(info.id, -info.id if payload.deleted else info.version, self.id))

    def take(self) -> Effects:
        """Hands out records and gives everything that may be sent now. What must be stored before it leaves comes later."""
        effects, self._effects = self._effects, Effects()
        deliveries = self.dispatch.run()
        effects.deliveries += [delivery for delivery in deliveries if not delivery.late]
        self._after_commit([delivery for delivery in deliveries if delivery.late])
        behind = {delivery.origin for waiting in self._late.values() for delivery in waiting}  # AT_END overtakes no delivery
        effects.notices = [notice for notice in self.dispatch.notices if notice[0] not in behind]
        self.dispatch.notices = [notice for notice in self.dispatch.notices if notice[0] in behind]
        if self.dispatch.holding.failed or self.dispatch.serving.parking:
            self._promised = True  # another turn makes them entries
        return effects

    def _after_commit(self, late: list[Delivery]) -> None:
        """Leases of exclusive groups, and acks that come before the push, are stored before anything leaves."""
        if not late:
            return
        self._log_leases()
        self.gather()
        self._late.setdefault(self.replica.log.last, []).extend(late)
        self._promised = True
