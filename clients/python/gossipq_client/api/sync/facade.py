# Made by clients/python/make_twins.py from api/aio/facade.py: change that, then run it.
"""The verbs that applications call, each with its signature. The parts of a client do the work."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from types import UnionType
from typing import Any, Unpack, overload

from gossipq.errors import BadRequest
from gossipq.messages import CreateTopic, Topics
from gossipq.types import META_SHARD
from gossipq.wire.schemas import Schema
from gossipq_client import answers
from gossipq_client.answers import value_of
from gossipq_client.api.sync.admin import Admin
from gossipq_client.api.sync.consumer import Consumers, Message
from gossipq_client.api.sync.handles import DeadLettersHandle, GroupHandle, RecordHandle, TopicHandle
from gossipq_client.api.sync.jobs import JobQuestions
from gossipq_client.api.sync.operator import Operator
from gossipq_client.api.sync.records import Records
from gossipq_client.api.sync.requester import Requester
from gossipq_client.api.sync.runner import Runner
from gossipq_client.api.sync.schedules import Schedules
from gossipq_client.api.sync.schemas import Schemas
from gossipq_client.handlers import Function, Handlers, Limits, RunEnd, shows, until_signal
from gossipq_client.operations import Job, ScheduleOptions, schedule_of
from gossipq_client.session import ConsumeOptions, Data, FetchOptions, ReadOptions, Receipt, joining, reading
from gossipq_client.values import (
    UNSET,
    CheckedCodec,
    Common,
    PublishOptions,
    TopicPolicy,
    address,
    as_asked,
    inputs,
    publish_options,
    topic_options,
)


class Facade(Consumers):
    """The client as applications see it."""

    def __init__(
        self,
        addresses: list[str],
        name: str,
        timeout: float,
        key: bytes = b"",
        codec: CheckedCodec | None = None,
    ) -> None:
        super().__init__(addresses, name, timeout, key, codec)
        self.handlers = Handlers(self._codec)
        self._runner: Runner | None = None

    def _in_child(self) -> None:
        super()._in_child()
        self._runner = None

    # parts are made when they are used first: a client that was never used must not be part of a cycle, since
    # its spool is free for others as soon as the client is dropped

    @property
    def _requester(self) -> Requester:
        # two threads that ask first at the same time get the same one: it numbers the requests
        found: Requester = self.__dict__.setdefault("_requests", Requester(self))
        return found

    @cached_property
    def _schemas(self) -> Schemas:
        return Schemas(self)

    @cached_property
    def schedules(self) -> Schedules:
        """Shows schedules, pauses, runs and removes them. `schedule` sets them."""
        return Schedules(self)

    @cached_property
    def admin(self) -> Admin:
        """The verbs for the whole cluster: nodes, clients, growth, alarms, users."""
        return Admin(self._operator, self._schemas)

    # --- handlers

    @shows(joining, FetchOptions, ConsumeOptions)
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

    def run(
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
        self._engine.check()
        if self._runner is not None:
            raise BadRequest("the handlers run already", hint="stop() ends them")
        runner = self._runner = Runner(self, self.handlers, Limits.of(stop_at_end, max_records, max_memory))
        try:
            with until_signal(runner.stop, signals):
                return runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """Ends `run`, from any thread, task, handler or signal handler."""
        runner = self._runner
        if runner is not None:
            runner.stop()

    @shows(publish_options, Common, PublishOptions)
    def request(
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
        return self._requester.request(topic, value, timeout, **options)

    # --- topics

    @shows(topic_options, TopicPolicy)
    def create_topic(
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
        """
        config = topic_options(partitions, **policy)
        made = self._ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)
        return value_of(answers.TopicDetails, as_asked(made.topics[0], partitions))

    def topics(self, pattern: str = "*") -> "list[answers.TopicDetails]":
        """Return the topics whose names match, where `*` stands for any text. Creates none."""
        found = self._talk(self._engine.asking.topics(pattern))
        return [value_of(answers.TopicDetails, info) for info in found]

    def schema(self, topic: str, declared: Any = None) -> Schema:
        """Return the schema of a topic, and check against it all that this client publishes there from now
        on. A value that does not fit raises BadRequest.

        declared: a msgspec.Struct, a dataclass or a JSON Schema. It becomes the topic's schema, unless it is
        the schema already, or newer versions have followed it. Optional fields may be added. A schema that
        refuses values which fitted before raises BadRequest. Raises NotFound, and BadRequest for an
        invalid schema, or if the topic is without one."""
        return self._schemas.use(topic, declared)

    # --- handles of topics, groups, dead letters and records

    @cached_property
    def _operator(self) -> Operator:
        return Operator(self)

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

    def job(
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
        return JobQuestions(self).show(address(name, partition, offset, id), group)

    def follow(self, job: str | Receipt, *, group: str = "") -> Iterator[Job]:
        """Iterate over the states of a job: the present one, one for each report of progress, and its end.
        The leader tells them as they come, without polling. Raises what `job` raises."""
        return JobQuestions(self).follow(job, group)

    def result(
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
        return JobQuestions(self).result(job, timeout, group, as_type)

    def cancel(self, job: str | Receipt, *, reason: str = "") -> str:
        """Cancel a job: a receipt, or the `ref` of one. No consumer gets it from now on. Returns its ref.

        The handler of a running job is told: `msg.cancelled` becomes true, and a coroutine is cancelled. Its
        result is not stored, and the job has ended as cancelled, also if the consumer dies or never looks. A
        thread cannot be cancelled, so it runs until it looks at `msg.cancelled`.

        Raises Refused if every group is done with it, NotFound, BadRequest.
        """
        return JobQuestions(self).cancel(job, reason)

    # --- schedules

    @shows(schedule_of, ScheduleOptions)
    def schedule(self, topic: str, value: Any, *, name: str, **options: Unpack[ScheduleOptions]) -> bool:
        """Store a record in a topic again and again: by a `cron` expression, or `every` so often.

            mq.schedule("reports", job, name="nightly", cron="0 7 * * mon-fri", tz="Europe/Berlin")

        A schedule is known by its name in the topic. To set it again changes it; returns False if nothing
        changed. Each tick is one record with the id `name/time`. It is never early, and stored once, also
        if the leader changes. Raises BadRequest.
        """
        return self.schedules.set(topic, value, name=name, **options)

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
    @shows(reading, ReadOptions)
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
        """
        if start is None:
            start = "new" if follow else "first"
        asked = self._decoding(reading(topics, start=start, **options), as_type)
        return Records(self, self._schemas, asked, end, follow=follow)
