"""Handlers of batches against a whole node, in threads and in tasks."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gossipq_client import BadRequest, Message, Reject, testing
from gossipq_client.aio import Message as AioMessage
from gossipq_client.aio import connect as aio_connect
from gossipq_client.middleware import Middleware

pytestmark = pytest.mark.e2e
PATIENCE_S = 30


@dataclass
class Order:
    id: int


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


def publish(mq: testing.Client, count: int) -> None:
    mq.publish_many("orders", [b'{"id": %d}' % at for at in range(count)], timeout=PATIENCE_S)


def acked(mq: testing.Client) -> tuple[int, int]:
    (row,) = mq.topic("orders").groups()
    return row.acked, row.dead


def test_a_batch_is_full_or_what_came_in_time(mq: testing.Client) -> None:
    publish(mq, 1_050)
    batches: list[list[int]] = []

    @mq.consumer("orders", group="g", batch_size=500, batch_wait=0.5)
    def work(orders: list[Order]) -> None:
        batches.append([order.id for order in orders])

    mq.run(stop_at_end=True)
    assert [len(batch) for batch in batches] == [500, 500, 50]
    assert [each for batch in batches for each in batch] == list(range(1_050))
    assert acked(mq) == (1_050, 0)


def test_records_that_come_within_the_wait_join_the_batch(mq: testing.Client) -> None:
    publish(mq, 1)
    batches: list[int] = []

    @mq.consumer("orders", group="g", batch_size=3, batch_wait=PATIENCE_S)
    def work(messages: list[Message]) -> None:
        batches.append(len(messages))
        mq.stop()

    began = time.monotonic()
    later = threading.Timer(0.3, publish, [mq, 2])
    later.start()
    mq.run()
    later.join()
    assert batches == [3]
    assert time.monotonic() - began < PATIENCE_S


def test_messages_of_a_batch_fail_alone(mq: testing.Client) -> None:
    publish(mq, 3)
    mq.publish("orders", b"no JSON", timeout=PATIENCE_S)
    publish(mq, 2)
    seen: list[list[int]] = []

    @mq.consumer("orders", group="g", batch_size=10, batch_wait=0.1, attempts_max=2, backoff="10m")
    def work(orders: list[Order], messages: list[Message]) -> None:
        seen.append([order.id for order in orders])
        if len(seen) == 1:
            messages[1].nack(reason="not now")
            messages[2].reject("never")

    mq.run(stop_at_end=True)
    assert seen == [[0, 1, 2, 0, 1]]
    assert acked(mq) == (3, 2)
    mq.advance("11m")
    mq.run(stop_at_end=True)
    assert seen[1:] == [[1]]
    assert sorted(letter.reason for letter in mq.dead("orders", "g").letters()) == [
        "rejected",
        "undecodable",
    ]


def test_an_exception_fails_what_is_not_settled(mq: testing.Client) -> None:
    publish(mq, 3)

    @mq.consumer("orders", group="g", batch_size=3)
    def work(messages: list[Message]) -> None:
        messages[0].ack_soon()
        raise Reject("the database is gone")

    mq.run(stop_at_end=True)
    assert acked(mq) == (1, 2)
    assert {letter.error for letter in mq.dead("orders", "g").letters()} == {"the database is gone"}


def test_middleware_hears_of_each_message(mq: testing.Client) -> None:
    heard: list[Any] = []

    class Ware(Middleware):
        def before(self, message: Any) -> None:
            heard.append(("before", message.offset))

        def after(self, message: Any, result: Any) -> None:
            heard.append(("after", message.offset))

    mq.add_middleware(Ware())
    publish(mq, 2)

    @mq.consumer("orders", group="g", batch_size=2)
    def work(orders: list[Order]) -> None:
        heard.append("work")

    mq.run(stop_at_end=True)
    assert heard == [("before", 0), ("before", 1), "work", ("after", 0), ("after", 1)]


def test_one_record_of_a_key_in_each_batch(mq: testing.Client) -> None:
    values = [b'{"id": %d}' % at for at in range(6)]
    mq.publish_many("orders", values, keys=["a", "b"] * 3, timeout=PATIENCE_S)
    batches: list[list[int]] = []

    @mq.consumer("orders", group="g", mode="key_ordered", batch_size=5, batch_wait=0.1)
    def work(orders: list[Order]) -> None:
        batches.append([order.id for order in orders])

    mq.run(stop_at_end=True)
    assert batches == [[0, 1], [2, 3], [4, 5]]


def test_batches_of_an_asyncio_client(broker: testing.Broker, mq: testing.Client) -> None:
    publish(mq, 7)
    seen: list[tuple[str, list[int]]] = []

    async def main() -> None:
        async with aio_connect(broker.endpoint) as client:

            @client.consumer("orders", group="tasks", batch_size=5, batch_wait=0.2)
            async def work(orders: list[Order], messages: list[AioMessage]) -> None:
                seen.append(("tasks", [order.id for order in orders]))
                if len(messages) == 2:
                    await messages[0].reject("no")

            @client.consumer("orders", group="threads", batch_size=5, batch_wait=0.2)
            def blocks(orders: list[Order]) -> None:
                seen.append(("threads", [order.id for order in orders]))

            await client.run(stop_at_end=True)

    asyncio.run(main())
    for group in ("tasks", "threads"):
        assert [ids for name, ids in seen if name == group] == [[0, 1, 2, 3, 4], [5, 6]]
    assert {row.group: (row.acked, row.dead) for row in mq.topic("orders").groups()} == {
        "tasks": (6, 1),
        "threads": (7, 0),
    }


def _takes_one(order: Order) -> None: ...
def _takes_list(orders: list[Order]) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "wrong"),
    [
        (_takes_one, {"batch_size": 5}, "takes lists"),
        (_takes_list, {"batch_wait": "1s"}, "without batch_size"),
        (_takes_list, {"batch_size": 0}, "batch_size"),
        (_takes_list, {"batch_size": 5, "credit": 4}, "no batch would become full"),
        (_takes_list, {"batch_size": 5, "time_limit": 3}, "time_limit"),
    ],
)
def test_what_cannot_work_is_refused(
    mq: testing.Client, function: Callable[..., Any], options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(BadRequest, match=wrong):
        mq.consumer("orders", group="g", **options)(function)
