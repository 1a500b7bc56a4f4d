"""The asyncio twin against a real node: the same verbs, awaited."""

import asyncio
from collections.abc import Callable

import pytest

from conftest import RunningNode
from gossipq.errors import Backpressure, ClientClosed, NotConfirmed, TopicExists, Unreachable
from gossipq_client import Receipt
from gossipq_client.aio import Client, connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end


def test_publish_consume_fetch(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        async with connect(shared_node.endpoint) as mq:
            receipt = await mq.publish(topic, "one", key="k", headers={"h": "v"}, route="r")
            assert (receipt.topic, receipt.offset) == (topic, 0)
            pending = [mq.post(topic, b"%d" % number) for number in range(2_000)]
            receipts = await asyncio.gather(*pending)
            assert [each.offset for each in receipts] == list(range(1, 2_001))
            assert pending[-1].done()
            assert (await mq.publish_many(topic, [b"a", b"b"], timeout=PATIENCE_S)).count == 2
            seen = []
            async for msg in mq.consume(topic, "g", stop_at_end=True):
                async with msg:
                    seen.append(msg.value)
            assert len(seen) == 2_003
            batch = await mq.fetch(topic, "h", n=10)
            assert (
                batch.values()
                == [msg.value for msg in batch]
                == [b"one", *(b"%d" % number for number in range(9))]
            )
            mq.ack_soon(batch)
            assert len(await mq.fetch(topic, "h", n=5_000, min=1_993)) == 1_993
            await mq.flush(PATIENCE_S)
            assert {row.group: row.acked for row in await mq.topic(topic).groups()} == {"g": 2_003, "h": 10}

    asyncio.run(main())


def test_failures_come_again_and_leases_are_held(shared_node: RunningNode, topic: str) -> None:
    async def work(mq: Client, fail: bool) -> int:
        async for msg in mq.consume(topic, "g", lease="1s"):
            async with msg:
                await asyncio.sleep(1.5)
                if fail:
                    raise ZeroDivisionError
                return msg.attempt
        raise AssertionError("the stream does not end")

    async def main() -> None:
        async with connect(shared_node.endpoint) as mq:
            await mq.publish(topic, b"x")
            with pytest.raises(ZeroDivisionError):
                await work(mq, fail=True)
            assert await work(mq, fail=False) == 2
            await mq.flush(PATIENCE_S)
            assert (await mq.topic(topic).groups())[0].acked == 1

    asyncio.run(main())


def test_topics_status_and_errors(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        mq = await connect(shared_node.endpoint)
        await mq.create_topic(topic, partitions=2)
        with pytest.raises(TopicExists):
            await mq.create_topic(topic)
        assert [each.name for each in await mq.topics(topic)] == [topic]
        much = [bytes(1 << 20)] * 24
        with pytest.raises(Backpressure):
            await asyncio.gather(*(mq.publish_many(topic, much, wait=0, partition=0) for _ in range(3)))
        await mq.flush(PATIENCE_S)
        await mq.topic(topic).delete()
        assert (await mq.admin.status()).led == 32
        waiting = asyncio.ensure_future(mq.fetch(topic, "g", wait=PATIENCE_S))
        await asyncio.sleep(0.05)
        await mq.close(flush=False)
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await mq.publish(topic, b"")
        with pytest.raises(Unreachable):
            await connect("tcp://127.0.0.1:9", timeout=0.2)

    asyncio.run(main())


def test_publishes_survive_a_killed_node(make_node: Callable[..., RunningNode], topic: str) -> None:
    node = make_node().start()

    async def main() -> None:
        async with connect(node.endpoint) as mq:
            pending = [mq.post(topic, b"%d" % number) for number in range(1_000)]
            await pending[0]
            await asyncio.to_thread(node.kill)
            late = mq.post(topic, b"late")
            with pytest.raises(NotConfirmed):
                await late.result(0.1)
            await asyncio.to_thread(node.start)
            assert [(await each.result(PATIENCE_S)).offset for each in [*pending, late]] == list(range(1_001))

    asyncio.run(main())


def test_an_idle_client_leaves_its_sockets_alone_until_its_pings_are_answered(
    shared_node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the answers wake it once, not once for each connection; what is published meanwhile is confirmed."""

    async def main() -> None:
        async with connect(shared_node.endpoint) as mq:
            await mq.publish(topic, b"x")
            rest, published = mq._driver._rest, list[asyncio.Task[Receipt]]()

            def resting() -> None:
                rest()
                assert not mq._driver._watched
                if len(published) < 2:
                    published.append(asyncio.create_task(mq.publish(topic, b"y")))

            monkeypatch.setattr(mq._driver, "_rest", resting)
            async with asyncio.timeout(PATIENCE_S):
                while len(published) < 2:
                    await asyncio.sleep(0.05)
                assert [(await each).offset for each in published] == [1, 2]
            assert mq._driver._watched

    asyncio.run(main())


def test_a_cancellation_is_not_lost_that_comes_together_with_an_outcome(
    shared_node: RunningNode, topic: str
) -> None:
    async def main() -> None:
        ready, waits = False, asyncio.Event()

        async def wait(mq: Client) -> None:
            waits.set()
            await mq._driver.until(lambda: ready, PATIENCE_S)

        async with connect(shared_node.endpoint) as mq:
            task = asyncio.create_task(wait(mq))
            await waits.wait()
            await asyncio.sleep(0.05)
            ready = True
            mq._driver.turn()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
