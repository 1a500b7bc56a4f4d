"""The verbs that applications call, each with its signature. The parts of a client do the work."""

from collections.abc import AsyncIterator, Callable, Iterable
from functools import cached_property
from typing import Any, Unpack

from gossipq.errors import BadRequest
from gossipq.messages import CreateTopic, Explained, Topics
from gossipq.types import META_SHARD
from gossipq.values import TopicInfo
from gossipq.wire.schemas import Schema
from gossipq_client import columns
from gossipq_client.api.aio.admin import Admin
from gossipq_client.api.aio.consumer import Consumers, Message
from gossipq_client.api.aio.reader import Reader
from gossipq_client.api.aio.requester import Requester
from gossipq_client.api.aio.runner import Runner
from gossipq_client.api.aio.schemas import Schemas
from gossipq_client.handlers import Function, Registry, shows, until_signal
from gossipq_client.io import REQUEST_SECONDS
from gossipq_client.session import ConsumeOptions, FetchOptions, Stretch, joining
from gossipq_client.values import (
    Common,
    PublishOptions,
    TopicPolicy,
    address,
    as_asked,
    delay_of,
    inputs,
    publish_options,
    topic_options,
)


class Facade(Consumers):
    """The client as applications see it.

    A record is named by (topic, partition, offset), by ref= (of its receipt), or by topic and id=. Verbs for
    one record raise UnknownRecord if it does not exist, WrongState if it is in another state than the verb
    needs, BadRequest, UnknownTopic.
    """

    def __init__(self, addresses: list[str], name: str, timeout: float, key: bytes = b"") -> None:
        super().__init__(addresses, name, timeout, key)
        self.handlers = Registry()
        self._runner: Runner | None = None

    # parts are made when they are used first: a client that was never used must not be part of a cycle, since
    # its spool is free for others as soon as the client is dropped

    @property
    def _requester(self) -> Requester:
        # two threads that ask first at the same time get the same one: it numbers the requests
        found: Requester = self.__dict__.setdefault("_requests", Requester(self))
        return found

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self)

    @cached_property
    def _schemas(self) -> Schemas:
        return Schemas(self, self._reader)

    @cached_property
    def admin(self) -> Admin:
        """The verbs of operators: topics, groups, dead letters, nodes."""
        return Admin(self, self._schemas)

    # --- handlers

    @shows(joining, FetchOptions, ConsumeOptions)
    def consumer(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        workers: int = 1,
        time_limit: inputs.Duration | None = None,
        batch_size: int | None = None,
        batch_wait: inputs.Duration | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of records, once `run` is called; the function itself stays as it is.

        It takes the value, as the type of its argument says (bytes, str; from JSON: dict, list, a dataclass,
        a msgspec.Struct), or the message (no type, or Message), or one of each. Returning acks; Retry, Reject
        and other exceptions mean the same as in `with msg:`; what cannot be decoded is a dead letter. What it
        returns is the reply to a `request`. `workers` records are worked on at a time: the sync client runs
        functions in threads and coroutine functions on an event loop of their own, the asyncio client
        coroutine functions in tasks and all others in threads. A coroutine function that blocks the loop of
        an asyncio client for 5 s loses its records: the client falls silent. Who takes longer than
        `time_limit` (seconds, or "30s") has failed: a coroutine function is cancelled; a function in a
        thread cannot be stopped, and goes on without its message.

        With `batch_size` the function takes a list of values (list[Order]), a list of messages, or both in
        the same order. It gets `batch_size` records, or fewer if no more came within `batch_wait` (1 s) after
        the first one. Returning acks all messages of the list that the function did not settle itself, for
        example with `msg.nack()`. An exception fails them. A batch has no reply and no `time_limit`.
        """
        return self.handlers.consumer(
            topics,
            group,
            workers=workers,
            time_limit=time_limit,
            batch_size=batch_size,
            batch_wait=batch_wait,
            **options,
        )

    async def run(self, *, stop_at_end: bool = False, signals: bool = True) -> None:
        """Runs the handlers until `stop`, SIGTERM or Ctrl-C: then what runs is finished, and the rest goes
        back.

        With stop_at_end it ends when all records that can be delivered now have been handled; it does not
        wait for records that are delayed or wait for another attempt. It takes SIGTERM and SIGINT while
        it runs in the main thread; with signals=False not even there, for who has a server of its own to
        stop. Raises what a subscription was refused with, and BadRequest when it runs
        already, or there is no handler.
        """
        self._engine.check()
        if self._runner is not None:
            raise BadRequest("the handlers run already", hint="stop() ends them")
        runner = self._runner = Runner(self, self.handlers.some(), stop_at_end)
        try:
            with until_signal(runner.stop, signals):
                await runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """Ends `run`, from any thread, task, handler or signal handler."""
        runner = self._runner
        if runner is not None:
            runner.stop()

    @shows(publish_options, Common, PublishOptions)
    async def request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Duration = REQUEST_SECONDS,
        **options: Unpack[PublishOptions],
    ) -> Message:
        """Publishes a request and waits for the reply: what the handler that works on it returns.

        Options as in `publish`. Raises UnknownTopic, and NoReply at once when nobody consumes the topic, when
        the handler failed (with its error) or returned nothing, else after `timeout` (seconds, or "5s"); what
        a handler has begun with goes on all the same.
        """
        return await self._requester.request(topic, value, timeout, **options)

    # --- topics

    @shows(topic_options, TopicPolicy)
    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        if_not_exists: bool = False,
        **policy: Unpack[TopicPolicy],
    ) -> TopicInfo:
        """Makes a topic of so many partitions, which are for its life (None: as the cluster says). With
        `if_not_exists` a topic that is there stays as it is. Raises TopicExists, also for one with other
        partitions; BadName, BadRequest.
        """
        config = topic_options(partitions, **policy)
        return as_asked(
            (await self._ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)).topics[0],
            partitions,
        )

    async def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Topics whose name fits, `*` standing for any text; never makes one."""
        return await self._talk(self._engine.asking.topics(pattern))

    async def schema(self, topic: str, declared: Any = None) -> Schema:
        """The schema of a topic. From now on this client publishes nothing to it that does not fit (it raises
        SchemaMismatch), and `publish` takes what JSON can say besides bytes and text.

        declared: a msgspec.Struct, a dataclass or a JSON Schema, which becomes the topic's schema unless it
        is already, or newer versions have followed it. Fields may be added if they are optional; what would
        refuse what fitted before raises SchemaMismatch. Raises UnknownTopic, and BadRequest for what is no
        schema, or when there is none."""
        return await self._schemas.use(topic, declared)

    # --- single records

    async def why(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> Explained:
        """Where a record stands for a group, or for each: its state, because of what, and the command that
        changes it."""
        return await self._talk(self._engine.asking.why(address(topic, partition, offset, ref, id), group))

    async def cancel(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        reason: str = "",
    ) -> str:
        """Voids a record that no consumer holds and not every group has acked. Returns its ref."""
        return await self._talk(
            self._engine.asking.cancel(address(topic, partition, offset, ref, id), reason)
        )

    async def reschedule(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        delay: inputs.Duration | None = None,
        at: inputs.Time | None = None,
    ) -> str:
        """Another due time for a scheduled record: `delay` from now (seconds, or "5m"), or
        `at` (an aware datetime, or seconds since 1970)."""
        delay_ms = delay_of(self._engine.clock.now, delay, at)
        return await self._talk(
            self._engine.asking.reschedule(address(topic, partition, offset, ref, id), delay_ms)
        )

    # --- reading in bulk

    def batches(
        self,
        topic: str,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> AsyncIterator[Stretch]:
        """What lies between `start` and `end` (offsets, aware datetimes, "-10m"; default: all there is now),
        batch by batch, in order within each partition. Raises UnknownTopic, BadRequest, Busy, and
        OffsetOutOfRange when retention removed `start`."""
        return self._reader.batches(topic, start=start, end=end, partition=partition)

    async def table(
        self,
        topic: str,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> "columns.Table":
        """The same as a pyarrow.Table: topic, topic_id, partition, offset, publish_time, key, headers, value,
        route, id, deliver_at; for a topic with a schema also data, which is null where the value does not
        fit. Needs pyarrow."""
        columns.arrow()
        schema = await self._schemas.of(topic)
        return await self._reader.table(topic, schema, start=start, end=end, partition=partition)
