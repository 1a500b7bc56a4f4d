# Made by clients/python/make_twins.py from api/aio/reader.py: change that, then run it.
"""The reader: ranges of a topic batch by batch, and as tables; acks and states for exports."""

from collections.abc import Iterator

from gossipq.errors import Busy, Forbidden
from gossipq.messages import Resolve, Topics
from gossipq.types import META_SHARD
from gossipq.wire import schemas
from gossipq.wire.schemas import Declared, Schema
from gossipq_client import columns
from gossipq_client.api.sync.consumer import Consumers
from gossipq_client.session import Stretch, between
from gossipq_client.values import inputs


class Readers(Consumers):
    """The part of a client that reads in bulk. It holds nothing, acks nothing and starts nothing: topics are
    not made."""

    def batches(
        self,
        topic: str,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> Iterator[Stretch]:
        """What lies between `start` and `end` (offsets, aware datetimes, "-10m"; default: all there is now),
        batch by batch, in order within each partition. Raises UnknownTopic, BadRequest, Busy, and
        OffsetOutOfRange when retention removed `start`."""
        places = between(start, end, self._engine.clock.now().wall_ms)
        reading = self._talk(self._engine.asking.reading(topic, *places, partition))
        try:
            while not reading.over:
                if not self._until(lambda: reading.ready, self._timeout):
                    raise Busy(
                        f"no records of {topic!r} came within {self._timeout} s", hint="gossipq status"
                    )
                yield from self._do(reading.take)
        finally:
            self._engine.later.append(reading.close)
            self._settle_later()

    def table(
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
        schema = self._known_schema(topic)
        found = list(self.batches(topic, start=start, end=end, partition=partition))
        return columns.table(found, schema)

    def _schemas(self) -> Declared:
        """What was declared so far, by topic id; nothing to who may not read it."""
        try:
            if not (self._ask(Resolve([schemas.TOPIC]), META_SHARD, Topics)).topics:
                return Declared()
            stretches = list(self.batches(schemas.TOPIC, partition=0))
        except Forbidden:
            return Declared()
        return Declared(value for each in stretches for value in each.values())

    def _known_schema(self, topic: str) -> Schema | None:
        """The schema of a topic, if it has one; nothing is checked by it."""
        known = self._schemas()
        if not known.schemas:
            return None
        infos = (self._ask(Resolve([topic]), META_SHARD, Topics)).topics
        ids = [info.id for info in infos if info.name == topic]
        return known.schemas.get(ids[0]) if ids else None
