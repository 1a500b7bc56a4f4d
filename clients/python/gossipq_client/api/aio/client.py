"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

import os
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self

from gossipq.errors import GossipqError
from gossipq_client.api.aio.records import Records
from gossipq_client.api.aio.workers import Workers
from gossipq_client.io import ERROR_CLOSE_SECONDS, REQUEST_SECONDS, SPOOL_BYTES_MAX, Spool, contexts, log
from gossipq_client.values import inputs


class Client(Workers, Records):
    """A connection to a cluster, for one event loop: that which runs when it is used first, or in
    `async with`. Use `connect` to make one; `await` it to connect at once."""

    def __init__(
        self, addresses: list[str], name: str, timeout: float, wait: float | None = None, key: bytes = b""
    ) -> None:
        super().__init__(addresses, name, timeout, key)
        self._patience = wait

    @property
    def _wait(self) -> float:
        return self._timeout if self._patience is None else self._patience

    async def _connected(self) -> Self:
        await self._start()
        await self._send_spooled()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Connects. Raises Unreachable when no node answers in time."""
        return self._connected().__await__()

    async def __aenter__(self) -> Self:
        """Connects. Raises Unreachable when no node answers in time."""
        return await self._connected()

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


def connect(
    *addresses: str | Iterable[str],
    name: str = "",
    timeout: inputs.Duration = REQUEST_SECONDS,
    wait: inputs.Duration | None = None,
    spool: str | os.PathLike[str] | None = None,
    spool_bytes_max: int = SPOOL_BYTES_MAX,
) -> Client:
    """As the sync `connect`: it connects when it is used first, in `async with`, or when it is awaited.

    `timeout` is how long requests wait for an answer, `wait` how long connecting does (both in seconds, or
    "5s"; without `wait` both are the same): then they raise Unreachable. `spool` as in the sync one, which
    writes to the disk while it publishes."""
    seconds = inputs.duration_ms(timeout, "timeout") / 1000
    patience = None if wait is None else inputs.duration_ms(wait, "wait") / 1000
    client = Client(contexts.addresses_of(addresses), name or f"python-{os.getpid()}", seconds, patience)
    if spool is not None:
        client._use_spool(Spool(spool, spool_bytes_max))
    return client
