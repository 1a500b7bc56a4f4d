"""Publishes at the door: refused before they are logged, or confirmed when they are on a majority of
disks.

`level = "none"` uses no sequence. Nothing is promised for such records, so no gap can be noticed.
"""

from collections import Counter
from functools import partial

from gossipq import limits
from gossipq.core.copies import Reconfiguration
from gossipq.core.delivery import Dispatch, Lease, PartitionView, Subscription, apart, within
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import Ledger, Outcome, PartitionState
from gossipq.core.requests.consume import ConsumeRequests
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.requests.upkeep import Upkeep
from gossipq.core.storage import Due, log, payloads
from gossipq.errors import (
    BadBatch,
    BadRequest,
    Busy,
    LeaseLost,
    NoSession,
    NotLeader,
    StoreFull,
    TopicFull,
)
from gossipq.messages import Publish
from gossipq.permissions import SYSTEM, require_writer
from gossipq.types import (
    DELAY,
    FLOW_HASH,
    FLOWS,
    ID_HASH,
    UNIQUE_HASH,
    BatchInfo,
    Index,
    Offset,
    PartitionKey,
    partition_of,
)
from gossipq.values import TopicConfig

BRINGING_MIN = 4_096  #: batches of which it is remembered by which entry they come, applied or not
BatchName = tuple[PartitionKey, bytes, int]  #: a partition, a producer, and its sequence there
SCHEDULED_PART = 2  #: this part of bytes_max is for records that are not due where the oldest are dropped
#: what helps, in order of effect
FULL_HINT = (
    "gossipq topic ls shows what holds most; gossipq topic purge or rm frees it at once, a shorter retention "
    "soon, acks of slow groups as they come; or free the disk of something else. Acks and reads go on"
)


class PublishRequests:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        dispatch: Dispatch,
        topics: TopicsHere,
        consuming: ConsumeRequests,
        upkeep: Upkeep,
        reconfiguration: Reconfiguration,
    ) -> None:
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._topics = topics
        self._consuming = consuming
        self._upkeep = upkeep
        self._reconfiguration = reconfiguration
        self._bringing: dict[BatchName, Index] = {}  # by which entry a batch comes; some are applied by now
        self._bringing_max = BRINGING_MIN  # before it is looked which

    def publish(self, request: Request) -> None:
        """A verified batch. Raises what forbids it."""
        message: Publish = request.message
        partition, client, info, batch = message.partition, request.client, request.info, request.batch
        assert info is not None, "a publish comes with its header"
        columns = info.columns
        state = self._ledger.partitions.get(partition)
        if state is None:
            raise self._topics.unknown(partition)
        topic = self._ledger.topics[state.topic_id]
        config = topic.config
        if topic.name.startswith(SYSTEM):
            require_writer(topic.name, client is None or client.node)
        if columns & (ID_HASH | UNIQUE_HASH):
            self._require_place(info)
        if config.bytes_max or self._desk.full:
            self.require_space(partition, info)  # a repeat passes: it is answered and adds nothing
            if not self._desk.leading:
                raise NotLeader(f"this worker is not the leader of shard {self._desk.shard}")
        flows = self._flows_of(partition, info, batch) if columns & FLOW_HASH else None
        due = self.due_of(info, batch, message.age_ms) if columns & DELAY else None
        payload = log.publish_payload(partition, info, due)
        if message.acks:
            self._step(request, info, payload)
            if flows:
                self._dispatch.backlogs.add(partition, self._desk.last, flows)
            return
        confirmed = (message.level or config.level) != "none"
        index = self._desk.propose(log.PUBLISH, payload, confirmed, batch, info.crc)
        if flows:
            self._dispatch.backlogs.add(partition, index, flows)
        if info.sequence:
            self._bringing[partition, info.producer, info.sequence] = index
            if len(self._bringing) > self._bringing_max:
                self._forget_brought()
        if confirmed:
            self._desk.pending.publishes[index] = request

    def _flows_of(self, partition: PartitionKey, info: BatchInfo, batch: bytes) -> Counter[int] | None:
        """Count the records of each flow of a batch, if a group bounds them. Records without a flow have no
        bound. Raises FlowFull, Busy, unless the batch is a repeat.
        """
        group_ids = self._dispatch.backlogs.bounded(partition)
        hashes = self._desk.columns.fixed(batch, FLOW_HASH) if group_ids else None
        if hashes is None or self._knows(partition, info):
            return None

        def name_of(flow: int) -> str:
            return self._desk.columns.text(batch, FLOWS, hashes.index(flow)).decode("utf-8", "replace")

        counts = Counter(hashes)
        counts.pop(0, None)
        self._dispatch.backlogs.require_room(partition, group_ids, counts, name_of)
        return counts

    def _require_place(self, info: BatchInfo) -> None:
        """For a batch with ids or unique names. Raises BadRequest, Busy."""
        if info.count > limits.ID_RECORDS_MAX:
            raise BadRequest(
                f"{info.count} records with ids or unique names in one batch; at most "
                f"{limits.ID_RECORDS_MAX} are allowed",
                hint="send them in several batches",
            )
        if info.columns & UNIQUE_HASH and not self._ledger.uniques.has_room(info.count):
            self._upkeep.sweep_names()
            raise Busy(
                f"shard {self._desk.shard} has {limits.UNIQUES_MAX:,} unique names",
                hint="wait until some of their records are done, or have more shards",
                retry_after_ms=limits.LEASE_LOG_MS,
            )

    def require_space(self, partition: PartitionKey, info: BatchInfo) -> None:
        """For a batch, unless it is a repeat. Raises Busy, StoreFull, TopicFull."""
        state, full = self._ledger.partitions[partition], self._desk.full
        topic = self._ledger.topics[state.topic_id]
        config = topic.config
        if (not full and self._fits(partition, state, info, config)) or self._knows(partition, info):
            return
        if full:
            if self._reconfiguration.can_leave(soon=True):
                raise Busy(
                    f"{full}; shard {self._desk.shard} is changing its leader", retry_after_ms=limits.STEER_MS
                )
            raise StoreFull(full, hint=FULL_HINT, retry_after_ms=1_000)
        name = f"{topic.name}/{partition_of(partition)}"
        if config.overflow != "refuse":
            raise TopicFull(
                f"{name} is full of records that are not due: they may take half of bytes_max, which is "
                f"{config.bytes_max}",
                hint="wait until some are due, cancel some, or raise bytes_max",
            )
        # acked records can leave at once: the client tries again instead of failing
        if info.size <= config.bytes_max and self._upkeep.make_room(partition, info.size):
            raise Busy(f"{name} is full, and what is done leaves it now", retry_after_ms=limits.LEASE_LOG_MS)
        raise TopicFull(
            f"{name} is full: bytes_max is {config.bytes_max}", hint="wait for acks, or raise bytes_max"
        )

    def _fits(
        self, partition: PartitionKey, state: PartitionState, info: BatchInfo, config: TopicConfig
    ) -> bool:
        """Return whether a partition has room for a batch. With overflow `drop_oldest` the oldest records are
        removed, but never records that are not due."""
        if not config.bytes_max:
            return True
        crowded = state.bytes + info.size > config.bytes_max
        if config.overflow == "refuse":
            return not crowded
        if crowded:
            self._upkeep.make_room(partition, 0)
        scheduled_max = config.bytes_max // SCHEDULED_PART
        return not info.columns & DELAY or state.scheduled_bytes + info.size <= scheduled_max

    def _knows(self, partition: PartitionKey, info: BatchInfo) -> bool:
        """Return whether a batch is stored or logged already. It must not be refused then, because a refusal
        means certainly not stored."""
        if self._ledger.knows(partition, info):
            return True
        brings = self._bringing.get((partition, info.producer, info.sequence), 0)
        return bool(info.sequence) and brings > self._ledger.applied

    def _forget_brought(self) -> None:
        """Forget batches that are applied. They are removed when they are many: doing it each turn would
        cost as much as storing them."""
        applied = self._ledger.applied
        self._bringing = {name: at for name, at in self._bringing.items() if at > applied}
        self._bringing_max = max(BRINGING_MIN, 2 * len(self._bringing))

    def due_of(self, info: BatchInfo, batch: bytes, age_ms: int) -> Due | None:
        """When a batch with a DELAY column was sealed and is first due; None without one. Raises
        BadRequest."""
        if not info.columns & DELAY:
            return None
        delays = self._desk.columns.fixed(batch, DELAY)
        if not delays:
            raise BadBatch("batch says it has delays, and has none")
        within("age_ms", age_ms, 0, limits.DELAY_MS_MAX)
        within("delay of a record in ms", delays[0], 0, limits.DELAY_MS_MAX)
        within("delay of a record in ms", delays[-1], 0, limits.DELAY_MS_MAX)
        # the client tells the age of the batch, not its clock, which may be wrong: due times are in leader
        # time
        sealed_ms = self._desk.due_after(delays[-1]) - delays[-1] - age_ms
        base_ms = max(0, sealed_ms)  # no row has a time before 1970
        return Due(base_ms, base_ms + delays[0])

    def _step(self, request: Request, info: BatchInfo, payload: bytes) -> None:
        """Ack and publish in one entry. Raises LeaseLost, unless it is a repeat, which is answered as
        such."""
        message: Publish = request.message
        client = request.client
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
        index = self._desk.propose(
            log.STEP, payloads.encode(payloads.AckAndPublish(ack, payload)), True, request.batch, info.crc
        )
        if info.sequence:
            self._bringing[message.partition, info.producer, info.sequence] = index
        # the records leave their consumer now, so that no other ack or step can take them before the entry
        taken = self._dispatch.settlement.take(subscription, acks) if held else []
        self._desk.pending.add(index, partial(self._stepped, subscription, taken), request)

    def _stepped(
        self,
        subscription: Subscription,
        taken: list[tuple[PartitionView, Offset, Offset, Lease]],
        asker: Asker,
        index: Index,
        outcome: Outcome,
    ) -> None:
        """A STEP is applied; `taken` is what it took from its consumer."""
        acked = self._dispatch.settlement.taken(taken, not outcome.error)
        subscription.acked += acked
        self._desk.counts.acked += acked
        self._desk.confirm(asker, index, outcome)
