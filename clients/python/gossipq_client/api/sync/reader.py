# Made by clients/python/make_twins.py from api/aio/reader.py: change that, then run it.
"""Reads ranges of a topic batch by batch, as its records lie in the store."""

from collections.abc import Iterator

from gossipq.errors import Busy
from gossipq_client.api.sync.connection import Connection
from gossipq_client.session import Stretch, between
from gossipq_client.values import inputs


def read_batches(
    client: Connection,
    topic: str,
    start: inputs.Start = "first",
    end: inputs.Start | None = None,
    partition: int | None = None,
) -> Iterator[Stretch]:
    """Yield what lies between `start` and `end`, in order within each partition. Raises NotFound, also if
    retention has removed `start`, BadRequest, and Refused."""
    places = between(start, end, client._engine.clock.now().wall_ms)
    reading = client._talk(client._engine.asking.reading(topic, *places, partition))
    try:
        while not reading.over:
            if not client._until(lambda: reading.ready, client._timeout):
                raise Busy(f"no records of {topic!r} came within {client._timeout} s", hint="gossipq status")
            yield from client._do(reading.take)
    finally:
        client._engine.later.append(reading.close)
        client._settle_later()
