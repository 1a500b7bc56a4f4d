"""Many groups on a topic, many members in a group: a turn costs what happens in it, not how many there
are."""

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.delivery.consumers import PartitionView, Subscription
from gossipq.core.delivery.selection import Selection
from gossipq.messages import Ack, Credit, Subscribe, Unsubscribe
from gossipq.values import GroupOptions, Start, TopicOptions

ADA, BOB = client("ada"), client("bob")


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions()))


def counted(monkeypatch, owner, name):
    """The calls of a method, from now on."""
    calls, method = [], getattr(owner, name)

    def told(*given, **named):
        calls.append(given)
        return method(*given, **named)

    monkeypatch.setattr(owner, name, told)
    return calls


def test_a_publish_wakes_only_the_groups_that_somebody_consumes(worker, orders, monkeypatch):
    for number in range(50):
        worker.subscribe(ADA, orders, group=f"g{number}", number=number)
    for number in range(2, 50):
        worker.ask(1, ADA, Unsubscribe(number))
    served = counted(monkeypatch, type(worker.shards[1].dispatch), "_serve")
    worker.publish(orders, [b"x"])
    assert sorted(group.state.name for _, group, _ in served) == ["g0", "g1"]


def test_an_ack_wakes_only_its_own_group(worker, orders, monkeypatch):
    for number in range(20):
        worker.subscribe(ADA, orders, group=f"g{number}", number=number)
    worker.publish(orders, [b"x"])
    served = counted(monkeypatch, type(worker.shards[1].dispatch), "_serve")
    worker.ask(1, ADA, Ack(7, [(orders, 0, 1)]))
    assert {group.state.name for _, group, _ in served} == {"g7"}


def test_a_group_that_is_consumed_again_hears_of_what_comes(worker, orders):
    worker.subscribe(ADA, orders, number=1)
    worker.ask(1, ADA, Unsubscribe(1))
    worker.publish(orders, [b"x"])
    worker.subscribe(BOB, orders)
    worker.publish(orders, [b"y"])
    assert [row[:3] for row in worker.taken()] == [(BOB.session, 0, 1), (BOB.session, 1, 2)]


def test_a_sign_of_life_concerns_only_who_says_nothing_of_its_records(worker, orders):
    def asks(auto: bool) -> None:
        message = Subscribe(1, "billing", [Start(orders)], 10, limits.CREDIT_BYTES, auto=auto)
        worker.ask(1, BOB, message, 2, (b"c", BOB.session))

    dispatch = worker.shards[1].dispatch
    worker.subscribe(ADA, orders)
    asks(True)
    assert [dispatch.renews(each.session) for each in (ADA, BOB)] == [False, True]
    asks(False)
    assert not dispatch.renews(BOB.session)
    asks(True)
    worker.ask(1, BOB, Unsubscribe(1))
    assert not dispatch.renews(BOB.session)


def test_a_sign_of_life_does_not_keep_what_the_connection_did_not_take(worker, orders):
    """It would be nobody's for ever: the client cannot know of it."""
    worker.publish(orders, [b"x"] * 2)
    message = Subscribe(1, "billing", [Start(orders, "first")], 2, limits.CREDIT_BYTES, auto=True)
    worker.ask(1, BOB, message, 2, (b"c", BOB.session))
    (missed,) = worker.seen[-1].deliveries
    worker.shards[1].dispatch.undelivered(missed)
    worker.taken()
    for _ in range(40):
        worker.tick(1_000)
        worker.shards[1].dispatch.renew(BOB.session, worker.now.boot_ms)
    came = worker.taken()
    assert [(offset, end) for _, offset, end, _ in came] == [(0, 2)]


def test_members_that_nothing_happens_to_cost_nothing(worker, orders, monkeypatch):
    """Two of 300 members have credit; the others were told once that records wait."""
    crowd = [client(f"c{number}") for number in range(300)]
    for each in crowd:
        worker.subscribe(each, orders, records=0)
    worker.publish(orders, [b"x"])
    for each in crowd[:2]:
        worker.ask(1, each, Credit(1, 10, 10_000))
    asked = counted(monkeypatch, Selection, "next_part")
    looked, told = (
        counted(monkeypatch, PartitionView, "offers"),
        counted(monkeypatch, Subscription, "waiting"),
    )
    worker.publish(orders, [b"x"] * 4)
    assert len(asked) <= 8
    assert len(looked) + len(told) <= 10


def test_who_subscribes_again_keeps_its_place_in_an_exclusive_group(worker, orders):
    for each in (ADA, BOB, ADA):
        worker.subscribe(each, orders, config=GroupOptions(mode="exclusive"))
    worker.publish(orders, [b"x"])
    worker.turn()
    assert [row[0] for row in worker.taken()] == [ADA.session]
