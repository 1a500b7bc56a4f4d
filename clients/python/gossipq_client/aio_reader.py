"""The asyncio reader: ranges of a topic batch by batch, and as tables."""

from collections.abc import AsyncIterator

from gossipq.errors import Busy
from gossipq_client import columns, inputs
from gossipq_client.aio_consumer import Consumers
from gossipq_client.reading import Stretch, between


class Readers(Consumers):
    """The part of a client that reads in bulk."""

    async def batches(
        self, topic: str, *, start: inputs.Start = "first", stop: inputs.Start | None = None, partition: int | None = None
    ) -> AsyncIterator[Stretch]:
        """As the sync `batches`, for `async for`."""
        places = between(start, stop, self.engine.clock.now().wall_ms)
        reading = await self.talk(self.engine.asking.reading(topic, *places, partition))
        try:
            while not reading.over:
                if not await self.until(lambda: reading.ready, self.timeout):
                    raise Busy(f"no records of {topic!r} came within {self.timeout} s", hint="gossipq status")
                for stretch in reading.take():
                    yield stretch
        finally:
            if self.engine.usable:
                reading.close()

    async def table(
        self, topic: str, *, start: inputs.Start = "first", stop: inputs.Start | None = None, partition: int | None = None
    ) -> "columns.Table":
        """As the sync `table`."""
        columns.arrow()
        return columns.table([each async for each in self.batches(topic, start=start, stop=stop, partition=partition)])
