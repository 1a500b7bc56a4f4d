"""The asyncio consumer: messages for `async with`, the loop, and fetching ahead."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gossipq import limits
from gossipq_client import inputs
from gossipq_client.credit import Subscription
from gossipq_client.held import Held
from gossipq_client.views import FetchedBatch, Record

if TYPE_CHECKING:
    from gossipq_client.aio import Client


class Message(Record):
    """One record in hand. Leaving `async with msg:` well acks it; an exception gives it back as failed and goes on up."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client", held: Held, offset: int) -> None:
        self._client, self._held, self.offset, self._settled = client, held, offset, False

    async def ack(self) -> None:
        """As the sync `ack`."""
        if not self._settled:
            self._settled = True
            self._require_lease()
            self._client.ack_range(self._held, self.offset, self.offset + 1)

    async def nack(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        """As the sync `nack`."""
        self._give_back(limits.RETURN_DELAY_MS if delay is None else inputs.duration_ms(delay), True, reason)

    async def extend(self, seconds: inputs.Duration) -> None:
        """As the sync `extend`."""
        await self._client.extend_range(self._held, self.offset, self.offset + 1, inputs.duration_ms(seconds))
        self._require_lease()

    def _give_back(self, delay_ms: int, failed: bool, reason: str) -> None:
        if not self._settled:
            self._settled = True
            self._client.nack_range(self._held, self.offset, self.offset + 1, delay_ms, failed, reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.ack()
        elif issubclass(kind, Exception):
            await self.nack(reason=f"{kind.__name__}: {error}"[: limits.KIB])
        else:
            self._give_back(0, False, "")


async def messages(client: "Client", subscription: Subscription) -> AsyncIterator[Message]:
    """Messages one by one; what the user has not seen goes back when the loop ends."""
    consuming = client.engine.session.consuming
    chunk = max(1, subscription.credit_records // 4)
    try:
        while True:
            held = consuming.front(subscription)
            if held is None:
                if not await client.await_records(subscription, None):
                    return
                continue
            first = held.taken
            for offset in range(first, min(held.end, first + chunk)):
                held.taken = offset + 1
                if subscription.paused:
                    break
                yield Message(client, held, offset)
            consuming.took(subscription, held, held.taken - first)
            if consuming.credit_due:
                client.turn()
    finally:
        client.end(subscription)


class Fetcher:
    """As the sync one."""

    def __init__(self, client: "Client", subscription: Subscription) -> None:
        self._client, self.subscription = client, subscription

    async def fetch(self, count: int, wait: float) -> FetchedBatch[Message]:
        client, subscription = self._client, self.subscription
        consuming = client.engine.session.consuming
        pieces = consuming.fetch(subscription, count)
        if pieces and consuming.credit_due:
            client.turn()
        if not pieces and await client.await_records(subscription, wait):
            pieces = consuming.take(subscription, count)
        consuming.fetched(subscription, bool(pieces))
        return FetchedBatch(pieces, client.message)
