"""What a client may send in one message, or in many of one turn, costs as much for each record as few do."""

import pytest

from core.harness import FakeWorker, client, single
from core.test_corners import calls_of
from gossipq.core.ledger.exceptions import Exceptions
from gossipq.core.ledger.records import ExceptionRow
from gossipq.core.storage.tables import MemoryTable
from gossipq.messages import Ack, Acked
from gossipq.types import PartitionKey
from gossipq.values import Range

ADA = client("ada")
MINE = (b"c", ADA.session)


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


def holding(count: int, published: int) -> tuple[FakeWorker, PartitionKey]:
    """Ada has the first records of a batch."""
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.publish(orders, [b"x"] * published)
    worker.subscribe(ADA, orders, records=count)
    return worker, orders


def each(partition: PartitionKey, first: int, end: int, step: int = 1) -> list[Range]:
    return [(partition, offset, offset + 1) for offset in range(first, end, step)]


def cost_of_acks_of_what_nobody_had(count: int, requests: int) -> int:
    """One of records that Ada has, and more in the same turn; in so many requests."""
    worker, orders = holding(2 * count, 4 * count)
    had, never = each(orders, 0, 2 * count, 2), each(orders, 2 * count, 4 * count, 2)
    size = len(had + never) // requests
    asked = [(had + never)[low : low + size] for low in range(0, 2 * count, size)]
    steps = [lambda ranges=ranges: worker.step(1, MINE, 1, ADA, Ack(1, ranges)) for ranges in asked]
    cost = calls_of(lambda: worker.turn(*steps))
    answers = [message for _, _, message in worker.effects[1].replies if isinstance(message, Acked)]
    assert sorted(lost for answer in answers for lost in answer.lost) == never
    return cost


@pytest.mark.parametrize("requests", [1, 50])
def test_acks_of_what_nobody_had_cost_as_much_for_each_beside_many_that_are_stored(requests: int) -> None:
    few, many = (cost_of_acks_of_what_nobody_had(count, requests) for count in (100, 400))
    assert many < 5 * few


def cost_of_two_far_apart(between: int) -> int:
    """Records that wait for another attempt, with as many others that do between them."""
    exceptions = Exceptions(MemoryTable(), 2, 1)
    for first in range(between + 2):
        exceptions.put(first, ExceptionRow(first + 1, first, 1, 1, 7, first))
    ends = [(0, 1), (between + 1, between + 2)]
    found = []
    cost = calls_of(lambda: found.extend(exceptions.take_all(ends)))
    assert [(each.first, each.end) for each in found] == ends
    return cost


def test_taking_records_far_apart_goes_over_none_between_them() -> None:
    assert cost_of_two_far_apart(1_000) == cost_of_two_far_apart(100)
