"""The transport: kombu's connection and its channels, on topics of gossipq.

A queue is a topic, consumed by one group. Exchanges and bindings are kept in the broker (`exchanges`), and a
message is published to the topic of each queue that it is routed to. The broker leases unacked records to
this process as long as its connection lives, so a task may run for any time.
"""

import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from threading import Lock
from typing import Any, Protocol

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from gossipq import __version__
from gossipq.errors import ClientClosed, GossipqError, NotConfirmed, NotFound, Refused, Unreachable
from gossipq_celery import envelope, sessions
from gossipq_celery.deliveries import FETCH_MAX, Feed, Window, give_back
from gossipq_celery.exchanges import Exchanges
from gossipq_celery.names import topic_of
from gossipq_celery.routes import Binding, Exchange
from gossipq_client import Client, Fetcher
from gossipq_client import Message as Record
from gossipq_client.io import Bell

PORT = 7700
CONNECT_SECONDS = 5.0
GROUP = "celery"
ATTEMPTS_MAX = 20  #: as quorum queues of RabbitMQ have it
RETENTION = "1h"  #: of records that are done
TRANSIENT_MS = 300_000  #: a queue of a process is deleted this long after the process was last heard of
CONFIRM_SECONDS = 60.0  #: between two signs of life of such a queue
LISTED = ("celery.worker.consumer.mingle", "Mingle"), ("celery.worker.consumer.gossip", "Gossip")

log = logging.getLogger("gossipq_celery")


class Channel(virtual.Channel):
    """A channel of kombu. Its consumers share a thread, which fetches, and a window of unacked records."""

    QoS = Window
    supports_fanout = True
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "group",
        "attempts_max",
        "partitions",
        "queue",
    )
    group = GROUP
    attempts_max = ATTEMPTS_MAX
    partitions: int | None = None
    queue: Mapping[str, Any] = {}  #: the policy of the topics of durable queues
    do_restore = True

    def __init__(self, connection: "Transport", **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.closed: bool
        self._window = Window()
        self._feed: Feed | None = None
        self._fetchers: dict[str, Fetcher] = {}  #: of `basic_get`, by topic
        #: by topic: the queue of a consumer, and the function that takes its records
        self._callbacks: dict[str, tuple[str, Callable[[Record], Any]]] = {}
        self._is_fed = True  #: the feed serves the consumers that there are now

    # --- names

    @property
    def client(self) -> Client:
        return self.connection.client_of_broker

    @property
    def exchanges(self) -> Exchanges:
        return self.connection.exchanges

    @property
    def qos(self) -> Window:
        return self._window

    def topic(self, queue: str) -> str:
        return topic_of(self.connection.client.virtual_host or "", queue)

    # --- exchanges and queues

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange. Raises NotEquivalentError if it is declared otherwise."""
        type = type or "direct"
        name = exchange or f"amq.{type}"
        wanted = Exchange(type, bool(durable), bool(auto_delete), dict(arguments or {}))
        known = self.connection.declared.get(name)
        if known == wanted and not passive:
            return
        stored = self.exchanges.table().exchanges.get(name)
        if passive:
            if stored is None:
                raise self._not_found("exchange", name, "Channel.exchange_declare")
            return
        if stored is not None and stored != wanted:
            raise virtual.NotEquivalentError(
                virtual.base.NOT_EQUIVALENT_FMT.format(name, self.connection.client.virtual_host or "/")
            )
        self.exchanges.declare(name, wanted)
        self.connection.declared[name] = wanted

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self.exchanges.delete_exchange(exchange)
        self.connection.declared.pop(exchange, None)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Create the topic of a queue with its group, so that no record is removed before it was acked."""
        name = queue or f"amq.gen-{uuid()}"
        if passive and not self._has_queue(name):
            raise self._not_found("queue", name, "Channel.queue_declare")
        if not passive:
            self._new_queue(name, **kwargs)
        size, consumers = self._counts(name)
        return queue_declare_ok_t(name, size, consumers)

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a queue by the names that RabbitMQ gave them."""
        named: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return named

    def _not_found(self, what: str, name: str, method: str) -> ChannelError:
        host = self.connection.client.virtual_host or "/"
        return ChannelError(f"NOT_FOUND - no {what} {name!r} in vhost {host!r}", (50, 10), method, "404")

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        arguments = kwargs.get("arguments") or {}
        is_transient = bool(kwargs.get("auto_delete") or kwargs.get("exclusive") or "x-expires" in arguments)
        policy: dict[str, Any] = {"retention": RETENTION, "expire": "drop"}
        if is_transient:
            self.connection.transient[queue] = max(TRANSIENT_MS, int(arguments.get("x-expires") or 0))
            self.connection.deleted_with[queue] = bool(kwargs.get("auto_delete") or kwargs.get("exclusive"))
            policy["retention"] = 0
        else:
            policy.update(self.queue)
        if arguments.get("x-message-ttl"):
            policy["ttl"] = arguments["x-message-ttl"] / 1000
        topic = self.topic(queue)
        info = self.client.create_topic(
            topic, 1 if is_transient else self.partitions, if_not_exists=True, **policy
        )
        group = self.client.group(topic, self.group)
        # a topic without a group forgets records after their retention, acked or not
        group.ack_below(dict.fromkeys(range(len(info.shards)), 0))
        if arguments.get("x-max-priority"):
            group.configure(order="priority")

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return bool(self.client.topics(self.topic(queue)))

    def _counts(self, queue: str) -> tuple[int, int]:
        """Return how many records wait, and how many consumers there are."""
        try:
            groups = self.client.group(self.topic(queue), self.group).counters()
        except NotFound:
            return 0, 0
        return sum(each.ready for each in groups), max((each.consumers for each in groups), default=0)

    def _size(self, queue: str) -> int:
        return self._counts(queue)[0]

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        try:
            self.client.topic(self.topic(queue)).purge()
        except NotFound:
            return 0
        return size

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        size, consumers = self._counts(queue)
        if (if_empty and size) or (if_unused and consumers):
            return
        self.exchanges.delete_queue(queue)
        self.connection.forget(queue)
        try:
            self.client.topic(self.topic(queue)).delete()
        except NotFound:
            pass

    def after_reply_message_received(self, queue: str) -> None:
        """A queue for replies is deleted with its consumer."""

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        binding = Binding(queue, exchange or "amq.direct", routing_key or "")
        if not exchange and self.exchanges.table().exchanges.get(binding.exchange) is None:
            self.exchange_declare(binding.exchange)
        expires_ms = self.connection.transient.get(queue, 0)
        self.exchanges.bind(binding, expires_ms)
        if expires_ms:
            self.connection.confirms.setdefault(queue, {})[binding] = time.monotonic()

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        binding = Binding(queue, exchange or "amq.direct", routing_key or "")
        self.connection.confirms.get(queue, {}).pop(binding, None)
        self.exchanges.unbind(binding)

    def list_bindings(self) -> Any:
        return ((each.queue, each.exchange, each.key) for each in self.exchanges.table().bindings)

    def get_exchanges(self) -> list[str]:
        return list(self.exchanges.table().exchanges)

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        bindings = self.exchanges.table().bindings
        return [(each.key, None, each.queue) for each in bindings if each.exchange == exchange]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if not exchange:
            return [routing_key or default or self.deadletter_queue or ""]
        table = self.exchanges.table()
        if abandoned := table.stale(exchange, int(time.time() * 1000)):
            for queue in abandoned:
                self._delete_abandoned(queue)
            table = self.exchanges.table()
        found = table.queues(exchange, routing_key or "")
        fallback = default or self.deadletter_queue
        if not found and fallback:
            self._new_queue(fallback)
            return [fallback]
        return found

    def _delete_abandoned(self, queue: str) -> None:
        """Delete a queue that its process has not confirmed in time, unless it has consumers."""
        if not self._counts(queue)[1]:
            self.queue_delete(queue)

    # --- publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message, and wait until each of its copies is stored."""
        properties = message["properties"]
        properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        # kombu's retries pass the same properties, and the topic stores an id once
        record_id = properties["message_id"] = properties.get("message_id") or uuid()
        value, headers = envelope.value_of(message), envelope.headers_of(message)
        options = {"id": record_id, "headers": headers, "ttl": envelope.ttl_of(message)}
        options["priority"] = self._get_message_priority(message)
        delay = envelope.due_of(message, datetime.now(UTC))
        if delay is not None:
            options["delay"] = delay
        topics = [self.topic(queue) for queue in self._lookup(exchange, routing_key) if queue]
        for receipt in [self.client.post(topic, value, **options) for topic in topics]:
            receipt.result()

    def _inplace_augment_message(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        raise NotImplementedError("basic_publish does it")

    # --- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Call `callback` for the messages of a queue, from `drain_events` or the event loop."""

        def take(record: Record) -> Any:
            return callback(self._message(record, no_ack))

        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._callbacks[self.topic(queue)] = queue, take
        self._is_fed = False
        self.connection.bell.ring()

    def _message(self, record: Record, no_ack: bool) -> virtual.Message:
        tag = next(self.connection.tags)
        payload = envelope.payload_of(record.value, record.headers, tag, record.attempt > 1)
        if no_ack:
            record.ack_soon()
        else:
            self._window.append(record, tag)
        return self.Message(payload, channel=self)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Messages that its callback has can still be acked; others go back to the queue."""
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue in self._active_queues:
            return
        self._callbacks.pop(self.topic(queue), None)
        # counted before this one ends, which the broker hears only when all its acks are stored
        is_last = bool(self.connection.deleted_with.get(queue)) and self._counts(queue)[1] <= 1
        self._stop_feed()
        if is_last:
            self.queue_delete(queue)
        self.connection.bell.ring()

    def feed(self) -> None:
        """See to it that a thread fetches for the consumers that there are now."""
        if self._is_fed:
            return
        self._stop_feed()
        if self._callbacks:
            topics = list(self._callbacks)
            self._feed = Feed(
                self._window,
                lambda: self._fetcher(topics),
                self._on_records,
                self._declare_again,
            )
        self._is_fed = True

    def _fetcher(self, topics: list[str]) -> Fetcher:
        # ahead=False keeps records in the broker until the window has room for them
        return self.client.fetcher(topics, self.group, ahead=False, attempts_max=self.attempts_max)

    def _stop_feed(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            give_back(self.connection.take_back(self._feed, self._window))
            self._feed = None
        self._is_fed = False

    def _on_records(self, feed: Feed, records: list[Record]) -> None:
        self.connection.arrived([(self, feed, each) for each in records])

    def _declare_again(self) -> None:
        """Create the queues of the consumers that were deleted meanwhile, with their bindings."""
        for queue in dict.fromkeys(self._active_queues):
            if not self._has_queue(queue):
                self._new_queue(queue, auto_delete=self.connection.deleted_with.get(queue, False))
                for binding in self.connection.confirms.get(queue, {}):
                    self.exchanges.bind(binding, self.connection.transient[queue])

    def deliver(self, record: Record) -> None:
        """Hand a record to the callback of its queue."""
        self._window.note_waiting(-1)
        found = self._callbacks.get(record.topic)
        if found is None:
            give_back([record])
        else:
            found[1](record)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        """Return the next message of a queue, or None."""
        topic = self.topic(queue)
        fetcher = self._fetchers.get(topic)
        if fetcher is None:
            fetcher = self._fetchers[topic] = self._fetcher([topic])
        for record in fetcher.fetch(n=1, wait=0):
            return self._message(record, no_ack)
        return None

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        self.connection.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """End all consumers, and give back what is not acked."""
        if self.closed:
            return
        self.closed = True
        connection = self.connection
        try:
            if connection.is_usable:
                for tag in list(self._consumers):
                    self.basic_cancel(tag)
                self._stop_feed()
                self._window.restore_unacked()
                for fetcher in self._fetchers.values():
                    fetcher.close()
        finally:
            connection.close_channel(self)
            self.exchange_types = None


class Deliverer(Protocol):
    """A channel, as its connection sees it."""

    def deliver(self, record: Record) -> None: ...


class Transport(virtual.Transport):
    """A connection of kombu: `gossipq://[:TOKEN@]HOST[:PORT][/VIRTUAL_HOST]`."""

    Channel = Channel
    default_port = PORT
    driver_type = "gossipq"
    driver_name = "gossipq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        Unreachable,
        ClientClosed,
        NotConfirmed,
        OSError,
    )
    channel_errors = (*virtual.Transport.channel_errors, ChannelError, Refused)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.bell = Bell()
        self.tags = count(1)
        self.declared: dict[str, Exchange] = {}
        #: of queues that end with a process: how long after it was last heard of, in ms
        self.transient: dict[str, int] = {}
        self.deleted_with: dict[
            str, bool
        ] = {}  #: of these, whether a queue is deleted with its last consumer
        #: of these, when each binding was last confirmed
        self.confirms: dict[str, dict[Binding, float]] = {}
        self._arrived: deque[tuple[Deliverer, Feed, Record]] = deque()
        self._lock = Lock()
        self._place: sessions.Place | None = None
        self._client: Client | None = None
        self._exchanges: Exchanges | None = None
        self._loop: Any = None
        self._pid = os.getpid()
        _list_with_celery()

    def driver_version(self) -> str:
        return __version__

    # --- the connection

    @property
    def client_of_broker(self) -> Client:
        if self._client is None:
            raise ClientClosed("this connection is closed", hint="connect again")
        return self._client

    @property
    def exchanges(self) -> Exchanges:
        if self._exchanges is None:
            raise ClientClosed("this connection is closed", hint="connect again")
        return self._exchanges

    @property
    def is_usable(self) -> bool:
        """The connection is open, and belongs to this process."""
        return self._client is not None and self._pid == os.getpid()

    def establish_connection(self) -> "Transport":
        """Connect. Raises OSError, Unreachable among them."""
        asked = self.client
        place = sessions.place_of(
            asked.hostname or "localhost", asked.port or PORT, asked.password, asked.transport_options
        )
        self._pid = os.getpid()
        self._client = sessions.acquire(place, asked.connect_timeout or CONNECT_SECONDS)
        self._place = place
        self._exchanges = Exchanges(self._client, asked.virtual_host or "")
        self._avail_channels.append(self.create_channel(self))
        return self

    def close_connection(self, connection: "Transport") -> None:
        self._leave_loop()
        for channels in (self._avail_channels, self.channels):
            while channels:
                try:
                    channels.pop().close()
                except GossipqError as error:
                    log.warning("channel not closed in order error=%s", error)
        place, self._place, self._client, self._exchanges = self._place, None, None, None
        if place is not None and self._pid == os.getpid():
            sessions.release(place)

    def verify_connection(self, connection: "Transport") -> bool:
        return self.is_usable

    def forget(self, queue: str) -> None:
        """A queue was deleted."""
        self.transient.pop(queue, None)
        self.deleted_with.pop(queue, None)
        self.confirms.pop(queue, None)

    def _confirm_bindings(self) -> None:
        """Confirm the bindings of queues that end with this process, so that others do not delete them."""
        now = time.monotonic()
        for queue, bindings in list(self.confirms.items()):
            for binding, confirmed in list(bindings.items()):
                if now - confirmed > CONFIRM_SECONDS:
                    self.exchanges.bind(binding, self.transient.get(queue, TRANSIENT_MS))
                    bindings[binding] = now

    # --- events

    def arrived(self, records: list[tuple["Deliverer", Feed, Record]]) -> None:
        """Records are here; called by the thread of a feed."""
        with self._lock:
            self._arrived.extend(records)
        self.bell.ring()

    def take_back(self, feed: Feed, window: Window) -> list[Record]:
        """Remove and return the records of a feed that no callback has seen."""
        with self._lock:
            mine = [record for _, its, record in self._arrived if its is feed]
            self._arrived = deque(each for each in self._arrived if each[1] is not feed)
        window.note_waiting(-len(mine))
        return mine

    def _deliver_arrived(self) -> bool:
        """Hand records to callbacks, at most as many as one fetch brings; returns whether there were any."""
        self.bell.clear()
        for channel in list(self.channels):
            channel.feed()
        self._confirm_bindings()
        for number in range(FETCH_MAX):
            with self._lock:
                if not self._arrived:
                    return number > 0
                channel, _, record = self._arrived.popleft()
            channel.deliver(record)
        self.bell.ring()
        return True

    def drain_events(self, connection: "Transport", timeout: float | None = None) -> None:
        """Hand the records that are here to their callbacks; wait for the first. Raises socket.timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_arrived():
            left_s = CONFIRM_SECONDS if end is None else min(CONFIRM_SECONDS, end - time.monotonic())
            if left_s <= 0:
                raise socket.timeout("timed out")  # noqa: UP041 - the name that callers of kombu catch
            self.bell.wait([], left_s * 1000)

    def register_with_event_loop(self, connection: "Transport", loop: Any) -> None:
        """Let the loop deliver what arrives. It watches one descriptor."""
        self._loop = loop
        loop.add_reader(self.bell.fd, self._on_readable)
        loop.call_repeatedly(CONFIRM_SECONDS, self.bell.ring)
        self.bell.ring()

    def unregister_from_event_loop(self, connection: "Transport", loop: Any) -> None:
        self._leave_loop()

    def _on_readable(self) -> None:
        self._deliver_arrived()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self.bell.fd)


def _list_with_celery() -> None:
    """Tell a worker of Celery that fanout works here: without that it does not talk to its neighbours."""
    for module, name in LISTED:
        step = getattr(sys.modules.get(module), name, None)
        if step is not None:
            step.compatible_transports.add(Transport.driver_type)
