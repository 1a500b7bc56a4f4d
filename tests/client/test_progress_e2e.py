"""Positions of topics, and groups whose consumers keep their own positions."""

import asyncio
import uuid

import pytest

from conftest import RunningNode
from gossipq.errors import UnknownTopic
from gossipq_client import BadRequest, Client, connect
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e


@pytest.fixture
def topic(mq: Client) -> str:
    """Two partitions of 25,000 and 40 records: more than a group may have in flight."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    mq.create_topic(name, partitions=2)
    mq.publish_many(name, [b"x"] * 25_000, partition=0, timeout=30)
    mq.publish_many(name, [b"y"] * 40, partition=1, timeout=30)
    return name


def standing(mq: Client, topic: str) -> dict[int, tuple[int, int, int]]:
    """(cursor, acked, ready) of the group in each partition."""
    return {
        row.partition: (row.cursor, row.acked, row.ready)
        for row in mq.topic(topic).groups()
        if row.group == "g"
    }


def test_positions(mq: Client, topic: str) -> None:
    assert mq.topic(topic).positions() == {0: (0, 25_000), 1: (0, 40)}
    assert mq.topic(topic).positions("new") == {0: (25_000, 25_000), 1: (40, 40)}
    assert mq.topic(topic).positions("-10m") == {0: (0, 25_000), 1: (0, 40)}
    with pytest.raises(UnknownTopic):
        mq.topic("nothing-here").positions()


def test_a_group_moves_on_once(mq: Client, topic: str) -> None:
    mq.group(topic, "g").ack_below({0: 0, 1: 0})
    assert standing(mq, topic) == {0: (0, 0, 25_000), 1: (0, 0, 40)}
    for _ in range(2):
        mq.group(topic, "g").ack_below({0: 24_000, 1: 10})
        assert standing(mq, topic) == {0: (24_000, 24_000, 1_000), 1: (10, 10, 30)}
    mq.group(topic, "g").ack_below({0: 5})
    mq.group(topic, "g").ack_below({1: 1_000})
    assert standing(mq, topic) == {0: (24_000, 24_000, 1_000), 1: (40, 40, 0)}
    batch = mq.fetch(topic, "g", n=2_000, min=1_000)
    assert len(batch) == 1_000, "who consumes in the group goes on from there"


def test_what_a_consumer_holds_stays_its_own(mq: Client, topic: str, shared_node: RunningNode) -> None:
    batch = mq.fetch(topic, "g", n=100)
    held = sum(row.in_flight for row in mq.topic(topic).groups())
    assert held >= len(batch) > 0
    with connect(shared_node.endpoint) as other:
        other.group(topic, "g").ack_below({0: 20_000, 1: 40})
    held_then = sum(row.in_flight for row in mq.topic(topic).groups())
    assert held_then >= held, "the other shard may have delivered meanwhile"
    mq.ack_soon(batch)
    mq.flush(5)
    assert sum(row.acked for row in mq.topic(topic).groups()) >= 20_000 + len(batch) - held_then


def test_refusals(mq: Client, topic: str) -> None:
    for group, ends in (("", {0: 1}), ("g", {2: 1}), ("g", {0: -1})):
        with pytest.raises(BadRequest):
            mq.group(topic, group).ack_below(ends)
    with pytest.raises(UnknownTopic):
        mq.group("nothing-here", "g").ack_below({0: 1})


def test_the_asyncio_twin(shared_node: RunningNode, mq: Client, topic: str) -> None:
    async def main() -> None:
        async with aio_connect(shared_node.endpoint) as twin:
            assert await twin.topic(topic).positions() == {0: (0, 25_000), 1: (0, 40)}
            await twin.group(topic, "g").ack_below({0: 7})

    asyncio.run(main())
    assert standing(mq, topic)[0] == (7, 7, 24_993)
