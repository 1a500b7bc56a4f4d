# Made by clients/python/make_twins.py from api/aio/reader.py: change that, then run it.
"""Reads ranges of a topic batch by batch, as its records lie in the store."""

from collections.abc import Iterator

from gossipq.errors import Busy
from gossipq_client.api.sync.operator import Operator
from gossipq_client.session import Stretch, between
from gossipq_client.values import inputs


def read_batches(
    operator: Operator,
    topic: str,
    start: inputs.Start = "first",
    end: inputs.Start | None = None,
    partition: int | None = None,
) -> Iterator[Stretch]:
    """Yield what lies between `start` and `end`, in order within each partition. Raises NotFound, also if
    retention has removed `start`, BadRequest, and Refused."""
    driver, places = operator.driver, between(start, end, operator.wall_ms)
    reading = operator.run(operator.asking.reading(topic, *places, partition))
    try:
        while not reading.over:
            if not driver.until(lambda: reading.ready, driver.timeout_s):
                raise Busy(f"no records of {topic!r} came within {driver.timeout_s} s", hint="gossipq status")
            yield from driver.step(reading.take)
    finally:
        driver.engine.later.append(reading.close)
        driver.settle_later()
