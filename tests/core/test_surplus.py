"""Records whose handlers have not started move to a consumer that is idle,
and never to two of them.
"""

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.messages import Ack, Nack, Share
from gossipq.types import PartitionKey
from gossipq.values import GroupOptions

ADA, BOB, EVE = client("ada"), client("bob"), client("eve")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    partition = single(worker.topic())
    worker.publish(partition, [b"x"] * 20)
    return partition


def asked(worker: FakeWorker, ms: int = limits.UNEVEN_MS) -> list[tuple[bytes, int]]:
    """Consumers that are asked within that time to keep fewer records, each
    with the number it may keep.
    """
    worker.seen.clear()
    worker.tick(ms)
    return [
        (origin[1], message.keep)
        for effects in worker.seen
        for origin, message in effects.notices
        if isinstance(message, Share)
    ]


def test_who_has_had_too_much_for_a_second_is_asked_while_another_has_nothing(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders, records=20, shares=True)
    assert worker.taken() == [(ADA.session, 0, 20, 1)]
    worker.subscribe(BOB, orders, shares=True)
    assert asked(worker, limits.UNEVEN_MS - 1) == []
    assert asked(worker, 1) == [(ADA.session, 10)]
    assert worker.taken() == [], "nothing is taken from who may begin with it"
    worker.ask(1, ADA, Nack(1, [(orders, 10, 20)], failed=False))
    assert worker.taken() == [(BOB.session, 10, 20, 1)]
    assert asked(worker) == [], "both have some"


def test_asked_again_as_soon_as_the_other_is_through(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=10, shares=True)
    worker.subscribe(BOB, orders, records=100, shares=True)
    assert asked(worker) == []
    worker.ask(1, BOB, Ack(1, [(orders, 10, 20)]))
    assert asked(worker) == [(ADA.session, 5)]
    assert asked(worker) == [(ADA.session, 5)], "and again while nothing came back"


@pytest.mark.parametrize(
    ("ada", "bob"),
    [
        pytest.param({"shares": False}, {}, id="one that does not understand it"),
        pytest.param({}, {"records": 0}, id="nobody lends credit"),
        pytest.param(
            {"config": GroupOptions(mode="exclusive")},
            {"config": GroupOptions(mode="exclusive")},
            id="exclusive",
        ),
        pytest.param(
            {"config": GroupOptions(mode="key_ordered")},
            {"config": GroupOptions(mode="key_ordered")},
            id="in the order of keys",
        ),
    ],
)
def test_not_asked(
    worker: FakeWorker, orders: PartitionKey, ada: dict[str, object], bob: dict[str, object]
) -> None:
    worker.subscribe(ADA, orders, **({"shares": True} | ada))  # type: ignore[arg-type]
    worker.subscribe(BOB, orders, **bob)  # type: ignore[arg-type]
    assert asked(worker, 2 * limits.UNEVEN_MS) == []


def test_each_keeps_one(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=2, shares=True)
    for number in range(2, 30):
        worker.subscribe(BOB, orders, number=number, records=1)
    assert asked(worker) == [(ADA.session, 1)]


def test_a_group_that_lies_even_wakes_nobody(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, shares=True)
    worker.subscribe(BOB, orders, shares=True)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 20)]))
    worker.tick(limits.UNEVEN_MS)
    dispatch = worker.shards[1].dispatch
    assert dispatch.next_deadline(0) is None
