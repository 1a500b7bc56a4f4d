"""The broker of dramatiq: a queue is a topic, consumed by the group `dramatiq`."""

import time
from collections import deque
from collections.abc import Iterable
from threading import Condition
from typing import Any

from dramatiq import Broker, Consumer, Message, MessageProxy
from dramatiq.common import dq_name
from dramatiq.errors import BrokerConnectionError as BrokerLost
from dramatiq.errors import QueueJoinTimeout, QueueNotFound

from gossipq.errors import GossipqError, LeaseLost, NotFound
from gossipq_client import Client, Fetcher, connect
from gossipq_client import Message as Record
from gossipq_client.values import outcomes

GROUP = "dramatiq"
ATTEMPTS_MAX = 20  #: workers that may die with a message before it is a dead letter
RETENTION = "1h"  #: of messages that are done


class GossipqBroker(Broker):
    """A broker for `dramatiq.set_broker`. It connects when it is used first.

    addresses and options: as for `gossipq.connect`
    policy: of the topics of new queues, as for `create_topic`
    """

    def __init__(
        self,
        *addresses: str,
        middleware: Any = None,
        group: str = GROUP,
        attempts_max: int = ATTEMPTS_MAX,
        policy: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self.client: Client = connect(*addresses, **options)
        self.group, self.attempts_max = group, attempts_max
        self._policy = {"retention": RETENTION, **(policy or {})}
        self.queues: dict[str, None] = {}
        self._created: set[str] = set()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Its topic is created when it is used first."""
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues[queue_name] = None
        self.emit_after("declare_queue", queue_name)
        delayed = dq_name(queue_name)  # the broker holds delayed messages: this queue stays empty
        self.delay_queues.add(delayed)
        self.emit_after("declare_delay_queue", delayed)

    def create(self, queue_name: str) -> None:
        """Create the topic of a queue with its group, so that it keeps messages before a worker starts."""
        if queue_name not in self._created:
            info = self.client.create_topic(queue_name, if_not_exists=True, **self._policy)
            group = self.client.group(queue_name, self.group)
            group.ack_below(dict.fromkeys(range(len(info.shards)), 0))
            self._created.add(queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Publish a message, due after `delay` ms, and wait until it is stored.

        Raises QueueNotFound, and BrokerConnectionError if no node answers.
        """
        queue_name = message.queue_name
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        self.emit_before("enqueue", message, delay)
        options: dict[str, Any] = {"delay": delay / 1000} if delay else {}
        if "broker_priority" in message.options:
            options["priority"] = message.options["broker_priority"]
        headers = {"actor": message.actor_name, "message_id": message.message_id}
        try:
            self.create(queue_name)
            self.client.publish(queue_name, message.encode(), headers=headers, **options)
        except OSError as error:
            raise BrokerLost(str(error)) from error
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return a consumer that holds at most `prefetch` messages, and waits `timeout` ms for each."""
        if queue_name in self.delay_queues:
            return IdleConsumer(timeout)
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        try:
            self.create(queue_name)
        except OSError as error:
            raise BrokerLost(str(error)) from error
        fetcher = self.client.fetcher(queue_name, self.group, ahead=False, attempts_max=self.attempts_max)
        return GossipqConsumer(fetcher, prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        """Delete all messages of a queue that are due and that no worker has."""
        try:
            self.client.topic(queue_name).purge()
        except NotFound:
            pass

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are done, delayed ones too. Raises QueueJoinTimeout."""
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while self._has_messages(queue_name):
            if end is not None and time.monotonic() >= end:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def _has_messages(self, queue_name: str) -> bool:
        try:
            stats = self.client.admin.stats([queue_name])
        except NotFound:
            return False
        groups = [each for each in stats.groups if each.group == self.group]
        left = sum(each.ready + each.in_flight + each.retrying + each.parked for each in groups)
        return bool(left or sum(each.scheduled for each in stats.partitions))

    def close(self) -> None:
        self.client.close()


class Delivery(MessageProxy):
    """A message, and the record that it came as."""

    def __init__(self, record: Record) -> None:
        super().__init__(Message.decode(record.value))
        self.record = record


class GossipqConsumer(Consumer):
    """Takes messages of one queue. Messages may be acked by any thread."""

    def __init__(self, fetcher: Fetcher, prefetch: int, timeout_ms: int) -> None:
        self._fetcher, self._prefetch, self._wait_s = fetcher, prefetch, timeout_ms / 1000
        self._held = 0  #: messages that a worker has
        self._changed = Condition()
        self._here: deque[Record] = deque()

    def __next__(self) -> MessageProxy | None:
        """Return the next message; None if there is none in time, or if `prefetch` of them are not done."""
        try:
            record = self._next_record()
        except OSError as error:
            raise BrokerLost(str(error)) from error
        if record is None:
            return None
        with self._changed:
            self._held += 1
        return Delivery(record)

    def _next_record(self) -> Record | None:
        if not self._here:
            with self._changed:
                self._changed.wait_for(lambda: self._held < self._prefetch, self._wait_s)
                room = self._prefetch - self._held
            if room > 0:
                self._here.extend(self._fetcher.fetch(n=min(room, 1000), wait=self._wait_s))
        return self._here.popleft() if self._here else None

    def ack(self, message: MessageProxy) -> None:
        self._release(1)
        try:
            _record(message).ack_soon()
        except LeaseLost:  # it is done, and another worker does it again
            pass

    def nack(self, message: MessageProxy) -> None:
        """Make a message a dead letter."""
        self._release(1)
        _record(message).reject("failed")

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back, as if they had not been delivered."""
        given = list(messages)
        self._release(len(given))
        for each in given:
            _record(each).settle(outcomes.GIVEN_BACK)

    def _release(self, count: int) -> None:
        with self._changed:
            self._held -= count
            self._changed.notify_all()

    def close(self) -> None:
        """Give back what no worker has seen."""
        try:
            while self._here:
                self._here.popleft().settle(outcomes.GIVEN_BACK)
            self._fetcher.close()
        except GossipqError as error:
            raise BrokerLost(str(error)) from error


class IdleConsumer(Consumer):
    """Of a queue of delayed messages, which is always empty."""

    def __init__(self, timeout_ms: int) -> None:
        self._wait_s = timeout_ms / 1000

    def __next__(self) -> None:
        time.sleep(self._wait_s)


def _record(message: MessageProxy) -> Record:
    assert isinstance(message, Delivery)
    return message.record
