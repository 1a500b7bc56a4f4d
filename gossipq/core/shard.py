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
from gossipq.core.bodies import Bodies
from gossipq.core.consuming import Client, Consuming
from gossipq.core.dispatch import Dispatch, Waiter
from gossipq.core.effects import Effects, Replication
from gossipq.core.ledger import Ledger, Published
from gossipq.core.log import Entry, LogState
from gossipq.core.replica import LEADER, HardState, Replica
from gossipq.core.retention import Sweeper, idle_producers, plan
from gossipq.core.tables import Tables
from gossipq.core.topics import REGISTER_VERBS, TopicRegister
from gossipq.errors import (
    BadRequest,
    Busy,
    GossipqError,
    NotLeader,
    StoreFull,
    TopicFull,
    UnknownTopic,
    UnknownVerb,
    from_code,
)
from gossipq.messages import (
    Acked,
    Append,
    Appended,
    AskTopic,
    GroupConfig,
    InstallTopic,
    Message,
    Publish,
    Refused,
    TopicConfig,
    TopicInfo,
    TopicInstalled,
)
from gossipq.types import META_SHARD, BatchInfo, Index, Now, Origin, PartitionKey, SessionId, partition_of, topic_id_of

RETENTION_CHECK_MS = 1_000
TOPIC_ASK_MS = 200
SWEEP_ROWS = 1_024  #: deleted in one turn, about 5 ms at the most
FORGET_CHECK_MS = limits.HOUR_MS


class ShardSettings(msgspec.Struct, frozen=True):
    """What a shard must know of its cluster. `me` is the name of this copy. A shard without voters in its log, or whose only
    voter is one of the `predecessors` that the operator let this copy replace, has `me` as its only voter."""

    me: str
    predecessors: tuple[str, ...] = ()
    shards: int = limits.SHARDS
    auto_create: bool = True
    topic: TopicConfig = TopicConfig()
    group: GroupConfig = GroupConfig()


def refusal(error: GossipqError) -> Refused:
    return Refused(error.code, error.message, error.hint, error.retry_after_ms, error.detail)


class Shard:
    def __init__(self, shard: int, settings: ShardSettings, tables: Tables, bodies: Bodies) -> None:
        """Opens what `tables` hold. Raises CorruptLog, UnknownKind."""
        self.id, self._tables, self._bodies = shard, tables, bodies
        self.ledger = Ledger(shard, tables)
        meta = self.ledger.meta
        state = LogState.load(tables.log, meta.log_first, meta.chain, meta.epochs)
        row = tables.state.get(records.HARD)
        hard = msgspec.msgpack.decode(row, type=HardState) if row else HardState()
        replaced = [[], *([name] for name in settings.predecessors)]
        voters = [settings.me] if meta.voters in replaced else meta.voters
        self.replica = Replica(settings.me, voters, hard, state)
        self.replica.commit = self.ledger.applied
        self.dispatch = Dispatch(self.ledger)
        self.full = ""  #: why publishes are refused for want of space; "" = they are not
        self.published = self.acked = self.refused = 0
        self._sweeper = Sweeper(tables, self.ledger, state)
        self._register = TopicRegister(self, self.ledger, settings.shards, settings.auto_create, settings.topic)
        self._consuming = Consuming(self, self.ledger, self.dispatch, settings.group)
        self._effects = Effects()
        self._unapplied: deque[Entry] = deque(self._read(self.ledger.applied + 1, state.last + 1))
        self._outcomes: list[tuple[Entry, object]] = []
        self._publishers: dict[Index, tuple[Origin, int]] = {}
        self._ackers: dict[Index, list[Waiter]] = {}
        self._asked: dict[int, int] = {}  # topic id -> boot time of the last AskTopic; -1: there is no such topic
        self._base = Now(0, 0)  # clocks at the start of this leadership
        self._boot_ms = self._clock_ms = 0  # of this turn: boot time, leader time
        self._promised = False
        self._retain_ms = self._forget_ms = 0

    # --- leading ---------------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self.replica.role == LEADER

    @property
    def term(self) -> int:
        return self.replica.hard.term

    def lead(self, now: Now) -> set[SessionId]:
        """Takes the next term. Serves from the moment its first entry is stored; returns sessions that hold records."""
        self.replica.lead(self.term + 1)
        self._base = Now(now.boot_ms, max(now.wall_ms, self.replica.log.time_ms))
        self.begin(now)
        if self.ledger.meta.voters != self.replica.voters:
            self.propose(log.CONFIG, payloads.encode(payloads.Config(self.replica.voters)))
        self.propose(log.NOOP, b"")
        self._retain_ms, self._forget_ms = now.boot_ms, now.boot_ms + FORGET_CHECK_MS
        return self.dispatch.rebuild(now.boot_ms, self._leader_ms(now))

    def _leader_ms(self, now: Now) -> int:
        """Leader time: it never falls, and a jump of the wall clock does not move it."""
        return max(self.replica.log.time_ms, self._base.wall_ms + now.boot_ms - self._base.boot_ms)

    def propose(self, kind: int, payload: bytes, promise: bool = True) -> Index:
        """Appends an entry without a body; `promise` asks for a sync in this turn."""
        self._promised |= promise
        entry = self.replica.propose(kind, payload, b"", 0, self._clock_ms)
        self._unapplied.append(entry)
        return entry.index

    # --- one door in -----------------------------------------------------------------------------------------------

    def begin(self, now: Now) -> None:
        """The clocks of this turn; before any step."""
        self._clock_ms = self._leader_ms(now)
        self._boot_ms = now.boot_ms

    def publish(self, origin: Origin, request_id: int, message: Publish, info: BatchInfo, batch: bytes) -> None:
        """A checked batch. Refused before it is logged, or confirmed when it is on a majority of disks."""
        try:
            config = self._may_publish(message.partition, info)
        except GossipqError as error:
            self.refuse(origin, request_id, error)
            return
        payload = log.publish_payload(message.partition, info)
        entry = self.replica.propose(log.PUBLISH, payload, batch, info.crc, self._clock_ms)
        self._unapplied.append(entry)
        if (message.level or config.level) != "none":
            self._publishers[entry.index] = origin, request_id
            self._promised = True

    def _may_publish(self, partition: PartitionKey, info: BatchInfo) -> TopicConfig:
        """Raises what forbids it. A repeat is let through: it is answered, and adds nothing."""
        state = self.ledger.partitions.get(partition)
        if state is None:
            raise self.unknown(partition)
        topic = self.ledger.topics[state.topic_id]
        config = topic.config
        if not self.ledger.knows(partition, info):
            if self.full:
                raise StoreFull(self.full, hint="free space or remove a topic; acks and reads go on", retry_after_ms=1_000)
            if config.bytes_max and state.bytes + info.size > config.bytes_max:
                self._retain_ms = self._boot_ms - RETENTION_CHECK_MS
                if config.overflow == "refuse":
                    name = f"{topic.name}/{partition_of(partition)}"
                    raise TopicFull(
                        f"{name} holds its bound of {config.bytes_max} bytes", hint="wait for acks, or raise bytes_max"
                    )
        if not self.leading:
            raise NotLeader(f"shard {self.id} is led elsewhere")
        return config

    def unknown(self, partition: PartitionKey) -> GossipqError:
        """A topic this shard has not logged: the register is asked, the client comes again."""
        topic_id = topic_id_of(partition)
        asked_ms = self._asked.get(topic_id, 0)
        if asked_ms < 0 or topic_id in self.ledger.topics:
            text = f"no topic with id {topic_id} has partition {partition_of(partition)} in shard {self.id}"
            return UnknownTopic(text, hint="resolve its name again")
        if self._boot_ms - asked_ms >= TOPIC_ASK_MS:
            if len(self._asked) > limits.TOPICS_MAX:
                self._asked.clear()
            self._asked[topic_id] = self._boot_ms
            self.tell(META_SHARD, AskTopic(topic_id, self.id))
        return Busy(f"the topic with id {topic_id} is not known here yet", retry_after_ms=20)

    def step(
        self,
        origin: Origin,
        request_id: int,
        client: Client | None,
        message: Message,
        term: int = 0,
        entries: list[Entry] | None = None,
    ) -> None:
        """Any other message. A refusal is answered, never raised."""
        try:
            if self._consuming.serves(message):
                if not self.leading:
                    raise NotLeader(f"shard {self.id} is led elsewhere")
                if client is None:
                    raise BadRequest("no session", hint="say HELLO first")
                self._consuming.step(origin, request_id, client, message, self._boot_ms)
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

    def refuse(self, origin: Origin, request_id: int, error: GossipqError) -> None:
        self.refused += 1
        self.reply(origin, request_id, refusal(error))

    def reply(self, origin: Origin, request_id: int, message: Message) -> None:
        if origin:
            self._effects.replies.append((origin, request_id, message))

    def tell(self, shard: int, message: Message) -> None:
        self._effects.told.append((shard, message))

    def end_session(self, session: SessionId) -> None:
        self.dispatch.end_session(session)

    # --- peers -----------------------------------------------------------------------------------------------------

    def _on_install(self, message: InstallTopic) -> None:
        info = message.topic
        if not self.leading:
            return
        version = -info.id if message.deleted else info.version
        known = self.ledger.topics.get(info.id)
        if message.deleted and known is None:
            self._asked[info.id] = -1
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
        due = [
            self._retain_ms + RETENTION_CHECK_MS if self.leading else None,
            self.dispatch.next_deadline(),
            self._register.next_deadline(),
        ]
        return min((at for at in due if at is not None), default=None)

    def tick(self) -> None:
        if not self.leading:
            return
        self.dispatch.expire(self._boot_ms)
        self._register.tick(self._boot_ms)
        if self._boot_ms >= self._retain_ms + RETENTION_CHECK_MS:
            self._retain_ms = self._boot_ms
            self._retain()

    def _retain(self) -> None:
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
        """What dispatch collected in this turn becomes entries: one per group and consumer."""
        for (group_id, consumer), acks in self.dispatch.take_acks().items():
            if acks.ranges:
                entry = payloads.Ack(group_id, consumer, acks.ranges)
                self._ackers[self.propose(log.ACK, payloads.encode(entry))] = acks.waiters
                self.acked += sum(end - first for _, first, end in acks.ranges)
            else:
                for waiter in acks.waiters:
                    self.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))

    @property
    def promised(self) -> bool:
        """Whether this turn must sync."""
        return self._promised

    @property
    def pending(self) -> bool:
        """Whether something waits to ride with the next sync."""
        return bool(self._unapplied) or self.ledger.dirty or self.dispatch.unlogged or self._sweeper.behind

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
            for group_id, rows in self.dispatch.take_leases(now.boot_ms, self._clock_ms).items():
                self.propose(log.LEASE, payloads.encode(payloads.Lease(group_id, rows)))
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
            if entry.body and isinstance(outcome, Published) and outcome.part is None:
                self._tables.body.delete(log.INDEX_KEY.pack(entry.index))  # a repeat or a gap adds nothing
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

    def _answer(self, entry: Entry, outcome: object) -> None:
        if isinstance(outcome, Published):
            self._published(entry.index, outcome)
        elif entry.kind == log.ACK:
            for waiter in self._ackers.pop(entry.index, ()):
                self.reply(waiter.origin, waiter.request_id, Acked(waiter.lost))
            for partition, _, _ in msgspec.msgpack.decode(entry.payload, type=payloads.Ack).ranges:
                self.dispatch.wake(partition)  # the window moved
        elif entry.kind == log.TOPIC and isinstance(outcome, payloads.Topic):
            self._installed(outcome)
        elif entry.kind == log.GROUP:
            self._consuming.applied(entry.index, self._boot_ms)
        elif entry.kind == log.TRIM:
            self._sweeper.behind = True
            self.dispatch.trim()
        elif entry.kind == log.META_TOPIC and isinstance(outcome, payloads.Topic):
            self._register.applied(outcome)

    def _published(self, index: Index, outcome: Published) -> None:
        if outcome.part is not None:
            self.published += outcome.part.count
            self.dispatch.wake(outcome.partition)
        asker = self._publishers.pop(index, None)
        if asker is None:
            return
        origin, request_id = asker
        if outcome.error:
            text = f"batch refused: {outcome.error}" + (f", {outcome.detail} is expected" if outcome.detail else "")
            self.refuse(origin, request_id, from_code(outcome.error, text, detail=outcome.detail))
        else:
            copies = 1 + sum(progress.match >= index for progress in self.replica.progress.values())
            self._effects.confirms.setdefault(origin, []).append((request_id, outcome.offset, copies, outcome.duplicate))

    def _installed(self, payload: payloads.Topic) -> None:
        info: TopicInfo = payload.info
        if payload.deleted:
            for partition in [p for group in self.dispatch.groups.values() for p in group.views if topic_id_of(p) == info.id]:
                self.dispatch.drop_partition(partition)
            self._sweeper.behind = True
        self.tell(META_SHARD, TopicInstalled(info.id, -info.id if payload.deleted else info.version, self.id))

    def take(self) -> Effects:
        """Hands out records and gives everything that may be sent now."""
        effects, self._effects = self._effects, Effects()
        effects.deliveries = self.dispatch.run(self._boot_ms)
        effects.notices, self.dispatch.notices = self.dispatch.notices, []
        return effects
