"""Only delivered records can be acked. A client's claim to hold records is believed
only where it can be true.
"""

from array import array

import pytest

from core.harness import FakeWorker, client, single
from core.test_corners import view_of
from gossipq import limits
from gossipq.messages import Ack, Acked, Extend, Nack
from gossipq.types import KEY_HASH, PartitionKey
from gossipq.values import GroupOptions, TopicOptions

ADA, BOB = client("ada"), client("bob")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    partition = single(worker.topic("orders", TopicOptions(backoff_ms=[500], attempts_max=3)))
    for _ in range(3):
        worker.publish(partition, [b"x"] * 100)
    return partition


def acked(worker: FakeWorker) -> int:
    (cursor,) = next(iter(worker.shards[1].ledger.cursors.values())).values()
    return cursor.state.acked


def test_without_credit_nothing_can_be_acked(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=0)
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 300)])) == Acked([(orders, 0, 300)])
    assert acked(worker) == 0
    worker.subscribe(BOB, orders)
    assert sum(end - first for _, first, end, _ in worker.taken()) == 300, "all of it is still to be had"


def test_what_lies_beyond_the_loan_is_lost(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=3)
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 301)])) == Acked([(orders, 300, 301), (orders, 3, 300)])
    assert acked(worker) == 3


@pytest.mark.parametrize(
    "verb", [Nack, lambda number, ranges: Extend(number, ranges, 5_000)], ids=["nack", "extend"]
)
def test_so_it_is_for_what_is_given_back_or_held_longer(
    worker: FakeWorker, orders: PartitionKey, verb: type[Nack]
) -> None:
    worker.subscribe(ADA, orders, records=3)
    answer = worker.ask(1, ADA, verb(1, [(orders, 2, 400), (orders + 9, 0, 1)]))
    assert isinstance(answer, Acked)
    assert sorted(answer.lost) == [(orders, 3, 300), (orders, 300, 400), (orders + 9, 0, 1)]


def test_a_claim_takes_no_record_whose_key_is_with_another(worker: FakeWorker) -> None:
    """A consumer that was silent for too long held the first record of a key, and
    claims all later ones too.
    """
    orders = single(worker.topic("keys"))
    worker.publish(orders, [b"x"] * 6, fixed={KEY_HASH: array("I", [7, 7, 7, 9, 7, 0])})
    ordered = GroupOptions(mode="key_ordered")
    worker.subscribe(ADA, orders, records=6, config=ordered)
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.subscribe(BOB, orders, records=1, config=ordered, auto=True)
    worker.taken()
    worker.subscribe(ADA, orders, records=10, config=ordered, holding=[(orders, 0, 6)])
    assert [taken for taken in worker.taken() if taken[0] == ADA.session] == []
    view = view_of(worker, orders)
    assert {(lease.session, at) for low, end, lease in view.window.leases() for at in range(low, end)} == {
        (BOB.session, 0), (ADA.session, 3), (ADA.session, 5),
    }  # fmt: skip
    worker.publish(orders, [b"y"], fixed={KEY_HASH: array("I", [7])})
    assert worker.taken() == [], "6 waits for those before it"
    worker.ask(1, BOB, Ack(1, [(orders, 0, 1)]), origin=(b"c", BOB.session))
    worker.turn()
    assert (6, 7) not in [(first, end) for _, first, end, _ in worker.taken()]


def test_a_topic_that_the_group_does_not_have_is_lost(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders)
    assert worker.ask(1, ADA, Ack(1, [(orders + 9, 0, 5)])) == Acked([(orders + 9, 0, 5)])


def test_who_was_late_may_still_ack_what_nobody_else_has(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=5, config=GroupOptions(lease_ms=1_000))
    worker.tick(2_000)
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 7)])) == Acked([(orders, 5, 7)])
    assert acked(worker) == 5


def test_who_keeps_positions_of_its_own_says_so(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=0)
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 250)], unseen=True)) == Acked([])
    assert acked(worker) == 250


def test_a_claim_does_not_make_a_record_handed_out(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=0)
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 0, 300)])
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 300)])) == Acked([(orders, 0, 300)])
    worker.subscribe(BOB, orders)
    assert [(first, end, attempt) for _, first, end, attempt in worker.taken()][:1] == [(0, 100, 1)]


def test_what_the_leader_before_may_have_handed_out_is_believed(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    """Leases of its last moments are in no entry; the group's window limits how many
    records it can have leased.
    """
    worker.subscribe(ADA, orders, records=50, config=GroupOptions(in_flight_max=120))
    worker.restart()  # no lease was logged
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 0, 50)])
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 50)])) == Acked([])
    assert acked(worker) == 50


def test_and_beyond_its_window_it_is_not(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=50, config=GroupOptions(in_flight_max=120))
    worker.restart()
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 0, 300)])
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 300)])) == Acked([(orders, 120, 300)])
    assert acked(worker) == 120


def test_what_others_were_handed_meanwhile_is_theirs(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=50)
    worker.restart()
    worker.subscribe(BOB, orders, records=20)
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 0, 50)])
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 50)])) == Acked([(orders, 0, 20)])


def test_records_that_wait_for_a_retry_count_as_had_and_those_made_ready_by_hand_do_not(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders, records=2)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], limits.HOUR_MS))
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 3)])) == Acked([(orders, 2, 3)])
    assert acked(worker) == 2
