"""Schemas on a real node: declared, checked by those who publish, followed, and gone with their topic."""

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from conftest import RunningNode
from gossipq.errors import BadRequest, SchemaMismatch, UnknownTopic
from gossipq.wire import schemas
from gossipq_client import Client, connect

pytestmark = pytest.mark.e2e


class Order(msgspec.Struct):
    user: str
    n: int


@dataclass
class Wider:
    user: str
    n: int
    note: str | None = None


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


@pytest.fixture
def topic(mq: Client) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    mq.create_topic(name)
    return name


def values(mq: Client, topic: str) -> list[bytes]:
    return [msg.value for msg in mq.read(topic)]


def test_who_declares_or_asks_publishes_nothing_that_does_not_fit(
    shared_node: RunningNode, mq: Client, topic: str
) -> None:
    mq.publish(topic, b"as it was before")
    made = mq.schema(topic, Order)
    assert (made.version, mq.schema(topic, Order).version) == (1, 1)
    mq.publish(topic, Order("ada", 1))
    mq.publish_many(topic, [{"user": "bob", "n": 2}, b'{"user":"eve","n":3}'])
    with connect(shared_node.endpoint) as other:
        other.publish(topic, b"{}")  # did not ask
        assert other.schema(topic).decode(b'{"user":"ada","n":1}') == {"user": "ada", "n": 1}
        for value in (b"{}", '{"user":"ada","n":"1"}', {"user": "ada"}, 7):
            with pytest.raises(SchemaMismatch, match=f"schema version 1 of {topic}"):
                other.post(topic, value)
        with pytest.raises(SchemaMismatch):
            other.post_many(topic, [b'{"user":"x","n":1}', b""])
        other.publish(topic, Order("zoe", 9))
    assert values(mq, topic) == [
        b"as it was before",
        b'{"user":"ada","n":1}',
        b'{"user":"bob","n":2}',
        b'{"user":"eve","n":3}',
        b"{}",
        b'{"user":"zoe","n":9}',
    ]


def test_what_comes_of_a_record_is_checked_too(mq: Client, topic: str) -> None:
    mq.schema(topic, Order)
    mq.publish(topic, Order("ada", 1))
    for msg in mq.consume(topic, "g", stop_at_end=True):
        with pytest.raises(SchemaMismatch):
            msg.post_with(topic, b"{}")
        msg.ack_soon()
    assert len(values(mq, topic)) == 1


def test_versions_follow_and_a_topic_made_anew_has_none(
    shared_node: RunningNode, mq: Client, topic: str
) -> None:
    mq.schema(topic, Order)
    assert mq.schema(topic, Wider).version == 2
    assert mq.schema(topic, Order).version == 2, "an older program starts again"
    with pytest.raises(SchemaMismatch, match=r"\$.note: is gone"):
        mq.topic(topic).next_schema(Order)
    mq.publish(topic, Wider("ada", 1, "x"))
    mq.topic(topic).delete_schema()
    mq.topic(topic).delete_schema()
    mq.publish(topic, b"{}")
    with pytest.raises(BadRequest, match="has no schema"):
        mq.schema(topic)
    assert mq.schema(topic, Order).version == 4
    mq.topic(topic).delete()
    with pytest.raises(UnknownTopic):
        mq.schema(topic)
    mq.create_topic(topic)
    assert mq.topic(topic).schema() is None
    mq.publish(topic, b"{}")
    mq.schema(topic, Order)
    with connect(shared_node.endpoint) as other:
        other.topic(topic).delete_schema()
    with pytest.raises(BadRequest, match="has no schema"):
        mq.schema(topic)
    mq.publish(topic, b"{}")


def test_topics_that_can_have_none(mq: Client, topic: str) -> None:
    mq.topic(virtual := f"{topic}.all").bind([topic])
    mq.schema(topic, Order)
    for name in (virtual, schemas.TOPIC):
        with pytest.raises(BadRequest, match="can have no schema"):
            mq.schema(name, Order)
    with pytest.raises(BadRequest, match="no schema can be made"):
        mq.schema(topic, 7)


def test_of_those_who_declare_at_a_time_one_counts_and_the_others_follow_it(
    shared_node: RunningNode, mq: Client, topic: str
) -> None:
    outcomes: list[Any] = []
    both = threading.Barrier(6)

    def declare(number: int) -> None:
        field = {f"f{number % 3}": {"type": "string"}}
        with connect(shared_node.endpoint) as client:
            both.wait(60)
            try:
                outcomes.append(client.schema(topic, {"type": "object", "properties": field}).document)
            except SchemaMismatch as error:
                outcomes.append(error)

    threads = [threading.Thread(target=declare, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = mq.schema(topic)
    assert counts.version == 1
    assert [each for each in outcomes if isinstance(each, dict)] == [counts.document] * 2, outcomes
    assert len(outcomes) == 6
