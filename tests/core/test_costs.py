"""Each record of a large message costs as much as a record of a small one; the same holds for
many messages in one turn.
"""

from array import array
from collections.abc import Callable

import msgspec
import pytest

from core.harness import FakeWorker, client, single
from core.places import reopened
from core.test_corners import calls_of, view_of
from gossipq import limits
from gossipq.core.delivery.settlement import apart
from gossipq.core.ledger.acks import AckRows, page_of
from gossipq.core.ledger.exceptions import Exceptions
from gossipq.core.ledger.records import AckRow, ExceptionRow
from gossipq.core.storage import Intervals, log, payloads
from gossipq.core.storage.tables import MemoryTable
from gossipq.messages import (
    Ack,
    Acked,
    Credit,
    GroupExplained,
    Nack,
    Started,
    Subscribe,
    Unsubscribe,
    WhyGroup,
)
from gossipq.operator_messages import SeekGroup, Sought
from gossipq.types import KEY_HASH, PartitionKey, topic_id_of
from gossipq.values import GroupOptions, Range, SoughtRow, Start

ADA, BOB, CARL = client("ada"), client("bob"), client("carl")
MINE = (b"c", ADA.session)


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


def holding(count: int, published: int) -> tuple[FakeWorker, PartitionKey]:
    """A batch whose first records Ada holds."""
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.publish(orders, [b"x"] * published)
    worker.subscribe(ADA, orders, records=count)
    return worker, orders


def each(partition: PartitionKey, first: int, end: int, step: int = 1) -> list[Range]:
    return [(partition, offset, offset + 1) for offset in range(first, end, step)]


def cost_of_acks_of_what_nobody_had(count: int, requests: int) -> int:
    """Ada acks every other record that she holds, and as many that nobody holds, in one
    turn of `requests` requests.
    """
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
    """The cost of an ack of two records that wait for another attempt, with
    `between` more of them in between.
    """
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


def cost_of_every_other_record(of_page: int) -> int:
    """The cost of acks of every other record of a page."""
    acks = AckRows(MemoryTable(), 2, 1)
    runs = [(first, AckRow(first + 1, first, "ada", first)) for first in range(of_page)]
    acks.put(0, page_of(runs))
    found = []

    def ask() -> None:
        for first in range(0, of_page, 2):
            found.extend(acks.within(first, first + 1))

    cost = calls_of(ask)
    assert found == runs[::2]
    return cost


def test_records_of_a_page_of_acks_do_not_cost_the_page_each() -> None:
    assert cost_of_every_other_record(1_000) < 5 * cost_of_every_other_record(250)


def test_what_is_asked_of_one_partition_comes_together_and_no_record_twice() -> None:
    rising = [(2, 0, 1), (2, 1, 3), (1, 5, 6)]
    assert apart(rising) is rising
    assert apart([(1, 0, 1), (2, 0, 1), (1, 2, 3)]) == [(1, 0, 1), (1, 2, 3), (2, 0, 1)]
    assert apart([(1, 0, 2), (1, 1, 3)]) == [(1, 0, 3)]


def from_the_ends(orders: PartitionKey, count: int) -> list[list[Range]]:
    """`count` pairs of records; each pair encloses all later pairs."""
    return [each(orders, low, 2 * count - low, 2 * (count - low) - 1) for low in range(count)]


def begin(worker: FakeWorker, pairs: list[list[Range]]) -> None:
    """Ada's handlers begin, pair by pair, so that each pair has a lease."""
    worker.turn(*[lambda pair=pair: worker.step(1, MINE, 0, ADA, Started(1, pair)) for pair in pairs])
    worker.settle()


def leases_logged(worker: FakeWorker) -> int:
    """The number of rows in the last LEASE entry."""
    stored = worker.disk[1].log
    entries = [log.decode_row(int.from_bytes(key, "big"), stored.rows[key]) for key in stored.keys]
    *_, last = [entry.payload for entry in entries if entry.kind == log.LEASE]
    return len(msgspec.msgpack.decode(last, type=payloads.LeaseRows).rows)


def test_leases_that_reach_over_each_other_are_logged_once_each() -> None:
    costs = []
    for count in (50, 200):
        worker, orders = holding(2 * count, 2 * count)
        worker.settle()
        costs.append(calls_of(lambda: begin(worker, from_the_ends(orders, count))))  # noqa: B023
        assert leases_logged(worker) == count
    few, many = costs
    assert many < 5 * few


def test_a_lease_is_logged_without_those_that_lie_between_its_records() -> None:
    worker, orders = holding(100, 100)
    outermost, *others = from_the_ends(orders, 50)
    begin(worker, others)
    begin(worker, [outermost])
    assert leases_logged(worker) == 1


def test_leases_that_reach_over_each_other_last_longer_at_the_cost_of_each() -> None:
    costs = []
    for count in (50, 200):
        worker, orders = holding(2 * count, 2 * count)
        message = Subscribe(1, "billing", [Start(orders)], 0, 0, holding=[(orders, 0, 2 * count)], auto=True)
        worker.ask(1, ADA, message, origin=MINE)
        begin(worker, from_the_ends(orders, count))
        worker.advance(limits.LEASE_MS * 3 // 4)
        worker.turn(lambda: worker.shards[1].dispatch.renew(ADA.session, worker.now.boot_ms))  # noqa: B023
        costs.append(calls_of(worker.settle))
        assert leases_logged(worker) == count
    few, many = costs
    assert many < 5 * few


def end_of_the_session(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.turn(lambda: worker.end_session(ADA.session))


def end_of_the_leases(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.tick(limits.LEASE_MS)


def claim_of_others(worker: FakeWorker, orders: PartitionKey) -> None:
    worker.subscribe(ADA, orders, records=0, holding=[(orders, 2_000, 2_001)])


@pytest.mark.parametrize("end", [end_of_the_session, end_of_the_leases, claim_of_others])
def test_leases_that_reach_over_each_other_end_at_the_cost_of_each(
    end: Callable[[FakeWorker, PartitionKey], None],
) -> None:
    costs = []
    for count in (50, 200):
        worker, orders = holding(2 * count, 2 * count)
        begin(worker, from_the_ends(orders, count))
        costs.append(calls_of(lambda: end(worker, orders)))  # noqa: B023
        view = view_of(worker, orders)
        assert not list(view.window.leases()), "they have ended"
    few, many = costs
    assert many < 5 * few


def one_key_for_two(count: int, options: GroupOptions) -> tuple[FakeWorker, PartitionKey]:
    """Ada holds the first of `count` records of one key, and Bob grants credit, too."""
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.publish(orders, [b"x"] * count, fixed={KEY_HASH: array("I", [7] * count)})
    for who in (ADA, BOB):
        worker.subscribe(who, orders, records=1, config=options)
    worker.turn()
    return worker, orders


def cost_of_the_next_of_a_key(count: int) -> int:
    worker, orders = one_key_for_two(count, GroupOptions(mode="key_ordered"))
    worker.taken()

    def next_one() -> None:
        worker.turn(
            lambda: worker.step(1, MINE, 1, ADA, Ack(1, each(orders, 0, 1))),
            lambda: worker.step(1, MINE, 0, ADA, Credit(1, 1, limits.MIB)),
        )

    cost = calls_of(next_one)
    ((_, first, end, _),) = [
        (delivery.origin[1], part.offset, part.end, part.attempt)
        for delivery in worker.effects[1].deliveries
        for part in delivery.parts
    ]
    assert (first, end) == (1, 2)
    return cost


def test_the_next_record_of_a_key_costs_the_same_however_many_wait_behind_it() -> None:
    few, many = cost_of_the_next_of_a_key(100), cost_of_the_next_of_a_key(1_000)
    assert many < 3 * few


def cost_of_the_next_of_two_hot_keys(count: int) -> int:
    """Ada and Bob each hold a record of one key. Carl grants credit
    too, but both keys are taken.
    """
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.publish(orders, [b"x"] * count, fixed={KEY_HASH: array("I", [7, 9] * (count // 2))})
    for who in (ADA, BOB, CARL):
        worker.subscribe(who, orders, records=1, config=GroupOptions(mode="key_ordered"))
    worker.turn()
    view, leaders = view_of(worker, orders), {who.session: who for who in (ADA, BOB, CARL)}

    def next_ones() -> None:
        for _ in range(4):
            first, end, who = next(
                (low, high, leaders[each.session]) for low, high, each in view.window.leases()
            )
            origin = b"c", who.session
            worker.turn(
                lambda: worker.step(1, origin, 1, who, Ack(1, each(orders, first, end))),  # noqa: B023
                lambda: worker.step(1, origin, 0, who, Credit(1, 1, limits.MIB)),  # noqa: B023
            )

    cost = calls_of(next_ones)
    assert [(low, high) for low, high, _ in view.window.leases()] == [(4, 5), (5, 6)]
    return cost


def test_nor_does_it_when_others_look_at_what_waits_behind_two_keys() -> None:
    few, many = cost_of_the_next_of_two_hot_keys(200), cost_of_the_next_of_two_hot_keys(2_000)
    assert many < 2 * few


def test_a_group_whose_key_is_free_waits_for_credit_and_not_for_the_key() -> None:
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.publish(orders, [b"x"] * 400, fixed={KEY_HASH: array("I", [7, 9] * 200)})
    for who in (ADA, BOB, CARL):
        worker.subscribe(who, orders, records=1, config=GroupOptions(mode="key_ordered"))
    worker.turn()
    worker.step(1, (b"c", CARL.session), 2, CARL, Unsubscribe(1))
    for at, who in enumerate((ADA, BOB)):
        worker.ask(1, who, Ack(1, each(orders, at, at + 1)), origin=(b"c", who.session))
    worker.turn()
    assert view_of(worker, orders).window.lanes.total(), "some of it still waits behind the first of its key"
    answer = worker.ask(1, ADA, WhyGroup("billing", [orders]))
    assert isinstance(answer, GroupExplained)
    assert answer.rows[0][1] == "no credit"


def test_of_a_run_of_a_key_as_many_are_parked_as_may_be() -> None:
    worker, orders = one_key_for_two(30, GroupOptions(mode="key_ordered", in_flight_max=20, parked_max=5))
    view = view_of(worker, orders)
    assert view.cursor.state.parked == 5
    for first in range(30):
        who = next(lease.session for _, _, lease in view.window.leases())
        assert [(low, end) for low, end, lease in view.window.leases()] == [(first, first + 1)]
        asker = ADA if who == ADA.session else BOB
        worker.ask(1, asker, Ack(1, each(orders, first, first + 1)), origin=(b"c", who))
        worker.ask(1, asker, Credit(1, 1, limits.MIB), origin=(b"c", who))
        worker.turn()
    assert view.cursor.state.cursor == 30


def test_why_a_group_stands_still_goes_over_none_of_its_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, orders = holding(100, 100)
    worker.ask(1, ADA, Ack(1, each(orders, 1, 100, 2)))
    looked_at, missing = list[int](), Intervals.missing

    def counted(intervals: Intervals, first: int, end: int) -> list[tuple[int, int]]:
        found = missing(intervals, first, end)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(Intervals, "missing", counted)
    answer = worker.ask(1, ADA, WhyGroup("billing", [orders]))
    assert isinstance(answer, GroupExplained)
    assert answer.rows[0][1] == "working"
    assert max(looked_at, default=0) <= 1


def cost_of_a_takeover(parked: int) -> int:
    """The cost of a takeover of a group whose consumer holds all of five keys, while `parked`
    records of these keys wait on disk.
    """
    worker, config = FakeWorker(), GroupOptions(mode="key_ordered", in_flight_max=20)
    orders = single(worker.topic())
    worker.subscribe(ADA, orders, records=5, config=config)
    hashes = array("I", [1 + number % 5 for number in range(parked + 5)])
    worker.publish(orders, [b"x"] * len(hashes), fixed={KEY_HASH: hashes})
    worker.subscribe(BOB, orders, records=parked, config=config)
    view = view_of(worker, orders)
    assert view.cursor.state.parked >= parked - 20
    cost = calls_of(lambda: reopened(worker.shards[1]))
    assert view.keys is not None
    assert dict(view.keys.on_disk) == {key_hash: 4 + key_hash for key_hash in range(1, 6)}
    return cost


def test_a_takeover_costs_for_each_key_behind_which_records_are_parked_and_not_for_each_record() -> None:
    assert cost_of_a_takeover(800) < 2 * cost_of_a_takeover(100)


def cost_of_a_seek(failed: int, kind: str) -> int:
    """The cost of a seek of a group with `failed` records that wait for another attempt,
    each in a row of its own.
    """
    worker, orders = holding(failed, failed)
    for first in range(failed):
        worker.ask(1, ADA, Nack(1, [(orders, first, first + 1)]))
    worker.ask(1, ADA, Unsubscribe(1))
    topic_id, starts = topic_id_of(orders), [Start(orders, kind)]
    found = []
    seek = SeekGroup(topic_id, "billing", starts, dry_run=True)
    cost = calls_of(lambda: found.append(worker.ask(1, BOB, seek)))
    skipped = failed if kind == "new" else 0
    assert found == [Sought([SoughtRow(orders, failed, skipped, 0, skipped)])]
    return cost


@pytest.mark.parametrize("kind", ["first", "new"])
def test_a_group_is_moved_to_an_end_at_the_same_cost_however_many_records_wait(kind: str) -> None:
    assert cost_of_a_seek(200, kind) < 1.5 * cost_of_a_seek(20, kind)
