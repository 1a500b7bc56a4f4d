# Made by clients/python/make_twins.py from api/aio/consumer.py: change that, then run it.
"""The consumer: messages that are acked when their `with` block ends, the loop, fetching
ahead, and the verbs for these.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from types import TracebackType, UnionType
from typing import Any, Generic, Self, Unpack, cast, overload

from gossipq import limits
from gossipq.errors import BadRequest, ClientClosed, LeaseLost, NotConfirmed
from gossipq.values import JobResult
from gossipq.values import Message as Request
from gossipq_client.api.sync.driver import PendingReceipt, started
from gossipq_client.api.sync.producer import Producers
from gossipq_client.handlers import shows
from gossipq_client.io import log
from gossipq_client.session import (
    Awaited,
    ConsumeOptions,
    Data,
    FetchedBatch,
    FetchOptions,
    Flight,
    Held,
    Joining,
    More,
    Piece,
    Receipt,
    Record,
    credit,
    credit_of,
    joining,
    more_of,
)
from gossipq_client.values import (
    UNSET,
    Common,
    Outcome,
    PublishOptions,
    Reject,
    Retry,
    inputs,
    outcomes,
    publish_options,
    results,
)

LOOK_S = 0.5  #: time between two looks of a fetch at which nodes answer


class Message(Record[Data], Generic[Data], eq=False):
    """One message that a consumer got. If the `with msg:` block ends normally, the
    message is acked. Retry and Reject decide otherwise. Any other exception gives it back
    as failed, and propagates.
    """

    _client: "Consumers"
    _settled: bool = False

    def replace(
        self, *, value: bytes | None = None, headers: inputs.Headers | None = None
    ) -> "Message[Data]":
        """Return this message with another value or other headers, for middleware: see `Middleware.receive`.
        To settle one of them settles both."""
        return ChangedMessage(
            self._held,
            self.offset,
            self._client,
            _of=self,
            _value=self.value if value is None else value,
            _header_bytes=self.header_bytes if headers is None else inputs.header_bytes(headers),
        )

    def ack(self, timeout: inputs.Timeout = UNSET, *, result: Any = None) -> None:
        """Ack the message and wait until the ack is stored.

        `result` is kept if the publisher asked for it by `keep_result`.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises NotConfirmed
        when that is over (the ack may be stored), LeaseLost if another consumer has the record, ClientClosed,
        and what `ack_soon` raises.
        """
        if result is not None:
            self.ack_soon(result)
        self._client.ack(self, timeout=timeout)

    def ack_soon(self, result: Any = None) -> None:
        """Ack the message without waiting, as leaving its `with` block does. The ack is sent within
        milliseconds, together with others; `flush` waits until it is stored. `result` as in `ack`.

        Raises BadRequest for a result that JSON cannot express, or that is too large. Raises LeaseLost if
        another consumer is known to have the record now, or ClientClosed.
        """
        if self._settled:
            return
        if self._held.lost:
            self._settled = True
            self._require_lease()
        if self._held.has_headers and (keep_ms := results.keep_ms_of(self.header_bytes)):
            kept = JobResult(self._held.partition, self.offset, keep_ms, *results.encoded(result))
            self._client._ack_with(self._held, kept)
        else:
            self._client._ack_one(self)
        self._settled = True  # last, so that an interrupted ack can be repeated

    def progress(self, done: float, text: str = "") -> None:
        """Report how far the work is: `done` from 0 to 1, with a short text. Does not wait.

        `job` and `follow` show the last report. Of the reports within 200 ms, the last one is sent. Raises
        BadRequest for another number or a text of more than 256 bytes, and LeaseLost.
        """
        report = results.report_of(done, text)
        self._require_lease()
        if not self._settled:
            self._client._report(self._held, self.offset, *report)

    def nack(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        """The message failed. It comes again after `delay`, in seconds or as "5m" (default: the
        pause of the backoff policy), until its attempts are used up.
        """
        self.settle(outcomes.failed(delay, reason))

    def reject(self, reason: str = "") -> None:
        """No further attempt: the message becomes a dead letter."""
        self.settle(outcomes.rejected(reason))

    def release(self) -> None:
        """Give the message back: it is redelivered at once, to any consumer. That is not a failure."""
        self.settle(outcomes.GIVEN_BACK)

    def settle(self, outcome: Outcome) -> None:
        """Gives the message back, unless it is settled already."""
        if not self._settled:
            self._client._nack_range(self._held, self.offset, self.offset + 1, outcome)
            self._settled = True

    def _expire(self, outcome: Outcome) -> None:
        """Gives the message back while its handler still runs. From now on the handler's
        verbs for it raise LeaseLost.
        """
        if not self._settled:
            self._client._nack_range(self._held, self.offset, self.offset + 1, outcome)
            self._client._do(self._held.lose, [(self.offset, self.offset + 1)])

    @shows(publish_options, Common, PublishOptions)
    def ack_with(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Ack the message and publish a record that results from it, as one atomic step, and wait until both
        are stored. If that fails, the message has failed.

        `timeout` and options are those of `publish`. Raises what `publish` raises, LeaseLost if another
        consumer had the record, and BadRequest unless both lie in one shard, as with
        `create_topic(topic, beside=...)`.
        """
        seconds = self._client._seconds(timeout)
        self._begin_step()
        return self._client._receipt(self._step(topic, value, options), seconds)

    @shows(publish_options, Common, PublishOptions)
    def post_with(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """Do what `ack_with` does, and return at once: the receipt says when both are stored."""
        self._begin_step()
        return self._client._posted(topic, 0, self._step(topic, value, options))

    def _begin_step(self) -> None:
        """Raises LeaseLost, and BadRequest for a message with nothing to ack."""
        self._require_lease()
        if self._settled or not self._held.part.subscription.leased:
            hint = "it acks once, and only what a group consumes with ack=True"
            raise BadRequest(f"{self!r} has nothing to ack", hint=hint)
        self._settled = True

    def _step(self, topic: str, value: Any, options: PublishOptions) -> Awaited:
        held, offset, consuming = self._held, self.offset, self._client._engine.session.consuming

        def then(flight: Flight) -> None:
            consuming.stepped(held, offset, flight.error)

        try:
            return self._client._step(held, offset, then, topic, value, **options)
        except BaseException as error:
            self._settled = False
            self.settle(outcomes.of(error))
            raise

    def extend(self, seconds: inputs.Duration) -> None:
        """Keeps the message for this long from now, in seconds or as "5m". Raises LeaseLost."""
        lease_ms = inputs.duration_ms(seconds, "seconds", 1, limits.LEASE_TOTAL_MS_MAX)
        self._client._extend_lease(self._held, self.offset, lease_ms)
        self._require_lease()

    def __enter__(self) -> Self:
        """Raises LeaseLost."""
        if self._held.lost:
            self._require_lease()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            held = self._held
            if held.lost:
                self._ack_late()
            elif held.has_headers:
                self.ack_soon()
            elif not self._settled:  # the end of `ack_soon`, without its call: there are very many messages
                self._client._ack_one(self)
                self._settled = True
            return False
        self.settle(self._outcome(error))
        return isinstance(error, Retry | Reject | LeaseLost)

    def _outcome(self, error: BaseException) -> Outcome:
        """Return the outcome for an exception. If the result is kept, the error has a traceback."""
        outcome = outcomes.of(error)
        return outcomes.traced(outcome, error) if results.keep_ms_of(self.header_bytes) else outcome

    def _ack_late(self) -> None:
        if self.cancelled:
            return
        try:
            self.ack_soon()
        except LeaseLost as lost:  # it ends this message, not the loop
            log.warning("%s", lost)
            note_lost = self._client._engine.session.consuming.note_lost
            place = self._held.partition, self.offset, self.offset + 1
            self._client._do(note_lost, self._held.part, [place])


class ChangedMessage(Message[Data], Generic[Data], eq=False):
    """A message with another value or other headers, which middleware gave it."""

    _of: Message[Any] | None = None
    _value: bytes = b""
    _header_bytes: bytes = b""

    @property
    def value(self) -> bytes:
        """The value that middleware gave it."""
        return self._value

    @property
    def header_bytes(self) -> bytes:
        """The headers that middleware gave it, as they would be stored."""
        return self._header_bytes

    @property  # type: ignore[misc]
    def _settled(self) -> bool:
        assert self._of is not None, "made by `replace`"
        return self._of._settled

    @_settled.setter
    def _settled(self, settled: bool) -> None:
        assert self._of is not None, "made by `replace`"
        self._of._settled = settled


def messages(client: "Consumers", subscription: credit.Subscription) -> Iterator[Any]:
    """Messages one by one, after a first step that yields None. Messages that the user has not seen
    are given back when the loop ends.
    """
    engine, consuming = client._engine, client._engine.session.consuming
    end, leave_later = partial(consuming.close, subscription), engine.later.append
    front, leased, hands = partial(consuming.front, subscription), subscription.leased, consuming.hands
    held, handed, waits, has_group = None, 0, False, bool(subscription.group)
    try:
        yield cast(Message, None)  # taken by `started`
        while not subscription.over:
            held = client._do(front)
            if held is None:
                waits = True
                more = client._await_records(subscription, None)
                waits = False
                if not more:
                    return
                continue
            first = handed = held.taken
            part, aloud = held.part, held.begins_aloud
            chunk, receiving = max(1, subscription.credit_records // 4), client._layers.receiving
            is_message = has_group or receiving  # middleware takes messages, also those of readers
            for offset in range(first, min(held.end, first + chunk)):
                held.taken = after = offset + 1
                if offset >= held.end:  # cut meanwhile: other consumers have these records
                    held.taken = offset
                    break
                if held.lost and held.is_lost(offset):
                    continue
                if subscription.paused and not held.open_ranges(offset, offset + 1):
                    break  # given back; an open message was taken just before the pause
                if aloud or (leased and part not in hands):
                    client._begin(held, offset)
                message: Any = Message(held, offset, client) if is_message else Record(held, offset)
                handed = after
                if receiving:
                    try:
                        message = client._received(message)
                    except Exception as error:
                        client._refuse(message, error)
                        continue
                yield message
                if subscription.over:
                    return
            client._do(consuming.took, subscription, held, held.taken - first)
            held = None
            if consuming.credit_due:
                client._exchange()
            waits = True
            client._breathe()
            waits = False
    finally:
        if held is not None and held.taken > handed:
            held.taken = handed  # taken but not yielded: it is given back with the rest
        if waits and subscription.kept and subscription.error is None:
            subscription.kept = False  # interrupted: see `Subscription`
        else:
            leave_later(end)
            client._settle_later()


class Subscription(Generic[Data]):
    """A consumer as an object: iterate over it for its messages, `stop` it from anywhere, leave its
    `with` block to end it. The `data` of its messages is of the type that `consume` named.

    At the end, messages that the user has not seen are given back; messages that the
    user has can still be acked.
    """

    def __init__(self, client: "Consumers", state: credit.Subscription) -> None:
        self._client, self._state = client, state
        self._messages = started(messages(client, state))
        self._turns = [True]  #: a token for the next message; taking it is the only atomic step

    def __iter__(self) -> Iterator[Message[Data]]:
        return self._messages

    def __next__(self) -> Message[Data]:
        """The next message. If the wait is cancelled, for example by a time limit, no message is
        lost and this can be called again. Raises BadRequest while another task waits for it.
        """
        try:
            turn = self._turns.pop()
        except IndexError:
            hint = "subscribe once more, with the same group: each has its own messages then"
            raise BadRequest("somebody waits for the next message of this subscription", hint=hint) from None
        self._state.kept = True
        try:
            message: Message[Data] = self._messages.__next__()
            return message
        finally:
            if not self._state.kept:
                self._messages = started(messages(self._client, self._state))
            self._state.kept = False
            self._turns.append(turn)

    @property
    def trouble(self) -> str:
        """Why no message can come now: the node that has not answered within the client's
        timeout. "" = nodes answer. The loop continues by itself as soon as a node answers.
        Callable from any thread.
        """
        error = self._client._engine.waits_for(self._state, self._client._timeout)
        return "" if error is None else f"{error.message}; {error.hint}"

    def stop(self) -> None:
        """Ends the loop after the current message: messages that are here but not seen are given
        back. Callable from any thread and from a signal handler.
        """
        self._state.over = True
        self._client._wake()

    def close(self) -> None:
        """Ends the subscription. A second call is harmless."""
        self._client._end(self._state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Fetcher:
    """Repeated `fetch` calls on the same topics and group, even several at a
    time; made by `mq.fetcher`.
    """

    _said: tuple[tuple[str, str], ...] = ()  #: the options that `Consumers.fetch` made it with
    _kind: Any = None  #: the type that it names for `data`
    _is_replaced = False  #: a later fetch had other options

    def __init__(self, client: "Consumers", subscription: credit.Subscription) -> None:
        self._client, self._state = client, subscription

    def fetch(
        self,
        n: int | None = None,
        wait: inputs.Duration = 1.0,
        *,
        min: int | None = None,
        linger: inputs.Duration | None = None,
    ) -> FetchedBatch[Message]:
        """At most `n` messages. Returns as soon as there is one, or empty after `wait`, in seconds
        or as "5s". `min` and `linger` wait for more, as in `mq.fetch`.

        Raises BadRequest or ClientClosed. Raises Unreachable if no node that could have
        records has answered within the client's timeout.
        """
        count = credit_of(n, self._state.options.mode, "n")
        return self._fetch(count, inputs.seconds(wait), more_of(count, min, linger))

    def rest(self) -> None:
        """Withdraws the credit for further fetches, unless one is running, so that other consumers
        get the records. The next fetch grants credit again.
        """
        state = self._state
        if not (state.fetches or state.over or state.paused) and self._client._engine.usable:
            self._client._do(self._client._engine.session.consuming.pause, self._state)
            self._client._exchange()

    def close(self) -> None:
        """Ends it: running fetches return empty; messages that the user has can still be acked."""
        self._client._end(self._state)
        self._client._wake()

    def _fetch(self, count: int, wait_s: float, more: More) -> FetchedBatch[Message]:
        client, subscription, fetch = self._client, self._state, object()
        if isinstance(subscription.error, ClientClosed):
            raise subscription.error
        if not subscription.asked:
            client._do(client._engine.session.subscribe, subscription)
        engine, consuming = client._engine, client._engine.session.consuming
        give_back, leave_later = partial(consuming.break_off, subscription, fetch), engine.later.append
        try:
            pieces = client._do(consuming.fetch, subscription, count, fetch)
            if pieces:
                if consuming.credit_due or engine.session.links.out:
                    client._exchange()
            else:
                pieces = self._wait(count, wait_s, fetch)
            if pieces and sum(map(len, pieces)) < more.least:
                linger_s = wait_s if more.linger_s is None else more.linger_s
                pieces = self._linger(count, linger_s, more.least, fetch)
            client._do(consuming.fetched, subscription, bool(pieces), fetch)
            if engine.session.links.out:
                client._exchange()
            client._mind_hands()
            batch: FetchedBatch[Any]
            if client._layers.receiving:
                batch = FetchedBatch(pieces, client._changed_message, engine, changes=True)
            else:
                batch = FetchedBatch(pieces, client._message if subscription.group else Record, engine)
            del subscription.fetches[fetch]
            return batch
        except BaseException:
            # for example an interrupt or a cancellation: its records are given back
            leave_later(give_back)
            client._settle_later()
            raise

    def _wait(self, count: int, wait_s: float, fetch: object) -> list[Piece]:
        """The records that come within `wait_s`, or later while the client does not know whether
        the topics exist. Raises Unreachable if no node has answered within the client's
        timeout; a takeover takes less.
        """
        client, subscription, engine = self._client, self._state, self._client._engine
        deadline_ms, left_s = engine.now_ms() + wait_s * 1000, wait_s
        while True:
            if client._await_records(subscription, min(left_s or LOOK_S, LOOK_S)):
                if pieces := self._take(count, fetch):
                    return pieces  # otherwise another fetch was faster
            elif subscription.over or subscription.finished:
                return []
            left_s = max(0.0, (deadline_ms - engine.now_ms()) / 1000)
            if (error := client._do(engine.waits_for, subscription, client._timeout)) is not None:
                raise error
            if not left_s and subscription.looked_up:
                return []

    def _linger(self, count: int, wait_s: float, least: int, fetch: object) -> list[Piece]:
        """The records of this fetch, and those that come within `wait_s`,
        until it has `least` messages.
        """
        client, subscription, engine = self._client, self._state, self._client._engine
        deadline_ms = engine.now_ms() + wait_s * 1000
        pieces = self._take(0, fetch)
        while (found := sum(map(len, pieces))) < least:
            left_s = max(0.0, (deadline_ms - engine.now_ms()) / 1000)
            if not client._await_records(subscription, left_s):
                return pieces
            pieces = self._take(count - found, fetch)
        return pieces

    def _take(self, count: int, fetch: object) -> list[Piece]:
        take = self._client._engine.session.consuming.take
        return self._client._do(take, self._state, count, fetch)


def _said(options: FetchOptions) -> tuple[tuple[str, str], ...]:
    """The options that make a subscription another one, for comparison. `create` does not."""
    given = {name: value for name, value in options.items() if value is not None and name != "create"}
    defaults = {"ack": True, "ahead": True}
    return tuple(
        sorted((name, repr(value)) for name, value in given.items() if defaults.get(name) is not value)
    )


def _nothing_to_ack(read: object) -> BadRequest:
    """For records that were read without a group."""
    hint = 'name one, and consume them: fetch("orders", group="billing")'
    return BadRequest(f"{read!r} was read without a group, so it has nothing to ack", hint=hint)


def _named(as_type: Any, group: str | None) -> tuple[Any, str | None]:
    """Tell a type from a group, which may stand in its place: `consume("orders", "billing")`."""
    return (None, as_type) if isinstance(as_type, str) and group is None else (as_type, group)


class Consumers(Producers):
    """The part of a client that consumes."""

    def _reset(self) -> None:
        super()._reset()
        self._fetchers: dict[tuple[tuple[str, ...], str | None], Fetcher] = {}

    @overload
    def subscribe(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription: ...
    @overload
    def subscribe(
        self,
        topics: str | Iterable[str],
        as_type: type[Data],
        group: str,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription[Data]: ...
    @overload
    def subscribe(
        self,
        topics: str | Iterable[str],
        as_type: UnionType,
        group: str,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription[Any]: ...
    # in the first form the group stands in the place of the type
    @shows(joining, FetchOptions, ConsumeOptions)  # type: ignore[misc]
    def subscribe(
        self,
        topics: str | Iterable[str],
        as_type: Any = None,
        group: Any = None,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription[Any]:
        """Messages of topics ("orders", ["a", "b"], "orders.*") as they come, shared among the consumers of
        the group. `read` reads them without a group.

        A new group begins at the first record, or at `start`. With stop_at_end the loop ends when all records
        that can be delivered now were delivered. It does not wait for records that are delayed or wait for
        another attempt. A missing topic is made, unless create=False. With a type, `msg.data` is the value as
        that type: `subscribe("orders", Order, group="billing")`. Raises BadRequest, also for a type that
        values cannot be decoded to.
        """
        return self._subscribed(self._in_group(topics, as_type, group, options), stop_at_end)

    def _in_group(
        self, topics: str | Iterable[str], as_type: Any, group: Any, options: ConsumeOptions
    ) -> Joining:
        """A consumer of a group. Raises BadRequest."""
        kind, name = _named(as_type, group)
        if not name:
            raise BadRequest("no group named", hint='name one: group="billing", or read() without a group')
        return self._decoding(joining(topics, name, **options), kind)

    def _decoding(self, asked: Joining, kind: Any) -> Joining:
        """Let a consumer decode values to a type; None: it does not. Raises BadRequest."""
        if kind is None:
            return asked
        return asked._replace(decode=self._codec.decoder(kind, asked.names))

    def _subscribed(self, asked: Joining, stop_at_end: bool) -> Subscription[Any]:
        state = self._engine.made_subscription(asked, stop_at_end)
        subscription: Subscription[Any] = Subscription(self, state)
        self._do(self._engine.session.subscribe, state)
        self._exchange()
        return subscription

    @overload
    def consume(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription: ...
    @overload
    def consume(
        self,
        topics: str | Iterable[str],
        as_type: type[Data],
        group: str,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription[Data]: ...
    @overload
    def consume(
        self,
        topics: str | Iterable[str],
        as_type: UnionType,
        group: str,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription[Any]: ...
    # in the first form the group stands in the place of the type
    @shows(joining, FetchOptions, ConsumeOptions)  # type: ignore[misc]
    def consume(
        self,
        topics: str | Iterable[str],
        as_type: Any = None,
        group: Any = None,
        *,
        stop_at_end: bool = False,
        **options: Unpack[ConsumeOptions],
    ) -> Subscription[Any]:
        """The messages of `subscribe`, with the same options, for a loop that never has to be
        stopped from outside. Leaving the loop ends the subscription.
        """
        asked = self._in_group(topics, as_type, group, options)
        return self._subscribed(asked._replace(key_runs=True), stop_at_end)

    @overload
    def fetch(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        n: int | None = None,
        wait: inputs.Duration = 1.0,
        min: int | None = None,
        linger: inputs.Duration | None = None,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Message]: ...
    @overload
    def fetch(
        self,
        topics: str | Iterable[str],
        as_type: type[Data],
        group: str,
        *,
        n: int | None = None,
        wait: inputs.Duration = 1.0,
        min: int | None = None,
        linger: inputs.Duration | None = None,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Message[Data]]: ...
    @overload
    def fetch(
        self,
        topics: str | Iterable[str],
        *,
        n: int | None = None,
        wait: inputs.Duration = 1.0,
        min: int | None = None,
        linger: inputs.Duration | None = None,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Record]: ...
    @overload
    def fetch(
        self,
        topics: str | Iterable[str],
        as_type: type[Data],
        *,
        n: int | None = None,
        wait: inputs.Duration = 1.0,
        min: int | None = None,
        linger: inputs.Duration | None = None,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Record[Data]]: ...
    # in the first form the group stands in the place of the type
    @shows(joining, FetchOptions)  # type: ignore[misc]
    def fetch(
        self,
        topics: str | Iterable[str],
        as_type: Any = None,
        group: Any = None,
        *,
        n: int | None = None,
        wait: inputs.Duration = 1.0,
        min: int | None = None,
        linger: inputs.Duration | None = None,
        **options: Unpack[FetchOptions],
    ) -> FetchedBatch[Any]:
        """At most `n` messages. Returns as soon as there is one, or empty after `wait`; with wait=0
        nodes get half a second to answer. Ack with `ack(batch)`.

        With `min` or `linger` it waits for more messages after the first one. It returns
        when it has `min` messages (default with `linger`: n), or when `linger` is over
        (default with `min`: wait).

        Fetches with the same options share one subscription, which takes records ahead for the next fetch. A
        fetch with other options, or another type, ends it, gives back what it took ahead, and subscribes with
        these. With a type, `msg.data` is the value as that type.

        Without a group it reads: from the next record that is published, or from `start`. Each fetch goes on
        behind the one before. It returns records, which cannot be acked or given back; a missing topic raises
        NotFound unless create=True, and options of a group raise BadRequest. Raises BadRequest, and
        Unreachable if no node that could have records has answered within the client's timeout.
        """
        kind, group = _named(as_type, group)
        count = credit_of(n, options.get("mode"), "n")
        wait_s, more = inputs.seconds(wait), more_of(count, min, linger)
        name = (topics,) if isinstance(topics, str) else tuple(topics)
        fetcher, said = self._usable_fetcher(name, group), _said(options) if options else ()
        if fetcher is None or fetcher._said != said or fetcher._kind != kind:
            asked = joining(name, group, credit=count, **options)._replace(by_fetches=True)
            asked = self._decoding(asked, kind)
            if fetcher is not None:
                self._replace(name, group, fetcher)
            made = Fetcher(self, self._engine.made_subscription(asked, False))
            made._said, made._kind = said, kind
            fetcher = self._fetchers.setdefault((name, group), made)
        try:
            return fetcher._fetch(count, wait_s, more)
        finally:
            if fetcher._is_replaced and not fetcher._state.fetches:
                self._end(fetcher._state)

    def _replace(self, name: tuple[str, ...], group: str | None, fetcher: Fetcher) -> None:
        """Let the next fetch subscribe anew. The fetches of others that are running keep theirs."""
        fetcher._is_replaced = True
        if self._fetchers.get((name, group)) is fetcher:
            self._fetchers.pop((name, group), None)
        if not fetcher._state.fetches:
            self._end(fetcher._state)

    def _usable_fetcher(self, name: tuple[str, ...], group: str | None) -> Fetcher | None:
        """The fetcher of earlier fetches. If there is none, drops all refused fetchers: this call
        may be another try, and topics that were removed may never be fetched again.
        """
        fetcher = self._fetchers.get((name, group))
        if fetcher is not None and fetcher._state.error is None:
            return fetcher

        def dropped() -> list[Fetcher]:
            known = list(self._fetchers.items())  # other threads may add theirs meanwhile
            return [self._fetchers.pop(key) for key, each in known if each._state.error is not None]

        for each in self._do(dropped):
            self._end(each._state)
        return self._fetchers.get((name, group))

    @shows(joining, FetchOptions)
    def fetcher(
        self, topics: str | Iterable[str], group: str | None = None, **options: Unpack[FetchOptions]
    ) -> Fetcher:
        """A fetcher with its own options, which can be ended; see `Fetcher`. Raises BadRequest."""
        asked = joining(topics, group, **options)._replace(by_fetches=True)
        return Fetcher(self, self._engine.made_subscription(asked, False))

    def ack_soon(self, done: FetchedBatch[Message[Any]] | Message[Any] | Iterable[Message[Any]]) -> None:
        """Ack one message, several, or all of a fetched batch without waiting; a batch has no cost per
        message. Acks are sent within milliseconds; `flush` waits until they are stored. Raises LeaseLost for
        a message that another consumer is known to have, and BadRequest for one that another client got.
        Messages before it are acked.
        """
        if isinstance(done, FetchedBatch):
            self._require_own(done, done.engine is self._engine)
            for piece in done.pieces:
                if not piece.held.part.subscription.group:
                    raise _nothing_to_ack(done)
                self._ack_range(piece.held, piece.first, piece.end)
            return
        for message in [done] if isinstance(done, Record) else done:
            if not message._held.part.subscription.group:
                raise _nothing_to_ack(message)
            self._require_own(message, message._client is self)
            message.ack_soon()

    def ack(
        self,
        done: FetchedBatch[Message[Any]] | Message[Any] | Iterable[Message[Any]],
        *,
        timeout: inputs.Timeout = UNSET,
    ) -> None:
        """Ack one message, several, or all of a fetched batch, and wait until the acks are stored.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises NotConfirmed
        when that is over (the acks may be stored). Raises the error of a refused ack, for example when its
        topic was removed. Raises LeaseLost, after all others are stored, for messages that other consumers
        have; see `Message.lost`. Raises BadRequest, and acks none, if another client got one of them.
        """
        seconds = self._seconds(timeout)
        messages = [done] if isinstance(done, Record) else list(done)
        for message in messages:
            if not message._held.part.subscription.group:
                raise _nothing_to_ack(message)
            self._require_own(message, message._client is self)
        for message in messages:
            if not message.lost:
                message.ack_soon()
        self._let_others()
        consuming = self._engine.session.consuming
        places = [
            (each._held.part, each._held.partition, [(each.offset, each.offset + 1)]) for each in messages
        ]
        if not self._until(lambda: all(consuming.told(*place) for place in places), seconds):
            raise NotConfirmed(f"no answer to an ack within {seconds} s", hint="it may be stored")
        for place in places:
            self._do(consuming.forget_lost, *place)
        if refused := next(filter(None, (consuming.refused_ack(*place) for place in places)), None):
            raise refused
        for message, place in zip(messages, places, strict=True):
            if late := consuming.too_late(*place):
                self._do(message._held.lose, late)
        for message in messages:
            message._require_lease()

    def _require_own(self, done: FetchedBatch[Message[Any]] | Message[Any], is_own: bool) -> None:
        """Raises BadRequest for another client's message: in this client's session the same
        numbers name other records.
        """
        if not is_own:
            hint = "ack it with the client that it came from, or each message by itself: msg.ack()"
            raise BadRequest(f"{done!r} was given to another client", hint=hint)

    def _message(self, held: Held, offset: int) -> Message[Any]:
        return Message(held, offset, self)

    def _changed_message(self, held: Held, offset: int) -> Message[Any]:
        """A message as middleware changes it. Raises its errors."""
        return self._received(Message(held, offset, self))

    def _received(self, message: Message[Any]) -> Message[Any]:
        """A message as middleware changes it. Raises its errors."""
        for ware in self._layers.receiving:
            message = ware.receive(message)
        return message

    def _refuse(self, message: Message[Any], error: Exception) -> None:
        """Settle a message that middleware could not take in."""
        log.warning("%r is refused by middleware, %s: %s", message, type(error).__name__, error)
        message.settle(outcomes.of(error))

    def _await_records(self, subscription: credit.Subscription, timeout: float | None) -> bool:
        """Waits for records to take; returns False at the end of the stream or of the time. Raises
        the error of a refused subscription.
        """
        consuming = self._engine.session.consuming

        def ready() -> bool:
            consuming.resume(subscription)
            return (
                bool(subscription.ready or subscription.error or subscription.over) or subscription.finished
            )

        self._until(ready, timeout)
        if subscription.error is not None:
            raise subscription.error
        return bool(subscription.ready) and not subscription.over

    def _report(self, held: Held, offset: int, done: float, text: str) -> None:
        """Report the progress of a record; it is sent within milliseconds."""
        self._do(self._engine.session.consuming.report, held, offset, done, text)
        self._soon()

    def _ack_with(self, held: Held, result: JobResult) -> None:
        """Ack a record with the result of its handler; it is sent within milliseconds."""
        self._do(self._engine.session.consuming.ack_with, held, result)
        self._soon()

    def _nack_range(self, held: Held, first: int, end: int, outcome: Outcome) -> None:
        """Gives records back with an outcome. Most outcomes are sent within
        milliseconds, as acks are.
        """
        self._do(self._engine.session.consuming.nack, held, first, end, outcome)
        if self._engine.session.links.out:
            self._exchange()
        else:
            self._soon()

    def _extend_lease(self, held: Held, offset: int, lease_ms: int) -> None:
        """Asks the leader for a longer lease."""
        call = self._do(self._engine.session.consuming.extend, held, offset, lease_ms)
        if call is not None:
            self._answered(call, self._timeout)
            call.answer(Request)

    def _end(self, subscription: credit.Subscription) -> None:
        """Closes a subscription that is no longer used."""
        if self._engine.usable:
            self._do(self._engine.session.consuming.close, subscription)
            self._exchange()

    def _before_flush(self) -> None:
        for fetcher in list(self._fetchers.values()):
            self._end(fetcher._state)
