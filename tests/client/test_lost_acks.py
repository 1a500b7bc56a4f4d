"""Acks that are refused because the lease is over: who waits for acks hears of them."""

import asyncio
from collections.abc import Iterator

import pytest

from client.hand import Hand
from gossipq.errors import LeaseLost
from gossipq.messages import Ack, Acked
from gossipq_client import Message, testing
from gossipq_client import aio as asyncio_client

pytestmark = pytest.mark.e2e


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def take(mq: testing.Client, topic: str) -> list[Message]:
    """Two records, of which the first is in other hands by now, which this client does not know."""
    mq.publish_many(topic, [b"0", b"1"], timeout=30)
    taken = list(mq.fetcher(topic, group="g").fetch(2))
    lose_first(mq.broker, topic)
    return taken


def lose_first(broker: testing.Broker, topic: str) -> None:
    """The leases of a topic end, and somebody else gets its first record."""
    broker.advance("31s")
    with broker.connect() as other:
        (message,) = other.fetch(topic, group="g", n=1, wait=5)
        assert message.offset == 0
        other.ack(message)


def test_a_flush_raises_for_acks_that_are_not_stored_once(broker: testing.Broker) -> None:
    """It returned, and a warning followed in the log."""
    with broker.connect() as mq:
        for message in take(mq, "late"):
            message.ack_soon()
        with pytest.raises(LeaseLost, match=r"1 ack came too late.*late/0/0") as told:
            mq.flush(None)
        assert told.value.refs == ("late/0/0",)
        mq.flush(None)


def test_a_close_raises_for_acks_that_are_not_stored(broker: testing.Broker) -> None:
    mq = broker.connect()
    for message in take(mq, "closed"):
        with message:
            pass
    with pytest.raises(LeaseLost, match="closed/0/0"):
        mq.close()
    mq.close()
    with broker.connect() as other:
        assert other.topic("closed").groups()[0].acked == 2


def test_who_waited_for_the_ack_itself_hears_it_once(broker: testing.Broker) -> None:
    with broker.connect() as mq:
        with pytest.raises(LeaseLost):
            mq.ack(take(mq, "waited"))
        mq.flush(None)


def test_asyncio_flushes_raise_for_acks_that_are_not_stored(broker: testing.Broker) -> None:
    async def main() -> None:
        async with asyncio_client.connect(broker.endpoint) as mq:
            await mq.publish_many("async", [b"0", b"1"])
            taken = list(await mq.fetcher("async", group="g").fetch(2))
            await asyncio.to_thread(lose_first, broker, "async")
            for message in taken:
                async with message:
                    pass
            with pytest.raises(LeaseLost, match="async/0/0"):
                await mq.flush(None)

    asyncio.run(main())


def test_the_acks_of_handlers_are_in_the_log_alone() -> None:
    hand = Hand()
    subscription = hand.subscribe()
    subscription.has_handler = True
    (part,) = subscription.parts
    hand.deliver(part, 0, 5)
    taken = hand.session.consuming.take(subscription, 5)
    hand.session.consuming.ack(taken[0].held, 0, 5)
    (ack,) = hand.flush(Ack)
    hand.answer(ack, Acked([(9 << 16, 2, 3)]))
    assert len(hand.session.consuming.warnings) == 1
    assert hand.session.failure() is None


def test_a_subscription_that_ended_has_lost_the_leases_of_its_acks() -> None:
    """As when its topic is deleted while the acks are on their way."""
    hand = Hand()
    subscription = hand.subscribe()
    (part,) = subscription.parts
    hand.deliver(part, 0, 1)
    taken = hand.session.consuming.take(subscription, 1)
    hand.session.consuming.ack(taken[0].held, 0, 1)
    (ack,) = hand.flush(Ack)
    hand.refuse(ack, "no_subscription", detail=part.number)
    assert isinstance(hand.session.failure(), LeaseLost)
