"""The node bounds the records that a consumer of a shared group holds before its handlers start
them, by the work that the consumer finishes.
"""

from typing import Any

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.messages import Ack, Nack, Share, Started, WhyGroup
from gossipq.types import PartitionKey
from gossipq.values import GroupOptions

ADA, BOB = client("ada"), client("bob")
START, MIN, MAX, GROWTH = (
    limits.PREFETCH_START,
    limits.PREFETCH_MIN,
    limits.PREFETCH_MAX,
    limits.PREFETCH_GROWTH,
)
CREDIT = 10_000


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    partition = single(worker.topic())
    for _ in range(20):
        worker.publish(partition, [b"x"] * 500)
    return partition


def joins(worker: FakeWorker, who: Any, orders: PartitionKey, **options: Any) -> int:
    """A consumer with much credit joins. Returns how many records it gets."""
    worker.seen.clear()
    worker.subscribe(who, orders, **{"records": CREDIT, "shares": True, "fetches": False} | options)
    return got(worker, who)


def got(worker: FakeWorker, who: Any) -> int:
    worker.tick(1)
    return sum(end - first for session, first, end, _ in worker.taken() if session == who.session)


def test_a_consumer_holds_few_records_before_its_pace_is_known(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    assert joins(worker, ADA, orders) == START
    worker.tick(5_000)
    assert worker.taken() == [], "a slow one gets no more"
    assert joins(worker, BOB, orders) == START, "the second one finds records at the node"


def test_slow_consumers_share_what_is_left(worker: FakeWorker) -> None:
    """300 records, each 100 ms of work; the second consumer comes 2 s later."""
    orders = single(worker.topic("jobs"))
    worker.publish(orders, [b"x"] * 300)
    held: dict[bytes, list[int]] = {ADA.session: [], BOB.session: []}
    done = {ADA.session: 0, BOB.session: 0}
    worker.subscribe(ADA, orders, records=CREDIT, shares=True, fetches=False)
    for step in range(400):
        if step == 20:
            worker.subscribe(BOB, orders, records=CREDIT, shares=True, fetches=False)
        for who in (ADA, BOB):
            if mine := held[who.session]:
                first = mine.pop(0)
                worker.ask(1, who, Ack(1, [(orders, first, first + 1)]))
                done[who.session] += 1
        worker.tick(100)
        for session, first, end, _ in worker.taken():
            held[session] += range(first, end)
    assert sum(done.values()) == 300
    assert min(done[ADA.session] - 20, done[BOB.session]) >= 280 // 3, done


def test_a_fast_consumer_is_bounded_by_its_credit_after_a_few_exchanges(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    sizes, first = [joins(worker, ADA, orders)], 0
    while sum(sizes) < CREDIT:
        worker.ask(1, ADA, Ack(1, [(orders, first, first + sizes[-1])]))
        first += sizes[-1]
        sizes.append(got(worker, ADA))
    assert sizes[:3] == [START, GROWTH * START, GROWTH**2 * START]
    assert len(sizes) == 4, "all others come at once"


def test_a_handler_that_starts_makes_room(worker: FakeWorker, orders: PartitionKey) -> None:
    """A program that collects records before it acks them gets more."""
    taken = joins(worker, ADA, orders)
    while taken < 3 * MAX // 2:
        worker.ask(1, ADA, Started(1, [(orders, 0, taken)]))
        more = got(worker, ADA)
        assert more
        taken += more


def test_a_record_that_is_acked_after_its_start_makes_room_once(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    joins(worker, ADA, orders)
    half = START // 2
    worker.ask(1, ADA, Started(1, [(orders, 0, half)]))
    assert got(worker, ADA) == half
    worker.ask(1, ADA, Ack(1, [(orders, 0, half)]))
    assert got(worker, ADA) == 0


def test_room_is_filled_by_a_quarter_at_a_time(worker: FakeWorker, orders: PartitionKey) -> None:
    joins(worker, ADA, orders)
    sizes = []
    for offset in range(START // 2):
        worker.ask(1, ADA, Ack(1, [(orders, offset, offset + 1)]))
        sizes.append(got(worker, ADA))
    assert [size for size in sizes if size] == [START // GROWTH] * 2


def test_a_consumer_that_became_slow_holds_few_records_again(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    taken = joins(worker, ADA, orders, records=2 * CREDIT)
    while taken < CREDIT:
        worker.ask(1, ADA, Ack(1, [(orders, 0, taken)]))
        taken += got(worker, ADA)
    worker.ask(1, ADA, Ack(1, [(orders, 0, taken)]))
    worker.tick(60_000)
    worker.publish(orders, [b"x"] * 500)
    assert got(worker, ADA) == START, "it had nothing to do for a while"
    worker.tick(5_000)
    worker.ask(1, ADA, Ack(1, [(orders, CREDIT, CREDIT + START)]))
    assert MIN < got(worker, ADA) < START


def test_a_record_given_back_is_no_work(worker: FakeWorker, orders: PartitionKey) -> None:
    """So who gives records back to an idle consumer does not get more than before."""
    taken = joins(worker, ADA, orders)
    worker.ask(1, ADA, Nack(1, [(orders, 0, taken)], failed=False))
    assert got(worker, ADA) == START


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"fetches": True}, id="fetches ask for a number"),
        pytest.param({"config": GroupOptions(mode="exclusive")}, id="exclusive"),
        pytest.param({"auto": True, "shares": False}, id="a client that does not say what has started"),
    ],
)
def test_only_the_credit_bounds(worker: FakeWorker, orders: PartitionKey, options: dict[str, Any]) -> None:
    assert joins(worker, ADA, orders, records=5_000, **options) == 5_000


def test_what_a_consumer_still_holds_counts_when_it_subscribes_anew(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    joins(worker, ADA, orders)
    assert joins(worker, ADA, orders, holding=[(orders, 0, START - 10)]) == 10


def test_records_that_began_before_it_subscribed_anew_count_once(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    joins(worker, ADA, orders)
    worker.ask(1, ADA, Started(1, [(orders, 0, START - 1)]))
    assert joins(worker, ADA, orders, holding=[]) == START, "it claims none of them"
    worker.ask(1, ADA, Ack(1, [(orders, 0, START // GROWTH)]))
    assert got(worker, ADA) == START // GROWTH, "room for what it has finished, and no wider bound"


def test_an_idle_consumer_gets_records_of_a_full_one(worker: FakeWorker, orders: PartitionKey) -> None:
    """All records lie at consumers, and one of these is idle."""
    jobs = single(worker.topic("jobs"))
    worker.publish(jobs, [b"x"] * START)
    joins(worker, ADA, jobs)
    joins(worker, BOB, jobs)
    worker.seen.clear()
    worker.tick(limits.UNEVEN_MS)
    notices = [message for effects in worker.seen for _, message in effects.notices]
    assert notices == [Share(1, START // 2)]


def test_why_says_that_consumers_have_enough(worker: FakeWorker, orders: PartitionKey) -> None:
    joins(worker, ADA, orders)
    answer = worker.ask(1, ADA, WhyGroup("billing", [orders]))
    assert "that they have not started" in str(answer)
