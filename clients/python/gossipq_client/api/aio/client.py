"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

from collections.abc import Generator, Iterable
from typing import Any, Self, Unpack

from gossipq_client.api.aio.facade import Facade
from gossipq_client.io import ConnectOptions, connecting


class Client(Facade):
    """A connection to a cluster, for one event loop: that which runs when it is used first, or in
    `async with`. Use `connect` to make one; `await` it to connect at once."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Connects. Raises Unreachable when no node answers in time."""
        return self._connected().__await__()


def connect(*addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> Client:
    """As the sync `connect`, with its options. The client connects when it is used first, in `async with`, or
    when it is awaited. A spool is written to while it publishes."""
    return Client(connecting(addresses, **options))
