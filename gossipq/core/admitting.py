"""Publishes at the door: refused before they are logged, or confirmed when they are on a majority of disks."""

from typing import NamedTuple, Protocol

from gossipq import limits
from gossipq.core import log, payloads
from gossipq.core.columns import Columns
from gossipq.core.consuming import Client, Consuming
from gossipq.core.dispatch import Dispatch
from gossipq.core.groups import Lease, View
from gossipq.core.ledger import Ledger
from gossipq.core.log import Due
from gossipq.core.policy import within
from gossipq.core.storing import Published
from gossipq.errors import (
    BadBatch,
    BadRequest,
    Busy,
    GossipqError,
    LeaseLost,
    NotLeader,
    StoreFull,
    TopicFull,
    UnknownTopic,
    from_code,
)
from gossipq.messages import Publish
from gossipq.peer_messages import AskTopic, TopicInstalled
from gossipq.types import DELAY, META_SHARD, BatchInfo, Index, Offset, Origin, PartitionKey, partition_of, topic_id_of
from gossipq.values import Message, TopicConfig, TopicInfo

TOPIC_ASK_MS = 200
GONE = -1  #: in place of a time: there is no such topic


class Host(Protocol):
    """What this room asks of its shard."""

    id: int
    full: str

    @property
    def leading(self) -> bool: ...
    @property
    def boot_ms(self) -> int: ...
    @property
    def leader_ms(self) -> int: ...
    def propose(self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"") -> Index: ...
    def refuse(self, origin: Origin, request_id: int, error: GossipqError) -> None: ...
    def confirm(self, origin: Origin, request_id: int, index: Index, outcome: Published) -> None: ...
    def tell(self, shard: int, message: Message) -> None: ...
    def retain_soon(self) -> None:
        """A partition is full: what may leave should."""


class Stepping(NamedTuple):
    """A STEP that is not stored yet: which batch it is, and what it takes from its consumer."""

    partition: PartitionKey
    producer: bytes
    sequence: int
    taken: list[tuple[View, Offset, Offset, Lease]]


class Admitting:
    def __init__(self, host: Host, ledger: Ledger, dispatch: Dispatch, consuming: Consuming, columns: Columns) -> None:
        self._host, self._ledger, self._dispatch, self._consuming = host, ledger, dispatch, consuming
        self._columns = columns
        self._publishers: dict[Index, tuple[Origin, int]] = {}
        self._steps: dict[Index, Stepping] = {}
        self._asked: dict[int, int] = {}  # topic id -> boot time of the last AskTopic, or GONE

    def publish(
        self, origin: Origin, request_id: int, client: Client | None, message: Publish, info: BatchInfo, batch: bytes
    ) -> None:
        """A verified batch. Raises what forbids it."""
        config = self._may_publish(message.partition, info)
        payload = log.publish_payload(message.partition, info, self.due_of(info, batch, message.age_ms))
        if message.acks:
            self._step(origin, request_id, client, message, info, payload, batch)
            return
        confirmed = (message.level or config.level) != "none"
        index = self._host.propose(log.PUBLISH, payload, confirmed, batch)
        if confirmed:
            self._publishers[index] = origin, request_id

    def _may_publish(self, partition: PartitionKey, info: BatchInfo) -> TopicConfig:
        """Raises what forbids it. A repeat is let through: it is answered, and adds nothing."""
        state = self._ledger.partitions.get(partition)
        if state is None:
            raise self.unknown(partition)
        topic = self._ledger.topics[state.topic_id]
        config = topic.config
        if not self._ledger.knows(partition, info):
            if self._host.full:
                hint = "free space or remove a topic; acks and reads go on"
                raise StoreFull(self._host.full, hint=hint, retry_after_ms=1_000)
            if config.bytes_max and state.bytes + info.size > config.bytes_max:
                self._host.retain_soon()
                if config.overflow == "refuse":
                    name = f"{topic.name}/{partition_of(partition)}"
                    raise TopicFull(
                        f"{name} holds its bound of {config.bytes_max} bytes", hint="wait for acks, or raise bytes_max"
                    )
        if not self._host.leading:
            raise NotLeader(f"shard {self._host.id} is led elsewhere")
        return config

    def due_of(self, info: BatchInfo, batch: bytes, age_ms: int) -> Due | None:
        """When a batch with a DELAY column was sealed and is first due; None without one. Raises BadRequest."""
        if not info.columns & DELAY:
            return None
        delays = self._columns.fixed(batch, DELAY)
        if not delays:
            raise BadBatch("batch says it has delays, and has none")
        within("age_ms", age_ms, 0, limits.DELAY_MS_MAX)
        within("delay of a record in ms", delays[0], 0, limits.DELAY_MS_MAX)
        within("delay of a record in ms", delays[-1], 0, limits.DELAY_MS_MAX)
        base_ms = self._host.leader_ms - age_ms
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
        """Ack and publish in one entry. Raises LeaseLost, unless it is a repeat, which is answered as such."""
        if client is None:
            raise BadRequest("no session", hint="say HELLO first")
        subscription = self._consuming.subscription(client, message.subscription)
        assert subscription.group is not None
        held = self._dispatch.holding.holds_all(subscription, message.acks)
        name = message.partition, info.producer, info.sequence
        repeat = self._ledger.knows(message.partition, info) or any(step[:3] == name for step in self._steps.values())
        if not held and not repeat:
            raise LeaseLost("the record is in other hands or done", hint="it will be, or was, handled there")
        ack = payloads.Ack(subscription.group.id, subscription.consumer, message.acks)
        index = self._host.propose(log.STEP, payloads.encode(payloads.Step(ack, payload)), True, batch)
        self._publishers[index] = origin, request_id
        taken = self._dispatch.holding.stepping(subscription, message.acks) if held else []
        self._steps[index] = Stepping(*name, taken)

    def applied(self, index: Index, outcome: Published) -> None:
        """A PUBLISH or STEP is stored: who sent it is answered."""
        if outcome.added:
            self._dispatch.wake(outcome.partition)
        if index in self._steps:
            self._dispatch.holding.stepped(self._steps.pop(index).taken, not outcome.error)
        asker = self._publishers.pop(index, None)
        if asker is None:
            return
        if outcome.error:
            text = f"batch refused: {outcome.error}" + (f", {outcome.detail} is expected" if outcome.detail else "")
            self._host.refuse(*asker, from_code(outcome.error, text, detail=outcome.detail))
        else:
            self._host.confirm(*asker, index, outcome)

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests that were not answered yet."""
        return list(self._publishers.values())

    # --- topics that are not known here ------------------------------------------------------------------------------

    def unknown(self, partition: PartitionKey) -> GossipqError:
        """A topic this shard has not logged: the register is asked, the client comes again."""
        topic_id = topic_id_of(partition)
        asked_ms = self._asked.get(topic_id, 0)
        if asked_ms == GONE or topic_id in self._ledger.topics:
            text = f"no topic with id {topic_id} has partition {partition_of(partition)} in shard {self._host.id}"
            return UnknownTopic(text, hint="resolve its name again")
        if self._host.boot_ms - asked_ms >= TOPIC_ASK_MS:
            if len(self._asked) > limits.TOPICS_MAX:
                self._asked.clear()
            self._asked[topic_id] = self._host.boot_ms
            self._host.tell(META_SHARD, AskTopic(topic_id, self._host.id))
        return Busy(f"the topic with id {topic_id} is not known here yet", retry_after_ms=20)

    def install(self, info: TopicInfo, deleted: bool) -> None:
        """The register names a topic of this shard, or says that there is none: it is logged, and the register hears of it."""
        version = -info.id if deleted else info.version
        known = self._ledger.topics.get(info.id)
        if deleted and known is None:
            self._asked[info.id] = GONE
            self._host.tell(META_SHARD, TopicInstalled(info.id, version, self._host.id))
        elif not deleted and known is not None and known.version >= info.version:
            self._host.tell(META_SHARD, TopicInstalled(info.id, version, self._host.id))
        else:
            self._host.propose(log.TOPIC, payloads.encode(payloads.Topic(info, deleted)))
