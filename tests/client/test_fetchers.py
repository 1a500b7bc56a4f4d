"""A fetcher of one's own, and acks that are waited for."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from gossipq.errors import BadRequest, LeaseLost, NoSubscription, UnknownTopic
from gossipq_client import FetchedBatch, Fetcher, Handlers, Message, NotFound, Record, aio, testing
from gossipq_client.answers import Delivery
from waiting import until


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def test_an_ack_that_was_waited_for_is_stored(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        mq.publish_many("orders", [b"%d" % number for number in range(10)])
        batch = mq.fetcher("orders", group="billing").fetch(10)
        mq.ack([batch[1], batch[3]])
        assert mq.topic("orders").groups()[0].acked == 2
        mq.ack(batch)
        assert mq.topic("orders").groups()[0].acked == 10
        mq.ack(batch)


def test_an_ack_of_what_others_have_is_told(broker: testing.Broker) -> None:
    with broker.connect() as mq, broker.connect() as other:
        mq.publish_many("orders", [b"one", b"two"])
        (first, second) = mq.fetcher("orders", group="billing").fetch(2)
        broker.advance("31s")
        (taken,) = other.fetch("orders", group="billing", n=1)
        assert taken.offset == first.offset
        with pytest.raises(LeaseLost):
            mq.ack([first, second])
        assert (first.lost, second.lost) == (True, False)
        assert mq.topic("orders").groups()[0].acked == 1


def test_no_wait_is_as_long_as_no_number(broker: testing.Broker) -> None:
    nan = float("nan")
    with broker.connect() as mq:
        receipt = mq.post_many("orders", [b"one", b"two"])
        fetcher = mq.fetcher("orders", group="billing")
        batch = fetcher.fetch(1)
        for wait in (
            lambda: receipt.result(nan),
            lambda: mq.flush(nan),
            lambda: mq.ack(batch, timeout=nan),
            lambda: fetcher.fetch(1, wait=nan),
            lambda: mq.fetch("orders", group="billing", wait=nan),
        ):
            with pytest.raises(BadRequest, match="=nan is not a duration"):
                wait()


def test_an_ack_that_was_refused_is_told(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        mq.publish_many("orders", [b"one", b"two"])
        batch = mq.fetcher("orders", group="billing").fetch(2)
        mq.topic("orders").delete()
        with pytest.raises(NoSubscription):
            mq.ack(batch)


def test_what_a_fetcher_does_not_need_goes_to_others(broker: testing.Broker) -> None:
    with broker.connect() as mq, broker.connect() as other:
        mq.publish_many("orders", [b"%d" % number for number in range(100)])
        fetcher = mq.fetcher("orders", group="billing")
        batches = [fetcher.fetch(2) for _ in range(10)]
        fetcher.rest()
        fetcher.rest()
        seen = [msg.value for batch in batches for msg in batch]
        while len(seen) < 100 and (batch := other.fetch("orders", group="billing", n=100, wait=10)):
            seen += batch.values()
        assert sorted(map(int, seen)) == list(range(100))
        # withdraws the credit that it had granted
        assert not other.fetch("orders", group="billing", n=100, wait=0.2)
        mq.publish("orders", b"more")
        assert fetcher.fetch(1, wait=10).values() == [b"more"]


def test_who_does_not_fetch_ahead_holds_what_it_was_given_and_no_more(broker: testing.Broker) -> None:
    with broker.connect() as mq, broker.connect() as other:
        mq.publish_many("orders", [b"%d" % number for number in range(100)])
        fetcher = mq.fetcher("orders", group="billing", ahead=False)
        for count in range(1, 11):
            assert len(fetcher.fetch(2)) == 2
            assert mq.topic("orders").groups()[0].in_flight == 2 * count
        assert len(other.fetch("orders", group="billing", n=100, min=80, wait=10)) == 80


def test_who_knows_a_delivery_can_ack_it(broker: testing.Broker) -> None:
    with broker.connect() as mq, broker.connect() as other:
        mq.create_topic("orders", partitions=2)
        for number in range(2):
            mq.publish_many("orders", [b"x"] * 3, partition=number)
        fetcher, messages = mq.fetcher("orders", group="billing", ahead=False), list[Message]()
        while len(messages) < 6:
            messages += fetcher.fetch(6)
        found = [Delivery(each.topic_id, each.partition, each.offset, each.attempt) for each in messages]
        wrong = [found[0]._replace(topic_id=99), found[0]._replace(partition=9), found[0]._replace(offset=9)]
        assert other.group("orders", "billing").ack_delivered([*found[:4], *wrong]) == set(wrong)
        messages[4].nack(0)
        (taken,) = other.fetch("orders", group="billing", n=1, wait=10)
        assert (taken.partition, taken.offset) == (messages[4].partition, messages[4].offset)
        assert other.group("orders", "billing").ack_delivered(found) == {found[4]}
        assert sum(group.acked for group in mq.topic("orders").groups()) == 5


def test_the_end_of_a_fetcher_leaves_what_is_in_hand(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        mq.publish_many("orders", [b"one", b"two"])
        fetcher = mq.fetcher("orders", group="billing")
        (first,) = fetcher.fetch(1)
        fetcher.close()
        fetcher.close()
        assert len(fetcher.fetch(1, wait=0.0)) == 0
        mq.ack(first)
        (second,) = mq.fetcher("orders", group="billing").fetch(5)
        assert second.value == b"two"


def test_an_asyncio_client_runs_on_uvloop(broker: testing.Broker) -> None:
    """Its handles of calls that are due at once do not tell the time."""

    async def whole() -> int:
        async with aio.connect(broker.endpoint) as mq:
            receipts = [mq.post("orders", b"x") for _ in range(200)]
            await asyncio.gather(*(receipt.result(5) for receipt in receipts))
            batch = await mq.fetch("orders", group="billing", n=200)
            await mq.ack(batch)
            return (await mq.topic("orders").groups())[0].acked

    assert uvloop.run(whole()) == 200


def test_threads_that_begin_to_fetch_what_is_missing_hear_of_it(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        fetcher = mq.fetcher("missing", "g", create=False)
        for _ in range(2):  # both found that the topic was not looked up yet
            mq._driver.step(lambda: mq._driver.engine.session.subscribe(fetcher.state))
        with pytest.raises(UnknownTopic):
            fetcher.fetch(1, wait=5)


def test_a_wait_for_the_next_message_is_left_alone_by_who_wants_it_too(broker: testing.Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            await mq.create_topic("orders", 1)
            subscription = mq.subscribe("orders", "g")
            waiting = asyncio.ensure_future(anext(subscription))
            await asyncio.sleep(0.1)
            with pytest.raises(BadRequest, match="somebody waits"):
                await anext(subscription)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await mq.publish("orders", b"one")
            async with asyncio.timeout(10):
                assert (await anext(subscription)).value == b"one"
            await subscription.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("group", ["g", None])
def test_a_subscription_that_was_closed_hands_out_nothing(broker: testing.Broker, group: str | None) -> None:
    with broker.connect() as mq:
        mq.publish_many("orders", [b"one", b"two", b"three"], partition=0)
        subscription = (
            mq.subscribe("orders", group) if group else mq.read("orders", start="first", follow=True)
        )
        assert next(subscription).value == b"one"
        subscription.close()
        assert list(subscription) == []


def test_a_client_acks_only_what_it_was_given(broker: testing.Broker) -> None:
    """The numbers in an ack belong to a session: in that of another client they name other records."""
    with broker.connect() as mq, broker.connect() as other:
        mq.publish_many("orders", [b"one", b"two"])
        mq.publish_many("bills", [b"one", b"two"])
        orders, bills = mq.fetch("orders", "g", n=2), other.fetch("bills", "g", n=2)
        for done in (orders, orders[0], list(orders), [*bills, orders[1]]):
            with pytest.raises(BadRequest, match="was given to another client") as refused:
                other.ack(done)
            assert "msg.ack()" in refused.value.hint
        for done in (orders, orders[0], list(orders)):
            with pytest.raises(BadRequest, match="was given to another client"):
                other.ack_soon(done)
        other.flush(5)
        assert [mq.topic(topic).groups()[0].acked for topic in ("orders", "bills")] == [0, 0]
        mq.ack_soon(orders)
        other.ack_soon(list(bills))
        mq.flush(5)
        other.flush(5)
        assert [mq.topic(topic).groups()[0].acked for topic in ("orders", "bills")] == [2, 2]


def test_an_asyncio_client_acks_only_what_it_was_given(broker: testing.Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq, aio.connect(broker.endpoint) as other:
            await mq.publish_many("orders", [b"one", b"two"])
            batch = await mq.fetch("orders", "g", n=2)
            for verb in (other.ack_soon, other.ack):
                for done in (batch, batch[0], list(batch)):
                    with pytest.raises(BadRequest, match="was given to another client"):
                        await verb(done)
            await mq.ack(batch)
            with broker.connect() as sync, pytest.raises(BadRequest, match="was given to another client"):
                sync.ack_soon(batch)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_fetch_of_a_topic_that_was_missing_finds_it(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        for _ in range(2):
            with pytest.raises(UnknownTopic):
                mq.fetch("orders", "g", create=False)
        mq.publish("orders", b"one")
        assert mq.fetch("orders", "g", wait=10).values() == [b"one"]
        with pytest.raises(UnknownTopic):
            mq.fetch("bills", "g", create=False)
        assert not mq.fetch("bills", "g", wait=0)
        mq.topic("bills").delete()
        mq.publish("bills", b"two")
        try:
            values = mq.fetch("bills", "g", wait=10).values()
        except UnknownTopic:  # the subscription to the one that was removed
            values = mq.fetch("bills", "g", wait=10).values()
        assert values == [b"two"]


def test_nothing_stays_of_fetches_from_topics_that_were_removed(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        for number in range(20):
            mq.publish(f"orders{number}", b"one")
            assert mq.fetch(f"orders{number}", "g", wait=10).values() == [b"one"]
            mq.topic(f"orders{number}").delete()
        assert len(mq._consumer.fetchers) < 5, "the last ones may not have heard of it"


def test_another_thread_may_begin_to_fetch_while_fetchers_are_looked_through(broker: testing.Broker) -> None:
    with broker.connect() as mq:

        class Meanwhile:
            @property
            def state(self) -> SimpleNamespace:
                mq._consumer.fetchers[("of another thread",), "g"] = other
                return SimpleNamespace(error=None)

        other = mq.fetcher("orders", "others")
        mq._consumer.fetchers[("orders",), "slow"] = cast(Fetcher, Meanwhile())
        mq.publish("orders", b"one")
        assert mq.fetch("orders", "g", wait=10).values() == [b"one"]
        del mq._consumer.fetchers[("orders",), "slow"]


def test_an_asyncio_fetch_of_a_topic_that_was_missing_finds_it(broker: testing.Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            for _ in range(2):
                with pytest.raises(UnknownTopic):
                    await mq.fetch("orders", "g", create=False)
            await mq.publish("orders", b"one")
            assert (await mq.fetch("orders", "g", wait=10)).values() == [b"one"]

    asyncio.run(main())


def put(broker: testing.Broker, topic: str, count: int) -> None:
    with broker.connect() as mq:
        mq.publish_many(topic, [b"x"] * count, timeout=30)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"min": 3, "wait": 20}, 3),
        ({"min": 3, "linger": 20}, 3),
        ({"n": 3, "linger": 20}, 3),
        ({"min": 5, "linger": 0.8}, 3),
        ({"min": 5, "wait": 0.8}, 3),
        ({"linger": 0.8}, 3),
        ({"min": 1, "linger": 20}, 1),
    ],
)
def test_a_fetch_waits_for_more(broker: testing.Broker, options: dict[str, float], found: int) -> None:
    """Each record was delivered as soon as it came: a writer of files got one record per file."""
    topic = "more-" + "-".join(f"{name}.{value}" for name, value in options.items())
    put(broker, topic, 1)
    later = threading.Timer(0.3, put, (broker, topic, 2))
    with broker.connect() as mq:
        mq.fetch(topic, "other")
        later.start()
        batch = mq.fetch(topic, "g", **options)  # type: ignore[arg-type]
        later.join()
        assert len(batch) == found
        mq.ack(batch)
        assert len(mq.fetch(topic, "g", n=3)) == 3 - found
        mq.flush(None)


def test_what_a_fetch_waits_for_is_checked(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        for options in ({"min": 0}, {"n": 3, "min": 4}, {"linger": "soon"}):
            with pytest.raises(BadRequest):
                mq.fetch("checked", "g", **options)  # type: ignore[arg-type]


def test_a_fetch_that_waits_for_more_and_is_broken_off_gives_back_what_it_has(broker: testing.Broker) -> None:
    put(broker, "broken", 1)

    async def main() -> None:
        async with aio.connect(broker.endpoint) as mq:
            task = asyncio.create_task(mq.fetch("broken", "g", min=2, wait=20))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with aio.connect(broker.endpoint) as other:
                assert len(await other.fetch("broken", "g", wait=30)) == 1

    asyncio.run(main())


def test_a_fetch_with_other_options_is_not_answered_with_those_of_the_first(broker: testing.Broker) -> None:
    def routes(batch: FetchedBatch[Message]) -> list[str]:
        return [msg.route for msg in batch]

    with broker.connect() as mq:
        for number in range(4):
            mq.post("routed", b"%d" % number, route="eu" if number % 2 else "us")
        mq.flush(30)
        first = mq.fetch("routed", "g", n=1, route="eu", wait=10)
        assert routes(first) == ["eu"]
        assert routes(mq.fetch("routed", "g", n=4, min=2, route="us", wait=10)) == ["us", "us"]
        assert routes(mq.fetch("routed", "g", n=4, route="eu", wait=10)) == ["eu"]
        mq.ack(first)  # of a subscription that has ended
        assert len(mq._consumer.fetchers) == 1
        assert [msg.offset for msg in mq.fetch("routed", start="first", n=1, wait=10)] == [0]
        assert [msg.offset for msg in mq.fetch("routed", start=2, n=1, wait=10)] == [2]
        assert [msg.offset for msg in mq.fetch("routed", start=2, n=1, ack=True, wait=10)] == [3]


def test_a_running_fetch_keeps_its_options_when_another_has_others(broker: testing.Broker) -> None:
    with broker.connect() as mq, ThreadPoolExecutor() as pool:
        mq.create_topic("both")
        waiting = pool.submit(mq.fetch, "both", "g", n=1, route="eu", wait=30)
        until(lambda: any(each.state.fetches for each in mq._consumer.fetchers.values()))
        assert not mq.fetch("both", "g", n=1, route="us", wait=0)
        mq.publish("both", b"eu", route="eu")
        assert waiting.result(30).values() == [b"eu"]
        assert len(mq._consumer.fetchers) == 1


def test_a_fetch_without_a_group_reads(broker: testing.Broker) -> None:
    """Its records cannot be acked, and each fetch goes on behind the one before."""
    with broker.connect() as mq:
        mq.publish_many("tail", [b'{"a":1}', b'{"a":2}', b'{"a":3}'], timeout=30)
        first = mq.fetch("tail", start="first", n=2, min=2, wait=30)
        assert [type(record) for record in first] == [Record, Record]
        (last,) = mq.fetch("tail", start="first", n=2, wait=30)
        assert (last.offset, last.data) == (2, b'{"a":3}')
        (typed,) = mq.fetch("tail", dict[str, int], start=2, n=2, wait=30)
        assert typed.data == {"a": 3}
        for ack in (mq.ack, mq.ack_soon):
            for read in (first, first[0], list(first)):
                with pytest.raises(BadRequest, match="was read without a group") as refused:
                    ack(read)  # type: ignore[operator]
                assert "group=" in refused.value.hint
        assert mq.topic("tail").groups() == []
        with pytest.raises(NotFound):
            mq.fetch("nothing", wait=30)
        assert len(mq.fetch("nothing", create=True, wait=0)) == 0
        for options in ({"ack": False}, {"mode": "exclusive"}, {"lease": "5s"}):
            with pytest.raises(BadRequest, match="without a group") as refused:
                mq.fetch("tail", **options)  # type: ignore[call-overload]
            assert refused.value.hint


def test_handlers_have_a_group() -> None:
    for register in (Handlers().consumer, aio.connect("tcp://127.0.0.1:1").consumer):
        with pytest.raises(BadRequest, match="a handler without a group") as refused:
            register("orders", "")
        assert "read(" in refused.value.hint
