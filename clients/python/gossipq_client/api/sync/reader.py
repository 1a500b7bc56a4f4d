# Made by clients/python/make_twins.py from api/aio/reader.py: change that, then run it.
"""The reader: ranges of a topic batch by batch, and as tables; acks and states for exports."""

from collections.abc import Iterator

from gossipq.errors import Busy
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
        stop: inputs.Start | None = None,
        partition: int | None = None,
    ) -> Iterator[Stretch]:
        """What lies between `start` and `stop` (offsets, aware datetimes, "-10m"; default: all there is now),
        batch by batch, in order within each partition. Raises UnknownTopic, BadRequest, and OffsetOutOfRange
        when retention removed `start`."""
        places = between(start, stop, self._engine.clock.now().wall_ms)
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
        stop: inputs.Start | None = None,
        partition: int | None = None,
    ) -> "columns.Table":
        """The same as a pyarrow.Table: topic, topic_id, partition, offset, publish_time, key, headers, value,
        route, id, deliver_at. Needs pyarrow."""
        columns.arrow()
        return columns.table(list(self.batches(topic, start=start, stop=stop, partition=partition)))
