"""The progress of a group on disk: small rows, written when they change."""

import random

import pytest

from core.harness import FakeWorker, client, single
from gossipq.core.ledger import records
from gossipq.core.storage.tables import MemoryTable
from gossipq.messages import Ack
from gossipq.types import PartitionKey
from gossipq.values import GroupOptions

ADA = client("ada")
HOLES = 2_000


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    partition = single(worker.topic())
    for _ in range(5):
        worker.publish(partition, [b"x"] * 1_000)
    worker.subscribe(ADA, partition, records=10_000, config=GroupOptions(in_flight_max=10_000))
    return partition


def rows(worker: FakeWorker, prefix: bytes) -> int:
    return sum(1 for _ in worker.tables[1].state.scan(prefix, records.after(prefix)))


def test_an_ack_among_many_holes_writes_a_few_small_rows(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ask(1, ADA, Ack(1, [(orders, offset, offset + 1) for offset in range(1, 2 * HOLES, 2)]))
    assert rows(worker, b"p") == HOLES
    written = list[int]()
    put = MemoryTable.put
    monkeypatch.setattr(
        MemoryTable, "put", lambda self, key, row: written.append(len(row)) or put(self, key, row)
    )
    worker.ask(1, ADA, Ack(1, [(orders, HOLES, HOLES + 1)]))
    assert rows(worker, b"p") == HOLES - 1, "two have melted into one"
    assert len(written) < 10
    assert max(written) < 200


def test_what_was_acked_in_any_order_is_read_back(worker: FakeWorker, orders: PartitionKey) -> None:
    offsets = random.Random(7).sample(range(5_000), 1_500)
    for first in range(0, 1_500, 100):
        ranges = [(orders, offset, offset + 1) for offset in offsets[first : first + 100]]
        worker.ask(1, ADA, Ack(1, ranges))
    (cursor,) = worker.shards[1].ledger.cursors[orders].values()
    passed, state = list(cursor.passed), cursor.state
    worker.restart()
    (again,) = worker.shards[1].ledger.cursors[orders].values()
    assert (list(again.passed), again.state) == (passed, state)
    assert again.state.acked == 1_500
    worker.subscribe(ADA, orders, records=10_000)
    left = [(orders, offset, offset + 1) for offset in range(5_000) if offset not in set(offsets)]
    worker.ask(1, ADA, Ack(1, left))
    assert rows(worker, b"p") == 0


def test_leases_are_rows_of_their_own(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.settle()
    assert rows(worker, b"h") > 0
    worker.ask(1, ADA, Ack(1, [(orders, 0, 5_000)]))
    worker.settle()
    assert (rows(worker, b"h"), rows(worker, b"p")) == (0, 0)
