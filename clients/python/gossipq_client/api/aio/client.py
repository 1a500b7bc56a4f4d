"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

import math
from collections.abc import Generator, Iterable
from typing import Any, Self, Unpack

from gossipq_client.api.aio.facade import Facade
from gossipq_client.handlers import shows
from gossipq_client.io import ConnectOptions, connecting
from gossipq_client.values import UNSET, CheckedCodec, inputs


class Client(Facade):
    """A connection to a cluster, for one event loop: that which runs when it is used first, or in
    `async with`. Use `connect` to make one; `await` it to connect at once."""

    def __init__(
        self,
        addresses: list[str],
        name: str,
        timeout: float,
        wait: float | None = None,
        key: bytes = b"",
        codec: CheckedCodec | None = None,
    ) -> None:
        super().__init__(addresses, name, timeout, key, codec)
        self._patience = wait

    @property
    def _wait(self) -> float:
        return self._timeout if self._patience is None else self._patience

    async def ready(self, timeout: inputs.Timeout = UNSET) -> Self:
        """Connect, send what the spool holds, and return this client once a node answers.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises Unreachable
        when it is over, and ClientClosed.
        """
        seconds = self._seconds(timeout)
        return await self._connected(math.inf if seconds is None else seconds)

    async def _connected(self, seconds: float | None = None) -> Self:
        await self._start(seconds)
        try:
            async with self._spooling:
                await self._send_spooled()
        except BaseException:
            self._give_up(self._engine)
            raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Connects. Raises Unreachable when no node answers in time."""
        return self._connected().__await__()

    async def __aenter__(self) -> Self:
        """Connects; a client that was closed connects again, in whatever event loop runs now. Raises
        Unreachable when no node answers in time."""
        self._reopen()
        return await self._connected()


@shows(connecting, ConnectOptions)
def connect(*addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> Client:
    """As the sync `connect`: it connects when it is used first, in `async with`, or when it is awaited. A
    spool is written to while it publishes."""
    asked = connecting(addresses, **options)
    client = Client([], asked.name, asked.timeout_s, asked.wait_s, codec=asked.codec)
    client._where = asked.where
    if asked.spool is not None:
        client._use_spool(asked.spool)
    return client
