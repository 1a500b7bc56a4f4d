"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

import os
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError
from gossipq.messages import CreateTopic, DropTopic, GroupStats, Resolve, StatsReply, Status, StatusReply, TopicInfo, Topics
from gossipq.messages import Message as Request
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq_client import inputs
from gossipq_client.aio_consumer import Fetcher, Message, messages
from gossipq_client.aio_driver import Driver, PendingReceipt
from gossipq_client.credit import Subscription
from gossipq_client.engine import ERROR_CLOSE_SECONDS, REQUEST_SECONDS, log, topic_options
from gossipq_client.held import Held
from gossipq_client.packer import Topic, Writer
from gossipq_client.views import FetchedBatch


class Client(Driver):
    """A connection to a cluster, for one event loop. Use `connect` to make one."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        super().__init__(addresses, name, timeout)
        self._fetchers: dict[tuple[tuple[str, ...], str | None], Fetcher] = {}

    async def publish(
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
        """As the sync `publish`; awaiting it means that the record is on its way, awaiting the receipt that it is kept."""
        raw = inputs.value_bytes(value)
        options = self.engine.encoded(key, headers, route, level)
        writer = (await self._topic(topic)).writer(options[0], partition)
        if not block and self.engine.full(writer):
            raise self.engine.backpressure(writer)
        await self._room(writer)
        flight, index = self.engine.session.publishing.append(writer, raw, *options)
        if self.engine.session.links.out:
            self.turn()
        else:
            self.soon()
        return PendingReceipt(self, [flight], index)

    async def publish_many(
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
    ) -> PendingReceipt:
        """As the sync `publish_many`."""
        raws = inputs.values_of(values)
        one_key, raw_headers, raw_route, checked_level = self.engine.encoded(key, headers, route, level)
        of_each = inputs.keys_of(one_key, keys, len(raws))
        known = await self._topic(topic)
        flights = self.engine.plan(known, raws, of_each, raw_headers, raw_route, checked_level, partition)
        if not block:
            self.engine.require_room(flights)
        for flight in flights:
            if block:
                await self._room(flight.writer)
            self.engine.session.publishing.take(flight)
            self.turn()
        return PendingReceipt(self, flights, None)

    async def _room(self, writer: Writer) -> None:
        self.engine.check()
        if self.engine.full(writer):
            await self.until(lambda: not self.engine.full(writer), None)
        self.engine.session.advance(self.engine.clock.now())

    async def _topic(self, name: str) -> Topic:
        self.engine.check()
        found = self.engine.find_topic(name)
        if isinstance(found, Topic):
            return found
        await self.answered(found)
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
    ) -> AsyncIterator[Message]:
        """As the sync `consume`, for `async for`; leave each message by `async with`."""
        names = inputs.names_of(topics)
        if credit is not None and not 0 < credit <= limits.IN_FLIGHT_MAX:
            raise BadRequest(f"credit={credit}", hint=f"use 1 to {limits.IN_FLIGHT_MAX}")
        self.engine.check()
        loan = (credit or limits.CREDIT_RECORDS, limits.CREDIT_BYTES)
        subscription = self.engine.subscription(names, group, start, loan, lease, stop_at_end)
        self.turn()
        return messages(self, subscription)

    async def fetch(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        n: int = limits.CREDIT_RECORDS,
        wait: float = 1.0,
        start: inputs.Start | None = None,
        lease: inputs.Duration | None = None,
    ) -> FetchedBatch[Message]:
        """As the sync `fetch`."""
        if not 0 < n <= limits.IN_FLIGHT_MAX:
            raise BadRequest(f"n={n}", hint=f"use 1 to {limits.IN_FLIGHT_MAX}")
        name = (topics,) if isinstance(topics, str) else tuple(topics)
        fetcher = self._fetchers.get((name, group))
        if fetcher is None:
            self.engine.check()
            loan = (n, limits.CREDIT_BYTES)
            subscription = self.engine.subscription(inputs.names_of(name), group, start, loan, lease, False)
            fetcher = self._fetchers[name, group] = Fetcher(self, subscription)
        return await fetcher.fetch(n, wait)

    async def ack(self, batch: FetchedBatch[Message] | Message) -> None:
        """As the sync `ack`."""
        if isinstance(batch, Message):
            await batch.ack()
            return
        for piece in batch.pieces:
            self.ack_range(piece.held, piece.first, piece.end)

    async def await_records(self, subscription: Subscription, timeout: float | None) -> bool:
        """Waits for something to take; False at the end of the stream or of the time. Raises what was refused."""
        consuming = self.engine.session.consuming

        def ready() -> bool:
            consuming.resume(subscription)
            return bool(subscription.ready or subscription.error or subscription.closing) or subscription.finished

        await self.until(ready, timeout)
        if subscription.error is not None:
            raise subscription.error
        return bool(subscription.ready)

    def ack_range(self, held: Held, first: int, end: int) -> None:
        self.engine.session.consuming.ack(held, first, end)
        self.soon()

    def nack_range(self, held: Held, first: int, end: int, delay_ms: int, failed: bool, reason: str) -> None:
        self.engine.check()
        self.engine.session.consuming.nack(held, first, end, delay_ms, failed, reason)
        self.turn()

    async def extend_range(self, held: Held, first: int, end: int, lease_ms: int) -> None:
        self.engine.check()
        call = self.engine.session.consuming.extend(held, first, end, lease_ms)
        if call is not None:
            await self.answered(call)
            self.engine.answer_of(call, Request)

    def end(self, subscription: Subscription) -> None:
        """The loop over a subscription is over."""
        if self.engine.usable:
            self.engine.session.consuming.close(subscription)
            self.turn()

    def _before_flush(self) -> None:
        for fetcher in self._fetchers.values():
            self.end(fetcher.subscription)

    def message(self, held: Held, offset: int) -> Message:
        return Message(self, held, offset)

    # --- topics and status

    async def create_topic(
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
        """As the sync `create_topic`."""
        config = topic_options(partitions, retention, retain, bytes_max, overflow, level, beside)
        return (await self.ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)).topics[0]

    async def delete_topic(self, name: str) -> None:
        """As the sync `delete_topic`."""
        await self.ask(DropTopic(name), META_SHARD, Topics)
        self.engine.session.publishing.drop(name)

    async def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """As the sync `topics`."""
        return (await self.ask(Resolve([pattern]), META_SHARD, Topics)).topics

    async def groups(self, topic: str) -> list[GroupStats]:
        """As the sync `groups`."""
        return (await self.stats([topic])).groups

    async def stats(self, topics: Iterable[str] = ()) -> StatsReply:
        """As the sync `stats`."""
        self.engine.check()
        calls = self.engine.stats_calls(list(topics))
        for call in calls:
            await self.answered(call)
        return self.engine.merged_stats(calls)

    async def status(self) -> StatusReply:
        """As the sync `status`."""
        return await self.ask(Status(), NODE_SHARD, StatusReply)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
            return
        try:
            await self._close(ERROR_CLOSE_SECONDS)
        except GossipqError as lost:
            log.error("while closing: %s", lost)


class Connecting:
    """What `connect` returns: `await` it for a client, or use it in `async with`."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        self._options = addresses, name, timeout
        self._client: Client | None = None

    async def _connect(self) -> Client:
        client = Client(*self._options)
        await client.start()
        return client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None, "entered before"
        await self._client.__aexit__(kind, error, trace)


def connect(*addresses: str | Iterable[str], name: str = "", timeout: float = REQUEST_SECONDS) -> Connecting:
    """As the sync `connect`, for `await` or `async with`."""
    return Connecting(inputs.addresses_of(addresses), name or f"python-{os.getpid()}", timeout)
