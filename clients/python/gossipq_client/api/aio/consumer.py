"""The consumer: messages that are acked when their `with` block ends, the loop, fetching
ahead, and the verbs for these.
"""

from collections.abc import AsyncIterator, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, Unpack, cast

from gossipq import limits
from gossipq.errors import BadRequest, ClientClosed, LeaseLost, NotConfirmed
from gossipq.values import Message as Request
from gossipq_client.api.aio.driver import Driver, PendingReceipt, started
from gossipq_client.api.aio.operator import Operator
from gossipq_client.api.aio.publisher import Publisher
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
    Outcome,
    PublishOptions,
    Reject,
    Retry,
    inputs,
    outcomes,
    results,
)

LOOK_S = 0.5  #: time between two looks of a fetch at which nodes answer


class Message(Record[Data], Generic[Data], eq=False):
    """One message that a consumer got. If the `async with msg:` block ends normally, the
    message is acked. Retry and Reject decide otherwise. Any other exception gives it back
    as failed, and propagates.
    """

    _consumer: "Consumer"
    _settled: bool = False

    def replace(
        self, *, value: bytes | None = None, headers: inputs.Headers | None = None
    ) -> "Message[Data]":
        """Return this message with another value or other headers, for middleware: see `Middleware.receive`.
        To settle one of them settles both."""
        return ChangedMessage(
            self._held,
            self.offset,
            self._consumer,
            _of=self,
            _value=self.value if value is None else value,
            _header_bytes=self.header_bytes if headers is None else inputs.header_bytes(headers),
        )

    async def ack(self, timeout: inputs.Timeout = UNSET, *, result: Any = None) -> None:
        """Ack the message and wait until the ack is stored.

        `result` is kept if the publisher asked for it by `keep_result`.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises NotConfirmed
        when that is over (the ack may be stored), LeaseLost if another consumer has the record, ClientClosed,
        and what `ack_soon` raises.
        """
        if result is not None:
            self.ack_soon(result)
        await self._consumer.ack(self, timeout)

    def ack_soon(self, result: Any = None) -> None:
        """Ack the message without waiting, as leaving its `with` block does. The ack is sent within
        milliseconds, together with others; `flush` waits until it is stored. `result` as in `ack`.

        Raises BadRequest for a result that JSON cannot express, or that is too large. Raises LeaseLost if
        another consumer is known to have the record now, or ClientClosed.
        """
        if self._settled:
            return
        held = self._held
        if held.lost:
            self._settled = True
            self._require_lease()
        keep_ms = held.keep_all_ms
        if keep_ms is None:
            keep_ms = held.keep_ms(self.offset)
        if keep_ms:
            part = held.part
            if part.subscription.leased:
                # before the ack, which is not sent without its result then
                part.results.append((held, self.offset, keep_ms, *results.encoded(result)))
        self._consumer.driver.ack_one(self)
        self._settled = True  # last, so that an interrupted ack can be repeated

    def progress(self, done: float, text: str = "") -> None:
        """Report how far the work is: `done` from 0 to 1, with a short text. Does not wait.

        `job` and `follow` show the last report. Of the reports within 200 ms, the last one is sent. Raises
        BadRequest for another number or a text of more than 256 bytes, and LeaseLost.
        """
        report = results.report_of(done, text)
        self._require_lease()
        if not self._settled:
            self._consumer.report(self._held, self.offset, *report)

    async def nack(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        """The message failed. It comes again after `delay`, in seconds or as "5m" (default: the
        pause of the backoff policy), until its attempts are used up.
        """
        self.settle(outcomes.failed(delay, reason))

    async def reject(self, reason: str = "") -> None:
        """No further attempt: the message becomes a dead letter."""
        self.settle(outcomes.rejected(reason))

    async def release(self) -> None:
        """Give the message back: it is redelivered at once, to any consumer. That is not a failure."""
        self.settle(outcomes.GIVEN_BACK)

    def settle(self, outcome: Outcome) -> None:
        """Gives the message back, unless it is settled already."""
        if not self._settled:
            self._consumer.nack(self._held, self.offset, self.offset + 1, outcome)
            self._settled = True

    def _expire(self, outcome: Outcome) -> None:
        """Gives the message back while its handler still runs. From now on the handler's
        verbs for it raise LeaseLost.
        """
        if not self._settled:
            self._consumer.nack(self._held, self.offset, self.offset + 1, outcome)
            self._consumer.driver.step(self._held.lose, [(self.offset, self.offset + 1)])

    async def ack_with(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Ack the message and publish a record that results from it, as one atomic step, and wait until both
        are stored. If that fails, the message has failed.

        `timeout` (seconds, or "5s") and options are those of `publish`. Raises what `publish` raises,
        LeaseLost if another consumer had the record, and BadRequest unless both lie in one shard, as with
        `create_topic(topic, beside=...)`.
        """
        seconds = self._consumer.driver.seconds(timeout)
        self._begin_step()
        return await self._consumer.publisher.receipt(await self._step(topic, value, options), seconds)

    def post_with(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """Do what `ack_with` does, and return at once: the receipt says when both are stored. Options are
        those of `publish`."""
        self._begin_step()
        return self._consumer.driver.posted(topic, [], self._step(topic, value, options))

    def _begin_step(self) -> None:
        """Raises LeaseLost, and BadRequest for a message with nothing to ack."""
        self._require_lease()
        if self._settled or not self._held.part.subscription.leased:
            hint = "it acks once, and only what a group consumes with ack=True"
            raise BadRequest(f"{self!r} has nothing to ack", hint=hint)
        self._settled = True

    async def _step(self, topic: str, value: Any, options: PublishOptions) -> Awaited:
        held, offset, consuming = self._held, self.offset, self._consumer.driver.engine.session.consuming

        def then(flight: Flight) -> None:
            consuming.stepped(held, offset, flight.error)

        try:
            return await self._consumer.publisher.step(held, offset, then, topic, value, options)
        except BaseException as error:
            self._settled = False
            self.settle(outcomes.of(error))
            raise

    async def extend(self, seconds: inputs.Duration) -> None:
        """Keeps the message for this long from now, in seconds or as "5m". Raises LeaseLost."""
        lease_ms = inputs.duration_ms(seconds, "seconds", 1, limits.LEASE_TOTAL_MS_MAX)
        await self._consumer.extend(self._held, self.offset, lease_ms)
        self._require_lease()

    async def __aenter__(self) -> Self:
        """Raises LeaseLost."""
        if self._held.lost:
            self._require_lease()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            held = self._held
            if held.lost:
                self._ack_late()
            elif held.keep_all_ms != 0:
                self.ack_soon()
            elif not self._settled:  # the end of `ack_soon`, without its call: there are very many messages
                self._consumer.driver.ack_one(self)
                self._settled = True
            return False
        self.settle(self._outcome(error))
        return isinstance(error, Retry | Reject | LeaseLost)

    def _outcome(self, error: BaseException) -> Outcome:
        """Return the outcome for an exception. If the result is kept, the error has a traceback."""
        outcome = outcomes.of(error)
        return outcomes.traced(outcome, error) if self._held.keep_ms(self.offset) else outcome

    def _ack_late(self) -> None:
        if self.cancelled:
            return
        try:
            self.ack_soon()
        except LeaseLost as lost:  # it ends this message, not the loop
            log.warning("%s", lost)
            note_lost = self._consumer.driver.engine.session.consuming.note_lost
            place = self._held.partition, self.offset, self.offset + 1
            self._consumer.driver.step(note_lost, self._held.part, [place])


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


async def messages(consumer: "Consumer", subscription: credit.Subscription) -> AsyncIterator[Any]:
    """Messages one by one, after a first step that yields None. Messages that the user has not seen
    are given back when the loop ends.
    """
    engine, consuming = consumer.driver.engine, consumer.driver.engine.session.consuming
    end, leave_later = partial(consuming.close, subscription), engine.later.append
    front, leased, hands = partial(consuming.front, subscription), subscription.leased, consuming.hands
    held, handed, waits, has_group = None, 0, False, bool(subscription.group)
    try:
        yield cast(Message, None)  # taken by `started`
        while not subscription.over:
            held = consumer.driver.step(front)
            if held is None:
                waits = True
                more = await consumer.await_records(subscription, None)
                waits = False
                if not more:
                    return
                continue
            first = handed = held.taken
            part, aloud = held.part, held.begins_aloud
            chunk, receiving = max(1, subscription.credit_records // 4), consumer.publisher.layers.receiving
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
                    consumer.driver.begin(held, offset)
                message: Any = Message(held, offset, consumer) if is_message else Record(held, offset)
                handed = after
                if receiving:
                    try:
                        message = consumer.received(message)
                    except Exception as error:
                        consumer.refuse(message, error)
                        continue
                yield message
                if subscription.over:
                    return
            consumer.driver.step(consuming.took, subscription, held, held.taken - first)
            held = None
            if consuming.credit_due:
                consumer.driver.exchange()
            waits = True
            await consumer.driver.breathe()
            waits = False
    finally:
        if held is not None and held.taken > handed:  # taken, but not yielded
            leave_later(partial(consuming.nack, held, handed, held.taken, seen=False))
        if waits and subscription.kept and subscription.error is None:
            subscription.kept = False  # interrupted: see `Subscription`
        else:
            leave_later(end)
            consumer.driver.settle_later()


class Subscription(Generic[Data]):
    """A consumer as an object: iterate over it for its messages, `stop` it from anywhere, leave its
    `async with` block to end it. The `data` of its messages is of the type that `consume` named.

    At the end, messages that the user has not seen are given back; messages that the
    user has can still be acked.
    """

    def __init__(self, consumer: "Consumer", state: credit.Subscription) -> None:
        self._consumer, self._state = consumer, state
        self._messages = started(messages(consumer, state))
        self._turns = [True]  #: a token for the next message; taking it is the only atomic step

    def __aiter__(self) -> AsyncIterator[Message[Data]]:
        return self._messages

    async def __anext__(self) -> Message[Data]:
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
            message: Message[Data] = await self._messages.__anext__()
            return message
        finally:
            if not self._state.kept:
                self._messages = started(messages(self._consumer, self._state))
            self._state.kept = False
            self._turns.append(turn)

    @property
    def trouble(self) -> str:
        """Why no message can come now: the node that has not answered within the client's
        timeout. "" = nodes answer. The loop continues by itself as soon as a node answers.
        Callable from any thread.
        """
        error = self._consumer.driver.engine.waits_for(self._state, self._consumer.driver.timeout_s)
        return "" if error is None else f"{error.message}; {error.hint}"

    def stop(self) -> None:
        """Ends the loop after the current message: messages that are here but not seen are given
        back. Callable from any thread and from a signal handler.
        """
        self._state.over = True
        self._consumer.driver.wake()

    async def aclose(self) -> None:
        """Ends the subscription. A second call is harmless."""
        self._consumer.end(self._state)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Fetcher:
    """Repeated `fetch` calls on the same topics and group, even several at a
    time; made by `mq.fetcher`.
    """

    said: tuple[tuple[str, str], ...] = ()  #: the options that `Consumer.fetch` made it with
    kind: Any = None  #: the type that it names for `data`
    is_replaced = False  #: a later fetch had other options

    def __init__(self, consumer: "Consumer", subscription: credit.Subscription) -> None:
        self._consumer, self.state = consumer, subscription

    async def fetch(
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
        count = credit_of(n, self.state.options.mode, "n")
        return await self.take_in(count, inputs.seconds(wait), more_of(count, min, linger))

    def rest(self) -> None:
        """Withdraws the credit for further fetches, unless one is running, so that other consumers
        get the records. The next fetch grants credit again.
        """
        state = self.state
        if not (state.fetches or state.over or state.paused) and self._consumer.driver.engine.usable:
            self._consumer.driver.step(self._consumer.driver.engine.session.consuming.pause, self.state)
            self._consumer.driver.exchange()

    async def aclose(self) -> None:
        """Ends it: running fetches return empty; messages that the user has can still be acked."""
        self._consumer.end(self.state)
        self._consumer.driver.wake()

    async def take_in(self, count: int, wait_s: float, more: More) -> FetchedBatch[Any]:
        """Wait for messages, and return them."""
        consumer, subscription, fetch = self._consumer, self.state, object()
        if isinstance(subscription.error, ClientClosed):
            raise subscription.error
        if not subscription.asked:
            consumer.driver.step(consumer.driver.engine.session.subscribe, subscription)
        engine, consuming = consumer.driver.engine, consumer.driver.engine.session.consuming
        give_back, leave_later = partial(consuming.break_off, subscription, fetch), engine.later.append
        try:
            pieces = consumer.driver.step(consuming.fetch, subscription, count, fetch)
            if pieces:
                if consuming.credit_due or engine.session.links.out:
                    consumer.driver.exchange()
            else:
                pieces = await self._wait(count, wait_s, fetch)
            if pieces and sum(map(len, pieces)) < more.least:
                linger_s = wait_s if more.linger_s is None else more.linger_s
                pieces = await self._linger(count, linger_s, more.least, fetch)
            consumer.driver.step(consuming.fetched, subscription, bool(pieces), fetch)
            if engine.session.links.out:
                consumer.driver.exchange()
            consumer.driver.mind_hands()
            batch: FetchedBatch[Any]
            if consumer.publisher.layers.receiving:
                batch = FetchedBatch(pieces, consumer.changed_message, engine, changes=True)
            else:
                batch = FetchedBatch(pieces, consumer.message if subscription.group else Record, engine)
            del subscription.fetches[fetch]
            return batch
        except BaseException:
            # for example an interrupt or a cancellation: its records are given back
            leave_later(give_back)
            consumer.driver.settle_later()
            raise

    async def _wait(self, count: int, wait_s: float, fetch: object) -> list[Piece]:
        """The records that come within `wait_s`, or later while the client does not know whether
        the topics exist. Raises Unreachable if no node has answered within the client's
        timeout; a takeover takes less.
        """
        consumer, subscription, engine = self._consumer, self.state, self._consumer.driver.engine
        deadline_ms, left_s = engine.now_ms() + wait_s * 1000, wait_s
        while True:
            if await consumer.await_records(subscription, min(left_s or LOOK_S, LOOK_S)):
                if pieces := self._take(count, fetch):
                    return pieces  # otherwise another fetch was faster
            elif subscription.over or subscription.finished:
                return []
            left_s = max(0.0, (deadline_ms - engine.now_ms()) / 1000)
            if (
                error := consumer.driver.step(engine.waits_for, subscription, consumer.driver.timeout_s)
            ) is not None:
                raise error
            if not left_s and subscription.looked_up:
                return []

    async def _linger(self, count: int, wait_s: float, least: int, fetch: object) -> list[Piece]:
        """The records of this fetch, and those that come within `wait_s`,
        until it has `least` messages.
        """
        consumer, subscription, engine = self._consumer, self.state, self._consumer.driver.engine
        deadline_ms = engine.now_ms() + wait_s * 1000
        pieces = self._take(0, fetch)
        while (found := sum(map(len, pieces))) < least:
            left_s = max(0.0, (deadline_ms - engine.now_ms()) / 1000)
            if not await consumer.await_records(subscription, left_s):
                return pieces
            pieces = self._take(count - found, fetch)
        return pieces

    def _take(self, count: int, fetch: object) -> list[Piece]:
        take = self._consumer.driver.engine.session.consuming.take
        return self._consumer.driver.step(take, self.state, count, fetch)


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


class Consumer:
    """Consumes records for a client."""

    def __init__(self, driver: Driver, operator: Operator, publisher: Publisher) -> None:
        self.driver, self.operator, self.publisher = driver, operator, publisher

    @property
    def fetchers(self) -> dict[tuple[tuple[str, ...], str | None], Fetcher]:
        """Fetchers of the session in use, by topics and group."""
        found: dict[tuple[tuple[str, ...], str | None], Fetcher]
        found = self.driver.engine.parts.setdefault("fetchers", {})
        return found

    def in_group(
        self, topics: str | Iterable[str], as_type: Any, group: Any, options: ConsumeOptions
    ) -> Joining:
        """A consumer of a group. Raises BadRequest."""
        kind, name = _named(as_type, group)
        if not name:
            raise BadRequest("no group named", hint='name one: group="billing", or read() without a group')
        return self.decoding(joining(topics, name, **options), kind)

    def decoding(self, asked: Joining, kind: Any) -> Joining:
        """Let a consumer decode values to a type; None: it does not. Raises BadRequest."""
        if kind is None:
            return asked
        return asked._replace(decode=self.publisher.codec.decoder(kind, asked.names))

    def subscribed(self, asked: Joining, stop_at_end: bool) -> Subscription[Any]:
        state = self.driver.engine.made_subscription(asked, stop_at_end)
        subscription: Subscription[Any] = Subscription(self, state)
        self.driver.step(self.driver.engine.session.subscribe, state)
        self.driver.exchange()
        return subscription

    async def fetch(
        self,
        topics: str | Iterable[str],
        as_type: Any,
        group: Any,
        *,
        n: int | None,
        wait: inputs.Duration,
        min: int | None,
        linger: inputs.Duration | None,
        options: FetchOptions,
    ) -> FetchedBatch[Any]:
        """Fetch at most `n` messages, as `Facade.fetch` says."""
        kind, group = _named(as_type, group)
        count = credit_of(n, options.get("mode"), "n")
        wait_s, more = inputs.seconds(wait), more_of(count, min, linger)
        name = (topics,) if isinstance(topics, str) else tuple(topics)
        fetcher, said = self._usable_fetcher(name, group), _said(options) if options else ()
        if fetcher is None or fetcher.said != said or fetcher.kind != kind:
            asked = joining(name, group, credit=count, **options)._replace(by_fetches=True)
            asked = self.decoding(asked, kind)
            if fetcher is not None:
                self._replace(name, group, fetcher)
            made = Fetcher(self, self.driver.engine.made_subscription(asked, False))
            made.said, made.kind = said, kind
            fetcher = self.fetchers.setdefault((name, group), made)
        try:
            return await fetcher.take_in(count, wait_s, more)
        finally:
            if fetcher.is_replaced and not fetcher.state.fetches:
                self.end(fetcher.state)

    def _replace(self, name: tuple[str, ...], group: str | None, fetcher: Fetcher) -> None:
        """Let the next fetch subscribe anew. The fetches of others that are running keep theirs."""
        fetcher.is_replaced = True
        if self.fetchers.get((name, group)) is fetcher:
            self.fetchers.pop((name, group), None)
        if not fetcher.state.fetches:
            self.end(fetcher.state)

    def _usable_fetcher(self, name: tuple[str, ...], group: str | None) -> Fetcher | None:
        """The fetcher of earlier fetches. If there is none, drops all refused fetchers: this call
        may be another try, and topics that were removed may never be fetched again.
        """
        fetcher = self.fetchers.get((name, group))
        if fetcher is not None and fetcher.state.error is None:
            return fetcher

        def dropped() -> list[Fetcher]:
            known = list(self.fetchers.items())  # other threads may add theirs meanwhile
            return [self.fetchers.pop(key) for key, each in known if each.state.error is not None]

        for each in self.driver.step(dropped):
            self.end(each.state)
        return self.fetchers.get((name, group))

    def ack_soon(self, done: FetchedBatch[Message[Any]] | Message[Any] | Iterable[Message[Any]]) -> None:
        """Ack without waiting, as `Facade.ack_soon` says."""
        if isinstance(done, FetchedBatch):
            self._require_own(done, done.engine is self.driver.engine)
            for piece in done.pieces:
                if not piece.held.part.subscription.group:
                    raise _nothing_to_ack(done)
                self.driver.ack_range(piece.held, piece.first, piece.end)
            return
        for message in [done] if isinstance(done, Record) else done:
            if not message._held.part.subscription.group:
                raise _nothing_to_ack(message)
            self._require_own(message, message._consumer is self)
            message.ack_soon()

    async def ack(
        self,
        done: FetchedBatch[Message[Any]] | Message[Any] | Iterable[Message[Any]],
        timeout: inputs.Timeout,
    ) -> None:
        """Ack, and wait until the acks are stored, as `Facade.ack` says."""
        seconds = self.driver.seconds(timeout)
        messages = [done] if isinstance(done, Record) else list(done)
        for message in messages:
            if not message._held.part.subscription.group:
                raise _nothing_to_ack(message)
            self._require_own(message, message._consumer is self)
        for message in messages:
            if not message.lost:
                message.ack_soon()
        await self.driver.let_others()
        consuming = self.driver.engine.session.consuming
        places = [
            (each._held.part, each._held.partition, [(each.offset, each.offset + 1)]) for each in messages
        ]
        if not await self.driver.until(lambda: all(consuming.told(*place) for place in places), seconds):
            raise NotConfirmed(f"no answer to an ack within {seconds} s", hint="it may be stored")
        for place in places:
            self.driver.step(consuming.forget_lost, *place)
        if refused := next(filter(None, (consuming.refused_ack(*place) for place in places)), None):
            raise refused
        for message, place in zip(messages, places, strict=True):
            if late := consuming.too_late(*place):
                self.driver.step(message._held.lose, late)
        for message in messages:
            message._require_lease()

    def _require_own(self, done: FetchedBatch[Message[Any]] | Message[Any], is_own: bool) -> None:
        """Raises BadRequest for another client's message: in this client's session the same
        numbers name other records.
        """
        if not is_own:
            hint = "ack it with the client that it came from, or each message by itself: msg.ack()"
            raise BadRequest(f"{done!r} was given to another client", hint=hint)

    def message(self, held: Held, offset: int) -> Message[Any]:
        return Message(held, offset, self)

    def changed_message(self, held: Held, offset: int) -> Message[Any]:
        """A message as middleware changes it. Raises its errors."""
        return self.received(Message(held, offset, self))

    def received(self, message: Message[Any]) -> Message[Any]:
        """A message as middleware changes it. Raises its errors."""
        for ware in self.publisher.layers.receiving:
            message = ware.receive(message)
        return message

    def refuse(self, message: Message[Any], error: Exception) -> None:
        """Settle a message that middleware could not take in."""
        log.warning("%r is refused by middleware, %s: %s", message, type(error).__name__, error)
        message.settle(outcomes.of(error))

    async def await_records(self, subscription: credit.Subscription, timeout: float | None) -> bool:
        """Waits for records to take; returns False at the end of the stream or of the time. Raises
        the error of a refused subscription.
        """
        consuming = self.driver.engine.session.consuming

        def ready() -> bool:
            consuming.resume(subscription)
            return (
                bool(subscription.ready or subscription.error or subscription.over) or subscription.finished
            )

        await self.driver.until(ready, timeout)
        if subscription.error is not None:
            raise subscription.error
        return bool(subscription.ready) and not subscription.over

    def report(self, held: Held, offset: int, done: float, text: str) -> None:
        """Report the progress of a record; it is sent within milliseconds."""
        self.driver.step(self.driver.engine.session.consuming.report, held, offset, done, text)
        self.driver.soon()

    def nack(self, held: Held, first: int, end: int, outcome: Outcome) -> None:
        """Gives records back with an outcome. Most outcomes are sent within
        milliseconds, as acks are.
        """
        self.driver.step(self.driver.engine.session.consuming.nack, held, first, end, outcome)
        if self.driver.engine.session.links.out:
            self.driver.exchange()
        else:
            self.driver.soon()

    async def extend(self, held: Held, offset: int, lease_ms: int) -> None:
        """Asks the leader for a longer lease."""
        call = self.driver.step(self.driver.engine.session.consuming.extend, held, offset, lease_ms)
        if call is not None:
            await self.operator.answered(call)
            call.answer(Request)

    def end(self, subscription: credit.Subscription) -> None:
        """Closes a subscription that is no longer used."""
        if self.driver.engine.usable:
            self.driver.step(self.driver.engine.session.consuming.close, subscription)
            self.driver.exchange()
