"""Publishes at the door: refused before they are logged, or confirmed when they are on a majority of
disks."""

from functools import partial
from typing import Protocol

from gossipq import limits
from gossipq.core.copies import Reconfiguration
from gossipq.core.delivery import NUMBER_MAX, Dispatch, Lease, PartitionView, Subscription, apart, within
from gossipq.core.ledger import Ledger, Outcome, PartitionState
from gossipq.core.raft import Pending, Requester
from gossipq.core.requests.consume import Client, ConsumeRequests
from gossipq.core.storage import Columns, Due, log, payloads
from gossipq.errors import (
    BadBatch,
    BadRequest,
    Busy,
    GossipqError,
    LeaseLost,
    NoSession,
    NotLeader,
    StoreFull,
    TopicFull,
    UnknownTopic,
    WrongShard,
)
from gossipq.messages import Publish
from gossipq.peer_messages import AskTopic, TopicInstalled
from gossipq.permissions import SYSTEM, require_writer
from gossipq.types import (
    DELAY,
    ID_HASH,
    META_SHARD,
    PARTITION_BITS,
    BatchInfo,
    Index,
    Offset,
    Origin,
    PartitionKey,
    partition_of,
    topic_id_of,
)
from gossipq.values import Message, TopicConfig, TopicInfo

TOPIC_ASK_MS = 200
TOPIC_ID_MAX = NUMBER_MAX >> PARTITION_BITS
BRINGING_MIN = 4_096  #: batches of which it is remembered by which entry they come, applied or not
BatchName = tuple[PartitionKey, bytes, int]  #: a partition, a producer, and its sequence there
SCHEDULED_PART = 2  #: this part of bytes_max is for records that are not due where the oldest are dropped
GONE, ELSEWHERE = -1, -2  #: in place of a time: there is no such topic; it has nothing in this shard
#: what helps, in order of effect
FULL_HINT = (
    "gossipq topic ls shows what holds most; gossipq topic purge or rm frees it at once, a shorter retention "
    "soon, acks of slow groups as they come; or free the disk of something else. Acks and reads go on"
)


class PublishHost(Protocol):
    """What this room asks of its shard."""

    id: int
    full: str
    acked: int
    reconfiguration: Reconfiguration

    @property
    def leading(self) -> bool: ...
    @property
    def boot_ms(self) -> int: ...
    @property
    def leader_ms(self) -> int: ...
    def due_after(self, delay_ms: int) -> int: ...
    def propose(
        self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"", body_crc: int = 0
    ) -> Index: ...
    def answer_publish(self, origin: Origin, request_id: int, index: Index, outcome: Outcome) -> None: ...
    def tell(self, shard: int, message: Message) -> None: ...
    def make_room(self, partition: PartitionKey, size_bytes: int) -> bool:
        """A batch of that size finds its partition full: what may leave does soon. Whether something may."""


class PublishRequests:
    def __init__(
        self,
        host: PublishHost,
        ledger: Ledger,
        dispatch: Dispatch,
        consuming: ConsumeRequests,
        columns: Columns,
        pending: Pending[Outcome],
    ) -> None:
        self._host, self._ledger, self._dispatch, self._consuming = host, ledger, dispatch, consuming
        self._columns, self._pending = columns, pending
        self._bringing: dict[BatchName, Index] = {}  # by which entry a batch comes; some are applied by now
        self._bringing_max = BRINGING_MIN  # before it is looked which
        self._asked: dict[int, int] = {}  # topic id -> boot time of the last AskTopic, GONE or ELSEWHERE

    def publish(
        self,
        origin: Origin,
        request_id: int,
        client: Client | None,
        message: Publish,
        info: BatchInfo,
        batch: bytes,
    ) -> None:
        """A verified batch. Raises what forbids it."""
        partition, columns = message.partition, info.columns
        state = self._ledger.partitions.get(partition)
        if state is None:
            raise self.unknown(partition)
        topic = self._ledger.topics[state.topic_id]
        config = topic.config
        if topic.name.startswith(SYSTEM):
            require_writer(topic.name, client is None or client.node)
        if columns & ID_HASH and info.count > limits.ID_RECORDS_MAX:
            raise BadRequest(
                f"{info.count} records with ids in one batch; at most {limits.ID_RECORDS_MAX} are allowed",
                hint="send them in several batches",
            )
        if config.bytes_max or self._host.full:
            self.require_space(partition, info)  # a repeat passes: it is answered and adds nothing
            if not self._host.leading:
                raise NotLeader(f"this worker is not the leader of shard {self._host.id}")
        due = self.due_of(info, batch, message.age_ms) if columns & DELAY else None
        payload = log.publish_payload(partition, info, due)
        if message.acks:
            self._step(origin, request_id, client, message, info, payload, batch)
            return
        confirmed = (message.level or config.level) != "none"
        index = self._host.propose(log.PUBLISH, payload, confirmed, batch, info.crc)
        if info.sequence:
            self._bringing[partition, info.producer, info.sequence] = index
            if len(self._bringing) > self._bringing_max:
                self._forget_brought()
        if confirmed:
            self._pending.publishes[index] = origin, request_id

    def require_space(self, partition: PartitionKey, info: BatchInfo) -> None:
        """For a batch, unless it is a repeat. Raises Busy, StoreFull, TopicFull."""
        state, full = self._ledger.partitions[partition], self._host.full
        topic = self._ledger.topics[state.topic_id]
        config = topic.config
        if (not full and self._fits(partition, state, info, config)) or self._knows(partition, info):
            return
        if full:
            if self._host.reconfiguration.can_leave(soon=True):
                raise Busy(
                    f"{full}; shard {self._host.id} is changing its leader", retry_after_ms=limits.STEER_MS
                )
            raise StoreFull(full, hint=FULL_HINT, retry_after_ms=1_000)
        name = f"{topic.name}/{partition_of(partition)}"
        if config.overflow != "refuse":
            raise TopicFull(
                f"{name} is full of records that are not due: they may take half of bytes_max, which is "
                f"{config.bytes_max}",
                hint="wait until some are due, cancel some, or raise bytes_max",
            )
        if info.size <= config.bytes_max and self._host.make_room(partition, info.size):
            raise Busy(f"{name} is full, and what is done leaves it now", retry_after_ms=limits.LEASE_LOG_MS)
        raise TopicFull(
            f"{name} is full: bytes_max is {config.bytes_max}", hint="wait for acks, or raise bytes_max"
        )

    def _fits(
        self, partition: PartitionKey, state: PartitionState, info: BatchInfo, config: TopicConfig
    ) -> bool:
        """Whether a partition has room for a batch, or gets it: the oldest leave, but none that is not
        due."""
        if not config.bytes_max:
            return True
        crowded = state.bytes + info.size > config.bytes_max
        if config.overflow == "refuse":
            return not crowded
        if crowded:
            self._host.make_room(partition, 0)
        scheduled_max = config.bytes_max // SCHEDULED_PART
        return not info.columns & DELAY or state.scheduled_bytes + info.size <= scheduled_max

    def _knows(self, partition: PartitionKey, info: BatchInfo) -> bool:
        """Whether a batch is stored, or logged and about to be: a refusal would say that it certainly is
        not."""
        if self._ledger.knows(partition, info):
            return True
        brings = self._bringing.get((partition, info.producer, info.sequence), 0)
        return bool(info.sequence) and brings > self._ledger.applied

    def _forget_brought(self) -> None:
        """Forget batches that are applied. They are many by now: a look at each turn would cost as much."""
        applied = self._ledger.applied
        self._bringing = {name: at for name, at in self._bringing.items() if at > applied}
        self._bringing_max = max(BRINGING_MIN, 2 * len(self._bringing))

    def due_of(self, info: BatchInfo, batch: bytes, age_ms: int) -> Due | None:
        """When a batch with a DELAY column was sealed and is first due; None without one. Raises
        BadRequest."""
        if not info.columns & DELAY:
            return None
        delays = self._columns.fixed(batch, DELAY)
        if not delays:
            raise BadBatch("batch says it has delays, and has none")
        within("age_ms", age_ms, 0, limits.DELAY_MS_MAX)
        within("delay of a record in ms", delays[0], 0, limits.DELAY_MS_MAX)
        within("delay of a record in ms", delays[-1], 0, limits.DELAY_MS_MAX)
        sealed_ms = self._host.due_after(delays[-1]) - delays[-1] - age_ms
        base_ms = max(0, sealed_ms)  # no row has a time before 1970
        return Due(base_ms, base_ms + delays[0])

    def _step(
        self,
        origin: Origin,
        request_id: int,
        client: Client | None,
        message: Publish,
        info: BatchInfo,
        payload: bytes,
        batch: bytes,
    ) -> None:
        """Ack and publish in one entry. Raises LeaseLost, unless it is a repeat, which is answered as
        such."""
        if client is None:
            raise NoSession("no session", hint="say HELLO first")
        subscription = self._consuming.subscription(client, message.subscription)
        assert subscription.group is not None
        if not all(0 <= first < end for _, first, end in message.acks):
            raise BadRequest(
                "a range is empty or begins below 0",
                hint="ranges are half-open: the first offset, and one past the last",
            )
        if len(message.acks) > limits.MOVED_RANGES_MAX:
            raise BadRequest(
                f"{len(message.acks)} ranges in one step; at most {limits.MOVED_RANGES_MAX} are allowed",
                hint="ack the others by themselves",
            )
        acks = apart(message.acks)
        if subscription.auto:
            self._dispatch.settle(subscription, acks)
        held = self._dispatch.settlement.holds_all(subscription, acks)
        if not held and not self._knows(message.partition, info):
            raise LeaseLost(
                "the lease of the record has ended: another consumer has it, or it is done",
                hint="drop this step",
            )
        ack = payloads.AckRanges(subscription.group.id, subscription.consumer, acks)
        index = self._host.propose(
            log.STEP, payloads.encode(payloads.AckAndPublish(ack, payload)), True, batch, info.crc
        )
        if info.sequence:
            self._bringing[message.partition, info.producer, info.sequence] = index
        taken = self._dispatch.settlement.take(subscription, acks) if held else []
        self._pending.add(index, partial(self._stepped, subscription, taken), origin, request_id)

    def _stepped(
        self,
        subscription: Subscription,
        taken: list[tuple[PartitionView, Offset, Offset, Lease]],
        asker: Requester,
        index: Index,
        outcome: Outcome,
    ) -> None:
        """A STEP is applied; `taken` is what it took from its consumer."""
        acked = self._dispatch.settlement.taken(taken, not outcome.error)
        subscription.acked += acked
        self._host.acked += acked
        self._host.answer_publish(*asker, index, outcome)

    # --- topics that are not known here ---------------------------------------------------------------------

    def unknown(self, partition: PartitionKey) -> GossipqError:
        """A topic this shard has not logged: the register is asked, the client comes again."""
        topic_id = topic_id_of(partition)
        asked_ms = self._asked.get(topic_id, 0)
        known = self._ledger.topics.get(topic_id)
        if asked_ms == ELSEWHERE or (known is not None and partition_of(partition) < len(known.shards)):
            text = (
                f"partition {partition_of(partition)} of the topic with id {topic_id} is not in shard "
                f"{self._host.id}"
            )
            return WrongShard(text, hint="resolve the topic's name: it tells the shard of each partition")
        if (
            not 0 < topic_id <= TOPIC_ID_MAX
            or asked_ms == GONE
            or known is not None
            or self._ledger.removed(topic_id)
        ):
            text = (
                f"no topic with id {topic_id} has partition {partition_of(partition)} in shard "
                f"{self._host.id}"
            )
            return UnknownTopic(text, hint="resolve its name again")
        if self._host.boot_ms - asked_ms >= TOPIC_ASK_MS:
            if len(self._asked) > limits.TOPICS_MAX:
                self._asked.clear()
            self._asked[topic_id] = self._host.boot_ms
            self._host.tell(META_SHARD, AskTopic(topic_id, self._host.id))
        return Busy(f"the topic with id {topic_id} is not known here yet", retry_after_ms=20)

    def install(self, info: TopicInfo, deleted: bool) -> None:
        """The register names a topic of this shard, or says that there is none: it is logged, and the
        register hears of it. Raises BadRequest."""
        within("topic id", info.id, 1, TOPIC_ID_MAX)
        known, removed = self._ledger.topics.get(info.id), self._ledger.removed(info.id)
        if known is not None and info.name not in ("", known.name):
            # of a register that has lost its newest entries, and gives their indexes away again
            if not deleted:
                raise BadRequest(
                    f"topic {info.name!r} has the id of {known.name!r}, which is here and in no register",
                    hint="give it another name: that gets another id",
                )
            self._host.tell(META_SHARD, TopicInstalled(info.id, -info.id, self._host.id))
        elif deleted and not removed and (known is not None or self._host.id in info.shards):
            self._host.propose(log.TOPIC, payloads.encode(payloads.TopicChange(known or info, deleted)))
        elif deleted:
            self._asked[info.id] = ELSEWHERE if info.shards and not removed else GONE
            self._host.tell(META_SHARD, TopicInstalled(info.id, -info.id, self._host.id))
        elif removed:
            pass  # said before the topic was removed, and late
        elif known is not None and known.version >= info.version:
            self._host.tell(META_SHARD, TopicInstalled(info.id, known.version, self._host.id))
        else:
            if len(info.shards) > limits.PARTITIONS_MAX or (
                known is not None and known.shards != info.shards
            ):
                raise BadRequest(
                    f"topic {info.name!r} with other partitions",
                    hint="partitions are chosen when a topic is made",
                )
            self._host.propose(log.TOPIC, payloads.encode(payloads.TopicChange(info)))
