"""The sync consumer: messages that are acked by leaving their `with`, the loop, fetching ahead, and the verbs for all of it."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, Unpack

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.values import Message as Request
from gossipq_client import inputs, outcomes
from gossipq_client.credit import Subscription
from gossipq_client.held import Held, Piece
from gossipq_client.joining import ConsumeOptions, FetchOptions, credit_of, joining
from gossipq_client.outcomes import Outcome, Reject, Retry
from gossipq_client.producer import Producers
from gossipq_client.receipts import PendingReceipt
from gossipq_client.terms import PublishOptions
from gossipq_client.views import FetchedBatch, Record


class Message(Record):
    """One record in hand. Leaving `with msg:` well acks it, Retry and Reject say what shall become of it; any other exception
    gives it back as failed and goes on up."""

    __slots__ = ("_client",)

    def __init__(self, client: "Consumers", held: Held, offset: int) -> None:
        self._client, self._held, self.offset, self._settled = client, held, offset, False

    def ack(self) -> None:
        """Done. It is told within milliseconds, joined with its neighbours; `flush` waits until it is stored.

        Raises LeaseLost when somebody else is known to have the record by now, ClientClosed.
        """
        if self._settled:
            return
        self._settled = True
        held, offset = self._held, self.offset
        if held.lost:
            self._require_lease()
        self._client.ack_range(held, offset, offset + 1)

    def nack(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        """Failed: it comes again after `delay` (default: as the backoff policy says), until its attempts are used up."""
        self.settle(outcomes.failed(delay, reason))

    def reject(self, reason: str = "") -> None:
        """No further attempt: it becomes a dead letter."""
        self.settle(outcomes.rejected(reason))

    def settle(self, outcome: Outcome) -> None:
        """Gives it back, unless it is settled already."""
        if not self._settled:
            self._settled = True
            self._client.nack_range(self._held, self.offset, self.offset + 1, outcome)

    def ack_with(self, topic: str, value: inputs.Value, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """Done, and this comes of it: the ack and the publish are one atomic step. If that fails, the record has failed.

        The receipt raises LeaseLost when somebody else had the record. Raises BadRequest unless both lie in one shard, as those
        of `create_topic(topic, beside=...)` do.
        """
        held, offset = self._held, self.offset
        self._require_lease()
        if self._settled or not held.part.subscription.leased:
            hint = "it acks once, and only what a group consumes with ack=True"
            raise BadRequest(f"{self!r} has nothing to ack", hint=hint)
        consuming = self._client.engine.session.consuming
        pending = self._client.step(
            held, offset, lambda flight: consuming.stepped(held, offset, flight.error), topic, value, **options
        )
        self._settled = True
        return pending

    def extend(self, seconds: inputs.Duration) -> None:
        """Holds on for so long from now. Raises LeaseLost."""
        lease_ms = inputs.duration_ms(seconds, "seconds", 1, limits.LEASE_TOTAL_MS_MAX)
        self._client.extend_lease(self._held, self.offset, lease_ms)
        self._require_lease()

    def __enter__(self) -> Self:
        """Raises LeaseLost."""
        if self._held.lost:
            self._require_lease()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            self.ack()
            return False
        self.settle(outcomes.of(error))
        return isinstance(error, Retry | Reject)


def messages(client: "Consumers", subscription: Subscription) -> Iterator[Message]:
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
            first, again = held.taken, held.attempt > 1
            for offset in range(first, min(held.end, first + chunk)):
                held.taken = offset + 1
                if held.lost and held.is_lost(offset):
                    continue
                if subscription.paused and not held.open_ranges(offset, offset + 1):
                    break  # given back; what is open was taken a moment before the pause
                if again:
                    client.begin(held, offset)
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

    def __init__(self, client: "Consumers", subscription: Subscription) -> None:
        self._client, self.subscription = client, subscription

    def fetch(self, count: int, wait: float) -> FetchedBatch[Message]:
        client, subscription = self._client, self.subscription
        session, pieces = client.engine.session, list[Piece]()
        try:
            with client.lock:
                client.engine.check()
                pieces = session.consuming.fetch(subscription, count)
                if pieces and (session.consuming.credit_due or session.links.out):
                    client.turn()
                    client.exchanges += 1
            if not pieces and client.await_records(subscription, wait):
                with client.lock:
                    pieces = session.consuming.take(subscription, count)
        except BaseException:  # as KeyboardInterrupt
            client.break_off(subscription, pieces)
            raise
        with client.lock:
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
    ) -> Iterator[Message]:
        """Messages of topics ("orders", ["a", "b"], "orders.*") as they come; with a group they are shared among its consumers.

        A new group begins at "first", a reader (no group) at "new"; `start` says otherwise. With stop_at_end the loop ends when
        everything there was has been handed out. Options: see ConsumeOptions. Raises BadRequest.
        """
        asked = joining(topics, group, **options)
        with self.lock:
            self.engine.check()
            subscription = self.engine.subscribe(asked, stop_at_end)
            self._turn()
        return messages(self, subscription)

    def fetch(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        n: int | None = None,
        wait: float = 1.0,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Message]:
        """At most `n` messages; returns as soon as there is one, and empty after `wait` seconds. Ack with `ack(batch)`.

        Options (see FetchOptions) count for the first fetch of these topics and group. Raises BadRequest.
        """
        count = credit_of(n, options.get("mode"), "n")
        name = (topics,) if isinstance(topics, str) else tuple(topics)
        fetcher = self._fetchers.get((name, group))
        if fetcher is not None and fetcher.subscription.error is not None:  # refused before: this may be another try
            self.end(fetcher.subscription)
            fetcher = None
        if fetcher is None:
            asked = joining(name, group, credit=count, **options)
            with self.lock:
                self.engine.check()
                subscription = self.engine.subscribe(asked, False)
            fetcher = self._fetchers[name, group] = Fetcher(self, subscription)
        return fetcher.fetch(count, wait)

    def ack(self, batch: FetchedBatch[Message] | Message) -> None:
        """All messages of a fetched batch are done. Told within milliseconds; `flush` waits until it is stored."""
        if isinstance(batch, Message):
            batch.ack()
            return
        for piece in batch.pieces:
            self.ack_range(piece.held, piece.first, piece.end)

    def message(self, held: Held, offset: int) -> Message:
        return Message(self, held, offset)

    def await_records(self, subscription: Subscription, timeout: float | None) -> bool:
        """Waits for something to take; False at the end of the stream or of the time. Raises what was refused."""
        consuming = self.engine.session.consuming

        def ready() -> bool:
            consuming.resume(subscription)
            return bool(subscription.ready or subscription.error or subscription.closing) or subscription.finished

        self.until(ready, timeout)
        if subscription.error is not None:
            raise subscription.error
        return bool(subscription.ready)

    def begin(self, held: Held, offset: int) -> None:
        """The user gets a record that was handed out before."""
        with self.lock:
            self.engine.session.consuming.begin(held, offset, offset + 1)
            self._turn()

    def ack_range(self, held: Held, first: int, end: int) -> None:
        with self.lock:
            self.engine.check()
            self.engine.session.consuming.ack(held, first, end)
            if self._keeper.parked:
                self._keeper.wake()

    def nack_range(self, held: Held, first: int, end: int, outcome: Outcome) -> None:
        with self.lock:
            self.engine.check()
            self.engine.session.consuming.nack(held, first, end, outcome)
            self._turn()

    def extend_lease(self, held: Held, offset: int, lease_ms: int) -> None:
        with self.lock:
            self.engine.check()
            call = self.engine.session.consuming.extend(held, offset, lease_ms)
        if call is not None:
            self._answered(call, self.timeout)
            call.answer(Request)

    def end(self, subscription: Subscription) -> None:
        """The loop over a subscription is over."""
        with self.lock:
            if self.engine.usable:
                self.engine.session.consuming.close(subscription)
                self._turn()

    def break_off(self, subscription: Subscription, pieces: list[Piece]) -> None:
        """A fetch ended in an exception; one that was refused, or closed, has nothing."""
        with self.lock:
            if self.engine.usable and not subscription.closing and subscription.error is None:
                self.engine.session.consuming.break_off(subscription, pieces)
                self._turn()

    def _before_flush(self) -> None:
        for fetcher in self._fetchers.values():
            self.end(fetcher.subscription)
