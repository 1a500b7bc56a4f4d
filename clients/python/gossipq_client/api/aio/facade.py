"""The verbs that applications call, each with its signature. The parts of a client do the work."""

from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any, Unpack

from gossipq.messages import CreateTopic, Explained, Topics
from gossipq.types import META_SHARD
from gossipq.values import TopicInfo
from gossipq.wire.schemas import Schema
from gossipq_client import columns
from gossipq_client.api.aio.admin import Admin
from gossipq_client.api.aio.reader import Reader
from gossipq_client.api.aio.schemas import Schemas
from gossipq_client.api.aio.workers import Workers
from gossipq_client.handlers import shows
from gossipq_client.session import Stretch
from gossipq_client.values import TopicPolicy, address, as_asked, delay_of, inputs, topic_options


class Facade(Workers):
    """The client as applications see it.

    A record is named by (topic, partition, offset), by ref= (of its receipt), or by topic and id=. Verbs for
    one record raise UnknownRecord if it does not exist, WrongState if it is in another state than the verb
    needs, BadRequest, UnknownTopic.
    """

    # parts are made when they are used first: a client that was never used must not be part of a cycle, since
    # its spool is free for others as soon as the client is dropped

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
