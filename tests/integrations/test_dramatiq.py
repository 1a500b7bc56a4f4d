"""The broker of dramatiq against a node, with a worker of dramatiq in the test's process."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Retries
from dramatiq.results import Results

from conftest import RunningNode
from gossipq_dramatiq import GossipqBroker, GossipqRateLimiterBackend, GossipqResultBackend

pytestmark = [pytest.mark.e2e]
MS = 30_000
names = (f"dramatiq-{number}" for number in itertools.count())


@pytest.fixture
def broker(shared_node: RunningNode) -> Iterator[GossipqBroker]:
    made = GossipqBroker(shared_node.endpoint, middleware=[Retries(min_backoff=50, max_retries=2)])
    yield made
    made.close()


class Working:
    """A worker that is running within the block."""

    def __init__(self, broker: GossipqBroker, threads: int = 2) -> None:
        self._worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=threads)

    def __enter__(self) -> None:
        self._worker.start()

    def __exit__(self, *error: object) -> None:
        self._worker.stop()


def counts(broker: GossipqBroker, queue: str) -> Any:
    return broker.client.group(queue, "dramatiq").counters()[0]


def test_a_message_is_done_once_and_delays_wait_in_the_broker(broker: GossipqBroker) -> None:
    queue, done = next(names), list[tuple[str, float]]()

    @dramatiq.actor(broker=broker, queue_name=queue)
    def note(word: str) -> None:
        done.append((word, time.monotonic()))

    sent = time.monotonic()
    note.send_with_options(args=("later",), delay=1_000)
    note.send("now")
    stats = broker.client.admin.stats([queue])
    assert sum(each.scheduled for each in stats.partitions) == 1
    with Working(broker):
        broker.join(queue, timeout=MS)
    assert [word for word, _ in done] == ["now", "later"]
    assert done[1][1] - sent >= 1
    assert broker.client.topics(f"{queue}.DQ") == []


def test_a_failure_is_tried_again_and_ends_as_a_dead_letter(broker: GossipqBroker) -> None:
    queue, tried = next(names), list[int]()

    @dramatiq.actor(broker=broker, queue_name=queue)
    def fail(number: int) -> None:
        tried.append(number)
        raise ValueError("bad")

    fail.send(17)
    with Working(broker):
        broker.join(queue, timeout=MS)
    assert tried == [17, 17, 17]
    assert counts(broker, queue).dead == 1


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(broker: GossipqBroker) -> None:
    queue, begun, go_on = next(names), threading.Event(), threading.Event()

    @dramatiq.actor(broker=broker, queue_name=queue)
    def wait() -> None:
        begun.set()
        assert go_on.wait(30)

    for _ in range(5):
        wait.send()
    with Working(broker, threads=1):
        assert begun.wait(30)
        threading.Timer(0.3, go_on.set).start()
    left = counts(broker, queue)
    assert (left.ready + left.acked, left.dead) == (5, 0)
    assert left.ready >= 1
    with Working(broker):
        broker.join(queue, timeout=MS)
    assert counts(broker, queue).acked == 5


def test_a_result_is_found_by_its_message(broker: GossipqBroker) -> None:
    backend = GossipqResultBackend(broker.client)
    broker.add_middleware(Results(backend=backend))
    queue = next(names)

    @dramatiq.actor(broker=broker, queue_name=queue, store_results=True)
    def add(left: int, right: int) -> int:
        return left + right

    with Working(broker):
        assert backend.get_result(add.send(2, 3), block=True, timeout=MS) == 5


def test_a_counter_stays_within_its_bounds(broker: GossipqBroker) -> None:
    backend, key = GossipqRateLimiterBackend(broker.client), next(names)
    assert backend.add(key, 1, MS)
    assert not backend.add(key, 5, MS)
    assert backend.incr(key, 1, 2, MS)
    assert not backend.incr(key, 1, 2, MS)
    assert backend.decr(key, 2, 0, MS)
    assert not backend.decr(key, 1, 0, MS)
    assert not backend.wait(key, 50)
    backend.wait_notify(key, MS)
    assert backend.wait(key, MS)
