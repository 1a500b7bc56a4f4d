"""A delivery of an exclusive group waits until its lease is stored. Its records may change state
meanwhile, and the delivery must respect that.
"""

from array import array

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.messages import Ack, Acked, Credit, ListDead, Nack, Publish, Subscribe, Unsubscribe
from gossipq.types import TTL
from gossipq.values import GroupOptions, Start, TopicOptions
from gossipq.wire import batch as batches

ADA, BOB = client("ada"), client("bob")
LEASE_MS, TTL_MS = 1_000, 400
EXCLUSIVE = GroupOptions(mode="exclusive", lease_ms=LEASE_MS)
ORIGIN = (b"c", ADA.session)


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions(attempts_max=2)))


def hand_out(worker, orders, records):
    """Starts a delivery to ada, who grants credit for `records`; its lease is not stored yet."""
    worker.subscribe(ADA, orders, "g", records=0, config=EXCLUSIVE)
    worker.slow = True
    worker.ask(1, ADA, Credit(1, records, limits.MIB), origin=ORIGIN)
    assert worker.taken() == []


def store(worker, *messages):
    """Runs the turn that stores the lease and reads ada's messages."""
    worker.slow = False
    worker.seen.append(worker.turn(*[lambda m=m: worker.step(1, ORIGIN, 9, ADA, m) for m in messages])[1])


def test_it_leaves_when_that_is_stored(worker, orders):
    worker.publish(orders, [b"a", b"b"])
    hand_out(worker, orders, 2)
    store(worker)
    assert worker.taken() == [(ADA.session, 0, 2, 1)]


def test_what_was_given_back_does_not_leave_any_more(worker, orders):
    worker.publish(orders, [b"a"])
    hand_out(worker, orders, 1)
    worker.slow = False
    worker.subscribe(ADA, orders, "g", records=0, config=EXCLUSIVE, holding=[])
    assert worker.taken() == [], "ada has said that it has nothing"
    worker.ask(1, ADA, Credit(1, 5, limits.MIB), origin=ORIGIN)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]


def test_what_was_handed_out_anew_meanwhile_leaves_once_also_as_the_same_attempt(worker, orders):
    """Both deliveries are made in the same millisecond, and the entry of the
    first is not applied yet.
    """
    worker.publish(orders, [b"a", b"b"])
    hand_out(worker, orders, 1)
    ((first,),) = worker.shards[1].leadership.outbox._late
    worker.ask(1, ADA, Unsubscribe(1), origin=ORIGIN)
    worker.subscribe(ADA, orders, "g", records=1, config=EXCLUSIVE)
    worker.ask(1, ADA, Credit(1, 1, limits.MIB), origin=ORIGIN)
    assert worker.shards[1].dispatch.still_valid(first).parts == []
    store(worker)
    assert worker.taken() == [(ADA.session, 0, 1, 1), (ADA.session, 1, 2, 1)]


def test_a_failure_that_is_said_before_it_leaves_is_of_an_earlier_attempt_and_lost(worker, orders):
    worker.publish(orders, [b"a"])
    hand_out(worker, orders, 1)
    worker.slow = False
    answer = worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], 0, failed=True), origin=ORIGIN)
    assert answer == Acked(lost=[(orders, 0, 1)])
    assert worker.taken() == [(ADA.session, 0, 1, 1)], "the first of two attempts is not over"


def test_when_the_lease_ends_meanwhile_the_loan_is_free_again(worker, orders):
    worker.publish(orders, [b"a"])
    hand_out(worker, orders, 1)
    worker.advance(LEASE_MS)
    store(worker)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]


def test_what_expires_meanwhile_is_a_dead_letter_and_the_rest_leaves(worker, orders):
    batch = bytes(batches.seal([b"a", b"b", b"c"], fixed={TTL: array("q", [0, TTL_MS, 0])}))
    worker.turn(lambda: worker.take(1, (), 7, None, Publish(orders), batches.verify(batch), batch))
    hand_out(worker, orders, 3)
    worker.advance(TTL_MS)
    store(worker)
    assert worker.taken() == [(ADA.session, 0, 1, 1), (ADA.session, 2, 3, 1)]
    effects = worker.turn(lambda: worker.step(1, ORIGIN, 5, ADA, ListDead(orders, "g")))
    (_, _, answer, _) = effects[1].enclosed[0]
    assert [(letter.offset, letter.reason, letter.attempts) for letter in answer.letters] == [
        (1, "expired", 0)
    ]
    worker.publish(orders, [b"d"])
    assert worker.taken() == [(ADA.session, 3, 4, 1)], "the loan for what did not leave is there"


def test_what_was_acked_meanwhile_stays_acked(worker, orders):
    """The ack belongs to the delivery before this one."""
    worker.publish(orders, [b"a", b"b", b"c"])
    worker.subscribe(ADA, orders, "g", records=3, config=EXCLUSIVE)
    assert worker.taken() == [(ADA.session, 0, 3, 1)]
    worker.tick(LEASE_MS)
    worker.slow = True
    worker.ask(1, ADA, Credit(1, 3, limits.MIB), origin=ORIGIN)
    store(worker, Ack(1, [(orders, 0, 1)]))
    assert worker.taken() == [(ADA.session, 1, 3, 1)]


def test_nothing_leaves_to_who_is_gone(worker, orders):
    worker.publish(orders, [b"a"])
    hand_out(worker, orders, 1)
    worker.slow = False
    worker.seen.append(worker.turn(lambda: worker.end_session(ADA.session))[1])
    assert worker.taken() == []
    worker.subscribe(BOB, orders, "g", config=EXCLUSIVE)
    assert worker.taken() == [(BOB.session, 0, 1, 1)]


def test_what_nobody_has_seen_is_no_attempt_and_leaves_once(worker, orders):
    worker.publish(orders, [b"a"])
    hand_out(worker, orders, 1)
    for _ in range(3):  # two attempts within one millisecond
        worker.ask(1, ADA, Unsubscribe(1), origin=ORIGIN)
        worker.subscribe(ADA, orders, "g", records=1, config=EXCLUSIVE)
    assert worker.taken() == []
    store(worker)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]
    worker.publish(orders, [b"b"])
    assert worker.taken() == [], "the loan is used"


def test_who_falls_silent_before_it_leaves_has_not_failed(worker, orders):
    """With `auto`, a record counts as begun when it is delivered again."""
    worker.publish(orders, [b"a"])
    worker.subscribe(ADA, orders, "g", records=1, config=EXCLUSIVE)
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.slow = True
    message = Subscribe(1, "g", [Start(orders)], 1, limits.MIB, EXCLUSIVE, auto=True)
    worker.ask(1, BOB, message, origin=(b"c", BOB.session))
    worker.turn(lambda: worker.end_session(BOB.session, silent=True))
    worker.slow = False
    worker.taken()
    worker.subscribe(ADA, orders, "g", config=EXCLUSIVE)
    assert worker.taken() == [(ADA.session, 0, 1, 1)], "user code did not have it"


def test_what_is_taken_back_before_it_leaves_and_waits_for_its_route_is_in_nobodys_hands(worker, orders):
    batch = bytes(batches.seal([b"a"], route=b"us"))
    worker.turn(lambda: worker.take(1, (), 7, None, Publish(orders), batches.verify(batch), batch))
    hand_out(worker, orders, 1)
    message = Subscribe(1, "g", [Start(orders)], 1, limits.MIB, EXCLUSIVE, routes=["eu"])
    worker.turn(
        lambda: worker.end_session(ADA.session),
        lambda: worker.step(1, (b"c", BOB.session), 1, BOB, message),
        # runs before the lazy log, as in a turn without entries
        lambda: worker.shards[1].dispatch.run(),
    )
    worker.slow = False
    worker.settle()
    (cursor,) = worker.shards[1].ledger.cursors[orders].values()
    assert [hold.session for _, _, hold in cursor.holds] == [b""]
