"""Records expire wherever they wait, even if no consumer requests them."""

from array import array
from random import Random

import pytest

from core.harness import FakeWorker, client, single
from core.places import one_for_each
from gossipq.core.delivery import PartitionView
from gossipq.core.delivery import expiry as looks
from gossipq.messages import Ack, Explained, Nack, Requeue, SetGroup, Started, Unsubscribe, Why
from gossipq.operator_messages import SeekGroup, SetTopic, Sought
from gossipq.types import KEY_HASH, TTL, PartitionKey, topic_id_of
from gossipq.values import GroupConfig, GroupOptions, Ref, Start, TopicOptions

ADA, BEN = client("ada"), client("ben")
TTL_MS = 1_000


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    return single(worker.topic())


def view_of(worker: FakeWorker, partition: PartitionKey) -> PartitionView:
    (group,) = worker.shards[1].dispatch.groups.values()
    return group.views[partition]


def group_of(worker: FakeWorker, partition: PartitionKey, credit: int = 0, mode: str = "shared") -> None:
    worker.subscribe(ADA, partition, records=credit, config=GroupOptions(mode=mode))


def publish(worker: FakeWorker, partition: PartitionKey, *ttls_ms: int, keys: tuple[int, ...] = ()) -> None:
    """Publishes a batch of records with these times to live; 0 means none of its own."""
    fixed = {TTL: array("q", ttls_ms)} if any(ttls_ms) else {}
    if keys:
        fixed[KEY_HASH] = array("I", keys)
    worker.publish(partition, [b"x"] * len(ttls_ms), fixed=fixed)


def wait(worker: FakeWorker, ms: int = 3 * TTL_MS) -> None:
    """Lets time pass, second by second."""
    for _ in range(0, ms, 500):
        worker.tick(500)
    one_for_each(worker.shards[1].ledger, view_of(worker, single_of(worker)))


def single_of(worker: FakeWorker) -> PartitionKey:
    (partition,) = worker.shards[1].ledger.partitions
    return partition


def dead(worker: FakeWorker) -> list[int]:
    found = view_of(worker, single_of(worker)).cursor.dead.scan()
    return [at for each in found for at in range(each.first, each.end)]


def test_records_expire_behind_one_that_lives(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders)
    publish(worker, orders, 0)
    for _ in range(10):
        publish(worker, orders, TTL_MS)
    publish(worker, orders, 0, TTL_MS, 0, 3_600_000)
    wait(worker)
    assert dead(worker) == [*range(1, 11), 12]
    worker.subscribe(BEN, orders, records=100)
    worker.tick(1)
    assert sorted(worker.taken()) == [
        (BEN.session, 0, 1, 1),
        (BEN.session, 11, 12, 1),
        (BEN.session, 13, 15, 1),
    ]


def test_the_window_of_a_group_has_no_room_for_more_because_records_expired_behind_it(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    for config in (GroupOptions(in_flight_max=4), None):
        if config is not None:
            worker.subscribe(ADA, orders, records=0, config=config)
            publish(worker, orders, *[0] * 20)
            publish(worker, orders, *[TTL_MS, 0] * 20)
            wait(worker)
        else:
            worker.restart()
            worker.settle()
        worker.subscribe(BEN, orders, records=100)
        worker.tick(1)
        assert view_of(worker, orders).window.in_flight == 4
    assert len(dead(worker)) == 20


def test_another_leader_finds_the_rest_new_and_hands_each_out_once(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    group_of(worker, orders)
    publish(worker, orders, *[0, TTL_MS] * 50)
    wait(worker)
    worker.restart()
    wait(worker)
    worker.subscribe(BEN, orders, records=1_000)
    worker.tick(1)
    assert sorted(first for _, first, _, _ in worker.taken()) == list(range(0, 100, 2))


def test_records_that_came_back_expire(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders, credit=10)
    publish(worker, orders, *[TTL_MS] * 4)
    publish(worker, orders, 0)
    worker.ask(1, ADA, Unsubscribe(1))
    wait(worker)
    assert dead(worker) == [0, 1, 2, 3]


def test_a_leased_record_expires_when_it_comes_back(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders, credit=1)
    publish(worker, orders, TTL_MS, TTL_MS, 0)
    wait(worker)
    assert dead(worker) == [1]
    worker.ask(1, ADA, Unsubscribe(1))
    wait(worker, 1_000)
    assert dead(worker) == [0, 1]


def test_a_record_that_waits_for_its_next_attempt_expires(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders, credit=1)
    publish(worker, orders, 2 * TTL_MS, 0)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], failed=True, delay_ms=3_600_000))
    worker.ask(1, ADA, Unsubscribe(1))
    wait(worker, 1_000)
    assert dead(worker) == []
    worker.restart()
    wait(worker, 3_000)
    assert dead(worker) == [0]


def test_records_expire_behind_their_key_and_let_it_go_on(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders, credit=1, mode="key_ordered")
    publish(worker, orders, 0, TTL_MS, TTL_MS, 0, keys=(7, 7, 7, 7))
    worker.subscribe(BEN, orders, records=10)
    wait(worker)
    assert dead(worker) == [1, 2]


def test_parked_records_expire(worker: FakeWorker, orders: PartitionKey) -> None:
    config = GroupOptions(mode="key_ordered", in_flight_max=2)
    worker.subscribe(ADA, orders, records=1, config=config)
    publish(worker, orders, *[0, *[2 * TTL_MS] * 9], keys=(7,) * 10)
    worker.subscribe(BEN, orders, records=10, number=2)
    worker.tick(1)
    worker.settle()
    assert view_of(worker, orders).cursor.state.parked
    wait(worker, 4_000)
    assert dead(worker) == list(range(1, 10))
    assert not view_of(worker, orders).cursor.state.parked


def test_records_of_a_paused_group_expire(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders", TopicOptions(ttl_ms=3_600_000, expire="drop")))
    group_of(worker, orders)
    worker.ask(1, ADA, SetGroup(topic_id_of(orders), "billing", GroupOptions(paused=True)))
    publish(worker, orders, 0, TTL_MS, TTL_MS)
    wait(worker)
    assert view_of(worker, orders).cursor.state.dropped == 2


def test_a_shorter_time_to_live_of_a_topic_counts_for_what_is_there(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders", TopicOptions(ttl_ms=3_600_000)))
    group_of(worker, orders)
    publish(worker, orders, 0, 7_200_000, 0)
    wait(worker)
    worker.ask(0, ADA, SetTopic("orders", TopicOptions(ttl_ms=TTL_MS)))
    wait(worker)
    assert dead(worker) == [0, 2]


def test_a_record_is_tried_once_and_then_expires(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders", TopicOptions(ttl_ms=TTL_MS, expire="try_once")))
    group_of(worker, orders)
    publish(worker, orders, 0, 0)
    wait(worker)
    assert dead(worker) == []
    worker.subscribe(BEN, orders, records=1)
    worker.tick(1)
    worker.ask(1, BEN, Started(1, [(orders, 0, 1)]))
    worker.ask(1, BEN, Unsubscribe(1))
    wait(worker)
    assert dead(worker) == [0]


def test_a_requeued_record_that_came_back_expires(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders", TopicOptions(ttl_ms=TTL_MS)))
    group_of(worker, orders, credit=1)
    publish(worker, orders, 0)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    wait(worker)
    worker.ask(1, ADA, Requeue(Ref(orders, 0), "billing"))
    wait(worker)
    assert dead(worker) == []
    worker.subscribe(ADA, orders, records=1)
    worker.tick(1)
    worker.ask(1, ADA, Unsubscribe(1))
    wait(worker)
    assert dead(worker) == [0]


def why(worker: FakeWorker, partition: PartitionKey, offset: int) -> tuple[str, str, list[str]]:
    """State and reason of a record, and when it expires, as `why` answers."""
    answer = worker.ask(1, ADA, Why(Ref(partition, offset)))
    assert isinstance(answer, Explained)
    (standing,) = answer.standings
    return standing.state, standing.because, [line for line in answer.lines if "expire" in line]


def test_why_says_when_a_record_expires_and_what_becomes_of_it(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    group_of(worker, orders, credit=1)
    publish(worker, orders, TTL_MS, TTL_MS, 0)
    ready = "ready", "all consumers are busy: they hold as many records as they asked for"
    assert why(worker, orders, 1) == (*ready, ["billing: expires in 1 s"])
    assert why(worker, orders, 2) == (*ready, [])
    worker.advance(TTL_MS + 500)
    assert why(worker, orders, 1) == ("ready", "it has expired 500 ms ago, and becomes a dead letter now", [])
    wait(worker)
    assert why(worker, orders, 1) == ("dead", "it is a dead letter (expired)", [])
    state, because, lines = why(worker, orders, 0)
    assert (state, lines) == ("in_flight", [])
    assert because.endswith("attempt 1; it has expired: without an ack it becomes a dead letter")


def test_a_long_backlog_is_looked_at_turn_by_turn(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "SLICES_PER_LOOK", 16)
    monkeypatch.setattr(looks, "SPAN_SLICES", 4)
    group_of(worker, orders)
    for number in range(100):
        publish(worker, orders, TTL_MS if number % 2 else 3_600_000)
    worker.restart()
    wait(worker)
    assert dead(worker) == list(range(1, 100, 2))


def test_spans_of_records_that_are_done_are_forgotten(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders, credit=10_000)
    publish(worker, orders, 3_600_000)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], failed=True, delay_ms=1_800_000))
    for number in range(1, 400):
        publish(worker, orders, 3_600_000)
        worker.tick(1_000)
        worker.ask(1, ADA, Ack(1, [(orders, number, number + 1)]))
    known = view_of(worker, orders).spans
    assert known is not None
    assert len(known.spans) <= 2 * looks.SPANS_KEPT


def test_groups_without_a_time_to_live_are_not_looked_at(worker: FakeWorker, orders: PartitionKey) -> None:
    group_of(worker, orders)
    for _ in range(10):
        publish(worker, orders, 0)
    wait(worker)
    assert view_of(worker, orders).spans is None


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_waits_outlives_its_time(seed: int) -> None:
    dice = Random(seed)
    worker = FakeWorker()
    topic = TopicOptions(
        ttl_ms=dice.choice((0, 2_500)), backoff_ms=[500], expire=dice.choice(("dead", "drop"))
    )
    orders = single(worker.topic("orders", topic))
    mode, window = dice.choice(("shared", "key_ordered", "exclusive")), dice.choice((3, 10, 1_000))
    worker.subscribe(ADA, orders, records=0, config=GroupOptions(mode=mode, in_flight_max=window))
    ttls_ms: list[int] = []
    for _ in range(60):
        kind = dice.randrange(8)
        if kind < 3:
            new = [dice.choice((0, 300, 2_000, 6_000, 10**9)) for _ in range(dice.choice((1, 2, 5)))]
            publish(worker, orders, *new, keys=tuple(dice.randrange(3) for _ in new))
            ttls_ms += new
        elif kind == 3:
            worker.subscribe(BEN, orders, records=dice.randrange(6), number=dice.randrange(1, 3))
        elif kind == 4:
            worker.ask(1, BEN, Unsubscribe(dice.randrange(1, 3)))
        elif kind == 5:
            held = [(low, high) for low, high, lease in view_of(worker, orders).window.leases()]
            for low, high in held[: dice.randrange(4)]:
                number = dice.randrange(1, 3)
                settle = Ack if dice.random() < 0.4 else Nack
                worker.ask(1, BEN, settle(number, [(orders, low, high)]))
        elif kind == 6 and dice.random() < 0.3:
            worker.restart()
        worker.tick(dice.choice((1, 200, 1_500)))
    wait(worker, 4_000)
    view, now_ms = view_of(worker, orders), worker.shards[1].desk.leader_ms
    held = {at for low, high, _ in view.window.overlap(0, 2**62) for at in range(low, high)}
    rows = {at for found in view.cursor.exceptions.scan() for at in range(found.first, found.end)}
    fresh = {at for low, high in view.cursor.fresh(0, len(ttls_ms)) for at in range(low, high)}
    for at in (fresh | rows) - held:
        place = worker.shards[1].ledger.slices.at(orders, at)
        ttl_ms = ttls_ms[at] or topic.ttl_ms
        assert place is not None
        assert not ttl_ms or place.time_ms + ttl_ms > now_ms - 1_500, f"{at} waits, and has expired"


def test_a_group_that_a_seek_made_and_nobody_consumed_expires_too(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    publish(worker, orders, TTL_MS, 0)
    starts = [Start(orders, "first")]
    answer = worker.ask(1, ADA, SeekGroup(topic_id_of(orders), "billing", starts, config=GroupConfig()))
    assert isinstance(answer, Sought)
    wait(worker)
    assert dead(worker) == [0]
