"""The transport for Celery against a node: what kombu's own tests do not look at."""

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub

import gossipq_celery  # noqa: F401 - makes gossipq:// known
from conftest import RunningNode
from gossipq_client import Client, connect

pytestmark = [pytest.mark.e2e]
SECONDS = 30
names = (f"queue-{number}" for number in itertools.count())


@pytest.fixture
def link(shared_node: RunningNode) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"gossipq://127.0.0.1:{shared_node.port}") as connection:
        yield connection


@pytest.fixture
def other(shared_node: RunningNode) -> Iterator[kombu.Connection]:
    """A connection with a client of its own, as in another process."""
    options = {"name": "other"}
    with kombu.Connection(f"gossipq://127.0.0.1:{shared_node.port}", transport_options=options) as connection:
        yield connection


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


@pytest.fixture
def queue() -> kombu.Queue:
    name = next(names)
    return kombu.Queue(name, routing_key=name)


def publish(link: kombu.Connection, queue: kombu.Queue, *bodies: Any, **options: Any) -> None:
    producer = kombu.Producer(link.default_channel, serializer="json")
    for body in bodies:
        producer.publish(
            body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
        )


class Taker:
    """A consumer that keeps its messages."""

    def __init__(self, link: kombu.Connection, *queues: kombu.Queue, prefetch: int | None = None) -> None:
        self.link, self.messages = link, list[Any]()
        channel = link.channel()
        self.consumer = kombu.Consumer(channel, list(queues), prefetch_count=prefetch, accept=["json"])
        self.consumer.register_callback(lambda body, message: self.messages.append(message))
        self.consumer.consume()

    @property
    def bodies(self) -> list[Any]:
        return [each.payload for each in self.messages]

    def until(self, count: int) -> list[Any]:
        deadline = time.monotonic() + SECONDS
        while len(self.messages) < count:
            self.link.drain_events(timeout=max(0.1, deadline - time.monotonic()))
        return self.bodies

    def hears_nothing(self, seconds: float = 0.3) -> None:
        before = len(self.messages)
        with pytest.raises(TimeoutError):
            self.link.drain_events(timeout=seconds)
        assert len(self.messages) == before


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def group_of(mq: Client, queue: kombu.Queue) -> Any:
    return mq.group(queue.name, "celery").counters()[0]


def test_a_task_with_an_eta_waits_in_the_broker(
    link: kombu.Connection, mq: Client, queue: kombu.Queue
) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    publish(link, queue, "later", headers={"eta": soon.isoformat(), "task": "shop.pack", "id": "17"})
    taker = Taker(link, queue)
    assert taker.until(1) == ["later"]
    assert datetime.now(UTC) >= soon
    (record,) = mq.read(queue.name)
    assert (record.value, record.headers["task"], record.headers["task_id"]) == (
        b'"later"',
        "shop.pack",
        "17",
    )


def test_the_prefetch_count_bounds_what_is_unacked(
    link: kombu.Connection, mq: Client, queue: kombu.Queue
) -> None:
    publish(link, queue, *range(5))
    taker = Taker(link, queue, prefetch=2)
    assert taker.until(2) == [0, 1]
    taker.hears_nothing()
    assert (group_of(mq, queue).ready, group_of(mq, queue).in_flight) == (3, 2)
    taker.messages[0].ack()
    assert taker.until(3) == [0, 1, 2]
    taker.hears_nothing()
    taker.consumer.qos(prefetch_count=4)
    assert taker.until(5) == [0, 1, 2, 3, 4]


def test_what_is_not_acked_goes_back_when_a_channel_is_closed(
    link: kombu.Connection, mq: Client, queue: kombu.Queue
) -> None:
    publish(link, queue, *range(4))
    taker = Taker(link, queue, prefetch=3)
    taker.until(3)
    taker.messages[1].ack()
    taker.consumer.channel.close()
    again = Taker(link, queue)
    assert sorted(again.until(3)) == [0, 2, 3]
    assert [each.delivery_info["redelivered"] for each in again.messages if each.payload == 0] == [True]
    for each in again.messages:
        each.ack()
    eventually(lambda: group_of(mq, queue).acked == 4)
    assert group_of(mq, queue).dead == 0


def test_a_cancelled_consumer_gives_back_what_no_callback_has_seen(
    link: kombu.Connection, mq: Client, queue: kombu.Queue
) -> None:
    publish(link, queue, *range(3))
    taker = Taker(link, queue, prefetch=3)
    taker.consumer.channel.feed()
    eventually(lambda: group_of(mq, queue).in_flight == 3)
    taker.consumer.cancel()
    eventually(lambda: group_of(mq, queue).ready == 3)
    assert taker.messages == []


def test_a_rejected_message_is_a_dead_letter(link: kombu.Connection, mq: Client, queue: kombu.Queue) -> None:
    publish(link, queue, "bad")
    taker = Taker(link, queue)
    taker.until(1)
    taker.messages[0].reject()
    eventually(lambda: group_of(mq, queue).dead == 1)
    assert [each.value for each in mq.dead(queue.name, "celery").letters()] == [b'"bad"']


def test_bindings_are_those_of_all_processes(link: kombu.Connection, other: kombu.Connection) -> None:
    exchange = kombu.Exchange("all-news", type="fanout")
    queues = [kombu.Queue(next(names), exchange=exchange) for _ in range(2)]
    takers = [Taker(link, each) for each in queues]
    kombu.Producer(other.default_channel, exchange=exchange).publish("hello", serializer="json")
    while not all(each.messages for each in takers):
        link.drain_events(timeout=SECONDS)
    assert [each.bodies for each in takers] == [["hello"], ["hello"]]


def test_an_exchange_cannot_be_declared_otherwise(link: kombu.Connection, other: kombu.Connection) -> None:
    kombu.Exchange("strict", type="fanout")(link.default_channel).declare()
    with pytest.raises(Exception, match="Cannot redeclare exchange 'strict'"):
        kombu.Exchange("strict", type="topic")(other.default_channel).declare()
    with pytest.raises(Exception, match="NOT_FOUND"):
        kombu.Exchange("nowhere", passive=True)(link.default_channel).declare()


def test_the_queue_of_a_process_goes_with_its_last_consumer(link: kombu.Connection, mq: Client) -> None:
    exchange = kombu.Exchange("calls", type="fanout")
    queue = kombu.Queue(next(names), exchange=exchange, auto_delete=True)
    taker = Taker(link, queue)
    assert [each.name for each in mq.topics(queue.name)] == [queue.name]
    taker.consumer.cancel()
    assert mq.topics(queue.name) == []
    kombu.Producer(link.default_channel, exchange=exchange).publish("nobody hears it", serializer="json")


def test_an_abandoned_queue_is_deleted_by_a_publisher(
    link: kombu.Connection, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = kombu.Exchange("abandoned", type="fanout")
    queue = kombu.Queue(next(names), exchange=exchange, auto_delete=True)
    queue(link.default_channel).declare()
    now = time.time()
    monkeypatch.setattr("gossipq_celery.transport.time.time", lambda: now + 3_600)
    kombu.Producer(link.default_channel, exchange=exchange).publish("hello", serializer="json")
    assert mq.topics(queue.name) == []


def test_a_retried_publish_is_stored_once(link: kombu.Connection, mq: Client, queue: kombu.Queue) -> None:
    channel = link.default_channel
    queue(channel).declare()
    message = channel.prepare_message("one", properties={})
    for _ in range(2):
        channel.basic_publish(message, exchange="", routing_key=queue.name)
    assert group_of(mq, queue).ready == 1


def test_counts_and_purge(link: kombu.Connection, queue: kombu.Queue) -> None:
    publish(link, queue, *range(3))
    bound = queue(link.default_channel)
    assert bound.queue_declare(passive=True).message_count == 3
    assert bound.purge() == 3
    assert bound.queue_declare(passive=True).message_count == 0
    bound.delete()
    with pytest.raises(Exception, match="NOT_FOUND"):
        bound.queue_declare(passive=True)


def test_the_arguments_of_a_queue_reach_the_broker(link: kombu.Connection, mq: Client) -> None:
    name = next(names)
    queue = kombu.Queue(name, routing_key=name, message_ttl=90, max_priority=10)
    publish(link, queue, "low", priority=1)
    publish(link, queue, "high", priority=8)
    assert mq.topic(name).describe().config.ttl == timedelta(seconds=90)
    taker = Taker(link, queue, prefetch=1)
    assert taker.until(1) == ["high"]
    taker.messages[0].ack()
    assert taker.until(2) == ["high", "low"]


def test_virtual_hosts_are_apart(shared_node: RunningNode, mq: Client) -> None:
    queue = kombu.Queue("apart", routing_key="apart")
    with kombu.Connection(f"gossipq://127.0.0.1:{shared_node.port}/shop") as link:
        publish(link, queue, 1)
    assert {each.name for each in mq.topics("*apart")} == {"shop.apart"}


def test_a_loop_delivers_without_polling(link: kombu.Connection, queue: kombu.Queue) -> None:
    taker = Taker(link, queue, prefetch=1)
    hub = Hub()
    try:
        link.register_with_event_loop(hub)
        publish(link, queue, *range(3))
        deadline = time.monotonic() + SECONDS
        for wanted in range(1, 4):
            while len(taker.messages) < wanted:
                assert time.monotonic() < deadline
                hub.run_once()
            taker.messages[-1].ack()
        assert taker.bodies == [0, 1, 2]
        link.transport.unregister_from_event_loop(link.connection, hub)
    finally:
        hub.close()


def test_a_consumer_goes_on_after_its_node_was_restarted(
    make_node: Callable[..., RunningNode], queue: kombu.Queue
) -> None:
    node = make_node().start()
    with kombu.Connection(f"gossipq://127.0.0.1:{node.port}") as link:
        taker = Taker(link, queue)
        publish(link, queue, 1)
        taker.until(1)
        taker.messages[0].ack()
        node.kill()
        node.start()
        publish(link, queue, 2, retry=True)
        assert taker.until(2) == [1, 2]
