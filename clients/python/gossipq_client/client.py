"""The sync client: its I/O happens inline in the calling thread, under one lock; a keeper thread fills the pauses."""

import os
from collections.abc import Iterable, Iterator, Sequence

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.messages import CreateTopic, DropTopic, GroupStats, Resolve, StatsReply, Status, StatusReply, TopicInfo, Topics
from gossipq.messages import Message as Request
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq_client import inputs
from gossipq_client.consumer import Fetcher, Message, messages
from gossipq_client.credit import Subscription
from gossipq_client.driver import Driver
from gossipq_client.engine import REQUEST_SECONDS, topic_options
from gossipq_client.held import Held
from gossipq_client.packer import Flight, Topic
from gossipq_client.receipts import PendingReceipt, PendingReceipts
from gossipq_client.views import FetchedBatch

ERROR_CLOSE_SECONDS = 5.0  #: how long a `with` that ends in an exception waits for confirms


class Client(Driver):
    """A connection to a cluster. Safe to share between threads; not across fork. Use `connect` to make one."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        """Raises Unreachable when no node answers within `timeout` seconds."""
        super().__init__(addresses, name, timeout)
        self._plain = self.engine.session.publishing.plain
        self._fetchers: dict[tuple[tuple[str, ...], str | None], Fetcher] = {}

    # --- publish

    def publish(
        self,
        topic: str,
        value: inputs.Value,
        *,
        key: inputs.Value | None = None,
        headers: inputs.Headers | None = None,
        route: str = "",
        level: str | None = None,
        partition: int | None = None,
        block: bool = True,
    ) -> PendingReceipt:
        """Sends one record; batches form by themselves while earlier ones wait for their confirm.

        Waits while the window is full, or raises Backpressure with block=False. Raises TooLarge, BadRequest, UnknownTopic.
        """
        if type(value) is bytes and key is None and not headers and not route and level is None and partition is None and block:
            with self.lock:
                flight = self._plain.get(topic)
                if flight is not None:
                    values = flight.values
                    size = flight.size + len(value)
                    if size < limits.BATCH_BYTES_MAX and len(values) < limits.BATCH_RECORDS_MAX - 1:  # type: ignore[arg-type]
                        flight.size = size
                        values.append(value)  # type: ignore[union-attr]
                        return PendingReceipt(self, flight, len(values) - 1)  # type: ignore[arg-type]
        raw = inputs.value_bytes(value)
        options = self.engine.encoded(key, headers, route, level)
        known, engine = self._topic(topic), self.engine
        writer = known.writer(options[0], partition)
        while True:
            with self.lock:
                engine.check()
                if not engine.full(writer):
                    engine.session.advance(engine.clock.now())
                    flight, index = engine.session.publishing.append(writer, raw, *options)
                    self._turn()
                    return PendingReceipt(self, flight, index)
                if not block:
                    raise engine.backpressure(writer)
            self._until(lambda: not engine.full(writer), None)

    def publish_many(
        self,
        topic: str,
        values: Iterable[inputs.Value],
        *,
        key: inputs.Value | None = None,
        keys: Sequence[inputs.Value | None] | None = None,
        headers: inputs.Headers | None = None,
        route: str = "",
        level: str | None = None,
        partition: int | None = None,
        block: bool = True,
    ) -> PendingReceipts:
        """Sends a list in order, packed, under one receipt. `keys` has one key (or None) for each value."""
        raws = inputs.values_of(values)
        one_key, raw_headers, raw_route, checked_level = self.engine.encoded(key, headers, route, level)
        of_each = inputs.keys_of(one_key, keys, len(raws))
        known, engine = self._topic(topic), self.engine
        with self.lock:
            engine.check()
            flights = engine.plan(known, raws, of_each, raw_headers, raw_route, checked_level, partition)
            if not block:
                engine.require_room(flights)
        for flight in flights:
            self._send(flight, block)
        return PendingReceipts(self, flights)

    def _send(self, flight: Flight, block: bool) -> None:
        engine, writer = self.engine, flight.writer
        while True:
            with self.lock:
                engine.check()
                if not block or not engine.full(writer):
                    engine.session.advance(engine.clock.now())
                    engine.session.publishing.take(flight)
                    self._turn()
                    return
            self._until(lambda: not engine.full(writer), None)

    def _topic(self, name: str) -> Topic:
        with self.lock:
            self.engine.check()
            found = self.engine.find_topic(name)
        if isinstance(found, Topic):
            return found
        self._answered(found, self.timeout)
        with self.lock:
            return self.engine.learn_topic(name, found)

    # --- consume

    def consume(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        start: inputs.Start | None = None,
        credit: int | None = None,
        lease: inputs.Duration | None = None,
        stop_at_end: bool = False,
    ) -> Iterator[Message]:
        """Messages of topics ("orders", ["a", "b"], "orders.*") as they come; with a group they are shared among its consumers.

        `start` ("first", "new", an offset, an aware datetime, "-10m") counts for a new group and for readers; a group begins at
        "first", a reader (no group) at "new". `credit` records are under way at most. `lease` is how long the broker waits for
        a consumer that has gone silent. With stop_at_end the loop ends when everything there was has been handed out.
        """
        names = inputs.names_of(topics)
        if credit is not None and not 0 < credit <= limits.IN_FLIGHT_MAX:
            raise BadRequest(f"credit={credit}", hint=f"use 1 to {limits.IN_FLIGHT_MAX}")
        with self.lock:
            self.engine.check()
            loan = (credit or limits.CREDIT_RECORDS, limits.CREDIT_BYTES)
            subscription = self.engine.subscription(names, group, start, loan, lease, stop_at_end)
            self._turn()
        return messages(self, subscription)

    def fetch(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        n: int = limits.CREDIT_RECORDS,
        wait: float = 1.0,
        start: inputs.Start | None = None,
        lease: inputs.Duration | None = None,
    ) -> FetchedBatch[Message]:
        """At most `n` messages; returns as soon as there is one, and empty after `wait` seconds. Ack with `ack(batch)`.

        `start` and `lease` count for the first fetch of these topics and group.
        """
        if not 0 < n <= limits.IN_FLIGHT_MAX:
            raise BadRequest(f"n={n}", hint=f"use 1 to {limits.IN_FLIGHT_MAX}")
        name = (topics,) if isinstance(topics, str) else tuple(topics)
        fetcher = self._fetchers.get((name, group))
        if fetcher is None:
            with self.lock:
                self.engine.check()
                loan = (n, limits.CREDIT_BYTES)
                subscription = self.engine.subscription(inputs.names_of(name), group, start, loan, lease, False)
            fetcher = self._fetchers[name, group] = Fetcher(self, subscription)
        return fetcher.fetch(n, wait)

    def ack(self, batch: FetchedBatch[Message] | Message) -> None:
        """All messages of a fetched batch are done. Told within milliseconds; `flush` waits until it is stored."""
        if isinstance(batch, Message):
            batch.ack()
            return
        for piece in batch.pieces:
            self.ack_range(piece.held, piece.first, piece.end)

    def message(self, held: Held, offset: int) -> Message:
        return Message(self, held, offset)

    def await_records(self, subscription: Subscription, timeout: float | None) -> bool:
        """Waits for something to take; False at the end of the stream or of the time. Raises what was refused."""
        consuming = self.engine.session.consuming

        def ready() -> bool:
            consuming.resume(subscription)
            return bool(subscription.ready or subscription.error or subscription.closing) or subscription.finished

        self._until(ready, timeout)
        if subscription.error is not None:
            raise subscription.error
        return bool(subscription.ready)

    def ack_range(self, held: Held, first: int, end: int) -> None:
        with self.lock:
            self.engine.session.consuming.ack(held, first, end)
            if self._keeper.parked:
                self._keeper.wake()

    def nack_range(self, held: Held, first: int, end: int, delay_ms: int, failed: bool, reason: str) -> None:
        with self.lock:
            self.engine.check()
            self.engine.session.consuming.nack(held, first, end, delay_ms, failed, reason)
            self._turn()

    def extend_range(self, held: Held, first: int, end: int, lease_ms: int) -> None:
        with self.lock:
            self.engine.check()
            call = self.engine.session.consuming.extend(held, first, end, lease_ms)
        if call is not None:
            self._answered(call, self.timeout)
            self.engine.answer_of(call, Request)

    def end(self, subscription: Subscription) -> None:
        """The loop over a subscription is over."""
        with self.lock:
            if self.engine.usable:
                self.engine.session.consuming.close(subscription)
                self._turn()

    def _before_flush(self) -> None:
        for fetcher in self._fetchers.values():
            self.end(fetcher.subscription)

    # --- topics and status

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        retention: inputs.Duration | None = None,
        retain: str | None = None,
        bytes_max: int | None = None,
        overflow: str | None = None,
        level: str | None = None,
        beside: str | None = None,
        if_not_exists: bool = False,
    ) -> TopicInfo:
        """Raises TopicExists, BadName, BadRequest."""
        config = topic_options(partitions, retention, retain, bytes_max, overflow, level, beside)
        return self._ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics).topics[0]

    def delete_topic(self, name: str) -> None:
        """The topic, its records and its groups. Raises UnknownTopic."""
        self._ask(DropTopic(name), META_SHARD, Topics)
        with self.lock:
            self.engine.session.publishing.drop(name)

    def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Topics whose name fits, `*` standing for any text; never makes one."""
        return self._ask(Resolve([pattern]), META_SHARD, Topics).topics

    def groups(self, topic: str) -> list[GroupStats]:
        """Counters of each group of a topic, one row for each partition."""
        return self.stats([topic]).groups

    def stats(self, topics: Iterable[str] = ()) -> StatsReply:
        """Counters of partitions and groups, of all topics or the ones named."""
        with self.lock:
            self.engine.check()
            calls = self.engine.stats_calls(list(topics))
        for call in calls:
            self._answered(call, self.timeout)
        return self.engine.merged_stats(calls)

    def status(self) -> StatusReply:
        """How the node sees itself and its workers."""
        return self._ask(Status(), NODE_SHARD, StatusReply)


def connect(*addresses: str | Iterable[str], name: str = "", timeout: float = REQUEST_SECONDS) -> Client:
    """A client of the cluster behind these addresses; none: $GOSSIPQ_SERVER, else tcp://127.0.0.1:7700.

    `name` is shown by `gossipq status`. Raises Unreachable when no node answers within `timeout` seconds.
    """
    return Client(inputs.addresses_of(addresses), name or f"python-{os.getpid()}", timeout)
