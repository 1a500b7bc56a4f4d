"""ACK_DELIVERED: a program that passes records on acks a delivery by its name."""

from array import array

import pytest

from core.harness import FakeWorker, client, single
from gossipq.messages import Ack, AckDelivered, Acked, Nack, RefusedMessage, ReplayDead
from gossipq.types import KEY_HASH, PartitionKey
from gossipq.values import GroupOptions, TopicOptions

ADA, BOB, EVE = client("ada"), client("bob"), client("eve")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    partition = single(worker.topic("orders", TopicOptions(backoff_ms=[0], attempts_max=3)))
    worker.publish(partition, [b"x"] * 5)
    return partition


def ack(worker: FakeWorker, orders: PartitionKey, offset: int, attempt: int) -> object:
    """Eve acks, though she consumes nothing."""
    message = AckDelivered(orders, "billing", [(offset, attempt)])
    return worker.ask(1, EVE, message, origin=(b"c", EVE.session))


def lost(orders: PartitionKey, offset: int) -> Acked:
    return Acked([(orders, offset, offset + 1)])


def fail(worker: FakeWorker, orders: PartitionKey, offset: int) -> None:
    assert worker.ask(1, ADA, Nack(1, [(orders, offset, offset + 1)], 0)) == Acked([])


def delivered(worker: FakeWorker, offset: int) -> list[int]:
    """The attempts in which a record was delivered since the last call."""
    return [attempt for _, first, end, attempt in worker.taken() if first <= offset < end]


def test_what_another_session_holds_is_acked_by_its_delivery(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders, records=5)
    assert ack(worker, orders, 2, 1) == Acked([])
    assert worker.ask(1, ADA, Nack(1, [(orders, 2, 3)], 0)) == lost(orders, 2), "its holder is told"
    assert delivered(worker, 2) == [1]
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 2), (orders, 3, 5)])) == Acked([])
    (cursor,) = next(iter(worker.shards[1].ledger.cursors.values())).values()
    assert (cursor.state.cursor, cursor.state.acked) == (5, 5)


def test_what_failed_and_was_not_delivered_again_is_acked(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=1)
    fail(worker, orders, 0)
    assert ack(worker, orders, 0, 1) == Acked([])
    worker.subscribe(BOB, orders)
    worker.tick(1_000)
    assert delivered(worker, 0) == [1]


def test_what_was_delivered_again_since_is_lost(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=1)
    fail(worker, orders, 0)
    worker.subscribe(BOB, orders, records=1)
    worker.tick(10)
    assert delivered(worker, 0) == [1, 2]
    assert ack(worker, orders, 0, 1) == lost(orders, 0)
    assert worker.ask(1, BOB, Nack(1, [(orders, 0, 1)], 0), origin=(b"c", BOB.session)) == Acked([])
    assert ack(worker, orders, 0, 1) == lost(orders, 0), "also when the second consumer has failed"
    assert ack(worker, orders, 0, 2) == Acked([])


def test_an_ack_may_be_repeated(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=5)
    twice = AckDelivered(orders, "billing", [(1, 1)])
    effects = worker.turn(
        *[lambda id=id: worker.step(1, (b"c", EVE.session), id, EVE, twice) for id in (7, 8)]
    )
    answers = {id: answer for each in effects.values() for _, id, answer in each.replies}
    assert answers[7] == Acked([])
    assert isinstance(answers[8], RefusedMessage), "it is not told before the first one is stored"
    assert answers[8].code == "busy"
    assert ack(worker, orders, 1, 1) == Acked([])
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 1)])) == Acked([])
    assert ack(worker, orders, 0, 1) == Acked([]), "also after its holder has acked it"


def test_it_is_known_after_a_restart(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=2)
    fail(worker, orders, 0)
    worker.settle()
    worker.restart()
    assert ack(worker, orders, 0, 1) == Acked([])
    assert ack(worker, orders, 1, 1) == Acked([])
    assert ack(worker, orders, 4, 1) == Acked([]), "a leader before this one may have delivered it"


def test_what_nobody_had_and_what_is_dead_is_lost(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=1)
    assert ack(worker, orders, 3, 1) == lost(orders, 3)
    assert ack(worker, orders, 17, 1) == lost(orders, 17)
    assert worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], dead="rejected")) == Acked([])
    assert ack(worker, orders, 0, 1) == lost(orders, 0)
    worker.ask(1, ADA, ReplayDead(orders, "billing"))
    assert ack(worker, orders, 0, 1) == Acked([]), "a dead letter that was replayed waits again"


def test_the_key_of_an_acked_record_is_free(worker: FakeWorker) -> None:
    orders = single(worker.topic("keys"))
    worker.publish(orders, [b"x"] * 2, fixed={KEY_HASH: array("I", [7, 7])})
    worker.subscribe(ADA, orders, records=1, config=GroupOptions(mode="key_ordered"), auto=True)
    worker.subscribe(BOB, orders, records=1, config=GroupOptions(mode="key_ordered"))
    assert delivered(worker, 1) == []
    assert ack(worker, orders, 0, 1) == Acked([])
    worker.tick(10)
    assert delivered(worker, 1) == [1]


def test_a_wrong_name_is_refused(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders)
    wrong = [
        AckDelivered(orders, "billing", [(0, 0)]),
        AckDelivered(orders, "billing", [(-1, 1)]),
        AckDelivered(orders, "billing", [(0, 1)] * 1_025),
        AckDelivered(orders, "nobody", [(0, 1)]),
    ]
    for message in wrong:
        answer = worker.ask(1, ADA, message)
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "bad_request"
