"""Many groups on a topic, many members in a group: the cost of a turn follows what happens in
it, not how many there are.
"""

from array import array
from collections.abc import Callable
from random import Random
from zlib import crc32

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.delivery.consumers import PartitionView, Subscription
from gossipq.core.delivery.selector import Selector
from gossipq.messages import Ack, Credit, Nack, Publish, Subscribe, Unsubscribe
from gossipq.types import ATTEMPTS, KEY_HASH, LEASE, TTL
from gossipq.values import GroupOptions, Start, TopicOptions
from gossipq.wire import batch as batches

ADA, BOB = client("ada"), client("bob")


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions()))


def counted(monkeypatch, owner, name):
    """Counts the calls of a method from now on."""
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
    """The client does not know that it holds the records, so nobody would ever ack them."""
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
    asked = counted(monkeypatch, Selector, "next_parts")
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


def test_plain_batches_that_follow_each_other_are_looked_at_once(worker, orders, monkeypatch):
    for number in range(40):
        worker.publish(orders, [b"x"] * (1 + number % 3))
    asked = counted(monkeypatch, Selector, "next_parts")
    worker.seen.clear()
    worker.subscribe(ADA, orders)
    last = worker.shards[1].ledger.partitions[orders].next
    taken = worker.taken()
    assert [first for _, first, _, _ in taken] == [0, *(end for _, _, end, _ in taken[:-1])]
    assert len(taken) == 40
    assert taken[-1][2] == last
    assert len(asked) <= 3
    (group,) = worker.shards[1].dispatch.groups.values()
    assert [(first, end) for first, end, _ in group.views[orders].window.leases()] == [(0, last)]


class Lives:
    """A random group with random batches, and what its members get."""

    def __init__(self, seed: int) -> None:
        self.dice, self.worker = Random(seed), FakeWorker()
        ttl_ms = self.dice.choice((0, 0, 500))
        self.orders = single(self.worker.topic("orders", TopicOptions(ttl_ms=ttl_ms)))
        mode = self.dice.choice(("shared", "exclusive", "key_ordered"))
        self.config = GroupOptions(mode=mode, lease_ms=400, attempts_max=3)
        self.held: list[tuple[bytes, int, int, int]] = []
        self.told: list[object] = []

    def batch(self) -> Callable[[], None]:
        count, columns = self.dice.randint(1, 4), {}
        if self.dice.random() < 0.3:
            asked = {LEASE: array("I", [300]), TTL: array("q", [200]), ATTEMPTS: array("I", [1])}
            bit = self.dice.choice((LEASE, TTL, ATTEMPTS))
            columns["fixed"] = {bit: asked[bit] * count}
        elif self.dice.random() < 0.5:
            keys = [self.dice.choice((b"a", b"b")) for _ in range(count)]
            columns = {"keys": keys, "fixed": {KEY_HASH: array("I", map(crc32, keys))}}
        if self.dice.random() < 0.2:
            columns["route"] = self.dice.choice((b"eu", b"us"))
        batch = bytes(batches.seal([b"x" * self.dice.randint(1, 50)] * count, **columns))
        publish, info = Publish(self.orders), batches.check(batch)
        return lambda: self.worker.take(1, (b"c", b"p"), 7, None, publish, info, batch)

    def subscribe(self, who) -> None:
        routes = ["eu"] if self.dice.random() < 0.2 else []
        credit, size = self.dice.randint(0, 100), self.dice.choice((1_000, 30_000))
        starts, auto = [Start(self.orders)], self.dice.random() < 0.3
        message = Subscribe(
            1, "g", starts, credit, size, self.config, routes=routes, ack=self.dice.random() < 0.9, auto=auto
        )
        self.worker.ask(1, who, message, 2, (b"c", who.session))

    def live(self) -> None:
        who, worker = self.dice.choice((ADA, BOB)), self.worker
        some = [self.batch() for _ in range(self.dice.choice((0, 1, 8)))]
        worker.seen += worker.turn(*some).values()
        what = self.dice.randint(0, 8)
        mine = [row for row in self.held if row[0] == who.session]
        if what == 0:
            self.subscribe(who)
        elif what <= 3 and mine:
            some = self.dice.sample(mine, self.dice.randint(1, len(mine)))
            ranges = [(self.orders, first, end) for _, first, end, _ in some]
            worker.ask(1, who, Nack(1, ranges) if what == 3 else Ack(1, ranges), 3, (b"c", who.session))
            self.held = [row for row in self.held if row not in some]
        elif what <= 5:
            worker.ask(1, who, Credit(1, self.dice.randint(1, 60), 10_000), 3, (b"c", who.session))
        else:
            worker.tick(self.dice.choice((1, 50, 600)))
        self.told += [[each.lease_ms for each in effects.deliveries] for effects in worker.seen]
        taken = worker.taken()
        self.held += taken
        self.told.append(taken)

    def end(self) -> list[object]:
        """All deliveries, and the state of the group at the end."""
        (group,) = self.worker.shards[1].dispatch.groups.values() or (None,)
        members = [(each.name, each.credit_records, each.credit_bytes) for each in group.members.values()]
        view = group.views[self.orders]
        leases = [(*at, each.owner, each.attempt, each.deadline_ms) for *at, each in view.window.leases()]
        return [*self.told, members, view.window.next, view.delivered, leases, list(view.window.ready)]


@pytest.mark.parametrize("seed", range(20))
def test_looking_once_hands_out_what_looking_at_each_would(seed, monkeypatch):
    def lived() -> list[object]:
        lives = Lives(seed)
        for who in (ADA, BOB):
            lives.subscribe(who)
        for _ in range(60):
            lives.live()
        return lives.end()

    together = lived()
    monkeypatch.setattr(Selector, "extend_with_slices", lambda *given: None)
    assert together == lived()
