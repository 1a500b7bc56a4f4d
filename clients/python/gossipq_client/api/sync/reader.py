# Made by clients/python/make_twins.py from api/aio/reader.py: change that, then run it.
"""The reader: ranges of a topic batch by batch, and as tables."""

from collections.abc import Iterator

from gossipq.errors import Busy
from gossipq.wire.schemas import Schema
from gossipq_client import columns
from gossipq_client.api.sync.connection import Connection
from gossipq_client.session import Stretch, between
from gossipq_client.values import inputs


class Reader:
    """Reads in bulk: it holds no records, acks none and makes no topics."""

    def __init__(self, driver: Connection) -> None:
        self._driver = driver

    def batches(
        self,
        topic: str,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> Iterator[Stretch]:
        """Yield what lies between `start` and `end`, as `Facade.batches` says."""
        driver = self._driver
        places = between(start, end, driver._engine.clock.now().wall_ms)
        reading = driver._talk(driver._engine.asking.reading(topic, *places, partition))
        try:
            while not reading.over:
                if not driver._until(lambda: reading.ready, driver._timeout):
                    raise Busy(
                        f"no records of {topic!r} came within {driver._timeout} s", hint="gossipq status"
                    )
                yield from driver._do(reading.take)
        finally:
            driver._engine.later.append(reading.close)
            driver._settle_later()

    def table(
        self,
        topic: str,
        schema: Schema | None,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> "columns.Table":
        """Return the same as a table, with the fields of the schema."""
        found = list(self.batches(topic, start=start, end=end, partition=partition))
        return columns.table(found, schema)
