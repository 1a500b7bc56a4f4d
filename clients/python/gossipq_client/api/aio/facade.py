"""The verbs that applications call, each with its signature. The parts of a client do the work."""

import math
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cached_property
from types import TracebackType, UnionType
from typing import Any, Self, Unpack, overload

from gossipq.errors import BadRequest, GossipqError
from gossipq.messages import CreateTopic, Topics
from gossipq.types import META_SHARD
from gossipq.wire.schemas import Schema
from gossipq_client import answers
from gossipq_client.answers import value_of
from gossipq_client.api.aio import farewell
from gossipq_client.api.aio.admin import Admin
from gossipq_client.api.aio.consumer import Consumer, Fetcher, Message, Subscription
from gossipq_client.api.aio.driver import Driver, PendingReceipt
from gossipq_client.api.aio.handles import DeadLettersHandle, GroupHandle, RecordHandle, TopicHandle
from gossipq_client.api.aio.jobs import JobQuestions
from gossipq_client.api.aio.operator import Operator
from gossipq_client.api.aio.publisher import Publisher
from gossipq_client.api.aio.records import Records
from gossipq_client.api.aio.requester import Requester
from gossipq_client.api.aio.runs import Run
from gossipq_client.api.aio.schedules import Schedules
from gossipq_client.api.aio.schemas import Schemas
from gossipq_client.handlers import Function, Handlers, Limits, Middleware, RunEnd, until_signal
from gossipq_client.io import CLOSE_SECONDS, ERROR_CLOSE_SECONDS, Connecting, log
from gossipq_client.operations import TIMEOUT, Job, JoinOptions, ScheduleOptions
from gossipq_client.session import (
    ConsumeOptions,
    Data,
    FetchedBatch,
    FetchOptions,
    ReadOptions,
    Receipt,
    Record,
    joining,
    reading,
)
from gossipq_client.values import (
    UNSET,
    ListOptions,
    PublishOptions,
    TopicPolicy,
    address,
    as_asked,
    inputs,
    topic_options,
)


class Facade:
    """The client as applications see it: each part is given what it needs, and none knows the client."""

    def __init__(self, asked: Connecting) -> None:
        self._driver = Driver(asked)
        self._operator = Operator(self._driver)
        self._publisher = Publisher(self._driver, self._operator, asked.codec)
        self._consumer = Consumer(self._driver, self._operator, self._publisher)
        self._requester = Requester(self._consumer)
        self._jobs = JobQuestions(self._operator, self._publisher)
        self._schemas = Schemas(self._operator, self._publisher)
        self.handlers = Handlers(asked.codec)
        self._run: Run | None = None

    @cached_property
    def schedules(self) -> Schedules:
        """Shows schedules, pauses, runs and removes them. `schedule` sets them."""
        return Schedules(self._operator, self._publisher)

    @cached_property
    def admin(self) -> Admin:
        """The verbs for the whole cluster: nodes, clients, growth, alarms, users."""
        return Admin(self._operator, self._schemas)

    # --- the connection

    async def _connected(self, seconds: float | None = None) -> Self:
        """Connect, and send what the spool holds."""
        try:
            await self._driver.connect(seconds)
            async with self._driver.spooling:
                await self._publisher.send_spooled()
        except BaseException:
            self._driver.give_up(self._driver.made)
            raise
        return self

    async def ready(self, timeout: inputs.Timeout = UNSET) -> Self:
        """Connect, send what the spool holds, and return this client once a node answers.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises Unreachable
        when it is over, and ClientClosed.
        """
        seconds = self._driver.seconds(timeout)
        return await self._connected(math.inf if seconds is None else seconds)

    async def __aenter__(self) -> Self:
        """Connects, and sends what its spool has; a client that was closed connects again. Raises Unreachable
        when no node answers in time."""
        farewell.reopen(self._driver)
        return await self._connected()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
            return
        try:
            await farewell.close(self._driver, ERROR_CLOSE_SECONDS)
        except GossipqError as lost:
            log.error("while closing: %s", lost)

    async def flush(self, timeout: inputs.Timeout = UNSET) -> None:
        """Waits until every publish up to now is confirmed and every ack is stored. Publishes and
        acks that others make meanwhile are not waited for.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises NotConfirmed
        when that is over, the error of a failed publish whose receipt was never looked at, and LeaseLost when
        acks came too late since the last flush: `error.refs` names the records. The log reports the acks of
        handlers.
        """
        await farewell.flush(self._driver, self._driver.seconds(timeout))

    async def close(self, flush: bool = True) -> None:
        """Ends the session; records that the user holds are given back without counting a
        failure. Before that it calls `flush`, for half a minute at most, and raises its error
        once the client is closed.

        In a signal handler that interrupts the sync client at work it returns at once, and the
        client is closed right afterwards.
        """
        await farewell.close(self._driver, CLOSE_SECONDS if flush else 0.0)

    def add_middleware(self, middleware: Middleware) -> None:
        """Put middleware around what is published and received from now on; what is added first is the
        outermost. See `Middleware`."""
        self._publisher.add_middleware(middleware)

    # --- publishing

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Publish one record and wait until it is stored.

        Bytes and text are sent as they are. Everything else that JSON can express (a dict, a list, a
        dataclass, a msgspec.Struct, a model of pydantic) is sent as JSON, or as the codec of `connect`
        encodes it. A consumer gets it as the type that it names. Records that several callers publish at the
        same time share a batch.

        `timeout`: how long it waits for the confirm; without it the client's timeout, None: for ever. Raises
        NotConfirmed when that is over (the record may be stored) and Refused if it is certainly not stored.
        Raises BadRequest before anything is sent, as for NaN in a value, for a type that JSON cannot express,
        or for a value that is too large or does not fit the schema. Raises NotFound, and Backpressure if the
        window stays full.

        Durations are seconds, a timedelta, or text such as "5m". Options and their defaults:

        key=None: chooses the partition, so that records of one key stay in order
        headers=None: text to text or bytes; or the header_bytes of another record, which are sent unchanged
        route="": matched by consumers, as in "eu.fr"
        level=None: "stored" (confirmed means kept) or "none" (no confirm); None = as the topic says
        partition=None: its number, in place of the choice by key or id
        wait=...: time to wait for room in the window, then Backpressure is raised; 0 = do not wait, None =
            no limit. Default: wait while confirms arrive, at most the client's timeout without one
        delay=None: delay from now on until it is due; until then it is scheduled and has no offset
        at=None: due then: an aware datetime, or seconds since 1970
        ttl=None: time to live, counted from when it is due
        lease=None: how long a consumer may be silent with it
        attempts_max=None: failures after which it is a dead letter
        backoff=None: pause after each failure
        flow=None: whose record it is, such as a customer: up to 64 bytes of text. A group of order "fair"
            serves flows in turn. Without a key it chooses the partition
        priority=None: 0 to 9, default 5. A group of order "priority" or "fair" delivers the higher one
            first
        keep_result=None: how long the broker keeps what the handler returns, for `result`
        until=None: how long a unique name is taken: "acked" (default), until the record is done in every
            group; or a duration from its publish on
        conflict=None: if another record has the unique name: "keep" that one (default), and the receipt is
            its; or "replace" it by this one, with its value and due time; or "error": Refused with the code
            "not_unique"
        id=None: published twice within the topic's window it is stored once; without a key it chooses the
            partition
        unique=None: a name that one record has at a time; without a key it chooses the partition
        """
        return await self._publisher.publish(topic, value, options, timeout)

    def post(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """Publish one record and return at once: its receipt says when it is stored.

        Values and options are those of `publish`, and so are the errors of what is wrong before anything is
        sent. Batches form by themselves while earlier ones wait for their confirm. While the window is full,
        the sync client waits here, and raises Backpressure if nothing is confirmed for the client's timeout.
        The asyncio client keeps the record until there is room. It raises Backpressure here if too many wait,
        and `flush` waits for them.
        """
        return self._publisher.post(topic, value, options)

    async def publish_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[ListOptions],
    ) -> Receipt:
        """Publish a list in order, packed, and wait until all of it is stored.

        `timeout` (seconds, or "5s") and options are those of `publish`, for each value one of those below.
        Records that are due later go in the order of their due times. A spool takes all of them by one sync,
        or none. A short list of plain values shares a batch with its neighbours while earlier batches wait
        for their confirm.

        Returns one receipt for the list. Raises what `publish` raises: the first error of a record, and then
        records of other batches may be stored.

        For each value, None = not set for this record:

        keys=None: in place of key
        ids=None: each as `id` of a single record
        uniques=None: each as `unique` of a single record
        delays=None: in place of delay
        flows=None: in place of flow
        priorities=None: in place of priority
        """
        return await self._publisher.publish_many(topic, values, options, timeout)

    def post_many(self, topic: str, values: Iterable[Any], **options: Unpack[ListOptions]) -> PendingReceipt:
        """Publish a list as `publish_many` does, and return at once: its receipt says when all is stored.

        While the window is full, it does what `post` does.
        """
        return self._publisher.post_many(topic, values, options)

    # --- consuming

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
    def subscribe(  # type: ignore[misc]
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
        that type: `subscribe("orders", Order, group="billing")`. Options as in `consume`. Raises BadRequest,
        also for a type that values cannot be decoded to.
        """
        return self._consumer.subscribed(
            self._consumer.in_group(topics, as_type, group, options), stop_at_end
        )

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
    def consume(  # type: ignore[misc]
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

        Durations are seconds, a timedelta, or text such as "30s". The policies (lease, attempts_max, backoff,
        and those of flows) belong to the group: they apply to all its consumers, until a consumer names
        another value. Options and their defaults:

        start=None: where a new group begins: "first" (by default), "new", an offset, an aware datetime,
            "-10m"
        mode=None: "shared", "exclusive" (one consumer at a time) or "key_ordered" (each key in order). The
            first consumer of a group chooses the mode. A later one with another mode is refused; see
            `mq.group(topic, group).configure`.
        route=None: take only records whose route matches this, or one of a list: "eu.fr", "eu.*", ["eu.#",
            "us"]
        create=None: make missing topics, as publishing does (True). With False a missing topic raises
            NotFound.
        ack=True: False = at most once: a record counts as done before it leaves the node
        ahead=True: False = records come only when a fetch asks for them, and none wait here for the next
            fetch. So every record in flight is with a caller.
        lease=None: how long the node waits for a consumer that has gone silent
        attempts_max=None: failures after which a record is a dead letter
        backoff=None: pause after the first, second ... failure; the last one repeats
        order=None: which record is next: "arrival", "priority" (the higher one first) or "fair" (one of
            each flow in turn, the higher priority first)
        weights=None: records that a flow gets in its turn, by the name of the flow; others get 1
        concurrency=None: records of the group that may be in flight, over all partitions; 0 = no limit
        flow_concurrency=None: records of each flow that may be in flight; 0 = no limit
        rate=None: deliveries of the group in a time, as "10/s", "600/1m" or "10/s burst 20"; "none" = no
            limit
        flow_rate=None: the same for each flow
        flow_backlog=None: records of each flow that may wait in a partition; a publish beyond raises
            Refused; 0 = no bound
        age_after=None: records that wait longer get one of ten deliveries, whatever their priority; 0 =
            they do not
        credit=None: the most records that wait here. Default: about a second of work.
        wait=None: how long to wait for topics that do not exist yet
        """
        asked = self._consumer.in_group(topics, as_type, group, options)
        return self._consumer.subscribed(asked._replace(key_runs=True), stop_at_end)

    @overload
    async def fetch(
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
    async def fetch(
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
    async def fetch(
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
    async def fetch(
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
    async def fetch(  # type: ignore[misc]
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
        """At most `n` messages. Returns as soon as there is one, or empty after `wait` (seconds, or "5s");
        with wait=0 nodes get half a second to answer. Ack with `ack(batch)`.

        With `min` or `linger` it waits for more messages after the first one. It returns
        when it has `min` messages (default with `linger`: n), or when `linger` is over
        (default with `min`: wait).

        Fetches with the same options share one subscription, which takes records ahead for the next fetch. A
        fetch with other options, or another type, ends it, gives back what it took ahead, and subscribes with
        these. With a type, `msg.data` is the value as that type. Options as in `consume`, but without credit
        and wait.

        Without a group it reads: from the next record that is published, or from `start`. Each fetch goes on
        behind the one before. It returns records, which cannot be acked or given back; a missing topic raises
        NotFound unless create=True, and options of a group raise BadRequest. Raises BadRequest, and
        Unreachable if no node that could have records has answered within the client's timeout.
        """
        return await self._consumer.fetch(
            topics, as_type, group, n=n, wait=wait, min=min, linger=linger, options=options
        )

    def fetcher(
        self, topics: str | Iterable[str], group: str | None = None, **options: Unpack[FetchOptions]
    ) -> Fetcher:
        """A fetcher with its own options, which can be ended; see `Fetcher`. Options as in `consume`, but
        without credit and wait. Raises BadRequest."""
        asked = joining(topics, group, **options)._replace(by_fetches=True)
        return Fetcher(self._consumer, self._driver.engine.made_subscription(asked, False))

    def ack_soon(self, done: FetchedBatch[Message[Any]] | Message[Any] | Iterable[Message[Any]]) -> None:
        """Ack one message, several, or all of a fetched batch without waiting; a batch has no cost per
        message. Acks are sent within milliseconds; `flush` waits until they are stored. Raises LeaseLost for
        a message that another consumer is known to have, and BadRequest for one that another client got.
        Messages before it are acked.
        """
        self._consumer.ack_soon(done)

    async def ack(
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
        await self._consumer.ack(done, timeout)

    # --- handlers

    def consumer(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        workers: int = 1,
        time_limit: inputs.Duration | None = None,
        batch_size: int | None = None,
        batch_wait: inputs.Duration | None = None,
        cron: str = "",
        tz: str = "",
        every: inputs.Duration | None = None,
        value: Any = None,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[Function], Function]:
        """Register a function as the handler of a topic's records in a group. `run` calls it; the function is
        unchanged.

        It takes the value, as the type of its argument says (bytes, str; from JSON: dict, list, a dataclass,
        a msgspec.Struct), or the message (no type, or Message), or one of each. Returning acks the record.
        Retry, Reject and other exceptions mean the same as in `with msg:`. A value that cannot be decoded
        becomes a dead letter. The return value is the reply to a `request`.

        `workers` records are handled at a time. The sync client runs functions in threads, and coroutine
        functions on an event loop of their own. The asyncio client runs coroutine functions in tasks, and all
        others in threads. A coroutine function that blocks the loop of an asyncio client for 5 s loses its
        records, because the client falls silent. A handler that exceeds `time_limit` (seconds, or "30s")
        counts as failed. A coroutine is cancelled; a thread cannot be, so it keeps running, and another
        worker takes its place.

        With `batch_size` the function takes a list of values (list[Order]), a list of messages, or both in
        the same order. It gets `batch_size` records, or fewer if no more came within `batch_wait` (1 s) after
        the first one. Returning acks all messages of the list that the function did not settle itself, for
        example with `msg.nack()`. An exception fails them. A batch has no reply and no `time_limit`.

        With `cron` (in the time zone `tz`) or `every`, `run` sets a schedule of the topic before it consumes:
        each tick stores a record with `value`, which is empty by itself. The schedule has the name of the
        function, so to start again changes nothing, and another `cron` changes it. One that was paused stays
        paused. It stays when the function goes; `schedules.remove` removes it.

        Other options are those of `consume`.
        """
        return self.handlers.consumer(
            topics,
            group,
            workers=workers,
            time_limit=time_limit,
            batch_size=batch_size,
            batch_wait=batch_wait,
            cron=cron,
            tz=tz,
            every=every,
            value=value,
            **options,
        )

    def include(self, *parts: Handlers) -> None:
        """Add the handlers and hooks of other modules, each a `Handlers`, also those that they register
        later. Raises BadRequest."""
        self.handlers.include(*parts)

    def on_startup(self, function: Function) -> Function:
        """Register a function without arguments, which `run` calls before it consumes: a decorator.

        Coroutine functions are awaited, on the event loop of coroutine handlers. If one raises, `run` calls
        the functions of `on_shutdown` and raises the error.
        """
        return self.handlers.on_startup(function)

    def on_shutdown(self, function: Function) -> Function:
        """Register a function without arguments, which `run` calls after its last handler: a decorator.

        The function that was registered last is called first. All are called; `run` raises the first error.
        """
        return self.handlers.on_shutdown(function)

    async def run(
        self,
        *,
        stop_at_end: bool = False,
        signals: bool = True,
        max_records: int | None = None,
        max_memory: int | None = None,
    ) -> RunEnd:
        """Run the handlers until `stop`, SIGTERM or Ctrl-C. Then it finishes running handlers and gives the
        other records back. Returns why it ended: "stopped", "at_end", "max_records" or "max_memory".

        With stop_at_end it ends when all records that can be delivered now have been handled. It does not
        wait for records that are delayed or wait for another attempt. It handles SIGTERM and SIGINT while it
        runs in the main thread. With signals=False it leaves signals to the program, such as a web server.
        It also ends once its handlers are through with `max_records` records, and once the process has more
        than `max_memory` bytes of memory (Linux and macOS), so that a supervisor can start a new process.
        Raises the error of a refused subscription, BadRequest if it runs already, or without a handler, and
        TimeLimitExceeded if more than ten handlers of one function do not end (or more than it has workers).
        """
        engine = self._driver.engine
        engine.check()
        if self._run is not None and self._run.engine is engine:  # else that of the parent process
            raise BadRequest("the handlers run already", hint="stop() ends them")
        limits = Limits.of(stop_at_end, max_records, max_memory)
        run = self._run = Run(self._consumer, self.schedules, self.handlers, limits)
        try:
            with until_signal(run.stop, signals):
                return await run.run()
        finally:
            self._run = None

    def stop(self) -> None:
        """Ends `run`, from any thread, task, handler or signal handler."""
        run = self._run
        if run is not None:
            run.stop()

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[PublishOptions],
    ) -> Message:
        """Publish a request and wait for the reply: the return value of its handler.

        Options as in `publish`. Raises NotFound. Raises NoReply at once if the topic is without
        consumers, or if the handler failed (with its error) or returned None; otherwise when `timeout`
        is over. It is in seconds, or "5s"; without it the client's timeout, None: for ever. A started handler
        continues then.
        """
        return await self._requester.request(topic, value, timeout, options)

    # --- topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        if_not_exists: bool = False,
        **policy: Unpack[TopicPolicy],
    ) -> "answers.TopicDetails":
        """Create a topic with this number of partitions, which cannot be changed later (None: the cluster's
        default). With `if_not_exists` an existing topic stays as it is. Raises Refused, also for a topic
        with another number of partitions; BadRequest.

        Durations are seconds, a timedelta, or text such as "7d". For an option that is not given, the
        cluster's value applies. Options and their defaults:

        retention=None: the age at which records are removed, if every group has acked them
        retain=None: "acked": records that every group has acked are removed by age; "forever": never
        bytes_max=None: stored bytes per partition, 0 = no bound
        overflow=None: "refuse" or "drop_oldest" when bytes_max is reached
        level=None: "stored" or "none"
        beside=None: topic whose shards this one shares, for atomic steps and exclusive groups
        ttl=None: time to live of records without their own; 0 = they do not expire
        expire=None: what happens to a record that expires untried: "dead" letter, "drop" (counted),
            "try_once"
        dedup=None: how long an id is remembered; for a delayed record, from when it is due
        dedup_count=None: for how many later ids of its partition an id is remembered
        trace=None: which steps of records are kept: "failures", "all" or "off"
        lease=None: how long a consumer may hold a record without a sign of life
        attempts_max=None: failures after which a record is a dead letter
        backoff=None: pause after the first, second ... failure; the last one repeats
        alarm_lag=None: records of a partition that a group may be behind without an alarm; 0 = any number
        group_idle=None: remove a group after this time without consumers and progress; 0 = never
        """
        config = topic_options(partitions, **policy)
        made = await self._operator.ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)
        return value_of(answers.TopicDetails, as_asked(made.topics[0], partitions))

    async def topics(self, pattern: str = "*") -> "list[answers.TopicDetails]":
        """Return the topics whose names match, where `*` stands for any text. Creates none."""
        found = await self._operator.run(self._operator.asking.topics(pattern))
        return [value_of(answers.TopicDetails, info) for info in found]

    async def schema(self, topic: str, declared: Any = None) -> Schema:
        """Return the schema of a topic, and check against it all that this client publishes there from now
        on. A value that does not fit raises BadRequest.

        declared: a msgspec.Struct, a dataclass or a JSON Schema. It becomes the topic's schema, unless it is
        the schema already, or newer versions have followed it. Optional fields may be added. A schema that
        refuses values which fitted before raises BadRequest. Raises NotFound, and BadRequest for an
        invalid schema, or if the topic is without one."""
        return await self._schemas.use(topic, declared)

    # --- handles of topics, groups, dead letters and records

    def topic(self, name: str) -> TopicHandle:
        """Return a handle of a topic: `describe`, `configure`, `delete`, `purge`, `groups`, and more."""
        return TopicHandle(self._operator, self._schemas, name)

    def group(self, topic: str, name: str) -> GroupHandle:
        """Return a handle of a group: `pause`, `resume`, `seek`, `lag`, `why`, `delete`, and more."""
        return GroupHandle(self._operator, topic, name)

    def dead(self, topic: str, group: str = "") -> DeadLettersHandle:
        """Return a handle of the dead letters of a group, or of all groups: `letters`, `replay`, `purge`."""
        return DeadLettersHandle(self._operator, topic, group)

    def record(
        self,
        name: str,
        partition: int | None = None,
        offset: int | None = None,
        *,
        id: inputs.Value | None = None,
    ) -> RecordHandle:
        """Return a handle of one record: `show`, `why`, `trace`, `cancel`, `reschedule`, `requeue`, `edit`.

            mq.record(receipt.ref)    mq.record("orders", 0, 17)    mq.record("orders", id="order-17")

        Raises BadRequest unless exactly one record is named.
        """
        return RecordHandle(self._operator, address(name, partition, offset, id))

    # --- jobs

    async def job(
        self,
        job: str | Receipt,
        partition: int | None = None,
        offset: int | None = None,
        *,
        id: inputs.Value | None = None,
        group: str = "",
    ) -> Job:
        """Return the state of a record as a job: a receipt, or a record that is named as in `record`.

            mq.job(receipt)    mq.job(receipt.ref)    mq.job("resize", 0, 17)    mq.job("resize", id="cat")

        `group` is needed if several groups have it. Raises NotFound, BadRequest.
        """
        name = job.ref if isinstance(job, Receipt) else job
        return await self._jobs.show(address(name, partition, offset, id), group)

    def follow(self, job: str | Receipt, *, group: str = "") -> AsyncIterator[Job]:
        """Iterate over the states of a job: the present one, one for each report of progress, and its end.
        The leader tells them as they come, without polling. Raises what `job` raises."""
        return self._jobs.follow(job, group)

    async def result(
        self,
        job: str | Receipt,
        *,
        timeout: inputs.Timeout = UNSET,
        group: str = "",
        as_type: Any = None,
    ) -> Any:
        """Wait until a job has ended, and return what its handler returned.

            receipt = mq.publish("resize", job, keep_result="1h")
            size = mq.result(receipt, timeout="1m")

        `job` is a receipt, or the `ref` of one, from any process. The broker keeps the result for the time
        given by `keep_result`; later, or without it, the result is None. A result of JSON is decoded as
        `as_type` if that is given. `timeout` is in seconds, or "1m"; without it the
        client's timeout, None: for ever, 0: not at all.

        Raises JobFailed if the job failed, was cancelled or expired, and NoReply when `timeout` is over.
        Raises NotFound, and BadRequest if several groups have the record and `group` names none.
        """
        return await self._jobs.result(job, timeout, group, as_type)

    async def cancel(self, job: str | Receipt, *, reason: str = "") -> str:
        """Cancel a job: a receipt, or the `ref` of one. No consumer gets it from now on. Returns its ref.

        The handler of a running job is told: `msg.cancelled` becomes true, and a coroutine is cancelled. Its
        result is not stored, and the job has ended as cancelled, also if the consumer dies or never looks. A
        thread cannot be cancelled, so it runs until it looks at `msg.cancelled`.

        Raises Refused if every group is done with it, NotFound, BadRequest.
        """
        return await self._jobs.cancel(job, reason)

    async def join(
        self,
        jobs: Iterable[str | Receipt],
        *,
        then: tuple[str, Any],
        when: str | int = "all",
        timeout: inputs.Duration = TIMEOUT,
        group: str = "",
        **options: Unpack[JoinOptions],
    ) -> str:
        """Publish a record when jobs have ended: all of them, `when="any"` one, or a number of them.

            pages = mq.publish_many("pages", [1, 2, 3], keep_result="1h")
            book = mq.join([pages], then=("books", "bind it"))

        `jobs` are receipts or refs, at most 500, of any topics. A receipt of a list stands for all of its
        records. `then` is a topic and a value. The broker waits, so the program can end. It publishes the
        record once, also if leaders change. The handler finds how the jobs ended in `msg.joined`, failed and
        cancelled ones too, and their results by `mq.result(job.ref)`. When `timeout` is over, the record is
        published with the jobs that have not ended as "open". `group` is needed if several groups have the
        jobs.

        Returns the ref of the record, for `job`, `result` and `cancel`, before and after it is published.
        Raises BadRequest, NotFound.

        Options of the record are those of `publish`, without `delay`, `at`, `unique`, `level` and `wait`.
        """
        return await self._jobs.join(jobs, then, when, timeout, group, **options)

    # --- schedules

    async def schedule(
        self, topic: str, value: Any, *, name: str, **options: Unpack[ScheduleOptions]
    ) -> bool:
        """Store a record in a topic again and again: by a `cron` expression, or `every` so often.

            mq.schedule("reports", job, name="nightly", cron="0 7 * * mon-fri", tz="Europe/Berlin")

        A schedule is known by its name in the topic. To set it again changes it; returns False if nothing
        changed. Each tick is one record with the id `name/time`. It is never early, and stored once, also
        if the leader changes. Raises BadRequest.

        Durations are seconds, a timedelta, or text such as "5m". Options and their defaults:

        cron="": five fields, as Debian's cron reads them, in the time zone `tz`
        tz="": IANA name, as "Europe/Berlin"; absent: UTC
        every=None: time between two ticks, at least "1s", in place of `cron`
        start=None, end=None: no tick before, or at and after this: an aware datetime, or seconds since 1970
        count=0: ticks in all; 0 = any number
        jitter=0: each record comes up to this long after its tick
        missed="last": ticks of a time without a leader: "none", "last" or "all" get a record
        missed_max=100: with missed="all", the newest ticks that get a record
        overlap="allow": while a group has not finished the last record: "allow" the next one, "skip" the
            tick, or "replace" the record if no consumer has it
        paused=False: no ticks until `schedules.resume`; a tick of that time never gets a record
        key, headers, route, partition, ttl, lease, attempts_max, backoff, flow, priority, keep_result: of
            each record, as in `publish`
        """
        return await self.schedules.set(topic, value, name=name, **options)

    # --- reading without a group

    @overload
    def read(
        self,
        topics: str | Iterable[str],
        as_type: None = None,
        *,
        start: inputs.Start | inputs.Starts | None = None,
        end: inputs.Start | None = None,
        follow: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Records: ...
    @overload
    def read(
        self,
        topics: str | Iterable[str],
        as_type: type[Data],
        *,
        start: inputs.Start | inputs.Starts | None = None,
        end: inputs.Start | None = None,
        follow: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Records[Data]: ...
    @overload
    def read(
        self,
        topics: str | Iterable[str],
        as_type: UnionType,
        *,
        start: inputs.Start | inputs.Starts | None = None,
        end: inputs.Start | None = None,
        follow: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Records[Any]: ...
    def read(
        self,
        topics: str | Iterable[str],
        as_type: Any = None,
        *,
        start: inputs.Start | inputs.Starts | None = None,
        end: inputs.Start | None = None,
        follow: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Records[Any]:
        """Read records without a group, from `start` to `end` (offsets, aware datetimes, "-10m"); nothing is
        acked. Iterate over it, or call `batches()`, `to_arrow()` or `where()`.

        start: by itself the first record, and with `follow` the next one that is published. An offset for
            each partition is {"orders": {0: 17, 1: 4}}: other partitions, and topics that match a pattern
            later, begin at "first".
        end: by itself the last record that exists when reading begins
        follow: do not end, and wait for further records

        With a type, `data` of a record is its value as that type: `read("orders", Order)`. Raises BadRequest;
        the first record raises NotFound for a missing topic.

        Options and their defaults:

        route=None: read only records whose route matches this, or one of a list: "eu.fr", "eu.*", ["eu.#",
            "us"]
        order=None: "time" = all partitions as one stream, by publish time; default: each partition has its
            own order
        late_after=None: with order="time", how long a record waits for partitions without news (1 s). A
            record that comes later than that has `late` set.
        credit=None: the most records that wait here. Default: 1,000.
        create=None: make missing topics; by default a missing topic raises NotFound
        """
        if start is None:
            start = "new" if follow else "first"
        asked = self._consumer.decoding(reading(topics, start=start, **options), as_type)
        return Records(self._consumer, self._schemas, asked, end, follow=follow)
