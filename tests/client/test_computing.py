"""Handlers and loops that compute for long: their session lives on, and nothing is delivered twice."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import RunningNode
from gossipq_client import Client, aio, connect

COMPUTES_S = 15  #: longer than a silent session lives, and than the lease
LEASE = "5s"
PATIENCE_S = 300
Work = Callable[[str, str, list[bytes]], None]


def compute(value: bytes, done: list[bytes]) -> None:
    end_s = time.monotonic() + COMPUTES_S
    while time.monotonic() < end_s:
        sum(range(1_000))
    done.append(value)


def by_loop(endpoint: str, topic: str, done: list[bytes]) -> None:
    with connect(endpoint) as mq:
        for msg in mq.consume(topic, "g", lease=LEASE, stop_at_end=True):
            with msg:
                compute(msg.value, done)


def by_function(endpoint: str, topic: str, done: list[bytes]) -> None:
    with connect(endpoint) as mq:

        @mq.consumer(topic, "g", lease=LEASE)
        def handle(value: bytes) -> None:
            compute(value, done)

        mq.run(stop_at_end=True, signals=False)


def by_coroutine(endpoint: str, topic: str, done: list[bytes]) -> None:
    """The sync client has an event loop for its handlers alone."""
    with connect(endpoint) as mq:

        @mq.consumer(topic, "g", lease=LEASE)
        async def handle(value: bytes) -> None:
            compute(value, done)

        mq.run(stop_at_end=True, signals=False)


def by_function_of_asyncio(endpoint: str, topic: str, done: list[bytes]) -> None:
    async def main() -> None:
        async with aio.connect(endpoint) as mq:

            @mq.consumer(topic, "g", lease=LEASE)
            def handle(value: bytes) -> None:
                compute(value, done)

            await mq.run(stop_at_end=True, signals=False)

    asyncio.run(main())


@pytest.mark.e2e
@pytest.mark.slow
def test_a_handler_that_computes_keeps_its_session(shared_node: RunningNode, mq: Client, topic: str) -> None:
    """All at the same time in one process, so that each computes while the others hold the interpreter."""
    ways: list[Work] = [by_loop, by_function, by_coroutine, by_function_of_asyncio]
    done: dict[str, list[bytes]] = {}
    with ThreadPoolExecutor(len(ways)) as pool:
        working = []
        for way in ways:
            name = f"{topic}.{way.__name__}"
            mq.publish(name, b"once", timeout=PATIENCE_S)
            done[name] = []
            working.append(pool.submit(way, shared_node.endpoint, name, done[name]))
        for each in working:
            each.result(PATIENCE_S)
    assert list(done.values()) == [[b"once"]] * len(ways)
    for name in done:
        assert mq.group(name, "g").lag() == 0
