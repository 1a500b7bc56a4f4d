"""The id of a delayed record is remembered until the record is due, and then for
its topic's dedup window.
"""

from array import array

import pytest

from core.harness import FakeWorker, client, single
from gossipq.limits import HOUR_MS, MINUTE_MS
from gossipq.messages import Cancel, Done, Explained, RefusedMessage, Reschedule, Why
from gossipq.types import DELAY, ID_HASH, PartitionKey
from gossipq.values import Ref, TopicOptions

ADA = client("ada")
WINDOW_MS = 10 * MINUTE_MS
X = 77


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    return single(worker.topic("orders", TopicOptions(dedup_ms=WINDOW_MS, dedup_count=4)))


def is_stored(worker: FakeWorker, orders: PartitionKey, id_hash: int = X, delay_ms: int = 0) -> bool:
    """Publishes a record with this id and returns whether it was new."""
    fixed = {ID_HASH: array("Q", [id_hash])} | ({DELAY: array("q", [delay_ms])} if delay_ms else {})
    confirm = worker.publish(orders, [b"x"], fixed=fixed)
    assert isinstance(confirm, tuple)
    return not confirm[3]


def wait(worker: FakeWorker, ms: int) -> None:
    worker.tick(ms)
    worker.tick(1)


def test_a_delayed_record_keeps_its_id_until_it_is_due_and_for_the_window_then(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    assert is_stored(worker, orders, delay_ms=2 * HOUR_MS)
    wait(worker, HOUR_MS)
    assert not is_stored(worker, orders)
    assert not is_stored(worker, orders, delay_ms=HOUR_MS)
    worker.restart()
    assert not is_stored(worker, orders)
    wait(worker, HOUR_MS)
    assert worker.shards[1].ledger.partitions[orders].next == 1
    assert not is_stored(worker, orders)
    wait(worker, WINDOW_MS)
    assert is_stored(worker, orders)


def test_later_ids_do_not_evict_the_id_of_a_delayed_record(worker: FakeWorker, orders: PartitionKey) -> None:
    assert is_stored(worker, orders, delay_ms=2 * HOUR_MS)
    for number in range(1, 20):
        assert is_stored(worker, orders, number)
    assert not is_stored(worker, orders)
    assert is_stored(worker, orders, 1), "the count of a topic rules ids that are not held"
    assert worker.shards[1].ledger.partitions[orders].ids == 4


def test_a_delayed_record_is_cancelled_by_its_id_and_frees_it(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    assert is_stored(worker, orders, delay_ms=2 * HOUR_MS)
    wait(worker, HOUR_MS)
    assert isinstance(worker.ask(1, ADA, Cancel(Ref(orders, id_hash=X))), Done)
    assert worker.shards[1].ledger.partitions[orders].scheduled == 0
    assert isinstance(worker.ask(1, ADA, Cancel(Ref(orders, id_hash=X))), RefusedMessage)
    assert is_stored(worker, orders, delay_ms=HOUR_MS)
    assert not is_stored(worker, orders)


def test_a_delayed_record_that_is_rescheduled_keeps_its_id_until_then(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    assert is_stored(worker, orders, delay_ms=MINUTE_MS)
    assert isinstance(worker.ask(1, ADA, Reschedule(Ref(orders, id_hash=X), HOUR_MS)), Done)
    wait(worker, 50 * MINUTE_MS)
    assert not is_stored(worker, orders)
    explained = worker.ask(1, ADA, Why(Ref(orders, id_hash=X)))
    assert isinstance(explained, Explained)
    assert explained.standings[0].state == "scheduled"


def test_held_ids_leave_the_disk_when_their_window_is_over(worker: FakeWorker, orders: PartitionKey) -> None:
    for number in range(1, 30):
        is_stored(worker, orders, number, delay_ms=MINUTE_MS)
    wait(worker, MINUTE_MS + WINDOW_MS)
    for number in range(100, 110):
        is_stored(worker, orders, number)
    held = worker.tables[1].state.scan(b"i", b"j")
    assert list(held) == []
    assert list(worker.tables[1].state.scan(b"I", b"J")) == []
