"""Corners where two rules meet: a request, and something else that happens before it is done."""

import random
import sys
from array import array
from collections.abc import Callable

import msgspec
import pytest

from core.harness import FakeWorker, client, counters, single
from core.test_copies import PARTITION, Copies
from gossipq import limits
from gossipq.core import shard
from gossipq.core.delivery import Lease, PartitionView, WaitingRecords, consumers, readback
from gossipq.core.delivery.routes import matcher
from gossipq.core.ledger import cursors, retention, schedule
from gossipq.core.requests import upkeep
from gossipq.core.storage import Intervals, log, payloads
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import MemoryTables
from gossipq.messages import (
    Ack,
    Acked,
    Cancel,
    Credit,
    DropTopic,
    Edit,
    Explained,
    Extend,
    GroupExplained,
    Nack,
    Publish,
    Recall,
    RefusedMessage,
    ReplayDead,
    Requeue,
    Show,
    Started,
    Subscribe,
    Unsubscribe,
    Why,
    WhyGroup,
)
from gossipq.operator_messages import DropGroup, PurgeTopic, SeekGroup, Sought
from gossipq.types import ATTEMPTS, DELAY, ID_HASH, KEY_HASH, LEASE, Now, PartitionKey, topic_id_of
from gossipq.values import GroupConfig, GroupOptions, Message, Ref, Run, Start, TopicOptions
from gossipq.wire import batch as batches

ADA, BOB, OPERATOR = client("ada"), client("bob"), client("operator")
MINE = (b"c", ADA.session)


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def orders(worker: FakeWorker) -> PartitionKey:
    return single(worker.topic())


def view_of(worker: FakeWorker, partition: PartitionKey, group: str = "billing") -> PartitionView:
    shard = worker.shards[1]
    found = shard.ledger.group(topic_id_of(partition), group)
    assert found is not None
    return shard.dispatch.groups[found.id].views[partition]


def held_one_by_one(worker: FakeWorker, orders: PartitionKey, count: int) -> None:
    """Ada holds `count` records, each from a batch of its own."""
    for _ in range(count):
        worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)


def test_failures_that_wait_for_a_turn_outlast_a_purge_of_the_first_of_them(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FAILURES_PER_TURN", 4)
    held_one_by_one(worker, orders, 12)
    worker.slow = True
    failed = Nack(1, [(orders, 0, 12)], failed=True)
    worker.turn(
        lambda: worker.step(1, MINE, 9, ADA, failed),
        lambda: worker.step(1, (b"c", b"1"), 10, OPERATOR, PurgeTopic(orders, 8)),
    )
    worker.slow = False
    worker.tick(0)
    worker.seen.clear()
    worker.tick(limits.BACKOFF_MS[0])
    assert [row[1:3] for row in worker.taken()] == [(first, first + 1) for first in range(8, 12)]
    states = view_of(worker, orders).window.overlap(0, 2**62)
    assert all(isinstance(state, Lease) for _, _, state in states), "no entry is on its way"


def test_a_failure_is_answered_though_its_topic_goes_before_its_turn(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FAILURES_PER_TURN", 4)
    held_one_by_one(worker, orders, 12)
    worker.slow = True
    seen = [worker.turn(lambda: worker.step(0, (b"c", b"1"), 10, OPERATOR, DropTopic("orders")))]
    failed = Nack(1, [(orders, 0, 12)], failed=True)
    seen.append(worker.turn(lambda: worker.step(1, MINE, 9, ADA, failed)))
    seen += [worker.turn() for _ in range(4)]
    answers: list[Message] = [
        answer
        for effects in seen
        for origin, request_id, answer in effects[1].replies
        if (origin, request_id) == (MINE, 9)
    ]
    assert [type(answer) for answer in answers] == [Acked]


def calls_of(work: Callable[[], object]) -> int:
    """Counts the calls of functions, built-in ones included."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_a_turn_with_many_routes_costs_as_much_for_each_as_one_with_few() -> None:
    def cost(count: int) -> float:
        worker = FakeWorker()
        orders = single(worker.topic())
        for number in range(count):
            worker.publish(orders, [b"x"], route=b"r.%d" % number)
        message = Subscribe(1, "g", [Start(orders)], 100, limits.MIB, routes=["a.*"])
        return calls_of(lambda: worker.ask(1, ADA, message, origin=MINE)) / count

    assert cost(1_600) < 2 * cost(200)


def _fits(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return _fits(pattern[1:], words) or (bool(words) and _fits(pattern, words[1:]))
    return bool(words) and pattern[0] in (words[0], "*") and _fits(pattern[1:], words[1:])


@pytest.mark.parametrize("seed", range(20))
def test_patterns_fit_what_they_say(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(100):
        drawn = [[dice.choice("ab*##") for _ in range(dice.randint(1, 5))] for _ in range(3)]
        patterns = [words for words in drawn if set(words) != {"#"}]
        matches = matcher([".".join(words) for words in patterns]) if patterns else None
        words = [dice.choice("ab") for _ in range(dice.randint(0, 6))]
        if matches is not None:
            fits = any(_fits(pattern, words) for pattern in patterns)
            assert matches(".".join(words).encode()) == fits, (patterns, words)


def test_a_route_costs_some_steps_for_each_word_whatever_the_patterns_are() -> None:
    matches = matcher([".".join(["#", "a"] * 63 + [str(number)]) for number in range(64)])
    assert matches is not None
    assert calls_of(lambda: matches(b"a." * 120 + b"x")) < 500


def bury(worker: FakeWorker, orders: PartitionKey, count: int) -> None:
    """Makes dead letters, one by one, of the first records that Ada holds."""
    for first in range(count):
        worker.ask(1, ADA, Nack(1, [(orders, first, first + 1)], dead="rejected"))


def ask(worker: FakeWorker, message: Message) -> Message | None:
    return worker.ask(1, OPERATOR, message)


def test_letters_that_were_replayed_and_wait_cost_nothing_when_others_leave() -> None:
    def cost(count: int) -> int:
        worker = FakeWorker()
        orders = single(worker.topic())
        held_one_by_one(worker, orders, count)
        bury(worker, orders, count)
        worker.turn(lambda: worker.end_session(ADA.session))
        ask(worker, PurgeTopic(orders, count))
        ask(worker, ReplayDead(orders, "billing"))
        worker.publish(orders, [b"x"])
        worker.tick(10 * upkeep.RETENTION_CHECK_MS)
        purge = calls_of(lambda: ask(worker, PurgeTopic(orders, count + 1)))
        worker.advance(upkeep.RETENTION_CHECK_MS)
        return purge + calls_of(worker.turn)

    assert cost(500) < cost(50) + 500


def test_what_retention_takes_holds_up_no_more_than_some_letters_that_were_replayed(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "REPLAYED_LOOKED_AT", 10)
    held_one_by_one(worker, orders, 30)
    bury(worker, orders, 30)
    worker.turn(lambda: worker.end_session(ADA.session))
    ask(worker, ReplayDead(orders, "billing"))
    assert worker.shards[1].ledger.done_below(orders) == 10
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 25)]))
    assert worker.shards[1].ledger.done_below(orders) == 30


def test_who_holds_a_letter_that_was_replayed_holds_it_after_a_purge_and_a_restart(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    held_one_by_one(worker, orders, 2)
    bury(worker, orders, 1)
    ask(worker, ReplayDead(orders, "billing"))
    worker.settle()
    ask(worker, PurgeTopic(orders, 2))
    worker.restart()
    assert worker.held == {ADA.session}
    (lease,) = [lease for _, _, lease in view_of(worker, orders).window.leases()]
    assert (lease.first, lease.end, lease.session) == (0, 1, ADA.session)


def test_a_letter_that_is_replayed_after_its_record_left_keeps_its_route_and_its_policy(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.publish(orders, [b"x"], route=b"eu.fr", fixed={ATTEMPTS: array("I", [1])})
    message = Subscribe(1, "billing", [Start(orders)], 100, limits.MIB, routes=["eu.*"])
    worker.ask(1, ADA, message, origin=MINE)
    bury(worker, orders, 1)
    ask(worker, PurgeTopic(orders, 1))
    worker.taken()
    ask(worker, ReplayDead(orders, "billing"))
    worker.tick(1)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], failed=True))
    explained = ask(worker, Why(Ref(orders, 0), "billing"))
    assert isinstance(explained, Explained)
    assert [standing.state for standing in explained.standings] == ["dead"]


def test_a_letter_that_was_replayed_after_its_record_left_is_shown(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    held_one_by_one(worker, orders, 1)
    bury(worker, orders, 1)
    ask(worker, PurgeTopic(orders, 1))
    ask(worker, ReplayDead(orders, "billing"))
    effects = worker.turn(lambda: worker.step(1, MINE, 5, OPERATOR, Show(Ref(orders, 0))))
    ((_, _, _, bodies),) = effects[1].enclosed
    assert batches.check(bodies[0]).count == 1


def cost_of_an_ack(count: int) -> int:
    """The cost of an ack of all that Ada holds, when every second record is acked already."""
    worker = FakeWorker()
    orders = single(worker.topic())
    held_one_by_one(worker, orders, count)
    worker.ask(1, ADA, Ack(1, [(orders, first, first + 1) for first in range(1, count, 2)]))
    return calls_of(lambda: worker.ask(1, ADA, Ack(1, [(orders, 0, count)])))


def test_an_ack_of_a_range_with_gaps_costs_as_much_for_each_as_one_with_few() -> None:
    assert cost_of_an_ack(800) < 5 * cost_of_an_ack(200)


def test_an_ack_looks_at_some_of_what_was_acked_long_ago(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_one_by_one(worker, orders, 40)
    for first in range(40):
        worker.ask(1, ADA, Ack(1, [(orders, first, first + 1)]))
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 40)])) == Acked([])
    monkeypatch.setattr(limits, "RANGES_MAX", 10)
    assert worker.ask(1, ADA, Ack(1, [(orders, 0, 40)])) == Acked([(orders, 10, 40)])


@pytest.mark.parametrize("message", [Ack, Nack, Extend, Started])
def test_a_record_that_is_named_twice_costs_once(
    worker: FakeWorker, orders: PartitionKey, message: type[Message]
) -> None:
    held_one_by_one(worker, orders, 100)
    worker.ask(1, ADA, Ack(1, [(orders, first, first + 1) for first in range(0, 100, 2)]))
    worker.subscribe(BOB, orders, number=2)
    more = {"lease_ms": 1_000} if message is Extend else {}
    for who, number in ((BOB, 2), (ADA, 1)):
        request = message(number, [(orders, 0, 100)] * 1_000, **more)  # type: ignore[call-arg]
        answer: list[Message | None] = []
        cost = calls_of(lambda: answer.append(worker.ask(1, who, request)))  # noqa: B023
        assert cost < 30_000
        assert not isinstance(answer[0], Acked) or len(answer[0].lost) <= 100


def test_a_step_that_names_a_record_twice_acks_it_once(worker: FakeWorker, orders: PartitionKey) -> None:
    held_one_by_one(worker, orders, 3)
    batch = bytes(batches.seal([b"next"]))
    step = Publish(orders, acks=[(orders, 1, 3), (orders, 0, 2)], subscription=1)
    effects = worker.turn(lambda: worker.take(1, MINE, 7, ADA, step, batches.check(batch), batch))
    assert [row[0] for row in effects[1].confirms[MINE]] == [7]
    assert view_of(worker, orders).cursor.state.acked == 3


def test_a_partition_that_a_question_names_often_is_told_once(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders)
    answer = ask(worker, WhyGroup("billing", [orders] * 1_000))
    assert isinstance(answer, GroupExplained)
    assert [row[0] for row in answer.rows] == [orders]


def test_an_ack_may_be_repeated_before_the_first_one_is_stored(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"x"] * 4)
    message = Ack(1, [(orders, 0, 2)])
    effects = worker.turn(*(lambda: worker.step(1, MINE, 9, ADA, message) for _ in range(2)))
    assert [answer for _, _, answer in effects[1].replies] == [Acked([]), Acked([])]
    assert worker.shards[1].desk.counts.acked == 2


def test_an_ack_may_be_repeated_before_a_majority_has_the_first_one() -> None:
    copies = Copies()
    start = [Start(PARTITION)]
    copies.step(MINE, 1, ADA, Subscribe(1, "g", start, 10, limits.MIB))
    copies.turns()
    copies.publish(b"x", b"y")
    copies.turns()
    copies.away = {"b", "c"}
    copies.step(MINE, 2, ADA, Ack(1, [(PARTITION, 0, 1)]))
    copies.turns(1)
    copies.step(MINE, 3, ADA, Ack(1, [(PARTITION, 0, 1)]))
    assert not [each for effects in copies.turns(1) for each in effects.replies]
    copies.away = set()
    answers = [each for effects in copies.turns(12) for each in effects.replies]
    assert answers == [(MINE, 2, Acked([])), (MINE, 3, Acked([]))]
    (group,) = copies.leader.dispatch.groups.values()
    assert group.views[PARTITION].cursor.state.acked == copies.leader.desk.counts.acked == 1
    assert not copies.leader.dispatch.settlement._acking


def test_what_was_acked_is_counted_once_and_a_step_counts_too(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    held_one_by_one(worker, orders, 3)
    for _ in range(2):
        worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    assert worker.shards[1].desk.counts.acked == 1
    step(worker, Publish(orders, acks=[(orders, 1, 3)], subscription=1))
    assert worker.shards[1].desk.counts.acked == 3


def step(worker: FakeWorker, message: Publish, sequence: int = 0) -> list[tuple[int, int, int, bool]]:
    """Publishes one record of producer 1 and returns the confirms."""
    batch = bytes(batches.seal([b"next"], producer=b"1" * 16, sequence=sequence))
    effects = worker.turn(lambda: worker.take(1, MINE, 7, ADA, message, batches.check(batch), batch))
    worker.seen += effects.values()
    return effects[1].confirms.get(MINE, [])


def test_a_step_lends_again_what_its_records_took(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.ask(1, ADA, Subscribe(1, "billing", [Start(orders)], 1, limits.MIB, auto=True), origin=MINE)
    worker.publish(orders, [b"x"])
    worker.taken()
    step(worker, Publish(orders, acks=[(orders, 0, 1)], subscription=1))
    worker.tick(1)
    assert worker.taken() == [(ADA.session, 1, 2, 1)]


def test_a_step_that_was_answered_as_a_repeat_does_not_lose_what_it_would_have_acked(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    held_one_by_one(worker, orders, 1)
    step(worker, Publish(orders), sequence=1)
    worker.taken()
    ((_, offset, _, repeat),) = step(
        worker, Publish(orders, acks=[(orders, 0, 1)], subscription=1), sequence=1
    )
    assert (offset, repeat) == (1, True)
    worker.tick(1)
    assert (ADA.session, 0, 1, 1) in worker.taken()


def test_what_a_session_consumed_does_not_count_when_its_topic_is_gone(worker: FakeWorker) -> None:
    numbers = worker.shards[1].dispatch.numbers
    for number in range(3):
        partition = single(worker.topic("brief"))
        for group in ("", "g"):
            message = Subscribe(2 * number + bool(group), group, [Start(partition)], 10, limits.MIB)
            worker.ask(1, ADA, message, origin=MINE)
        assert len(numbers.of(ADA.session)) == 2
        worker.ask(0, OPERATOR, DropTopic("brief"))
        worker.turn()
        assert not worker.shards[1].dispatch.subscriptions
        assert ADA.session not in numbers


def test_a_group_that_ends_while_a_member_comes_again_leaves_no_member_behind(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders)
    other = Subscribe(1, "billing", [Start(orders)], 10, limits.MIB, GroupOptions(in_flight_max=5))
    worker.turn(
        lambda: worker.step(0, (b"c", b"1"), 9, OPERATOR, DropTopic("orders")),
        lambda: worker.step(1, MINE, 8, ADA, other),
        lambda: worker.end_session(ADA.session),
    )
    worker.turn()
    dispatch = worker.shards[1].dispatch
    assert not dispatch.subscriptions
    assert not dispatch.joining
    assert ADA.session not in dispatch.numbers


def test_a_group_that_a_seek_makes_counts_for_the_quota(worker: FakeWorker, orders: PartitionKey) -> None:
    quota = msgspec.structs.replace(worker.settings.quota, groups=2)
    worker.settings = ShardSettings("n1", shards=2, quota=quota)
    worker.restart()
    topic_id = topic_id_of(orders)
    answers = [
        ask(worker, SeekGroup(topic_id, f"g{number}", [Start(orders)], config=GroupConfig()))
        for number in range(3)
    ]
    assert [type(answer) for answer in answers] == [Sought, Sought, RefusedMessage]
    assert isinstance(ask(worker, SeekGroup(topic_id, "g1", [Start(orders)])), Sought)


def test_what_nobody_takes_expires_behind_one_that_was_cancelled(worker: FakeWorker) -> None:
    partition = single(worker.topic("brief", TopicOptions(ttl_ms=1_000)))
    worker.subscribe(ADA, partition, records=0)
    worker.publish(partition, [b"x"] * 4)
    for offset in (0, 2):
        ask(worker, Cancel(Ref(partition, offset)))
    for _ in range(2):
        worker.tick(2_000)
    state = view_of(worker, partition).cursor.state
    assert (state.dead, state.voided) == (2, 2)


def test_a_gap_is_the_first_one() -> None:
    dice = random.Random(1)
    for _ in range(500):
        covered = Intervals()
        for _ in range(dice.randint(0, 5)):
            first = dice.randint(0, 20)
            covered.add(first, first + dice.randint(0, 5))
        first, end = dice.randint(0, 25), dice.randint(0, 25)
        assert covered.gap(first, end) == next(iter(covered.missing(first, end)), None)


def test_a_delay_that_ended_before_time_begins_stops_no_shard(worker: FakeWorker) -> None:
    worker.now = Now(1_000, 5_000)  # a machine without a battery-backed clock
    worker.disk = {shard: MemoryTables() for shard in worker.disk}
    worker.restart()
    orders = single(worker.topic())
    batch = bytes(batches.seal([b"x"], fixed={DELAY: array("q", [5])}))
    message = Publish(orders, age_ms=limits.DELAY_MS_MAX)
    effects = worker.turn(lambda: worker.take(1, MINE, 7, ADA, message, batches.check(batch), batch))
    assert [row[0] for row in effects[1].confirms[MINE]] == [7]
    worker.tick(10)
    assert worker.shards[1].ledger.partitions[orders].next == 1


def test_a_sweep_deletes_so_many_rows_however_many_groups_there_are(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    groups = [f"g{number}" for number in range(8)]
    worker.publish(orders, [b"x"] * 20)
    for number, group in enumerate(groups):
        worker.subscribe(ADA, orders, group, number=number)
        worker.turn()
        for first in range(19, -1, -1):
            worker.ask(1, ADA, Ack(number, [(orders, first, first + 1)]))
    shard = worker.shards[1]
    acks = lambda: sum(1 for _ in shard.ledger.state.scan(b"A", b"B"))  # noqa: E731
    assert acks() == 160
    shard.ledger.partitions[orders].first = 20
    shard._sweeper.behind = True
    shard._sweeper.sweep(30)
    assert acks() >= 130
    while shard._sweeper.behind:
        shard._sweeper.sweep(30)
    assert acks() == 0


def test_who_has_seen_a_record_may_give_it_back_though_more_came_in_the_same_millisecond(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders, config=GroupOptions(mode="exclusive"))
    worker.publish(orders, [b"x"])
    assert worker.taken() == [(ADA.session, 0, 1, 1)]
    worker.slow = True
    worker.publish(orders, [b"y"])
    (answer,) = worker.turn(lambda: worker.step(1, MINE, 9, ADA, Nack(1, [(orders, 0, 1)])))[1].replies
    assert answer == (MINE, 9, Acked([]))


def test_routes_that_wait_on_disk_are_read_back_turn_by_turn(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readback, "REFILL_ROWS", 16)
    monkeypatch.setattr(limits, "SLICES_PER_TURN", 16)
    for number in range(400):
        worker.publish(orders, [b"x"], route=b"%s.%d" % ((b"eu", b"us")[number % 2], number))
    start, few = [Start(orders)], GroupOptions(in_flight_max=50)
    nobody = Subscribe(1, "billing", start, 10, limits.MIB, few, routes=["af.*"])
    worker.ask(1, BOB, nobody, origin=(b"c", BOB.session))
    for _ in range(40):
        worker.tick(100)
    assert view_of(worker, orders).cursor.state.unmatched > 300
    worker.taken()
    worker.slow = True
    message = Subscribe(1, "billing", start, 1_000, limits.MIB, routes=["eu.*"], fetches=True)
    costs = [calls_of(lambda: worker.ask(1, ADA, message, origin=MINE))]
    costs += [calls_of(lambda: worker.tick(0)) for _ in range(100)]
    assert max(costs) < 12_000
    taken = [offset for session, first, end, _ in worker.taken() for offset in range(first, end)]
    assert sorted(taken) == list(range(0, 400, 2))


def test_what_was_scheduled_in_topics_that_are_gone_is_looked_at_some_at_a_time(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "GONE_LOOKED_AT", 10)
    monkeypatch.setattr(shard, "SWEEP_ROWS", 2)
    gone, stays = (single(worker.topic(name)) for name in ("gone", "stays"))

    def publish(partition: PartitionKey, *delays: int) -> None:
        columns = {DELAY: array("q", delays)}
        worker.publish(partition, [b"%d" % delay for delay in delays], fixed=columns)

    for number in range(40):
        publish(gone, 1_000 + 10 * number)
    publish(stays, 1_005, 1_395)
    publish(stays, 1_205, 1_405)
    worker.ask(0, OPERATOR, DropTopic("gone"))
    ledger = worker.shards[1].ledger
    worker.slow = True
    worker.advance(2_000)
    looked, knows = list[int](), ledger.schedule._knows

    def counted(partition: PartitionKey) -> bool:
        looked[-1] += 1
        return knows(partition)

    ledger.schedule._knows = counted
    for _ in range(12):
        looked.append(0)
        worker.turn()
    assert sum(1 for _ in ledger.state.scan(b"E", b"F")) > 10, "and they are there still"
    places = [ledger.slices.at(stays, offset) for offset in range(4)]
    begin = [(place.index, place.first) for place in places if place is not None]
    assert [record for _, record in begin] == [0, 0, 1, 1]
    assert begin[0][0] == begin[2][0] < begin[1][0] == begin[3][0], "in the order in which they were due"
    assert max(looked) <= 3 * 12, "in a turn, which looks three times"


@pytest.mark.parametrize("expire", ["dead", "drop"])
def test_a_letter_that_is_replayed_after_its_time_to_live_is_handed_out_and_not_lost(
    worker: FakeWorker, expire: str
) -> None:
    partition = single(worker.topic("brief", TopicOptions(ttl_ms=1_000, expire=expire)))
    worker.publish(partition, [b"x"])
    worker.subscribe(ADA, partition)
    bury(worker, partition, 1)
    worker.tick(5_000)
    worker.taken()
    ask(worker, ReplayDead(partition, "billing"))
    worker.tick(1)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]
    worker.ask(1, ADA, Nack(1, [(partition, 0, 1)], failed=True))
    worker.tick(limits.BACKOFF_MS[0])
    assert worker.taken() == [(ADA.session, 0, 1, 2)]


def test_a_record_that_is_requeued_after_its_time_to_live_is_handed_out_once_more(
    worker: FakeWorker,
) -> None:
    partition = single(worker.topic("brief", TopicOptions(ttl_ms=1_000)))
    worker.publish(partition, [b"x"])
    worker.subscribe(ADA, partition)
    worker.ask(1, ADA, Ack(1, [(partition, 0, 1)]))
    worker.tick(5_000)
    worker.taken()
    ask(worker, Requeue(Ref(partition, 0), "billing"))
    worker.tick(1)
    assert worker.taken() == [(ADA.session, 0, 1, 1)]
    worker.ask(1, ADA, Nack(1, [(partition, 0, 1)], failed=True))
    worker.tick(limits.BACKOFF_MS[0])
    assert worker.taken() == []
    assert view_of(worker, partition).cursor.state.dead == 1


def test_no_record_is_held_for_longer_than_the_longest_lease(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    worker.subscribe(ADA, orders)
    worker.publish(orders, [b"x"], fixed={LEASE: array("I", [2**32 - 1])})
    (lease,) = [lease for _, _, lease in view_of(worker, orders).window.leases()]
    assert lease.deadline_ms - lease.since_ms == limits.LEASE_TOTAL_MS_MAX


def test_a_repeat_is_known_at_once_however_much_is_not_applied() -> None:
    def cost(count: int) -> int:
        copies = Copies()
        copies.step(MINE, 1, ADA, Subscribe(1, "g", [Start(PARTITION)], 10, limits.MIB))
        copies.turns()
        copies.away = {"b", "c"}
        for _ in range(count):
            copies.publish(b"x")
        copies.turns(1)
        batch = bytes(batches.seal([b"y"], producer=b"1" * 16, sequence=1))
        acks = [(PARTITION, 0, 1)]
        message = Publish(PARTITION, acks=acks, subscription=1)
        for _ in range(3):
            copies.led.publish(MINE, 7, ADA, message, batches.check(batch), batch)
        return calls_of(lambda: copies.turns(1))

    assert cost(400) < cost(40) + 400


def test_nothing_is_remembered_of_groups_and_topics_that_are_gone(worker: FakeWorker) -> None:
    for number in range(3):
        partition = single(worker.topic("brief"))
        worker.ask(1, BOB, Subscribe(1, "", [Start(partition)], 10, limits.MIB))
        worker.publish(partition, [b"x"])
        worker.ask(1, BOB, Unsubscribe(1))
        for group in ("f", "g"):
            worker.subscribe(ADA, partition, group, number=2)
            worker.ask(1, ADA, Nack(2, [(partition, 0, 1)], failed=True))
            ask(worker, Why(Ref(partition, 0), group))
            worker.ask(1, ADA, Unsubscribe(2))
            ask(worker, DropGroup(topic_id_of(partition), group)) if number else None
        worker.ask(0, OPERATOR, DropTopic("brief"))
        worker.turn()
    dispatch = worker.shards[1].dispatch
    left = {name: value for name, value in vars(dispatch).items() if isinstance(value, (dict, set))}
    assert {name: value for name, value in left.items() if value} == {}


def test_of_routes_that_came_and_went_some_are_remembered(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LANES_GONE_MAX", 4)
    other = Subscribe(1, "billing", [Start(orders)], 1, limits.MIB, routes=["us.#"])
    worker.ask(1, BOB, other, origin=(b"c", BOB.session))
    worker.subscribe(ADA, orders, config=GroupOptions())
    third = Subscribe(2, "billing", [Start(orders)], 100, limits.MIB, routes=["eu.#"])
    worker.ask(1, ADA, third, origin=MINE)
    (group,) = worker.shards[1].dispatch.groups.values()
    bob = next(member for member in group.members.values() if member.session == BOB.session)
    view = group.views[orders]
    view.window.move(10_000, 10_001, WaitingRecords(b"rus.stays", 0))
    for number in range(50):
        view.window.move(number, number + 1, WaitingRecords(b"rus.%d" % number, 0))
        assert bob.takes_lane(view, b"rus.%d" % number)
        view.window.move(number, number + 1, None)
    assert len(bob._lanes[orders][1]) <= 8
    assert bob.lane_in(view) == b"rus.stays"


def test_the_reason_of_a_failure_is_cut_before_it_waits(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FAILURES_PER_TURN", 1)
    held_one_by_one(worker, orders, 3)
    worker.slow = True
    message = Nack(1, [(orders, 0, 3)], failed=True, reason="no" * limits.MIB)
    worker.turn(lambda: worker.step(1, MINE, 9, ADA, message))
    waiting = worker.shards[1].dispatch.holdings.failed
    assert waiting
    assert max(len(each.reason) for each in waiting) <= limits.ERROR_BYTES_MAX


def test_a_letter_that_is_replayed_after_its_record_left_does_not_close_its_key_for_good(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    def publish() -> None:
        worker.publish(orders, [b"x"], fixed={KEY_HASH: array("I", [7])})

    publish()
    worker.subscribe(ADA, orders, config=GroupOptions(mode="key_ordered"))
    bury(worker, orders, 1)
    ask(worker, PurgeTopic(orders, 1))
    ask(worker, ReplayDead(orders, "billing"))
    worker.tick(1)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    worker.taken()
    publish()
    assert worker.taken() == [(ADA.session, 1, 2, 1)]


def test_an_ack_of_what_left_and_what_is_there_opens_the_keys_of_the_latter(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    def publish(key: int) -> None:
        worker.publish(orders, [b"x"], fixed={KEY_HASH: array("I", [key])})

    for key in (1, 2):
        publish(key)
    worker.subscribe(ADA, orders, config=GroupOptions(mode="key_ordered"))
    bury(worker, orders, 2)
    ask(worker, PurgeTopic(orders, 1))
    ask(worker, ReplayDead(orders, "billing"))
    worker.tick(1)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 2)]))
    worker.taken()
    publish(2)
    assert worker.taken() == [(ADA.session, 2, 3, 1)]


def test_a_key_opens_when_its_record_is_done_though_that_left_while_it_was_held(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    def publish() -> None:
        worker.publish(orders, [b"x"], fixed={KEY_HASH: array("I", [7])})

    publish()
    worker.subscribe(ADA, orders, config=GroupOptions(mode="key_ordered"))
    bury(worker, orders, 1)
    ask(worker, ReplayDead(orders, "billing"))
    worker.tick(1)
    worker.subscribe(BOB, orders)
    worker.ask(1, ADA, Recall(1), origin=MINE)
    publish()
    ask(worker, PurgeTopic(orders, 1))
    worker.taken()
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]))
    worker.tick(1)
    assert worker.taken() == [(BOB.session, 1, 2, 1)]


def test_key_order_that_begins_while_somebody_holds_records_closes_their_keys(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    """Ada joined after SET_GROUP was accepted and before its entry was applied."""
    worker.publish(orders, [b"x"] * 4, fixed={KEY_HASH: array("I", [7, 8, 7, 9])})
    worker.subscribe(ADA, orders, records=2)
    worker.taken()
    leader = worker.shards[1]
    (group,) = leader.ledger.groups.values()
    config = msgspec.structs.replace(group.config, mode="key_ordered")
    change = payloads.GroupChange(group.topic_id, group.name, config, [], group.version)
    worker.turn(lambda: leader.desk.propose(log.GROUP, payloads.encode(change)))
    worker.subscribe(BOB, orders)
    assert worker.taken() == [(BOB.session, 3, 4, 1)]
    worker.ask(1, ADA, Ack(1, [(orders, 0, 1)]), origin=MINE)
    assert worker.taken() == [(BOB.session, 2, 3, 1)]


def test_a_number_that_goes_to_another_group_gives_back_what_it_held(
    worker: FakeWorker, orders: PartitionKey
) -> None:
    """Ada could not ack those records any more, yet her signs of life would renew their leases."""

    def subscribe(group: str) -> None:
        message = Subscribe(1, group, [Start(orders)], 3, limits.MIB, auto=True)
        worker.ask(1, ADA, message, origin=MINE)

    worker.publish(orders, [b"x"] * 3)
    worker.subscribe(BOB, orders, "first", records=0)
    subscribe("first")
    assert worker.taken() == [(ADA.session, 0, 3, 1)]
    subscribe("first")
    worker.ask(1, BOB, Credit(1, 9, limits.MIB), origin=(b"c", BOB.session))
    assert worker.taken() == [], "of the same group: it has them still"
    subscribe("second")
    assert sorted(worker.taken()) == [(ADA.session, 0, 3, 1), (BOB.session, 0, 3, 2)]
    worker.subscribe(ADA, orders, "")
    worker.ask(1, BOB, Ack(1, [(orders, 0, 3)]), origin=(b"c", BOB.session))
    assert not worker.shards[1].dispatch.holdings.holds_any(ADA.session), "nor does a reader hold any"


def test_a_record_that_failed_as_often_as_it_may_is_dead_though_another_lies_before_it_in_a_lease(
    worker: FakeWorker,
) -> None:
    orders = single(worker.topic("orders", TopicOptions(attempts_max=2, backoff_ms=[0])))
    worker.subscribe(ADA, orders, records=2)
    worker.publish(orders, [b"was given back", b"failed"])
    worker.ask(1, ADA, Nack(1, [(orders, 1, 2)], 0), origin=MINE)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], failed=False), origin=MINE)
    worker.ask(1, ADA, Credit(1, 2, limits.MIB), origin=MINE)
    worker.tick(1)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 2)]), origin=MINE)
    cursor = view_of(worker, orders).cursor
    assert [(found.first, found.end) for found in cursor.exceptions.scan()] == [(0, 1)]
    assert [(found.first, found.end) for found in cursor.dead.scan()] == [(1, 2)]


def test_what_was_cancelled_and_left_is_told_after_a_restart_as_before(
    worker: FakeWorker, orders: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        worker.publish(orders, [b"x"])
    worker.ask(1, OPERATOR, Cancel(Ref(orders, 0)))
    with monkeypatch.context() as slow:
        slow.setattr(retention.Sweeper, "sweep", lambda sweeper, rows_max: None)
        worker.ask(1, OPERATOR, PurgeTopic(orders, 1))
        worker.restart()
    worker.tick(1_000)
    answer = worker.ask(1, OPERATOR, Why(Ref(orders, 0)))
    assert isinstance(answer, Explained), answer
    assert [each.state for each in answer.standings] == ["removed"]


@pytest.mark.parametrize("code", ["topic_full", "store_full"])
def test_an_edit_needs_space_as_a_publish_does(worker: FakeWorker, code: str) -> None:
    orders = single(worker.topic("orders", TopicOptions(bytes_max=1_000)))
    worker.publish(orders, [b"x"], b"p" * 16, 1)
    if code == "store_full":
        worker.shards[1].desk.full = "the disk is full"
    size = 10 if code == "store_full" else 1_000
    # an edit without a reason
    known = bytes(batches.seal([b"y" * size], producer=b"p" * 16, sequence=1))
    effects = worker.turn(lambda: worker.step(1, MINE, 9, OPERATOR, Edit(Ref(orders, 0)), batch=known))
    (refusal,) = [message for _, _, message in effects[1].replies]
    assert isinstance(refusal, RefusedMessage)
    assert refusal.code == code
    assert worker.shards[1].ledger.partitions[orders].next == 1


def test_a_repeat_is_told_its_places_though_its_ids_are_forgotten(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders", TopicOptions(dedup_count=2)))

    def publish(sequence: int, *ids: int) -> object:
        return worker.publish(
            orders, [b"x"] * len(ids), b"p" * 16, sequence, fixed={ID_HASH: array("Q", ids)}
        )

    publish(1, 1)
    publish(2, 1, 2)
    publish(3, 3, 4)
    publish(4, 5, 6)
    publish(3, 3, 4)
    assert worker.effects[1].runs[b"c", b"p"][0][1] == [Run(2, 2, 6)]
    publish(2, 1, 2)  # the first of these duplicates an id that is forgotten by now
    assert worker.effects[1].runs[b"c", b"p"][0][1] == [Run(1, -1, 0, 0, True), Run(1, 1, 5, 1)]


def test_the_age_of_the_oldest_is_told_behind_a_letter_whose_record_left(worker: FakeWorker) -> None:
    orders = single(worker.topic("orders", TopicOptions(backoff_ms=[60_000])))
    for _ in range(2):
        worker.publish(orders, [b"x"])
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], dead="rejected"))
    worker.ask(1, ADA, Nack(1, [(orders, 1, 2)], failed=True))
    worker.ask(1, ADA, Ack(1, [(orders, 2, 3)]))
    worker.ask(1, OPERATOR, PurgeTopic(orders, 1))
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.ask(1, OPERATOR, ReplayDead(orders, "billing"))
    worker.tick(1_000)
    (row,) = counters(worker.shards[1].ledger, worker.shards[1].dispatch)[1]
    assert (row.cursor, row.oldest_ms) == (2, 1_000)
