"""The cost of a publish in calls of Python functions, which is the same on a busy machine."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from types import FrameType, TracebackType
from typing import Any

import pytest

from gossipq.errors import SchemaMismatch
from gossipq_client import aio, testing

pytestmark = pytest.mark.e2e
PUBLISHES = 60
SYNC_CALLS_MAX = 60
ASYNCIO_CALLS_MAX = 80  #: with those of the event loop
SHARED_CALLS_MAX = 45  #: where 64 tasks share a batch
TASKS = 64


@dataclass
class Order:
    number: int


class Counter:
    """Counts the calls of Python functions in this thread while it is entered."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> "Counter":
        sys.setprofile(self._look)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        self.calls += event == "call" and frame.f_code.co_filename != __file__


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def test_a_lone_publish_takes_few_calls(broker: testing.Broker) -> None:
    counts = list[int]()
    with broker.connect() as mq:
        mq.publish("lone", b"first")
        for _ in range(PUBLISHES):
            with Counter() as counter:
                mq.publish("lone", b"x")
            counts.append(counter.calls)
    assert median(counts) <= SYNC_CALLS_MAX


def test_a_lone_publish_takes_few_calls_in_an_event_loop(broker: testing.Broker) -> None:
    counts = list[int]()

    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            await mq.publish("lone", b"first")
            for _ in range(PUBLISHES):
                with Counter() as counter:
                    await mq.publish("lone", b"x")
                counts.append(counter.calls)

    asyncio.run(main())
    assert median(counts) <= ASYNCIO_CALLS_MAX


def test_tasks_that_share_a_batch_share_its_calls(broker: testing.Broker) -> None:
    async def main() -> float:
        async with aio.connect(broker.endpoint) as mq:
            await mq.publish("shared", b"first")

            async def publish() -> None:
                for _ in range(PUBLISHES):
                    await mq.publish("shared", b"x")

            with Counter() as counter:
                await asyncio.gather(*(publish() for _ in range(TASKS)))
            return counter.calls / (TASKS * PUBLISHES)

    assert asyncio.run(main()) <= SHARED_CALLS_MAX


def test_a_client_that_is_entered_again_still_checks_values(broker: testing.Broker) -> None:
    """The batch that takes records without a look at them was open to it once it had connected again."""
    with broker.connect() as mq:
        mq.create_topic("checked", 1)
        mq.schema("checked", Order)
    with mq:
        for _ in range(100):  # one of them opens a batch, which later records join
            mq.post("checked", Order(1))
            with pytest.raises(SchemaMismatch):
                mq.post("checked", b"no object")
