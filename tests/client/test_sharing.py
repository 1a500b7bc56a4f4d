"""Callers that each wait for their own publish, ack or flush share what is sent for it."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import RunningNode
from gossipq.errors import BadName, GossipqError, TooLarge
from gossipq.limits import VALUE_BYTES_MAX
from gossipq.messages import Ack, Nack
from gossipq.wire import frames
from gossipq_client import aio, connect

pytestmark = pytest.mark.e2e
TASKS = 64
PATIENCE_S = 30


def batches(client: Any, topic: str) -> int:
    """How many batches of a topic with one partition this client has sent."""
    sequence: int = client._driver.engine.session.publishing.topics[topic].writers[0].sequence
    return sequence - 1


def test_tasks_of_one_turn_share_a_batch(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(shared_node.endpoint) as mq:
            await mq.publish(topic, b"first")
            receipts = await asyncio.gather(*(mq.publish(topic, b"%d" % number) for number in range(TASKS)))
            assert [each.offset for each in receipts] == list(range(1, TASKS + 1))
            assert batches(mq, topic) == 2

    asyncio.run(main())


def test_a_task_that_is_alone_waits_for_nobody(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(shared_node.endpoint) as mq:
            for number in range(10):
                await mq.publish(topic, b"x")
                assert batches(mq, topic) == number + 1

    asyncio.run(main())


def test_records_that_ask_for_different_things_share_a_batch(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(shared_node.endpoint) as mq:
            await mq.create_topic(topic, dedup="1m")
            await mq.publish(topic, b"first", key="k")
            options: list[dict[str, Any]] = [
                {"key": "a"},
                {"key": "b", "headers": {"h": "v"}},
                {"key": "a", "id": "one"},
                {"key": "a", "id": "one"},
                {"key": "c", "ttl": "1h", "attempts_max": 2},
            ]
            receipts = await asyncio.gather(*(mq.publish(topic, b"x", **each) for each in options))
            assert [each.offset for each in receipts] == [1, 2, 3, 3, 4]
            assert [each.duplicate for each in receipts] == [False, False, False, True, False]
            assert batches(mq, topic) == 2
            batch = await mq.fetch(topic, "g", n=10)
            assert [(msg.key, msg.headers) for msg in batch] == [
                (b"k", {}),
                (b"a", {}),
                (b"b", {"h": "v"}),
                (b"a", {}),
                (b"c", {}),
            ]

    asyncio.run(main())


def test_one_that_is_refused_takes_no_other_along(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(shared_node.endpoint) as mq:
            await mq.publish(topic, b"first")

            async def refused(kind: type[GossipqError], call: Awaitable[object]) -> None:
                with pytest.raises(kind):
                    await call

            good = [mq.publish(topic, b"%d" % number) for number in range(TASKS)]
            await asyncio.gather(
                refused(BadName, mq.publish("no topic!", b"x")),
                *good[:20],
                refused(TooLarge, mq.publish(topic, bytes(VALUE_BYTES_MAX + 1))),
                *good[20:],
            )
            assert len(await mq.fetch(topic, "g", n=100, min=TASKS + 1)) == TASKS + 1

    asyncio.run(main())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Ack | Nack]:
    """Each ACK and NACK that is sent from now on."""
    sent: list[Ack | Nack] = []
    encode: Callable[..., Any] = frames.encode

    def noted(message: Any, *rest: Any) -> Any:
        if isinstance(message, Ack | Nack):
            sent.append(message)
        return encode(message, *rest)

    monkeypatch.setattr(frames, "encode", noted)
    return sent


def test_tasks_that_wait_for_their_acks_share_a_request(
    shared_node: RunningNode, topic: str, told: list[Ack | Nack]
) -> None:
    async def main() -> None:
        async with aio.connect(shared_node.endpoint) as mq:
            await mq.publish_many(topic, [b"x"] * TASKS)
            await mq.flush(PATIENCE_S)
            batch = await mq.fetch(topic, "g", n=TASKS)
            assert len(batch) == TASKS
            await asyncio.gather(*(mq.ack(msg) for msg in batch))
            assert {(first, end) for ack in told for _, first, end in ack.ranges} == {(0, TASKS)}
            assert (await mq.topic(topic).groups())[0].acked == TASKS

    asyncio.run(main())


def test_tasks_that_flush_share_a_batch(shared_node: RunningNode, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(shared_node.endpoint) as mq:
            await mq.publish(topic, b"first")

            async def caller() -> None:
                pending = mq.post(topic, b"x")
                await mq.flush(PATIENCE_S)
                assert pending.done()

            await asyncio.gather(*(caller() for _ in range(TASKS)))
            assert batches(mq, topic) == 2

    asyncio.run(main())


def test_threads_share_batches(shared_node: RunningNode, topic: str) -> None:
    each = 20
    with connect(shared_node.endpoint) as mq, ThreadPoolExecutor(TASKS) as threads:
        mq.publish(topic, b"first")

        def caller(number: int) -> list[int]:
            return [mq.publish(topic, b"%d" % number).offset for _ in range(each)]

        offsets = [offset for found in threads.map(caller, range(TASKS)) for offset in found]
        assert sorted(offsets) == list(range(1, TASKS * each + 1))
        assert batches(mq, topic) < TASKS * each / 2
