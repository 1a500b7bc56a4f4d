"""The sync consumer: messages that are acked by leaving their `with`, the loop, and fetching ahead."""

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gossipq import limits
from gossipq_client import inputs
from gossipq_client.credit import Subscription
from gossipq_client.held import Held
from gossipq_client.views import FetchedBatch, Record

if TYPE_CHECKING:
    from gossipq_client.client import Client


class Message(Record):
    """One record in hand. Leaving `with msg:` well acks it; an exception gives it back as failed and goes on up."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client", held: Held, offset: int) -> None:
        self._client, self._held, self.offset, self._settled = client, held, offset, False

    def ack(self) -> None:
        """Done. It is told within milliseconds, joined with its neighbours; `flush` waits until it is stored.

        Raises LeaseLost when somebody else is known to have the record by now.
        """
        if self._settled:
            return
        self._settled = True
        held, offset = self._held, self.offset
        if held.lost:
            self._require_lease()
        self._client.ack_range(held, offset, offset + 1)

    def nack(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        """Failed: counts an attempt, comes again after `delay` (default: the broker's pause)."""
        if not self._settled:
            self._settled = True
            delay_ms = limits.RETURN_DELAY_MS if delay is None else inputs.duration_ms(delay)
            self._client.nack_range(self._held, self.offset, self.offset + 1, delay_ms, True, reason)

    def extend(self, seconds: inputs.Duration) -> None:
        """Holds on for so long from now. Raises LeaseLost."""
        self._client.extend_range(self._held, self.offset, self.offset + 1, inputs.duration_ms(seconds))
        self._require_lease()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._settled:
            return
        if kind is None:
            self.ack()
        elif issubclass(kind, Exception):
            self.nack(reason=f"{kind.__name__}: {error}"[: limits.KIB])
        else:
            self._settled = True
            self._client.nack_range(self._held, self.offset, self.offset + 1, 0, False, "")


def messages(client: "Client", subscription: Subscription) -> Iterator[Message]:
    """Messages one by one; what the user has not seen goes back when the loop ends."""
    consuming, lock = client.engine.session.consuming, client.lock
    chunk = max(1, subscription.credit_records // 4)
    try:
        while True:
            with lock:
                held = consuming.front(subscription)
            if held is None:
                if not client.await_records(subscription, None):
                    return
                continue
            first = held.taken
            for offset in range(first, min(held.end, first + chunk)):
                held.taken = offset + 1
                if subscription.paused:
                    break
                yield Message(client, held, offset)
            with lock:
                consuming.took(subscription, held, held.taken - first)
                if consuming.credit_due:
                    client.turn()
                    client.exchanges += 1
    finally:
        client.end(subscription)


class Fetcher:
    """One `fetch` after the other of the same topics and group."""

    def __init__(self, client: "Client", subscription: Subscription) -> None:
        self._client, self.subscription = client, subscription

    def fetch(self, count: int, wait: float) -> FetchedBatch[Message]:
        client, subscription = self._client, self.subscription
        consuming = client.engine.session.consuming
        with client.lock:
            client.engine.check()
            pieces = consuming.fetch(subscription, count)
            if pieces and consuming.credit_due:
                client.turn()
                client.exchanges += 1
        if not pieces and client.await_records(subscription, wait):
            with client.lock:
                pieces = consuming.take(subscription, count)
        with client.lock:
            consuming.fetched(subscription, bool(pieces))
        return FetchedBatch(pieces, client.message)
