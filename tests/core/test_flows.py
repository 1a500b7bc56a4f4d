"""Which record of a group is next, by priority and flow."""

import random
import sys
from array import array
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from core.harness import FakeWorker, client, counters, single
from core.test_corners import calls_of
from gossipq import limits
from gossipq.core.delivery import Part, PartitionView
from gossipq.core.delivery.flows import FlowIndex, FlowRun, flow_hash
from gossipq.messages import (
    Ack,
    Acked,
    Credit,
    Done,
    Explained,
    Nack,
    Publish,
    RefusedMessage,
    SetGroup,
    Subscribe,
    Subscribed,
    Why,
)
from gossipq.operator_messages import GroupShown, PurgeTopic, ShowGroup
from gossipq.types import FLOW_HASH, PRIORITY, PartitionKey
from gossipq.values import GroupConfig, GroupOptions, Rate, Ref, Start, TopicOptions
from gossipq.wire.batch import check, id_column, id_hash, seal

ADA = client("ada")
FAIR, BY_PRIORITY = GroupOptions(order="fair"), GroupOptions(order="priority")
Flows = list[str]


def publish(
    worker: FakeWorker,
    partition: PartitionKey,
    flows: Flows | None = None,
    priorities: list[int] | None = None,
) -> Any:
    """Publish a batch with a record for each flow or priority."""
    count, fixed, more = len(flows or priorities or ()), {}, {}
    if flows is not None:
        named = [flow.encode() for flow in flows]
        fixed[FLOW_HASH], more["flows"] = id_column(named), named
    if priorities is not None:
        fixed[PRIORITY] = array("B", priorities)
    return worker.publish(partition, [b"x"] * count, fixed=fixed, **more)


def offsets(worker: FakeWorker) -> list[int]:
    """Offsets in the order in which they were delivered since the last call."""
    return [offset for _, first, end, _ in worker.taken() for offset in range(first, end)]


def one_by_one(worker: FakeWorker, count: int) -> list[int]:
    """Offsets that a consumer gets that asks for one record at a time."""
    for _ in range(count):
        worker.ask(1, ADA, Credit(1, 1, 1_000), origin=(b"c", ADA.session))
    return offsets(worker)


def consumer(worker: FakeWorker, config: GroupOptions, records: int = 0) -> PartitionKey:
    partition = single(worker.topic(config=TopicOptions(retain="forever")))
    worker.subscribe(ADA, partition, records=records, config=config)
    return partition


def ask(worker: FakeWorker, message: Any) -> Any:
    return worker.ask(1, ADA, message, origin=(b"c", ADA.session))


class TestIndex:
    @staticmethod
    def taken(index: FlowIndex, most: int = 1_000) -> list[FlowRun]:
        found = []
        while (run := index.head()) is not None and len(found) < most:
            found.append(run)
            index.drop(run, run.end, run.end - run.first)
        return found

    def test_flows_take_turns(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair"))
        index.append(5, 1, 0, 100)
        index.append(5, 2, 100, 102)
        assert [run.first for run in self.taken(index)] == [0, 100, 1, 101, 2]

    def test_a_weight_is_the_number_of_records_in_a_turn(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair", weights={"ada": 3}))
        index.append(5, flow_hash(b"ada"), 0, 9)
        index.append(5, flow_hash(b"bob"), 10, 13)
        found = [(run.first, run.end) for run in self.taken(index)]
        assert found == [(0, 3), (10, 11), (3, 6), (11, 12), (6, 9), (12, 13)]

    def test_an_empty_flow_loses_what_it_did_not_use(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair", weights={"ada": 3}))
        ada, bob = flow_hash(b"ada"), flow_hash(b"bob")
        index.append(5, bob, 100, 200)
        for first in range(0, 40, 10):
            index.append(5, ada, first, first + 1)
            while index.head().flow != ada:  # type: ignore[union-attr]
                self.taken(index, 1)
            self.taken(index, 1)
        index.append(5, ada, 50, 60)
        while index.head().flow != ada:  # type: ignore[union-attr]
            self.taken(index, 1)
        assert index.head() == FlowRun(5, ada, 50, 53)

    def test_a_higher_priority_comes_first(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair"))
        for priority in (5, 0, 9, 7):
            index.append(priority, 1, priority, priority + 1)
        assert [run.priority for run in self.taken(index)] == [9, 7, 5, 0]

    def test_records_that_came_back_are_first_of_their_flow(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair"))
        index.append(5, 1, 10, 20)
        index.put_first(5, 1, 3, 4)
        assert [run.first for run in self.taken(index)] == [3, 10]

    def test_memory_of_a_flow(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair"))
        for at in range(100_000):
            index.append(5, id_hash(b"%d" % at), at, at + 1)
        level = index.levels[5]
        slots = sys.getsizeof(level.slots) + sum(map(sys.getsizeof, level.slots)) + 28 * len(level.slots)
        arrays = (level.flows, level.heads, level.tails, level.deficits, level.owed, level.sizes, level.turns)
        entries = (index._firsts, index._counts, index._nexts)
        assert (slots + sum(map(sys.getsizeof, (*arrays, *entries)))) / 100_000 < 200

    def test_the_places_of_what_left_are_used_again(self) -> None:
        index = FlowIndex(0, GroupConfig(order="fair"))
        for at in range(1_000):
            index.append(5, at, at, at + 1)
            self.taken(index)
        assert len(index._firsts) == len(index.levels[5].flows) == 1


class TestFetches:
    """A fetch that gets several records of each flow: it may deviate from the turns by one share."""

    @staticmethod
    def index(flows: list[int], weights: dict[str, int] | None = None) -> FlowIndex:
        """An index of records of these flows."""
        index = FlowIndex(0, GroupConfig(order="fair", weights=weights or {}))
        for flow in sorted(set(flows)):
            index.append_all(5, flow, [at for at, each in enumerate(flows) if each == flow])
        return index

    @staticmethod
    def take(index: FlowIndex, most: int) -> list[int]:
        return sorted(at for first, end in index.take(most, True) for at in range(first, end))

    def test_no_flow_is_ahead_or_behind_by_more_than_one_share(self) -> None:
        draw = random.Random(1)
        flows = [draw.randrange(20) for _ in range(10_000)]
        index, had, found = self.index(flows), Counter[int](), list[int]()
        for fetch in range(1, 41):
            some = self.take(index, 200)
            assert len(some) == 200
            found += some
            had.update(flows[at] for at in some)
            assert all(abs(had[flow] - 10 * fetch) <= 11 for flow in range(20))  # one more: it is rounded
        while index.top is not None:
            found += self.take(index, 200)
        assert sorted(found) == list(range(10_000))
        for flow in range(20):
            of_flow = [at for at in found if flows[at] == flow]
            assert of_flow == sorted(of_flow)

    def test_few_gaps_remain(self) -> None:
        draw = random.Random(2)
        flows = [draw.randrange(20) for _ in range(10_000)]
        index, gaps = self.index(flows), 0
        for _ in range(20):
            some = self.take(index, 400)
            gaps += sum(later - at > 1 for at, later in pairwise(some))
        assert gaps < 800  # of 8,000 records; in strict turns half of them are followed by a gap

    def test_a_quiet_flow_gets_all_its_records(self) -> None:
        index = self.index([1] * 1_000 + [2] * 1_000 + [3] * 10)
        assert self.take(index, 30)[-10:] == list(range(2_000, 2_010))

    def test_a_flow_far_behind_gets_its_share_from_the_second_fetch_on(self) -> None:
        index = self.index([1] * 1_000 + [2] * 1_000)
        found = [sum(at >= 1_000 for at in self.take(index, 100)) for _ in range(4)]
        assert found == [1, 49, 50, 50]

    def test_a_weight_counts(self) -> None:
        index = self.index([flow_hash(b"ada"), 1] * 3_000, {"ada": 3})
        level = index.levels[5]
        for _ in range(10):
            self.take(index, 200)
        left = {flow: level.sizes[slot] for flow, slot in level.slots.items()}
        assert abs(3_000 - left[flow_hash(b"ada")] - 1_500) <= 151
        assert sum(left.values()) == 4_000

    def test_runs_of_one_flow_are_cut(self) -> None:
        index = self.index([flow for _ in range(50) for flow in (1, 1, 1, 2, 2, 2)])
        found = [self.take(index, 40) for _ in range(7)]
        assert [len(some) for some in found] == [40] * 7
        assert sorted(at for some in found for at in some) == list(range(280))

    def test_records_that_came_back_do_not_change_the_order_of_their_flow(self) -> None:
        index = self.index([1, 2] * 100)
        index.put_first(5, 1, 500, 510)
        found = list[int]()
        while index.top is not None:
            some = [each for first, end in index.take(60, True) for each in range(first, end)]
            found += [each for each in some if each >= 500] + [each for each in some if each < 500]
        assert [each for each in found if not each % 2 or each >= 500] == [
            *range(500, 510),
            *range(0, 200, 2),
        ]
        assert len(found) == 210


def test_the_hash_is_that_of_the_column() -> None:
    assert flow_hash(b"ada") == id_hash(b"ada")
    assert flow_hash(b"") == 0


class TestFairShares:
    def test_a_quiet_flow_does_not_wait_for_one_that_floods(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["flood"] * 500)
        publish(worker, partition, ["quiet"] * 2)
        assert one_by_one(worker, 6) == [0, 500, 1, 501, 2, 3]

    def test_records_without_a_flow_are_one_flow(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        worker.publish(partition, [b"x"] * 10)
        publish(worker, partition, ["ada"])
        assert one_by_one(worker, 3) == [0, 10, 1]

    def test_priority_comes_before_fairness(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["ada", "ada", "bob", "cid"], [5, 9, 9, 5])
        assert one_by_one(worker, 4) == [1, 2, 0, 3]

    def test_each_record_is_delivered_once(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        for at in range(20):
            publish(
                worker, partition, [f"f{(at * 7 + i) % 5}" for i in range(10)], [i % 3 for i in range(10)]
            )
        assert sorted(one_by_one(worker, 220)) == list(range(200))

    def test_weights_change_while_the_group_runs(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["ada"] * 50 + ["bob"] * 50)
        assert one_by_one(worker, 4) == [0, 50, 1, 51]
        set_group(worker, partition, GroupOptions(weights={"bob": 4}))
        found = one_by_one(worker, 10)
        assert Counter(offset >= 50 for offset in found) == {True: 8, False: 2}


def set_group(worker: FakeWorker, partition: PartitionKey, options: GroupOptions) -> Any:
    return ask(worker, SetGroup(partition >> 16, "billing", options))


class TestPriority:
    def test_the_higher_one_is_first_and_equal_ones_come_by_arrival(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, BY_PRIORITY)
        publish(worker, partition, ["a", "b", "a", "b"], [1, 8, 5, 8])
        worker.publish(partition, [b"x"])  # without columns: 5
        assert one_by_one(worker, 5) == [1, 3, 2, 4, 0]

    def test_urgent_records_pass_a_backlog_far_behind_the_window(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="priority", in_flight_max=10))
        worker.publish(partition, [b"x"] * 1_000)
        publish(worker, partition, None, [9] * 3)
        assert one_by_one(worker, 5) == [1_000, 1_001, 1_002, 0, 1]

    def test_no_more_than_in_flight_max_are_in_flight(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="priority", in_flight_max=10), records=1_000)
        publish(worker, partition, None, [at % 10 for at in range(100)])
        found = offsets(worker)
        assert len(found) == 10
        assert isinstance(ask(worker, Ack(1, [(partition, found[0], found[0] + 1)])), Acked)
        worker.turn()
        assert len(offsets(worker)) == 1

    def test_a_group_may_change_its_order_while_it_runs(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions())
        publish(worker, partition, None, [1, 2, 3, 9, 4, 5])
        assert one_by_one(worker, 1) == [0]
        assert isinstance(set_group(worker, partition, BY_PRIORITY), Done)
        assert one_by_one(worker, 2) == [3, 5]
        assert isinstance(set_group(worker, partition, GroupOptions(order="arrival")), Done)
        assert one_by_one(worker, 3) == [1, 2, 4]


class TestWhatComesBack:
    def test_a_record_that_is_given_back_keeps_its_flow_and_priority(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["ada", "bob", "ada", "bob"], [5, 9, 5, 5])
        assert one_by_one(worker, 2) == [1, 0]
        ask(worker, Nack(1, [(partition, 0, 1), (partition, 1, 2)], 0, False))
        assert one_by_one(worker, 4)[0] == 1

    def test_a_retry_keeps_its_priority(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, BY_PRIORITY)
        publish(worker, partition, None, [5, 9, 5, 5])
        assert one_by_one(worker, 1) == [1]
        ask(worker, Nack(1, [(partition, 1, 2)], 1_000, True))
        assert one_by_one(worker, 1) == [0]
        worker.advance(1_001)
        worker.turn()
        assert one_by_one(worker, 3) == [1, 2, 3]

    def test_a_new_leader_serves_what_is_open_in_order(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["ada"] * 30 + ["bob"] * 30)
        found = one_by_one(worker, 10)
        ask(worker, Ack(1, [(partition, offset, offset + 1) for offset in sorted(found)]))
        worker.settle()
        worker.restart()
        worker.subscribe(ADA, partition, records=0)
        worker.taken()
        more = one_by_one(worker, 60)
        assert sorted(found + more) == list(range(60))
        assert [offset >= 30 for offset in more[:6]] in ([True, False] * 3, [False, True] * 3)

    def test_leases_survive_a_new_leader(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["ada"] * 5 + ["bob"] * 5)
        found = one_by_one(worker, 4)
        worker.settle()
        worker.restart()
        holding = [(partition, offset, offset + 1) for offset in found]
        worker.subscribe(ADA, partition, records=0, holding=holding)
        worker.taken()
        more = one_by_one(worker, 10)
        assert sorted(found + more) == list(range(10))
        lost = ask(worker, Ack(1, [(partition, offset, offset + 1) for offset in range(10)]))
        assert isinstance(lost, Acked)
        assert not lost.lost


class TestTogether:
    """Many records chosen at once: those of a batch are one part."""

    TURNS = ["ada", "bob", "cid"] * 4  # of a batch whose flows alternate

    @staticmethod
    def member(
        worker: FakeWorker, config: GroupOptions = FAIR, gaps: bool = True, **more: Any
    ) -> PartitionKey:
        partition = single(worker.topic(config=TopicOptions(retain="forever")))
        asked = Subscribe(1, "billing", [Start(partition)], 0, 0, config, gaps=gaps, **more)
        assert isinstance(ask(worker, asked), Subscribed)
        return partition

    @staticmethod
    def parts(worker: FakeWorker, records: int, size: int = 100_000) -> list[Part]:
        """The parts of one delivery."""
        worker.seen.clear()
        ask(worker, Credit(1, records, size))
        return [part for effects in worker.seen for each in effects.deliveries for part in each.parts]

    @staticmethod
    def view(worker: FakeWorker) -> PartitionView:
        (group,) = worker.shards[1].dispatch.groups.values()
        (view,) = group.views.values()
        return view

    @staticmethod
    def of(part: Part) -> list[int]:
        return [at for first, end in part.ranges or [(part.offset, part.end)] for at in range(first, end)]

    def test_a_fetch_gets_a_part_of_each_batch(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        publish(worker, partition, self.TURNS)
        publish(worker, partition, ["ada"] * 12)
        publish(worker, partition, ["eve"] * 6)
        parts = self.parts(worker, 8)
        assert [self.of(part) for part in parts] == [[0, 1, 2, 3, 4, 5], [24, 25]]
        assert [self.of(part) for part in self.parts(worker, 4)] == [[6, 7, 8], [26]]

    def test_a_part_has_gaps_and_the_records_between_come_later(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        publish(worker, partition, ["ada"] * 4 + ["bob"] * 4)
        (part,) = self.parts(worker, 4)
        assert (part.ranges, part.count, part.whole) == ([(0, 2), (4, 6)], 4, False)
        assert isinstance(ask(worker, Ack(1, [(partition, *each) for each in part.ranges])), Acked)
        (part,) = self.parts(worker, 4)
        assert part.ranges == [(2, 4), (6, 8)]
        view = self.view(worker)
        assert view.window.in_flight == 4
        assert view.cursor.state.cursor == 2

    def test_other_consumers_get_each_record_in_its_turn(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker)
        publish(worker, partition, ["ada"] * 3 + ["bob"] * 3)
        assert [self.of(part) for part in self.parts(worker, 6)] == [[0, 3], [1, 4], [2, 5]]

    def test_without_gaps_a_part_is_one_range(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, gaps=False, fetches=True)
        publish(worker, partition, ["ada"] * 3 + ["bob"] * 3)
        publish(worker, partition, self.TURNS)
        parts = self.parts(worker, 6)
        assert [self.of(part) for part in parts] == [[0, 1], [3, 4], [8], [11]]

    def test_a_higher_priority_is_a_part_of_its_own(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        publish(worker, partition, ["ada", "bob"] * 3, [5, 5, 9, 9, 5, 5])
        assert [self.of(part) for part in self.parts(worker, 6)] == [[2, 3], [0, 1, 4, 5]]

    def test_members_share_a_small_rest(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        asked = Subscribe(2, "billing", [Start(partition)], 100, 100_000, FAIR, fetches=True, gaps=True)
        ask(worker, Credit(1, 100, 100_000))
        ask(worker, asked)
        publish(worker, partition, self.TURNS)
        view = self.view(worker)
        assert Counter(lease.number for _, _, lease in view.window.leases()).keys() == {1, 2}
        held = [worker.shards[1].dispatch.holdings.held_by((ADA.session, number))[0] for number in (1, 2)]
        assert (sum(held), min(held)) == (12, 4)  # as in a group by arrival

    def test_bytes_of_credit_bound_it(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        publish(worker, partition, self.TURNS)
        (first,) = self.parts(worker, 12, 1)
        assert first.count == 1
        found = self.parts(worker, 0, 5 * first.charge)  # the first one has used more than its loan
        assert [part.count for part in found] == [4, 1]  # and so does the last one
        assert self.view(worker).window.in_flight == 6

    def test_limits_of_flows_hold(self) -> None:
        worker = FakeWorker()
        limited = GroupOptions(order="fair", flow_concurrency=2, concurrency=5)
        partition = self.member(worker, limited, fetches=True)
        publish(worker, partition, self.TURNS)
        parts = self.parts(worker, 12)
        assert sorted(at for part in parts for at in self.of(part)) == [0, 1, 2, 3, 4]
        view = self.view(worker)
        assert view.flow_limits is not None
        assert sorted(view.flow_limits.in_flight.values()) == [1, 2, 2]

    def test_expired_records_are_not_delivered(self) -> None:
        worker = FakeWorker()
        topic = worker.topic(config=TopicOptions(retain="forever", ttl_ms=1_000, expire="drop"))
        partition = single(topic)
        ask(worker, Subscribe(1, "billing", [Start(partition)], 0, 0, FAIR, gaps=True, fetches=True))
        publish(worker, partition, self.TURNS)
        worker.tick(900)
        publish(worker, partition, self.TURNS)
        worker.tick(200)
        found = [at for part in self.parts(worker, 24) for at in self.of(part)]
        assert sorted(found) == list(range(12, 24))

    def test_records_that_came_back_are_delivered_once_more(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        publish(worker, partition, self.TURNS)
        (part,) = self.parts(worker, 6)
        ask(worker, Nack(1, [(partition, part.offset, part.end)], 0, False))
        found = [at for part in self.parts(worker, 12) for at in self.of(part)]
        assert sorted(found) == list(range(12))

    def test_records_that_retention_removed_are_passed_over(self) -> None:
        worker = FakeWorker()
        partition = self.member(worker, fetches=True)
        for _ in range(3):
            publish(worker, partition, self.TURNS)
        (part,) = self.parts(worker, 3)
        ask(worker, Ack(1, [(partition, part.offset, part.end)]))
        ask(worker, PurgeTopic(partition, 36))
        publish(worker, partition, self.TURNS)
        found = [at for part in self.parts(worker, 100) for at in self.of(part)]
        assert sorted(found) == list(range(36, 48))

    def test_random_flows_cost_as_much_as_flows_in_turn(self) -> None:
        draw = random.Random(3)
        in_turn = [f"flow {at % 20}" for at in range(2_000)]
        by_chance = [f"flow {draw.randrange(20)}" for _ in range(2_000)]
        costs = []
        for flows in (in_turn, by_chance):
            worker = FakeWorker()
            partition = self.member(worker, fetches=True)
            publish(worker, partition, flows)
            costs.append(calls_of(lambda: self.finish(worker, partition, 800)))  # noqa: B023
        assert costs[1] < 2 * costs[0]

    def finish(self, worker: FakeWorker, partition: PartitionKey, records: int) -> None:
        """Deliver the backlog, so many records at a time, and ack it."""
        while parts := self.parts(worker, records, limits.MIB):
            ranges = [each for part in parts for each in part.ranges or [(part.offset, part.end)]]
            assert isinstance(ask(worker, Ack(1, [(partition, *each) for each in ranges])), Acked)


class TestPolicy:
    @pytest.mark.parametrize(
        "options",
        [
            GroupOptions(order="random"),
            GroupOptions(order="fair", mode="exclusive"),
            GroupOptions(order="priority", mode="key_ordered"),
            GroupOptions(order="fair", weights={"ada": 0}),
            GroupOptions(order="fair", weights={"ada": limits.FLOW_WEIGHT_MAX + 1}),
            GroupOptions(order="fair", weights={"x" * (limits.FLOW_BYTES_MAX + 1): 1}),
        ],
    )
    def test_what_is_refused(self, options: GroupOptions) -> None:
        worker = FakeWorker()
        partition = single(worker.topic())
        answer = worker.subscribe(ADA, partition, config=options)
        assert isinstance(answer, RefusedMessage)
        assert answer.code == "bad_request"

    def test_it_is_shown(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", weights={"ada": 3}))
        shown = ask(worker, ShowGroup(partition >> 16, "billing"))
        assert isinstance(shown, GroupShown)
        assert {("order", "fair", "group"), ("weights", "ada=3", "group")} <= set(map(tuple, shown.policy))

    def test_a_group_by_arrival_has_no_index(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions())
        (group,) = worker.shards[1].dispatch.groups.values()
        assert group.views[partition].flows is None
        assert group.views[partition].window.came is None


class TestWhy:
    @staticmethod
    def explained(worker: FakeWorker, partition: PartitionKey, offset: int) -> tuple[str, list[str]]:
        worker.subscribe(client("bob"), partition, records=0, number=2)
        found = ask(worker, Why(Ref(partition, offset)))
        assert isinstance(found, Explained)
        return found.standings[0].because, found.lines

    @staticmethod
    def next_step(worker: FakeWorker, partition: PartitionKey, offset: int) -> str:
        found = ask(worker, Why(Ref(partition, offset)))
        assert isinstance(found, Explained)
        return found.standings[0].next

    def test_it_names_flow_and_priority(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", in_flight_max=1), records=1)
        publish(worker, partition, ["ada", "ada", "bob"], [9, 9, 4])
        because, lines = self.explained(worker, partition, 2)
        assert lines[:2] == ["flow bob", "priority 4"]
        assert because


class TestConcurrency:
    def test_no_more_of_a_flow_are_in_flight(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_concurrency=2), records=1_000)
        publish(worker, partition, ["ada"] * 10 + ["bob"] * 10)
        assert sorted(offsets(worker)) == [0, 1, 10, 11]
        ask(worker, Ack(1, [(partition, 0, 1)]))
        worker.turn()
        assert offsets(worker) == [2]

    def test_a_retry_frees_its_slot(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_concurrency=1), records=1_000)
        publish(worker, partition, ["ada"] * 3)
        assert offsets(worker) == [0]
        ask(worker, Nack(1, [(partition, 0, 1)], 60_000, True))
        worker.turn()
        assert offsets(worker) == [1]

    def test_a_lease_that_ends_frees_its_slot(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_concurrency=1, lease_ms=1_000), 1)
        publish(worker, partition, ["ada"] * 3)
        assert offsets(worker) == [0]
        worker.tick(1_001)
        assert one_by_one(worker, 1) == [0]

    def test_no_more_of_the_group_are_in_flight(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="priority", concurrency=3), records=1_000)
        publish(worker, partition, None, [1, 2, 3, 4, 5])
        found = offsets(worker)
        assert found == [4, 3, 2]
        ask(worker, Ack(1, [(partition, 2, 4)]))
        worker.turn()
        assert offsets(worker) == [1, 0]

    def test_slots_follow_from_the_leases_that_a_new_leader_finds(self) -> None:
        worker = FakeWorker()
        options = GroupOptions(order="fair", flow_concurrency=2)
        partition = consumer(worker, options, records=1_000)
        publish(worker, partition, ["ada"] * 10)
        assert len(offsets(worker)) == 2
        worker.settle()
        worker.restart()
        worker.subscribe(client("bob"), partition, records=1_000)
        assert offsets(worker) == []
        worker.end_session(ADA.session)
        worker.turn(lambda: worker.end_session(ADA.session))
        assert len(offsets(worker)) <= 2
        (group,) = worker.shards[1].dispatch.groups.values()
        view = group.views[partition]
        assert view.flow_limits is not None
        assert sum(view.flow_limits.in_flight.values()) == view.window.in_flight <= 2

    def test_it_ends_while_the_group_runs(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_concurrency=1), records=1_000)
        publish(worker, partition, ["ada"] * 5)
        assert offsets(worker) == [0]
        set_group(worker, partition, GroupOptions(flow_concurrency=0))
        worker.turn()
        assert offsets(worker) == [1, 2, 3, 4]


class TestRate:
    @staticmethod
    def counts(worker: FakeWorker, seconds: int, step_ms: int = 50) -> list[int]:
        """Deliveries in each second."""
        found = []
        for _ in range(seconds):
            for _ in range(1_000 // step_ms):
                worker.tick(step_ms)
            found.append(len(offsets(worker)))
        return found

    def test_a_flow_is_slowed_down_and_others_are_not(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_rate=Rate(10)), records=1_000)
        publish(worker, partition, ["ada"] * 100)
        assert self.counts(worker, 3) == [11, 10, 10]
        publish(worker, partition, ["bob"])
        assert 100 in offsets(worker)

    def test_a_burst_comes_at_once(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_rate=Rate(10, 1_000, 20)), records=1_000)
        publish(worker, partition, ["ada"] * 100)
        assert len(offsets(worker)) == 20
        assert self.counts(worker, 2) == [10, 10]

    def test_the_group_as_a_whole(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="priority", rate=Rate(20)), records=1_000)
        publish(worker, partition, None, [at % 10 for at in range(100)])
        assert self.counts(worker, 3) == [22, 20, 20]

    def test_no_rate_is_exceeded_after_a_takeover(self) -> None:
        worker = FakeWorker()
        options = GroupOptions(order="fair", flow_rate=Rate(10, 1_000, 10), rate=Rate(10, 1_000, 10))
        partition = consumer(worker, options, records=1_000)
        publish(worker, partition, ["ada"] * 100)
        assert len(offsets(worker)) == 10
        worker.settle()
        worker.restart()
        worker.subscribe(client("bob"), partition, records=1_000)
        assert len(offsets(worker)) <= 1
        assert self.counts(worker, 2) == [10, 10]

    def test_ready_records_are_counted_by_what_they_wait_for(self) -> None:
        worker = FakeWorker()
        options = GroupOptions(order="fair", flow_rate=Rate(1), flow_concurrency=5)
        partition = consumer(worker, options, records=1_000)
        publish(worker, partition, ["ada"] * 10)
        shard = worker.shards[1]
        (row,) = counters(shard.ledger, shard.dispatch)[1]
        assert (row.ready, row.behind_limit, row.behind_rate) == (9, 0, 9)
        set_group(worker, partition, GroupOptions(flow_rate=Rate(), flow_concurrency=1))
        worker.turn()
        (row,) = counters(shard.ledger, shard.dispatch)[1]
        assert (row.ready, row.behind_limit, row.behind_rate) == (9, 9, 0)

    def test_why_names_the_limit(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_rate=Rate(1)), records=1_000)
        publish(worker, partition, ["ada"] * 10)
        because, _ = TestWhy.explained(worker, partition, 5)
        assert because == "it waits for the rate of flow ada, 1 s"
        assert TestWhy.next_step(worker, partition, 5) == "gossipq group set orders billing --flow-rate none"
        set_group(worker, partition, GroupOptions(flow_rate=Rate(), flow_concurrency=1))
        worker.turn()
        because, _ = TestWhy.explained(worker, partition, 5)
        assert because == "flow ada is at its limit of 1 record in flight, at ada"
        step = TestWhy.next_step(worker, partition, 5)
        assert step == "gossipq group set orders billing --flow-concurrency 0"
        set_group(worker, partition, GroupOptions(flow_concurrency=0))
        worker.turn()
        assert "limit" not in TestWhy.explained(worker, partition, 5)[0]


class TestBacklog:
    def test_a_publish_beyond_it_is_refused(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=3))
        publish(worker, partition, ["ada"] * 2)
        refused = publish(worker, partition, ["bob", "ada", "ada"])
        assert isinstance(refused, RefusedMessage)
        assert refused.code == "flow_full"
        assert refused.message == (
            "flow ada has 2 records waiting in group billing, and 2 more would pass its flow_backlog of 3"
        )
        assert "gossipq group set orders billing --flow-backlog 6" in refused.hint
        assert not isinstance(publish(worker, partition, ["ada", "bob", "bob", "bob"]), RefusedMessage)
        assert worker.shards[1].ledger.partitions[partition].next == 6

    def test_delivered_records_make_room(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=3))
        publish(worker, partition, ["ada"] * 3)
        assert isinstance(publish(worker, partition, ["ada"]), RefusedMessage)
        assert one_by_one(worker, 1) == [0]
        assert not isinstance(publish(worker, partition, ["ada"]), RefusedMessage)
        ask(worker, Nack(1, [(partition, 0, 1)], 0, False))
        worker.turn()
        assert isinstance(publish(worker, partition, ["ada"]), RefusedMessage)

    def test_records_of_all_priorities_count(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=3))
        publish(worker, partition, ["ada"] * 3, [9, 5, 0])
        assert isinstance(publish(worker, partition, ["ada"]), RefusedMessage)

    def test_records_without_a_flow_have_no_bound(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=1))
        worker.publish(partition, [b"x"] * 10)
        assert not isinstance(publish(worker, partition, ["", "", "ada"]), RefusedMessage)

    def test_publishes_that_are_not_applied_count(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=3))
        batch = bytes(seal([b"x"] * 2, fixed={FLOW_HASH: id_column([b"ada"] * 2)}, flows=[b"ada"] * 2))

        def send(number: int) -> None:
            worker.take(1, (b"c", b"p"), number, None, Publish(partition), check(batch), batch)

        worker.turn(lambda: send(1), lambda: send(2))
        assert worker.shards[1].ledger.partitions[partition].next == 2

    def test_a_repeat_is_answered(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=2))
        columns = {"fixed": {FLOW_HASH: id_column([b"ada"] * 2)}, "flows": [b"ada"] * 2}
        first = worker.publish(partition, [b"x"] * 2, b"p" * 16, 1, **columns)
        again = worker.publish(partition, [b"x"] * 2, b"p" * 16, 1, **columns)
        assert not isinstance(first, RefusedMessage)
        assert not isinstance(again, RefusedMessage)

    def test_records_that_left_do_not_count(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=3))
        publish(worker, partition, ["ada", "bob", "ada", "ada"])
        assert isinstance(publish(worker, partition, ["ada"]), RefusedMessage)
        ask(worker, PurgeTopic(partition, 4))
        worker.turn()
        assert not isinstance(publish(worker, partition, ["ada"] * 3), RefusedMessage)
        assert isinstance(publish(worker, partition, ["ada"]), RefusedMessage)
        assert one_by_one(worker, 10) == [4, 5, 6]

    def test_it_holds_for_a_group_without_consumers_and_a_new_leader(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_backlog=3))
        publish(worker, partition, ["ada"] * 3)
        worker.settle()
        worker.end_session(ADA.session)
        worker.restart()
        assert isinstance(publish(worker, partition, ["ada"]), RefusedMessage)
        assert not isinstance(publish(worker, partition, ["bob"]), RefusedMessage)


class TestAging:
    @staticmethod
    def aging(order: str = "priority") -> tuple[FakeWorker, PartitionKey]:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order=order, age_after_ms=1_600))
        publish(worker, partition, None, [0] * 40)
        publish(worker, partition, None, [9] * 400)
        return worker, partition

    def test_old_records_get_one_of_ten_deliveries(self) -> None:
        worker, _ = self.aging()
        assert min(one_by_one(worker, 30)) >= 40
        worker.advance(2_000)
        old = [at for at, offset in enumerate(one_by_one(worker, 30)) if offset < 40]
        assert [later - at for at, later in pairwise(old)] == [10, 10]

    def test_a_large_part_is_followed_by_as_many_old_ones(self) -> None:
        worker, _ = self.aging()
        worker.advance(2_000)
        for _ in range(2):
            worker.ask(1, ADA, Credit(1, 180, 100_000), origin=(b"c", ADA.session))
        assert sum(offset < 40 for offset in offsets(worker)) == 20

    def test_young_records_of_a_lower_priority_wait(self) -> None:
        worker, partition = self.aging()
        worker.advance(2_000)
        one_by_one(worker, 400)
        publish(worker, partition, None, [9] * 100 + [0] * 10)
        assert min(one_by_one(worker, 50)) >= 40

    def test_ages_survive_a_new_leader(self) -> None:
        worker, partition = self.aging()
        worker.advance(2_000)
        worker.settle()
        worker.restart()
        worker.subscribe(ADA, partition, records=0)
        worker.taken()
        assert sum(offset < 40 for offset in one_by_one(worker, 50)) == 5

    def test_why_says_it(self) -> None:
        worker, partition = self.aging()
        one_by_one(worker, 1)
        because, _ = TestWhy.explained(worker, partition, 3)
        assert because.endswith("; its priority is 0, and records of priority 9 come first")
        worker.advance(2_000)
        because, _ = TestWhy.explained(worker, partition, 3)
        assert because.endswith("come first, but one of 10, since some of its priority wait too long")


class TestPause:
    @staticmethod
    def paused(worker: FakeWorker, options: GroupOptions = FAIR) -> PartitionKey:
        """A consumer has the first record of ada, and lets its flow wait for 10 s."""
        partition = consumer(worker, options)
        publish(worker, partition, ["ada", "ada", "bob", "ada"])
        assert one_by_one(worker, 1) == [0]
        nack = Nack(1, [(partition, 0, 1)], 10_000, False, "429", pause_flow=True)
        assert isinstance(ask(worker, nack), Acked)
        return partition

    def test_a_flow_waits_as_a_whole(self) -> None:
        worker = FakeWorker()
        partition = self.paused(worker)
        assert one_by_one(worker, 4) == [2]
        publish(worker, partition, ["ada", "bob"])
        worker.turn()
        assert offsets(worker) == [5]
        worker.tick(9_000)
        assert offsets(worker) == []
        worker.tick(1_500)
        assert sorted(one_by_one(worker, 4)) == [0, 1, 3, 4]

    def test_no_failure_is_counted(self) -> None:
        worker = FakeWorker()
        self.paused(worker, GroupOptions(order="fair", attempts_max=1))
        worker.tick(10_500)
        assert 0 in one_by_one(worker, 4)

    def test_a_new_leader_keeps_it(self) -> None:
        worker = FakeWorker()
        partition = self.paused(worker)
        worker.settle()
        worker.restart()
        worker.subscribe(ADA, partition, records=0)
        worker.taken()
        assert one_by_one(worker, 4) == [2]
        worker.tick(11_000)
        assert sorted(offsets(worker)) == [0, 1, 3]

    def test_it_holds_while_limits_change(self) -> None:
        worker = FakeWorker()
        partition = self.paused(worker, GroupOptions(order="fair", flow_concurrency=2))
        set_group(worker, partition, GroupOptions(flow_concurrency=0, flow_rate=Rate(100)))
        assert one_by_one(worker, 4) == [2]
        worker.tick(11_000)
        assert sorted(offsets(worker)) == [0, 1, 3]

    def test_a_longer_pause_stays(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR)
        publish(worker, partition, ["ada"] * 3)
        assert one_by_one(worker, 2) == [0, 1]
        for offset, delay_ms in ((0, 20_000), (1, 1_000)):
            ask(worker, Nack(1, [(partition, offset, offset + 1)], delay_ms, False, pause_flow=True))
        worker.tick(15_000)
        assert one_by_one(worker, 3) == []
        worker.tick(6_000)
        assert sorted(offsets(worker)) == [0, 1, 2]

    def test_in_other_orders_only_the_record_waits(self) -> None:
        worker = FakeWorker()
        self.paused(worker, BY_PRIORITY)
        assert sorted(one_by_one(worker, 4)) == [1, 2, 3]

    def test_why_says_it(self) -> None:
        worker = FakeWorker()
        partition = self.paused(worker)
        because, _ = TestWhy.explained(worker, partition, 1)
        assert because == "flow ada is paused for another 10 s by ada: 429"

    def test_a_pause_needs_a_time(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, FAIR, records=1)
        publish(worker, partition, ["ada"])
        answer = ask(worker, Nack(1, [(partition, 0, 1)], -1, False, pause_flow=True))
        assert isinstance(answer, RefusedMessage)

    def test_the_ledger_forgets_pauses_that_are_over(self) -> None:
        worker = FakeWorker()
        partition = self.paused(worker)
        worker.tick(11_000)
        one_by_one(worker, 4)
        ask(worker, Nack(1, [(partition, 2, 3)], 1_000, False, pause_flow=True))
        cursor = next(iter(worker.shards[1].ledger.cursors[partition].values()))
        assert list(cursor.pauses) == [flow_hash(b"bob")]


class TestBusyFlows:
    def test_the_busiest_and_the_most_delayed_are_listed(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, GroupOptions(order="fair", flow_concurrency=1))
        publish(worker, partition, ["old"])
        worker.advance(5_000)
        publish(worker, partition, ["big"] * 30 + ["mid"] * 20 + ["new"] * 2, [9] * 10 + [5] * 42)
        publish(worker, partition, None, [5])
        assert len(one_by_one(worker, 1)) == 1
        worker.turn()
        shown = ask(worker, ShowGroup(partition >> 16, "billing", 2))
        assert isinstance(shown, GroupShown)
        assert [(row.flow, row.waiting) for row in shown.flows] == [("big", 29), ("mid", 20), ("old", 1)]
        big, _, old = shown.flows
        assert (big.in_flight, big.waits_for, big.oldest_ms < 5_000 <= old.oldest_ms) == (1, "limit", True)
        assert ask(worker, ShowGroup(partition >> 16, "billing")).flows == []

    def test_other_orders_have_no_flows(self) -> None:
        worker = FakeWorker()
        partition = consumer(worker, BY_PRIORITY)
        publish(worker, partition, ["ada"])
        assert ask(worker, ShowGroup(partition >> 16, "billing", 2)).flows == []


@pytest.mark.parametrize(
    "options",
    [
        GroupOptions(flow_concurrency=1),
        GroupOptions(order="priority", flow_rate=Rate(1)),
        GroupOptions(concurrency=1),
        GroupOptions(rate=Rate(1)),
        GroupOptions(order="fair", rate=Rate(1, 0)),
        GroupOptions(order="fair", rate=Rate(-1)),
        GroupOptions(order="fair", concurrency=-1),
        GroupOptions(order="priority", flow_backlog=1),
        GroupOptions(order="fair", flow_backlog=-1),
        GroupOptions(age_after_ms=1),
        GroupOptions(order="priority", age_after_ms=-1),
    ],
)
def test_limits_that_are_refused(options: GroupOptions) -> None:
    worker = FakeWorker()
    answer = worker.subscribe(ADA, single(worker.topic()), config=options)
    assert isinstance(answer, RefusedMessage)
    assert answer.code == "bad_request"
