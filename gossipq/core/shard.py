"""One shard: replica, ledger and dispatch behind one door. In: `step`, `tick`; out: `Effects`.

A turn of the worker, for each shard that something happened to:

    begin(now), step(...) any number of times, tick()
    gather()                what dispatch collected becomes entries
    replication()           may be sent at once: entries for the other copies
    write(now)              only in a turn that syncs: everything goes into the open transaction
        (the worker commits: one sync for all its shards)
    stored()                what is on disk now may be spoken of
    take() -> Effects       applies what is committed, hands out records; the worker sends it all

With a quorum of one, applying belongs to the same transaction as appending. With more, it rides with the next sync; a crash
replays it from the log. Nothing is kept from a failed commit: the worker drops the shard and opens it from its tables.

A copy *leads* from the election on, and *serves* from the moment its own NOOP is committed: then dispatch is rebuilt. When it
does not lead any more, everything volatile goes at once.
"""

from collections import deque

import msgspec

from gossipq import limits
from gossipq.core import campaign, log, payloads
from gossipq.core.bodies import Bodies
from gossipq.core.consuming import Client, Consuming
from gossipq.core.dispatch import Dispatch, Waiter
from gossipq.core.effects import Effects, Replication
from gossipq.core.election import Dice
from gossipq.core.ledger import Ledger, Published
from gossipq.core.log import Entry
from gossipq.core.peers import VERBS, Peers
from gossipq.core.replica import LEADER
from gossipq.core.retention import Sweeper, idle_producers, trims
from gossipq.core.settings import ShardSettings
from gossipq.core.snapshot import open_ledger
from gossipq.core.tables import Tables
from gossipq.core.topics import REGISTER_VERBS, TopicRegister
from gossipq.errors import (
    BadRequest,
    Busy,
    CorruptLog,
    GossipqError,
    NotLeader,
    StoreFull,
    TopicFull,
    UnknownTopic,
    UnknownVerb,
    from_code,
)
from gossipq.messages import (
    Ack,
    Acked,
    AskTopic,
    Credit,
    Extend,
    InstallTopic,
    Message,
    Nack,
    Publish,
    Recall,
    Refused,
    TopicConfig,
    TopicInfo,
    TopicInstalled,
    Unsubscribe,
)
from gossipq.peering import ChangeVoters, Transfer
from gossipq.types import META_SHARD, BatchInfo, Index, Now, Origin, PartitionKey, SessionId, partition_of, topic_id_of

RETENTION_CHECK_MS = 1_000
TOPIC_ASK_MS = 200
SWEEP_ROWS = 1_024  #: deleted in one turn, about 5 ms at the most
FORGET_CHECK_MS = limits.HOUR_MS
TAKEOVER_MS = 50  #: a client waits so long while a leader takes over or hands over
NOT_READS = (Ack, Nack, Extend, Credit, Recall, Unsubscribe)  #: answered without a look at the ledger


def refusal(error: GossipqError) -> Refused:
    return Refused(error.code, error.message, error.hint, error.retry_after_ms, error.detail)


class Shard:
    def __init__(self, shard: int, settings: ShardSettings, tables: Tables, bodies: Bodies, dice: Dice | None = None) -> None:
        """Opens what `tables` hold. `dice` make the election timeouts. Raises CorruptLog, UnknownKind."""
        self.id, self._tables, self._bodies, self._settings = shard, tables, bodies, settings
        self.full = ""  #: why publishes are refused for want of space; "" = they are not
        self.published = self.acked = self.refused = 0
        self._boot_ms = self._clock_ms = 0  # of this turn: boot time, leader time
        self._base = self._now = Now(0, 0)  # clocks at the start of this leadership, and now
        self._promised = False
        self._retain_ms = self._forget_ms = 0
        self._effects = Effects()
        self.ledger = open_ledger(shard, tables)
        self.peers = Peers(shard, settings, tables, bodies, self.ledger, dice)
        self.replica = self.peers.replica
        self._open(self.ledger)

    def _open(self, ledger: Ledger) -> None:
        """Everything that stands on the ledger. Also when a snapshot has replaced it."""
        self.ledger = self.peers.ledger = ledger
        self._unapplied: deque[Entry] = deque(self.peers.after(ledger.applied))
        self._outcomes: list[tuple[Entry, object]] = []
        self._sweeper = Sweeper(self._tables, ledger, self.replica.log)
        self._forget()

    def _forget(self) -> None:
        """The volatile side of a leader starts empty; so it stays on a copy that does not lead."""
        settings = self._settings
        self.dispatch = Dispatch(self.ledger)
        self._register = TopicRegister(self, self.ledger, settings.shards, settings.auto_create, settings.topic)
        self._consuming = Consuming(self, self.ledger, self.dispatch, settings.group)
        self._publishers: dict[Index, tuple[Origin, int]] = {}
        self._ackers: dict[Index, list[Waiter]] = {}
        self._changers: dict[Index, tuple[Origin, int]] = {}
        self._asked: dict[int, int] = {}  # topic id -> boot time of the last AskTopic; -1: there is no such topic
        self._led = 0  # term that this copy leads
        self._serving = False

    # --- leading ---------------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self.replica.role == LEADER

    @property
    def term(self) -> int:
        return self.replica.hard.term

    @property
    def serving(self) -> bool:
        """Leads, has everything that was committed before, and is not handing over."""
        return self._serving and not self.replica.handing

    def lead(self, now: Now) -> set[SessionId]:
        """Right after opening. A quorum of one leads at once and returns the sessions that hold records; others wait."""
        self.begin(now)
        self.replica.election.heard(now.boot_ms, first=False)
        if not self.replica.sole:
            return set()
        self._apply(self.replica.log.last)
        self._outcomes.clear()
        self.replica.commit = self.replica.log.last
        self.replica.lead()
        self._take_over()
        return self._serve()

    def _take_over(self) -> None:
        """First words of a leader: nothing is served before they are committed (R5)."""
        now, config = self._now, self.replica.config
        self._forget()
        self._led = self.term
        self._base = Now(now.boot_ms, max(now.wall_ms, self.replica.log.time_ms))
        self._clock_ms = self._leader_ms(now)
        if self.replica.config_index == 0 and self.ledger.meta.voters != config.voters:
            self.propose(log.CONFIG, payloads.encode(config))
        self.propose(log.NOOP, b"")

    def _serve(self) -> set[SessionId]:
        self._serving = True
        self._retain_ms, self._forget_ms = self._boot_ms, self._boot_ms + FORGET_CHECK_MS
        return self.dispatch.rebuild(self._boot_ms, self._clock_ms)

    def _follow_replica(self) -> None:
        """Takes over, or lets go, as the replica says."""
        if self.leading:
            if self._led != self.term:
                self._resign()
                self._take_over()
        elif self._led:
            self._resign()

    def _resign(self) -> None:
        """What was asked here may be stored or not: the next leader knows."""
        waiting = [*self._publishers.values(), *self._changers.values()]
        waiting += [(waiter.origin, waiter.request_id) for waiters in self._ackers.values() for waiter in waiters]
        self._effects.abandoned += waiting
        self.peers.reset()
        self._forget()

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
        self._now = now
        self._clock_ms = self._leader_ms(now)
        self._boot_ms = self.replica.now_ms = now.boot_ms

    def _check_serving(self, reads: bool = False) -> None:
        """Raises what a client must hear. `reads`: the answer tells of the ledger, so nobody else may lead (R11)."""
        if not self.leading:
            raise NotLeader(f"shard {self.id} is led elsewhere")
        if not self.serving or (reads and not self.replica.holds_lease):
            raise Busy(f"shard {self.id} changes its leader", retry_after_ms=TAKEOVER_MS)

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
        known = self.ledger.knows(partition, info)
        if self.full and not known and (self.leading or self.replica.sole):
            raise StoreFull(self.full, hint="free space or remove a topic; acks and reads go on", retry_after_ms=1_000)
        self._check_serving()
        state = self.ledger.partitions.get(partition)
        if state is None:
            raise self.unknown(partition)
        topic = self.ledger.topics[state.topic_id]
        config = topic.config
        if not known and config.bytes_max and state.bytes + info.size > config.bytes_max:
            self._retain_ms = self._boot_ms - RETENTION_CHECK_MS
            if config.overflow == "refuse":
                name = f"{topic.name}/{partition_of(partition)}"
                raise TopicFull(f"{name} holds its bound of {config.bytes_max} bytes", hint="wait for acks, or raise bytes_max")
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
        rows: bytes = b"",
    ) -> None:
        """Any other message. A refusal is answered, never raised. `term`, `entries` and `rows` come with the messages of other
        copies. Raises CorruptLog: this copy must stop."""
        try:
            if type(message) in VERBS:
                self._from_copy(term, message, entries or [], rows)
            elif self._consuming.serves(message):
                self._check_serving(reads=type(message) not in NOT_READS)
                if client is None:
                    raise BadRequest("no session", hint="say HELLO first")
                self._consuming.step(origin, request_id, client, message, self._boot_ms)
            elif isinstance(message, InstallTopic):
                self._on_install(message)
            elif isinstance(message, ChangeVoters | Transfer):
                self._on_change(origin, request_id, message)
            elif self.id == META_SHARD and type(message) in REGISTER_VERBS:
                self._check_serving(reads=True)
                if error := self._register.serve(origin, request_id, message):
                    raise error
            elif type(message) in REGISTER_VERBS:
                raise NotLeader(f"shard {self.id} does not answer {type(message).__name__}")
            else:
                raise UnknownVerb(f"verb {message.verb} is no request")
        except CorruptLog:
            raise
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
        if not self.serving:
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

    def _from_copy(self, term: int, message: Message, entries: list[Entry], rows: bytes) -> None:
        changed = self.peers.step(term, message, entries, rows)
        if changed == 0:
            self._open(open_ledger(self.id, self._tables))
        elif changed is not None:
            while self._unapplied and self._unapplied[-1].index >= changed:
                self._unapplied.pop()
            unsaved = self.replica.unsaved
            self._unapplied.extend(unsaved[changed - unsaved[0].index :])
        self._promised |= changed is not None or self.replica.hollow
        self._follow_replica()

    def _on_change(self, origin: Origin, request_id: int, message: ChangeVoters | Transfer) -> None:
        """Other voters (R16), or another leader."""
        self._check_serving()
        if isinstance(message, Transfer):
            self.peers.hand_over(message.to)
            self.reply(origin, request_id, Acked())
        else:
            config = self.peers.check_change(message)
            self._changers[self.propose(log.CONFIG, payloads.encode(config))] = origin, request_id

    # --- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next tick that has something to do."""
        due = [self.peers.deadline_ms()]
        if self.serving:
            due += [self._retain_ms + RETENTION_CHECK_MS, self.dispatch.next_deadline(), self._register.next_deadline()]
        return min((at for at in due if at is not None), default=None)

    def tick(self) -> None:
        if not (self.replica.sole and self._serving):
            campaign.tick(self.replica)
            self._follow_replica()
        if not self.serving:
            return
        self.dispatch.expire(self._boot_ms)
        self._register.tick(self._boot_ms)
        if self._boot_ms >= self._retain_ms + RETENTION_CHECK_MS:
            self._retain_ms = self._boot_ms
            self._retain()

    def _retain(self) -> None:
        for trim in trims(self.ledger, self._clock_ms):
            self.propose(log.TRIM, payloads.encode(trim), promise=False)
            self._retain_ms = self._boot_ms - RETENTION_CHECK_MS + limits.LEASE_LOG_MS  # there may be more
        if self._boot_ms >= self._forget_ms:
            self._forget_ms = self._boot_ms + FORGET_CHECK_MS
            if idle := idle_producers(self._tables, self._clock_ms - limits.PRODUCER_IDLE_MS):
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
        replica = self.replica
        return self._promised or replica.hard_changed or bool(replica.answers and replica.dirty) or self.peers.wants_spool

    @property
    def pending(self) -> bool:
        """Whether something waits to ride with the next sync."""
        return bool(self._unapplied) or self.ledger.dirty or self.dispatch.unlogged or self._sweeper.behind

    def replication(self) -> list[Replication]:
        """Appends for the followers; may leave before this copy has stored them."""
        return self.peers.replication()

    def write(self, now: Now) -> None:
        """Everything that waits goes into the open transaction; with a quorum of one it is applied there too."""
        if self.serving:
            for group_id, rows in self.dispatch.take_leases(now.boot_ms, self._clock_ms).items():
                self.propose(log.LEASE, payloads.encode(payloads.Lease(group_id, rows)))
        self.peers.write()
        if self.replica.sole and self.leading:
            self._apply(self.replica.log.last)
        self._sweeper.hold = self.peers.hold()
        self._sweeper.sweep(SWEEP_ROWS)
        self.ledger.flush()
        if self.peers.wants_spool:
            self.peers.spool()

    def body(self, index: Index) -> tuple[bytes | None, bool]:
        """The stored batch at a log index, and whether it comes from disk and must be checked."""
        body = self._bodies.get(self.id, index)
        return (self._tables.body.get(log.INDEX_KEY.pack(index)), True) if body is None else (body, False)

    def _apply(self, end: Index) -> None:
        unapplied, outcomes = self._unapplied, self._outcomes
        apply = self.ledger.skip if self._settings.witness else self.ledger.apply
        while unapplied and unapplied[0].index <= end:
            entry = unapplied.popleft()
            outcome = apply(entry)
            if entry.body and isinstance(outcome, Published) and outcome.part is None:
                self._tables.body.delete(log.INDEX_KEY.pack(entry.index))  # a repeat or a gap adds nothing
            outcomes.append((entry, outcome))

    def stored(self) -> None:
        """The transaction is on disk: what is committed by that is answered."""
        self._promised = False
        self.replica.stored()
        if self.replica.sole:
            self._answer_all()

    def _answer_all(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        for entry, outcome in outcomes:
            if entry.kind in (log.TRIM, log.TOPIC):
                self._sweeper.behind = True
            if self._serving:
                self._answer(entry, outcome)
            elif entry.kind == log.NOOP and entry.term == self._led:
                self._effects.returning |= self._serve()

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
        elif entry.kind == log.CONFIG:
            self.reply(*self._changers.pop(entry.index, ((), 0)), Acked())
        elif entry.kind == log.TRIM:
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
            row = request_id, outcome.offset, self.replica.copies(index), outcome.duplicate
            self._effects.confirms.setdefault(origin, []).append(row)

    def _installed(self, payload: payloads.Topic) -> None:
        info: TopicInfo = payload.info
        if payload.deleted:
            for partition in [p for group in self.dispatch.groups.values() for p in group.views if topic_id_of(p) == info.id]:
                self.dispatch.drop_partition(partition)
        self.tell(META_SHARD, TopicInstalled(info.id, -info.id if payload.deleted else info.version, self.id))

    def take(self) -> Effects:
        """Applies what is committed, hands out records, and gives everything that may be sent now. Raises UnknownKind."""
        if not self.replica.sole:
            self._apply(0 if self.replica.hollow else self.replica.commit)
            self._answer_all()
        effects, self._effects = self._effects, Effects()
        if self.serving and self.replica.holds_lease:
            effects.deliveries = self.dispatch.run(self._boot_ms)
            effects.notices, self.dispatch.notices = self.dispatch.notices, []
        effects.answers = self.peers.mail()
        return effects
