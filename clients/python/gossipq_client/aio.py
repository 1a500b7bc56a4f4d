"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

import os
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from gossipq.errors import GossipqError
from gossipq.messages import CreateTopic, DropTopic, Resolve, StatsReply, Status, StatusReply, Topics
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq.values import GroupStats, TopicInfo
from gossipq_client import inputs
from gossipq_client.aio_operators import Operators
from gossipq_client.aio_reader import Readers
from gossipq_client.aio_workers import Workers
from gossipq_client.engine import ERROR_CLOSE_SECONDS, REQUEST_SECONDS, log
from gossipq_client.handlers import Registry
from gossipq_client.policies import TopicPolicy, as_asked, topic_options


class Client(Workers, Operators, Readers):
    """A connection to a cluster, for one event loop. Use `connect` to make one."""

    # --- topics and status

    async def create_topic(
        self, name: str, partitions: int | None = None, *, if_not_exists: bool = False, **policy: Unpack[TopicPolicy]
    ) -> TopicInfo:
        """As the sync `create_topic`."""
        config = topic_options(partitions, **policy)
        return as_asked((await self.ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)).topics[0], partitions)

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

    async def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """As the sync `stats`."""
        self.engine.check()
        calls = self.engine.stats_calls(list(topics), endpoint)
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
    """What `connect` returns: `await` it for a client, or use it in `async with`. Handlers may be registered before."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        self._options = addresses, name, timeout
        self.handlers = Registry()
        self.consumer = self.handlers.consumer
        self._client: Client | None = None

    async def _connect(self) -> Client:
        client = Client(*self._options)
        client.handlers = self.handlers
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
