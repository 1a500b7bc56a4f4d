"""The reader: ranges of a topic batch by batch, and as tables."""

from collections.abc import AsyncIterator

from gossipq.errors import Busy
from gossipq.wire.schemas import Schema
from gossipq_client import columns
from gossipq_client.api.aio.connection import Connection
from gossipq_client.session import Stretch, between
from gossipq_client.values import inputs


class Reader:
    """Reads in bulk: it holds no records, acks none and makes no topics."""

    def __init__(self, driver: Connection) -> None:
        self._driver = driver

    async def batches(
        self,
        topic: str,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> AsyncIterator[Stretch]:
        """Yield what lies between `start` and `end`, as `Facade.batches` says."""
        driver = self._driver
        places = between(start, end, driver._engine.clock.now().wall_ms)
        reading = await driver._talk(driver._engine.asking.reading(topic, *places, partition))
        try:
            while not reading.over:
                if not await driver._until(lambda: reading.ready, driver._timeout):
                    raise Busy(
                        f"no records of {topic!r} came within {driver._timeout} s", hint="gossipq status"
                    )
                for stretch in driver._do(reading.take):
                    yield stretch
        finally:
            driver._engine.later.append(reading.close)
            driver._settle_later()

    async def table(
        self,
        topic: str,
        schema: Schema | None,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        partition: int | None = None,
    ) -> "columns.Table":
        """Return the same as a table, with the fields of the schema."""
        found = [each async for each in self.batches(topic, start=start, end=end, partition=partition)]
        return columns.table(found, schema)
