"""A record that user code has had for a while has begun: if its lease ends, it comes again as the
second attempt. For all ways to consume, with a whole broker.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from gossipq_client import Client, aio, connect, testing

pytestmark = pytest.mark.e2e
PATIENCE_S, PAUSE_S, RECORDS = 10, 0.2, 3


def slowly(messages: Iterable[Any]) -> list[Any]:
    """Records of one slice, with user code behind each of them."""
    held = []
    for message in islice(messages, RECORDS):
        held.append(message)
        time.sleep(PAUSE_S)
    return held


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker, connect(broker.endpoint) as mq:
        mq.publish_many("t", [b"x"] * RECORDS, timeout=PATIENCE_S)
        yield broker


def attempts(broker: testing.Broker) -> list[int]:
    """Of all records, once their leases have ended."""
    got: list[int] = []
    with connect(broker.endpoint) as mq:
        for _ in range(PATIENCE_S):
            # a sign of life of the holder may come first and renew the leases
            broker.advance("31s")
            got += [message.attempt for message in mq.fetch("t", "g", n=RECORDS, min=RECORDS, wait=1)]
            if got:
                break
    return got


def loop(mq: Client) -> list[Any]:
    return slowly(mq.consume("t", group="g"))


def fetch(mq: Client) -> list[Any]:
    got = list(mq.fetch("t", "g", n=RECORDS, min=RECORDS, wait=PATIENCE_S))
    time.sleep(PAUSE_S)
    return got


@pytest.mark.parametrize("hold", [loop, fetch])
@pytest.mark.parametrize("company", [False, True])
def test_a_program_that_sleeps(
    broker: testing.Broker, hold: Callable[[Client], list[Any]], company: bool
) -> None:
    """`company`: another thread waits for something else meanwhile, and so does the I/O."""
    with connect(broker.endpoint) as mq:
        mq.publish("other", b"x", delay="1h", timeout=PATIENCE_S)
        waiting = threading.Thread(target=lambda: mq.fetch("other", "g", wait=4 * RECORDS * PAUSE_S))
        if company:
            waiting.start()
            time.sleep(PAUSE_S)
        held = hold(mq)
        assert attempts(broker) == [2] * RECORDS
        if company:
            waiting.join(PATIENCE_S)
        assert [message.attempt for message in held] == [1] * RECORDS


def test_a_program_that_computes(broker: testing.Broker) -> None:
    with connect(broker.endpoint) as mq:
        held = mq.fetch("t", "g", n=RECORDS, min=RECORDS, wait=PATIENCE_S)
        end = time.monotonic() + 3 * PAUSE_S
        while time.monotonic() < end:
            pass
        assert attempts(broker) == [2] * RECORDS
        assert len(held) == RECORDS


@pytest.mark.parametrize("way", ["loop", "fetch"])
def test_tasks_of_asyncio(broker: testing.Broker, way: str) -> None:
    async def main() -> list[int]:
        async with aio.connect(broker.endpoint) as mq:
            held = []
            if way == "fetch":
                held += await mq.fetch("t", "g", n=RECORDS, min=RECORDS, wait=PATIENCE_S)
                await asyncio.sleep(PAUSE_S)
                return attempts(broker)
            async for message in mq.consume("t", group="g"):
                held.append(message)
                await asyncio.sleep(PAUSE_S)
                if len(held) == RECORDS:
                    return attempts(broker)
        raise AssertionError("it ended by itself")

    assert asyncio.run(main()) == [2] * RECORDS
