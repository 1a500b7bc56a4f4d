"""The asyncio consumer: messages for `async with`, the loop, fetching ahead, and the verbs for all of it."""

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self, Unpack

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.values import Message as Request
from gossipq_client import inputs, outcomes
from gossipq_client.aio_driver import PendingReceipt
from gossipq_client.aio_producer import Producers
from gossipq_client.credit import Subscription
from gossipq_client.held import Held, Piece
from gossipq_client.joining import ConsumeOptions, FetchOptions, credit_of, joining
from gossipq_client.outcomes import Outcome, Reject, Retry
from gossipq_client.terms import PublishOptions
from gossipq_client.views import FetchedBatch, Record


class Message(Record):
    """One record in hand. Leaving `async with msg:` well acks it, Retry and Reject say what shall become of it; any other
    exception gives it back as failed and goes on up."""

    __slots__ = ("_client",)

    def __init__(self, client: "Consumers", held: Held, offset: int) -> None:
        self._client, self._held, self.offset, self._settled = client, held, offset, False

    async def ack(self) -> None:
        """As the sync `ack`."""
        if not self._settled:
            self._settled = True
            self._require_lease()
            self._client.ack_range(self._held, self.offset, self.offset + 1)

    async def nack(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        """As the sync `nack`."""
        self.settle(outcomes.failed(delay, reason))

    async def reject(self, reason: str = "") -> None:
        """As the sync `reject`."""
        self.settle(outcomes.rejected(reason))

    def settle(self, outcome: Outcome) -> None:
        """Gives it back, unless it is settled already."""
        if not self._settled:
            self._settled = True
            self._client.nack_range(self._held, self.offset, self.offset + 1, outcome)

    async def ack_with(self, topic: str, value: inputs.Value, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """As the sync `ack_with`."""
        held, offset = self._held, self.offset
        self._require_lease()
        if self._settled or not held.part.subscription.leased:
            hint = "it acks once, and only what a group consumes with ack=True"
            raise BadRequest(f"{self!r} has nothing to ack", hint=hint)
        consuming = self._client.engine.session.consuming
        pending = await self._client.step(
            held, offset, lambda flight: consuming.stepped(held, offset, flight.error), topic, value, **options
        )
        self._settled = True
        return pending

    async def extend(self, seconds: inputs.Duration) -> None:
        """As the sync `extend`."""
        lease_ms = inputs.duration_ms(seconds, "seconds", 1, limits.LEASE_TOTAL_MS_MAX)
        await self._client.extend_lease(self._held, self.offset, lease_ms)
        self._require_lease()

    async def __aenter__(self) -> Self:
        """Raises LeaseLost."""
        self._require_lease()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            await self.ack()
            return False
        self.settle(outcomes.of(error))
        return isinstance(error, Retry | Reject)


async def messages(client: "Consumers", subscription: Subscription) -> AsyncIterator[Message]:
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
            first, again = held.taken, held.attempt > 1
            for offset in range(first, min(held.end, first + chunk)):
                held.taken = offset + 1
                if held.lost and held.is_lost(offset):
                    continue
                if subscription.paused and not held.open_ranges(offset, offset + 1):
                    break  # given back
                if again:
                    client.begin(held, offset)
                yield Message(client, held, offset)
            consuming.took(subscription, held, held.taken - first)
            if consuming.credit_due:
                client.turn()
    finally:
        client.end(subscription)


class Fetcher:
    """As the sync one."""

    def __init__(self, client: "Consumers", subscription: Subscription) -> None:
        self._client, self.subscription = client, subscription

    async def fetch(self, count: int, wait: float) -> FetchedBatch[Message]:
        client, subscription = self._client, self.subscription
        session, pieces = client.engine.session, list[Piece]()
        client.engine.check()
        try:
            pieces = session.consuming.fetch(subscription, count)
            if pieces and session.consuming.credit_due:
                client.turn()
            if not pieces and await client.await_records(subscription, wait):
                pieces = session.consuming.take(subscription, count)
        except BaseException:  # as CancelledError
            client.break_off(subscription, pieces)
            raise
        session.consuming.fetched(subscription, bool(pieces))
        if session.links.out:
            client.turn()
        return FetchedBatch(pieces, client.message)


class Consumers(Producers):
    """The part of a client that consumes."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        super().__init__(addresses, name, timeout)
        self._fetchers: dict[tuple[tuple[str, ...], str | None], Fetcher] = {}

    def consume(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> AsyncIterator[Message]:
        """As the sync `consume`, for `async for`; leave each message by `async with`."""
        asked = joining(topics, group, **options)
        self.engine.check()
        subscription = self.engine.subscribe(asked, stop_at_end)
        self.turn()
        return messages(self, subscription)

    async def fetch(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        n: int | None = None,
        wait: float = 1.0,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Message]:
        """As the sync `fetch`."""
        count = credit_of(n, options.get("mode"), "n")
        name = (topics,) if isinstance(topics, str) else tuple(topics)
        fetcher = self._fetchers.get((name, group))
        if fetcher is not None and fetcher.subscription.error is not None:  # refused before: this may be another try
            self.end(fetcher.subscription)
            fetcher = None
        if fetcher is None:
            asked = joining(name, group, credit=count, **options)
            self.engine.check()
            fetcher = self._fetchers[name, group] = Fetcher(self, self.engine.subscribe(asked, False))
        return await fetcher.fetch(count, wait)

    async def ack(self, batch: FetchedBatch[Message] | Message) -> None:
        """As the sync `ack`."""
        if isinstance(batch, Message):
            await batch.ack()
            return
        for piece in batch.pieces:
            self.ack_range(piece.held, piece.first, piece.end)

    def message(self, held: Held, offset: int) -> Message:
        return Message(self, held, offset)

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

    def begin(self, held: Held, offset: int) -> None:
        """The user gets a record that was handed out before."""
        self.engine.session.consuming.begin(held, offset, offset + 1)
        self.turn()

    def ack_range(self, held: Held, first: int, end: int) -> None:
        self.engine.check()
        self.engine.session.consuming.ack(held, first, end)
        self.soon()

    def nack_range(self, held: Held, first: int, end: int, outcome: Outcome) -> None:
        self.engine.check()
        self.engine.session.consuming.nack(held, first, end, outcome)
        self.turn()

    async def extend_lease(self, held: Held, offset: int, lease_ms: int) -> None:
        self.engine.check()
        call = self.engine.session.consuming.extend(held, offset, lease_ms)
        if call is not None:
            await self.answered(call)
            call.answer(Request)

    def end(self, subscription: Subscription) -> None:
        """The loop over a subscription is over."""
        if self.engine.usable:
            self.engine.session.consuming.close(subscription)
            self.turn()

    def break_off(self, subscription: Subscription, pieces: list[Piece]) -> None:
        """As the sync `break_off`."""
        if self.engine.usable and not subscription.closing and subscription.error is None:
            self.engine.session.consuming.break_off(subscription, pieces)
            self.turn()

    def _before_flush(self) -> None:
        for fetcher in self._fetchers.values():
            self.end(fetcher.subscription)
