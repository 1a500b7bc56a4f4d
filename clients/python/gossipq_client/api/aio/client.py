"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

import os
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self

from gossipq.errors import GossipqError
from gossipq_client.api.aio.records import Records
from gossipq_client.api.aio.workers import Workers
from gossipq_client.handlers import Registry
from gossipq_client.io import ERROR_CLOSE_SECONDS, REQUEST_SECONDS, contexts, log
from gossipq_client.values import inputs


class Client(Workers, Records):
    """A connection to a cluster, for one event loop. Use `connect` to make one."""

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
    """What `connect` returns: `await` it for a client, or use it in `async with`. Handlers may be registered
    before."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        self._options = addresses, name, timeout
        self.handlers = Registry()
        self.consumer = self.handlers.consumer
        self._client: Client | None = None

    async def _connect(self) -> Client:
        client = Client(*self._options)
        client.handlers = self.handlers
        await client._start()
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


def connect(
    *addresses: str | Iterable[str], name: str = "", timeout: inputs.Duration = REQUEST_SECONDS
) -> Connecting:
    """As the sync `connect`, for `await` or `async with`; `timeout` is in seconds, or "5s"."""
    seconds = inputs.duration_ms(timeout, "timeout") / 1000
    return Connecting(contexts.addresses_of(addresses), name or f"python-{os.getpid()}", seconds)
