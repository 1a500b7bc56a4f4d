"""`flush` and `close` wait for what was owed when they were called; callers that continue
meanwhile do not delay them.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gossipq.errors import ClientClosed
from gossipq_client import testing
from gossipq_client.aio import connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end
MANY = 5_000


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        with broker.connect() as mq:
            mq.publish_many("many", [b"x"] * MANY, partition=0, timeout=PATIENCE_S)
        yield broker


def acking_on(mq: Any, batch: Any) -> list[tuple[Any, int]]:
    """The rest of a batch of which one record is acked before each exchange, so that one ack
    always waits for its answer.
    """
    real, consuming = mq._driver.engine.exchange, mq._driver.engine.session.consuming
    left = [(piece.held, offset) for piece in batch.pieces for offset in range(piece.first, piece.end)]

    def exchange(thorough: bool = False, lingering: bool = False) -> bool:
        if left:
            held, offset = left.pop()
            consuming.ack(held, offset, offset + 1)
        return bool(real(thorough, lingering))

    mq._driver.engine.exchange = exchange
    return left


@contextmanager
def going_on(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Something is done over and over by another thread, until that ends or the client is closed."""
    over, begun = threading.Event(), threading.Event()

    def run() -> None:
        try:
            while not over.is_set():
                work()
                begun.set()
        except ClientClosed:
            pass

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(PATIENCE_S)
    try:
        yield thread
    finally:
        over.set()
        thread.join()


def test_a_flush_ends_while_others_ack_and_publish(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        left = acking_on(mq, mq.fetch("many", "flush", n=MANY, wait=PATIENCE_S))
        first = mq.post("single", b"x")
        mq.flush(PATIENCE_S)
        assert left
        assert first.done()
        with going_on(lambda: mq.post("single", b"x")) as publishing:
            mq.flush(PATIENCE_S)
            assert publishing.is_alive()


def test_a_close_ends_while_others_ack_and_ask(broker: testing.Broker) -> None:
    mq = broker.connect()
    left = acking_on(mq, mq.fetch("many", "close", n=MANY, wait=PATIENCE_S))
    pending = mq.post("closed", b"x")
    with going_on(lambda: mq.topic("many").groups()):
        mq.close()
    assert left
    assert pending.result().offset == 0


def test_what_was_acked_before_a_flush_is_stored(broker: testing.Broker) -> None:
    with broker.connect() as mq, broker.connect() as other:
        mq.publish_many("stored", [b"x"] * 10, timeout=PATIENCE_S)
        mq.ack_soon(mq.fetch("stored", "g", n=10, wait=PATIENCE_S))
        mq.flush(PATIENCE_S)
        assert [each.acked for each in other.topic("stored").groups()] == [10]


def test_a_run_ends_while_others_publish(broker: testing.Broker) -> None:
    with broker.connect() as mq:

        @mq.consumer("single", group="run")
        def one(value: bytes) -> None:
            mq.stop()

        mq.publish("single", b"x", timeout=PATIENCE_S)
        with going_on(lambda: mq.post("single", b"x")) as publishing:
            runs = threading.Thread(target=mq.run)
            runs.start()
            runs.join(PATIENCE_S)
            assert not runs.is_alive()
            assert publishing.is_alive()


def test_asyncio_flushes_and_closes_end_while_others_ack(broker: testing.Broker) -> None:
    async def main() -> None:
        mq = connect(broker.endpoint)
        left = acking_on(mq, await mq.fetch("many", "asyncio", n=MANY, wait=PATIENCE_S))
        first, before = mq.post("asyncio", b"x"), len(left)
        await mq.flush(PATIENCE_S)
        assert first.done()
        assert 0 < len(left) < before
        second = mq.post("asyncio", b"x")
        await mq.close()
        assert left
        assert (await second).offset == 1

    asyncio.run(main())
