"""Publish and ack wait until they are stored; post returns the future of a receipt, and ack_soon nothing."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipq.errors import Backpressure, BadRequest, GossipqError, NotConfirmed
from gossipq_client import Client, PendingReceipt, aio, connect, testing
from gossipq_client.api.aio import driver
from gossipq_client.session.packer import WINDOW_BATCHES

PATIENCE_S = 30
KEY = ["k"]  # a list with keys has batches of its own


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[Client]:
    with broker.connect() as mq:
        yield mq


def test_publish_returns_the_receipt_and_post_its_future(mq: Client) -> None:
    assert mq.publish("stored", b"0").offset == 0
    assert mq.publish_many("stored", [b"1", b"2"], timeout="30s").count == 2
    pending = [mq.post("stored", b"3"), mq.post_many("stored", [b"4", b"5"])]
    assert [each.result(timeout=PATIENCE_S).offset for each in pending] == [3, 4]
    assert [each.exception(timeout=0) for each in pending] == [None, None]
    assert all(each.done() for each in pending)


def test_a_callback_is_made_once_with_the_receipt(mq: Client) -> None:
    mq.publish("heard", b"0")
    heard, called = list[PendingReceipt](), threading.Event()

    def call(pending: PendingReceipt) -> None:
        assert pending.done()
        heard.append(pending)
        called.set()

    posted = [mq.post("heard", b"1"), mq.post_many("heard", [b"2", b"3"], keys=KEY * 2)]
    for each in posted:
        called.clear()
        each.add_done_callback(call)
        assert called.wait(PATIENCE_S)
    posted[0].add_done_callback(call)  # done already: called here
    assert heard == [*posted, posted[0]]


def test_an_exception_is_returned_and_the_end_of_the_time_raised(mq: Client) -> None:
    with mq._driver.lock:  # nobody hears of the confirm
        late = mq.post("late", b"0")
        real, mq._driver.engine.transport.receive = mq._driver.engine.transport.receive, list  # type: ignore[method-assign]
        try:
            with pytest.raises(NotConfirmed):
                late.exception(timeout=0.05)
        finally:
            mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
    assert late.exception(timeout=PATIENCE_S) is None


def test_an_asyncio_post_returns_at_once_and_is_awaited_once(broker: testing.Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            # the client must look the topic up for the first; the others stay behind it
            posted = [mq.post("order", b"%d" % number) for number in range(100)]
            assert (await mq.publish("order", b"100")).offset == 100
            assert [(await each).offset for each in posted] == list(range(100))
            assert not mq._driver._posting
            assert (await mq.post("order", b"101")).offset == 101
            heard = asyncio.Event()
            late = mq.post("order.more", b"0")
            late.add_done_callback(lambda each: heard.set())
            await asyncio.wait_for(heard.wait(), PATIENCE_S)
            assert late.done()
            assert (await late.exception()) is None

    asyncio.run(main())


def test_an_asyncio_post_that_cannot_be_sent_says_why(broker: testing.Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            with pytest.raises(BadRequest):
                mq.post("refused", float("nan"))
            refused = mq.post("refused*", b"x")
            assert isinstance(await refused.exception(), GossipqError)
            assert refused.done()
            await mq.flush(PATIENCE_S)  # the user has seen it
            mq.post("refused*", b"x")
            with pytest.raises(GossipqError, match="pattern"):
                await mq.flush(PATIENCE_S)
            await mq.flush(PATIENCE_S)

    asyncio.run(main())


def test_asyncio_posts_wait_for_room_in_order_and_not_without_bound(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "POSTS_MAX", 10)

    async def main() -> list[bytes]:
        async with aio.connect(broker.endpoint) as mq:
            await mq.create_topic("room", 1)
            await mq.publish("room", b"first")
            real = mq._driver.engine.transport.receive
            mq._driver.engine.transport.receive = list  # type: ignore[method-assign]
            for _ in range(WINDOW_BATCHES // 10):
                for _ in range(10):
                    mq.post_many("room", [b"filling"], keys=KEY)
                await mq._driver.posts_sent(PATIENCE_S)
            waiting = [mq.post("room", b"%d" % number) for number in range(10)]
            with pytest.raises(Backpressure):
                mq.post("room", b"no")
            with pytest.raises(NotConfirmed):
                await waiting[0].result(0.01)
            assert mq._driver.unconfirmed() == WINDOW_BATCHES + 10
            mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
            await mq.flush(PATIENCE_S)
            assert all(each.done() for each in waiting)
            return [msg.value async for msg in mq.read("room")]

    assert asyncio.run(main())[-10:] == [b"%d" % number for number in range(10)]


def test_a_step_is_awaited_once_and_settles_its_message(broker: testing.Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            await mq.create_topic("step.in", 1)
            await mq.create_topic("step.out", beside="step.in")
            await mq.publish_many("step.in", [b"0", b"1", b"2"])
            first, second, third = await mq.fetch("step.in", "g", n=3, min=3)
            async with first:
                assert (await first.ack_with("step.out", b"a")).offset == 0
            async with second:
                posted = second.post_with("step.out", b"b")
            assert (await posted).offset == 1
            async with third:
                refused = third.post_with("step.*", b"c")
            with pytest.raises(GossipqError, match="pattern"):
                await refused
            await mq.flush(PATIENCE_S)
            assert (await mq.topic("step.in").groups())[0].acked == 2
            again = (await mq.fetch("step.in", "g", n=1, wait=PATIENCE_S))[0]
            assert (again.value, again.attempt) == (b"2", 2), "a step that failed fails its message"
            again.ack_soon()

    asyncio.run(main())


def test_an_ack_is_stored_when_it_returns(broker: testing.Broker, mq: Client) -> None:
    def acked() -> int:
        return mq.topic("acked").groups()[0].acked

    async def main() -> None:
        async with aio.connect(broker.endpoint) as twin:
            first, second = await twin.fetch("acked", "g", n=2, min=2, wait=PATIENCE_S)
            await first.ack()
            assert acked() == 3
            second.ack_soon()
            await second.ack(timeout=PATIENCE_S)
            assert acked() == 4

    mq.publish_many("acked", [b"0", b"1", b"2", b"3"])
    batch = mq.fetch("acked", "g", n=2)
    batch[0].ack()
    assert acked() == 1
    mq.ack(batch)
    assert acked() == 2
    asyncio.run(main())


def test_ready_connects_and_takes_no_longer_than_it_may(broker: testing.Broker, tmp_path: Path) -> None:
    nobody = f"ipc://{tmp_path}/nobody"

    async def main() -> None:
        mq = await aio.connect(broker.endpoint).ready(timeout=PATIENCE_S)
        assert (await mq.publish("ready.aio", b"x")).offset == 0
        await mq.close()
        with pytest.raises(ConnectionError):
            await aio.connect(nobody).ready(timeout="50ms")

    mq = broker.connect().ready(timeout=None)
    assert mq.ready() is mq
    mq.close()
    with pytest.raises(ConnectionError, match="no node answers"):
        connect(nobody).ready(timeout=0.05)
    asyncio.run(main())


def test_a_receipt_is_waited_for_as_long_as_the_client_waits(broker: testing.Broker) -> None:
    with connect(broker.endpoint, timeout=0.2) as mq:
        mq.ready(timeout=PATIENCE_S)
        assert mq.publish("patience", b"0", timeout=PATIENCE_S).offset == 0
        with mq._driver.lock:  # nobody hears of the confirm
            late = mq.post("patience", b"1")
            real, mq._driver.engine.transport.receive = mq._driver.engine.transport.receive, list  # type: ignore[method-assign]
            try:
                with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
                    late.result()
            finally:
                mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
        assert late.result(timeout=None).offset == 1
