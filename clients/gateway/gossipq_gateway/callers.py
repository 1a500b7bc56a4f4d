"""Callers of protocols without connections: a client of the cluster for each token.

A caller has its consumers and its records in flight. Everything is bounded, and
unused callers are closed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from gossipq.clock import Clock
from gossipq.errors import Busy, ClientClosed, GossipqError, LeaseLost, NoSubscription, UnknownTopic
from gossipq_client.aio import Client, Fetcher, Message
from gossipq_client.answers import Delivery
from gossipq_gateway.dialect import log
from gossipq_gateway.leases import Lease, Leases, named
from gossipq_gateway.problems import is_forbidden

CALLERS_MAX = 256
CONNECTING_MAX = 64
REFUSED_MAX, REFUSED_MS = 1_000, 2_000  #: refused tokens that are remembered, and for how long
CONSUMERS_MAX = 256  #: of one caller
STREAMS_OF_CLIENT_MAX = 32  #: a client examines each of its subscriptions at every delivery
#: an unused consumer, and an unused caller without records, is closed after this time
IDLE_MS = 60_000
REST_MS = 1_000  #: prefetched records are given back if no fetch comes for this time
LOOK_S = 0.2
LEASE_OVER = "the lease over HTTP ended"

#: makes a client for a token; b"" = none; None = the gateway's own
Connect = Callable[[bytes | None], Client]


class Consumer:
    """Fetches of one caller from the same topics, for the same group, with the same options."""

    def __init__(self, fetcher: Fetcher, now_ms: int) -> None:
        self.fetcher, self.used_ms, self.rests, self.waits = fetcher, now_ms, True, 0


class Reader:
    """A client of the cluster, and the number of streams that it serves."""

    def __init__(self, mq: Client, connected: bool = False) -> None:
        self.mq, self.streams = mq, 0
        self._connecting = None if connected else asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        await self.mq

    async def ready(self) -> None:
        """Wait for the connection. Raises the reason for a failure."""
        if self._connecting is not None:
            await asyncio.shield(self._connecting)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        with suppress(GossipqError):
            await self.mq.close()


class Caller:
    """All clients of the gateway with the same token."""

    def __init__(self, connect: Callable[[], Client], clock: Clock, gateway: str) -> None:
        self.mq, self._connect, self._clock = connect(), connect, clock
        self._readers: list[Reader] = []  #: the first one uses `mq`
        #: one stream of the caller runs at a time, so that others get the loop
        self.turn = asyncio.Lock()
        self.leases = Leases[Message](gateway)
        self.users, self.used_ms = 0, self.now_ms()
        self.publishing = 0  #: single records being published
        self.ready = asyncio.Lock()
        self.connected = False
        self.failed: GossipqError | None = None  #: why it could never connect
        self._consumers: OrderedDict[Hashable, Consumer] = OrderedDict()

    def now_ms(self) -> int:
        return self._clock.now().boot_ms

    async def reader(self) -> Reader:
        """Return a client for one more stream, until `leave`. Raises the reason for a failure."""
        if not self._readers:
            self._readers.append(Reader(self.mq, connected=True))
        found = next((each for each in self._readers if each.streams < STREAMS_OF_CLIENT_MAX), None)
        if found is None:
            found = Reader(self._connect())
            self._readers.append(found)
        found.streams += 1
        try:
            await found.ready()
        except BaseException:
            await self.leave(found)
            raise
        return found

    async def leave(self, reader: Reader) -> None:
        """End a stream. The client is closed with its last stream."""
        reader.streams -= 1
        if not reader.streams and reader.mq is not self.mq and reader in self._readers:
            self._readers.remove(reader)
            await reader.close()

    async def fetch(
        self, topics: tuple[str, ...], group: str, n: int, wait_s: float, options: dict[str, Any]
    ) -> list[Message]:
        """Fetch at most `n` records. Raises Busy if the caller has too many in
        flight, and fetch's errors.
        """
        if self.leases.room < n:
            raise Busy(
                "too many records of this caller are in flight",
                hint="ack or nack some of them first",
                retry_after_ms=1_000,
            )
        known = _key(topics, group, options) in self._consumers
        try:
            return await self._fetch(topics, group, n, wait_s, options)
        except UnknownTopic:
            if not known:
                raise
        # an old consumer knows a removed topic that may have been created again since
        return await self._fetch(topics, group, n, wait_s, options)

    async def _fetch(
        self, topics: tuple[str, ...], group: str, n: int, wait_s: float, options: dict[str, Any]
    ) -> list[Message]:
        consumer = await self._consumer(topics, group, options)
        consumer.waits += 1
        try:
            return list(await consumer.fetcher.fetch(n, wait_s))
        except GossipqError:
            self._consumers.pop(_key(topics, group, options), None)
            await consumer.fetcher.aclose()
            raise
        finally:
            consumer.waits -= 1
            consumer.used_ms, consumer.rests = self.now_ms(), False

    async def _consumer(self, topics: tuple[str, ...], group: str, options: dict[str, Any]) -> Consumer:
        key = _key(topics, group, options)
        consumer = self._consumers.get(key)
        if consumer is None:
            if len(self._consumers) >= CONSUMERS_MAX and not await self._end_one():
                raise Busy(
                    "too many fetches of this caller wait for records",
                    hint="wait until one of them ends",
                    retry_after_ms=1_000,
                )
            consumer = Consumer(self.mq.fetcher(topics, group, **options), self.now_ms())
            self._consumers[key] = consumer
        self._consumers.move_to_end(key)
        consumer.used_ms = self.now_ms()
        return consumer

    async def _end_one(self) -> bool:
        """Close the consumer that has been unused longest. Returns whether there was one."""
        for key, consumer in self._consumers.items():
            if not consumer.waits:
                del self._consumers[key]
                await consumer.fetcher.aclose()
                return True
        return False

    async def ack(self, leases: Sequence[Lease[Message]]) -> tuple[set[Lease[Message]], LeaseLost | None]:
        """Ack records. Returns the stored ones, and why the others are lost.

        Raises other errors; then the leases stay valid, and the ack can be repeated.
        """
        by_topic: dict[str, list[Lease[Message]]] = {}
        for lease in leases:
            by_topic.setdefault(lease.record.topic, []).append(lease)
        asked = (self.mq.ack([lease.record for lease in some]) for some in by_topic.values())
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        acked, unknown = set[Lease[Message]](), list[BaseException]()
        why: LeaseLost | None = None
        for some, error in zip(by_topic.values(), outcomes, strict=True):
            if isinstance(error, NoSubscription | UnknownTopic):
                stored, why = set(), LeaseLost(f"the topic was removed: {error.message}")
            elif error is None or isinstance(error, LeaseLost):
                stored, why = {lease for lease in some if not lease.record.lost}, error or why
            else:
                unknown.append(error)
                continue
            for lease in some:
                self.leases.drop(lease, acked=lease in stored)
            acked |= stored
        for error in unknown:
            raise error
        return acked, why

    async def ack_delivered(self, tokens: Iterable[str]) -> set[str]:
        """Ack records by the deliveries in their tokens, without a lease here. Returns late tokens.

        Raises other errors.
        """
        groups = dict[tuple[str, str], dict[Delivery, str]]()
        for token in tokens:
            known = named(token)
            groups.setdefault((known.topic, known.group), {})[known.delivery] = token
        late = set[str]()
        for (topic, group), found in groups.items():
            late |= {found[each] for each in await self.mq.group(topic, group).ack_delivered(found)}
        return late

    async def mind(self) -> None:
        """Do timed work: end leases, give prefetched records back, close unused consumers."""
        now_ms = self.now_ms()
        for lease in self.leases.due(now_ms):
            if not lease.record.lost:
                await lease.record.nack(lease.delay, LEASE_OVER)
        for key, consumer in list(self._consumers.items()):
            idle_ms = 0 if consumer.waits else now_ms - consumer.used_ms
            if idle_ms >= IDLE_MS:
                del self._consumers[key]
                await consumer.fetcher.aclose()
            elif idle_ms >= REST_MS and not consumer.rests:
                consumer.rests = True
                consumer.fetcher.rest()

    @property
    def idle(self) -> bool:
        return not self.users and not self.leases and not self._consumers

    async def close(self) -> None:
        """Give all records back, without counting an attempt."""
        readers, self._readers = self._readers, []
        await asyncio.gather(*(each.close() for each in readers if each.mq is not self.mq))
        with suppress(GossipqError):
            await self.mq.close()


def _key(topics: tuple[str, ...], group: str, options: dict[str, Any]) -> Hashable:
    return topics, group, repr(sorted(options.items()))


class Callers:
    """A bounded pool of callers by token."""

    def __init__(self, connect: Connect, clock: Clock, gateway: str) -> None:
        self._connect, self._clock, self._gateway = connect, clock, gateway
        self._known: OrderedDict[bytes, Caller] = OrderedDict()
        self._connecting = 0
        #: and until when
        self._refused: OrderedDict[bytes, tuple[int, GossipqError]] = OrderedDict()

    @asynccontextmanager
    async def of(self, token: bytes) -> AsyncIterator[Caller]:
        """Yield the connected caller of a token. Raises Forbidden for an unknown
        token, Unreachable, Busy.
        """
        caller = self._known.get(token)
        if caller is None:
            self._require_hope(token)
            caller = await self._made(token)
        self._known.move_to_end(token)
        caller.users += 1
        try:
            if not caller.connected:
                await self._connected(token, caller)
            yield caller
        except ClientClosed:  # its session was ended: the next request begins another one
            if self._known.get(token) is caller:
                del self._known[token]
            raise
        finally:
            caller.users -= 1
            caller.used_ms = caller.now_ms()

    def _require_hope(self, token: bytes) -> None:
        """Raise the recent refusal of this token, or Busy while too many new tokens connect.

        So clients with invalid tokens cannot keep known callers out.
        """
        until_ms, error = self._refused.get(token, (0, None))
        if error is not None and self._clock.now().boot_ms < until_ms:
            raise error
        if self._connecting >= CONNECTING_MAX:
            raise Busy("too many new tokens at once", hint="try again in a moment", retry_after_ms=1_000)

    async def _made(self, token: bytes) -> Caller:
        if len(self._known) >= CALLERS_MAX:
            idle = next(
                (key for key, each in self._known.items() if not each.users and not each.leases), None
            )
            if idle is None:
                raise Busy(
                    "too many tokens are in use at this gateway",
                    hint="try again in a moment",
                    retry_after_ms=1_000,
                )
            await self._known.pop(idle).close()
        return self._known.setdefault(token, Caller(lambda: self._connect(token), self._clock, self._gateway))

    async def _connected(self, token: bytes, caller: Caller) -> None:
        async with caller.ready:
            if caller.failed is not None:  # it has been dropped: the next request makes another one
                raise caller.failed
            if caller.connected:
                return
            self._connecting += 1
            try:
                await caller.mq
            except GossipqError as error:
                caller.failed = error
                if self._known.get(token) is caller:
                    del self._known[token]
                if is_forbidden(error):
                    self._refused[token] = self._clock.now().boot_ms + REFUSED_MS, error
                    if len(self._refused) > REFUSED_MAX:
                        self._refused.popitem(last=False)
                raise
            finally:
                self._connecting -= 1
            caller.connected = True

    async def mind(self) -> None:
        """Do the timed work of all callers, forever. Callers may come and go meanwhile."""
        while True:
            await asyncio.sleep(LOOK_S)
            for token, caller in list(self._known.items()):
                if self._known.get(token) is not caller:
                    continue
                try:
                    await caller.mind()
                except GossipqError as error:
                    log.warning("the connection of a caller to the cluster ends: %s", error)
                    await self._end(token, caller)
                    continue
                if caller.idle and caller.now_ms() - caller.used_ms >= IDLE_MS:
                    await self._end(token, caller)

    async def _end(self, token: bytes, caller: Caller) -> None:
        if self._known.get(token) is caller:
            del self._known[token]
        await caller.close()

    async def close(self) -> None:
        """Close all callers. Their records are given back."""
        known, self._known = self._known, OrderedDict()
        await asyncio.gather(*(caller.close() for caller in known.values()))
