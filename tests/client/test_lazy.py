"""`connect` connects when the client is used: a module can make it and register handlers without a node."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import RunningNode
from gossipq.errors import ClientClosed, NotConfirmed, Unreachable
from gossipq_client import FetchedBatch, aio, connect, testing


def test_making_a_client_does_nothing(nobody: str) -> None:
    threads = threading.active_count()
    mq = connect(nobody)

    @mq.consumer("orders", group="billing")
    def bill(order: bytes) -> None: ...

    assert threading.active_count() == threads
    assert mq._driver.made is None
    mq.stop()
    mq.close()
    with pytest.raises(ClientClosed):
        mq.post("orders", b"x")


def test_who_waits_hears_at_once(nobody: str) -> None:
    with pytest.raises(Unreachable):
        connect(nobody, wait="50ms")


def test_the_first_use_says_that_nobody_is_there_and_the_next_one_tries_again(nobody: str) -> None:
    mq = connect(nobody, timeout="50ms")
    for _ in range(2):
        with pytest.raises(Unreachable):
            mq.post("orders", b"x")
    with pytest.raises(Unreachable), mq:
        pass


@pytest.mark.e2e
def test_a_program_that_starts_before_its_broker_works_once_that_is_there(tmp_path: Path) -> None:
    """As a web application whose handlers run in a task."""
    node = RunningNode(tmp_path / "node")
    got = list[bytes]()

    async def main() -> None:
        mq = aio.connect(node.endpoint, timeout="1s")

        @mq.consumer("early", group="g")
        async def work(value: bytes) -> None:
            got.append(value)
            mq.stop()

        running = asyncio.create_task(mq.run(signals=False))
        with pytest.raises(Unreachable):
            await mq.publish("early", b"too early")
        assert not running.done()
        await asyncio.to_thread(node.start)
        async with asyncio.timeout(60):
            while not got:
                with suppress(Unreachable, NotConfirmed):
                    await mq.publish("early", b"x")
                await asyncio.sleep(0.05)
            await running
        await mq.close()

    try:
        asyncio.run(main())
    finally:
        node.stop()
    assert set(got) == {b"x"}


def test_threads_may_be_the_first_at_the_same_time(broker: testing.Broker) -> None:
    mq = connect(broker.endpoint)
    at_once, errors = threading.Barrier(4), list[BaseException]()

    def work() -> None:
        at_once.wait()
        try:
            mq.publish("orders", b"x", timeout=20)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(mq.fetch("orders", "g", n=4)) > 0
    mq.close()


def test_an_asyncio_client_belongs_to_the_loop_that_uses_it_first(
    broker: testing.Broker, nobody: str
) -> None:
    mq, away = aio.connect(broker.endpoint), aio.connect(nobody, wait="50ms")

    @mq.consumer("orders", group="billing")
    async def bill(order: bytes) -> None: ...

    async def main() -> None:
        receipt = await mq.publish("lazily", b"x", timeout=20)
        assert receipt.offset == 0
        await mq.close()
        with pytest.raises(Unreachable):
            await away
        with pytest.raises(Unreachable):
            async with away:
                pass
        unused = aio.connect(nobody)
        await unused.close()
        with pytest.raises(ClientClosed):
            await unused.publish("lazily", b"x")

    asyncio.run(main())


def test_an_asyncio_client_whose_loop_has_ended_says_so(broker: testing.Broker) -> None:
    """In a second `asyncio.run`, for example: it raised "Event loop is closed" once the record was sent."""
    mq = aio.connect(broker.endpoint)

    async def first() -> FetchedBatch[Any]:
        await mq.publish_many("ended", [b"0", b"1"])
        return await mq.fetch("ended", "g", n=2, wait=20)

    batch = asyncio.run(first())

    async def second() -> None:
        for attempt in (
            lambda: mq.post("ended", b"2"),
            lambda: mq.fetch("ended", "g", n=1, wait=0),
            lambda: mq.ack_soon(batch),
            batch[0].ack_soon,
            mq.topics,
            mq.flush,
        ):
            with pytest.raises(ClientClosed, match="event loop") as told:
                await attempt()
            assert "connect() again" in told.value.hint
        await mq.close()

    asyncio.run(second())
    with broker.connect() as reader:
        assert [msg.value for msg in reader.read("ended")] == [b"0", b"1"]


@pytest.mark.parametrize(
    "address", ["tcp://\udcff:7700", "tcp://a\x00b:7700", "tcp://a:b:c", "nonsense://x:1"]
)
def test_what_is_no_address_is_told_and_leaves_nothing_open(address: str) -> None:
    """A socket that stayed open kept `close` from ending."""
    mq = connect(address, timeout=5)
    with pytest.raises(Unreachable, match="is not an address"):
        mq.post("t", b"x")
    mq.close(0)


WAITS: dict[str, Callable[..., object]] = {
    "publish": lambda mq, **given: mq.publish("t", b"x", **given),
    "publish_many": lambda mq, **given: mq.publish_many("t", [b"x"], **given),
    "ready": lambda mq, **given: mq.ready(**given),
    "request": lambda mq, **given: mq.request("t", b"x", **given),
    "result": lambda mq, **given: mq.result("t/0/17", **given),
}


@pytest.mark.parametrize("given", [{}, {"timeout": 0}, {"timeout": "20ms"}], ids=str)
@pytest.mark.parametrize("verb", WAITS)
def test_each_verb_that_waits_ends_by_the_same_rule(nobody: str, verb: str, given: dict[str, Any]) -> None:
    mq = connect(nobody, timeout="50ms")
    with pytest.raises((Unreachable, NotConfirmed)):
        WAITS[verb](mq, **given)
    mq.close(flush=False)
