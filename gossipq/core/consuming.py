"""The requests of consumers: checked here, served by dispatch, logged through the shard."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from gossipq.core import log, payloads
from gossipq.core.dispatch import Dispatch
from gossipq.core.groups import Subscription
from gossipq.core.ledger import Ledger
from gossipq.errors import BadName, BadRequest, GossipqError, OffsetOutOfRange
from gossipq.limits import (
    CREDIT_BYTES_MAX,
    CREDIT_MAX,
    DELAY_MS_MAX,
    IN_FLIGHT_HARD_MAX,
    LEASE_TOTAL_MS_MAX,
    NAME_BYTES_MAX,
)
from gossipq.messages import (
    Ack,
    Acked,
    Credit,
    Extend,
    GroupConfig,
    GroupStats,
    Message,
    Nack,
    PartitionStats,
    Recall,
    Recalled,
    Start,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from gossipq.types import Index, Offset, Origin, PartitionKey, SessionId, partition_of

STARTS = ("first", "new", "offset", "time")


class Client(msgspec.Struct, frozen=True):
    """Who sent a message: session, and the name that `why` shows."""

    session: SessionId
    consumer: str


class Waiting(msgspec.Struct, frozen=True):
    """A SUBSCRIBE whose group is being logged."""

    origin: Origin
    request_id: int
    client: Client
    message: Subscribe


class Host(Protocol):
    """What this room asks of its shard."""

    def propose(self, kind: int, payload: bytes) -> Index: ...
    def reply(self, origin: Origin, request_id: int, message: Message) -> None: ...
    def unknown(self, partition: PartitionKey) -> GossipqError: ...


class Consuming:
    def __init__(self, host: Host, ledger: Ledger, dispatch: Dispatch, defaults: GroupConfig) -> None:
        self._host, self._ledger, self._dispatch, self._defaults = host, ledger, dispatch, defaults
        self._waiting: dict[Index, Waiting] = {}
        self._serve: dict[type[Message], Callable[[Origin, int, Client, Any, int], None]] = {
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            Credit: self._credit,
            Recall: self._recall,
            Ack: self._ack,
            Nack: self._nack,
            Extend: self._extend,
        }

    def serves(self, message: Message) -> bool:
        return type(message) in self._serve

    def step(self, origin: Origin, request_id: int, client: Client, message: Message, boot_ms: int) -> None:
        """Raises what must be refused."""
        self._serve[type(message)](origin, request_id, client, message, boot_ms)

    def _subscribe(self, origin: Origin, request_id: int, client: Client, message: Subscribe, boot_ms: int) -> None:
        group = self._ledger.group(message.group) if message.group else None
        config = message.config.over(group.config if group else self._defaults)
        self._check(message, config)
        partitions = [start.partition for start in message.starts]
        known = group is not None and all(group.id in self._ledger.cursors.get(p, ()) for p in partitions)
        if not message.group or (group is not None and known and group.config == config):
            self._attach(Waiting(origin, request_id, client, message), boot_ms)
            return
        starts = [
            Start(start.partition, "offset", self._position(start)) if start.kind == "time" else start
            for start in message.starts
        ]
        payload = payloads.encode(payloads.Group(message.group, config, starts))
        self._waiting[self._host.propose(log.GROUP, payload)] = Waiting(origin, request_id, client, message)

    @staticmethod
    def _within(what: str, number: int, low: int, high: int) -> None:
        if not low <= number <= high:
            raise BadRequest(f"{what} = {number}", hint=f"{low} to {high} are allowed")

    def _check(self, message: Subscribe, config: GroupConfig) -> None:
        self._within("credit_records", message.credit_records, 0, CREDIT_MAX)
        self._within("credit_bytes", message.credit_bytes, 0, CREDIT_BYTES_MAX)
        self._within("lease_ms", config.lease_ms, 1, LEASE_TOTAL_MS_MAX)
        self._within("in_flight_max", config.in_flight_max, 1, IN_FLIGHT_HARD_MAX)
        if len(message.group.encode("utf-8", "replace")) > NAME_BYTES_MAX:
            raise BadName(f"group name of more than {NAME_BYTES_MAX} bytes")
        if message.group and config.mode != "shared":
            raise BadRequest(f"mode {config.mode!r}", hint="this version knows shared")
        if len({start.partition for start in message.starts}) < len(message.starts):
            raise BadRequest("a partition is named twice")
        group = self._ledger.group(message.group) if message.group else None
        for start in message.starts:
            state = self._ledger.partitions.get(start.partition)
            if state is None:
                raise self._host.unknown(start.partition)
            if start.kind not in STARTS:
                raise BadRequest(f"start {start.kind!r}", hint=f"one of {', '.join(STARTS)}")
            known = group is not None and group.id in self._ledger.cursors.get(start.partition, ())
            if not known and start.kind == "offset" and not state.first <= start.value <= state.next:
                text = f"offset {start.value} of partition {partition_of(start.partition)} cannot be read"
                raise OffsetOutOfRange(text, hint=f"{state.first} to {state.next} can", detail=state.first)

    def applied(self, index: Index, boot_ms: int) -> None:
        """A GROUP is committed: who waited for it joins."""
        waiting = self._waiting.pop(index, None)
        if waiting is not None:
            self._attach(waiting, boot_ms)

    def _attach(self, waiting: Waiting, boot_ms: int) -> None:
        message, client = waiting.message, waiting.client
        group = self._ledger.group(message.group) if message.group else None
        lease_ms = group.config.lease_ms if group else 0
        subscription = Subscription(client.session, client.consumer, waiting.origin, message, lease_ms)
        starts = [start for start in message.starts if start.partition in self._ledger.partitions]
        positions = [(start.partition, 0 if group else self._position(start)) for start in starts]
        self._dispatch.subscribe(subscription, group.id if group else None, positions)
        if message.holding is not None:
            self._dispatch.keep(subscription, message.holding, boot_ms)
        answer = Subscribed(message.subscription, lease_ms, subscription.ends(self._ledger))
        self._host.reply(waiting.origin, waiting.request_id, answer)

    def _position(self, start: Start) -> Offset:
        state = self._ledger.partitions[start.partition]
        if start.kind == "time":
            return self._ledger.offset_at(start.partition, start.value)
        return {"first": state.first, "new": state.next}.get(start.kind, start.value)

    def _subscription(self, client: Client, number: int, grouped: bool = True) -> Subscription:
        found = self._dispatch.subscriptions.get((client.session, number))
        if found is None:
            raise BadRequest(f"no subscription {number} in this session", hint="subscribe again")
        if grouped and found.group is None:
            raise BadRequest("a reader holds nothing that could be acked", hint="subscribe with a group")
        return found

    def _unsubscribe(self, origin: Origin, request_id: int, client: Client, message: Unsubscribe, boot_ms: int) -> None:
        self._dispatch.unsubscribe((client.session, message.subscription))
        self._host.reply(origin, request_id, Acked())

    def _credit(self, origin: Origin, request_id: int, client: Client, message: Credit, boot_ms: int) -> None:
        self._within("records", message.records, 0, CREDIT_MAX)
        self._within("bytes", message.bytes, 0, CREDIT_BYTES_MAX)
        subscription = self._subscription(client, message.subscription, grouped=False)
        self._dispatch.lend(subscription, message.records, message.bytes)

    def _recall(self, origin: Origin, request_id: int, client: Client, message: Recall, boot_ms: int) -> None:
        subscription = self._subscription(client, message.subscription, grouped=False)
        records_left, bytes_left = max(0, subscription.credit_records), max(0, subscription.credit_bytes)
        subscription.credit_records -= records_left
        subscription.credit_bytes -= bytes_left
        self._host.reply(origin, request_id, Recalled(message.subscription, records_left, bytes_left))

    def _ack(self, origin: Origin, request_id: int, client: Client, message: Ack, boot_ms: int) -> None:
        self._dispatch.ack(self._subscription(client, message.subscription), message.ranges, origin, request_id)

    def _nack(self, origin: Origin, request_id: int, client: Client, message: Nack, boot_ms: int) -> None:
        self._within("delay_ms", message.delay_ms, 0, DELAY_MS_MAX)
        subscription = self._subscription(client, message.subscription)
        lost = self._dispatch.nack(subscription, message.ranges, message.delay_ms, boot_ms)
        self._host.reply(origin, request_id, Acked(lost))

    def _extend(self, origin: Origin, request_id: int, client: Client, message: Extend, boot_ms: int) -> None:
        self._within("lease_ms", message.lease_ms, 1, LEASE_TOTAL_MS_MAX)
        subscription = self._subscription(client, message.subscription)
        lost = self._dispatch.extend(subscription, message.ranges, message.lease_ms, boot_ms)
        self._host.reply(origin, request_id, Acked(lost))


def stats(ledger: Ledger, dispatch: Dispatch, worker: int, topics: list[str]) -> tuple[list[PartitionStats], list[GroupStats]]:
    """Stored counters of a shard; the work goes with partitions and groups, never with records."""
    partitions, groups = [], []
    for partition, state in ledger.partitions.items():
        topic = ledger.topics[state.topic_id].name
        if topics and topic not in topics:
            continue
        row = PartitionStats(
            partition, topic, ledger.shard, worker, state.first, state.next, state.published, state.removed, state.bytes
        )
        partitions.append(row)
        for group_id, cursor in ledger.cursors.get(partition, {}).items():
            group = dispatch.groups.get(group_id)
            view = group.views.get(partition) if group else None
            in_flight = view.in_flight() if view else 0
            done = cursor.state
            groups.append(
                GroupStats(
                    partition=partition,
                    topic=topic,
                    group=ledger.groups[group_id].name,
                    cursor=done.cursor,
                    ready=state.next - done.cursor - cursor.acked.total() - in_flight,
                    in_flight=in_flight,
                    acked=done.acked_count,
                    removed=done.removed_count,
                    consumers=sum(view in member.views for member in group.members) if group else 0,
                    redelivered=done.redelivered,
                )
            )
    return partitions, groups
