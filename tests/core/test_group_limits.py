"""Limits of a group whose partitions have several leaders."""

from typing import Any

import pytest

from core.harness import FakeWorker, client
from gossipq import limits
from gossipq.core.delivery.limit_division import FLOOR
from gossipq.core.requests.group_limits import FORGET_MS, REPORT_MS, LimitRequests
from gossipq.messages import Ack, Credit, Done, SetGroup, Subscribe, Subscribed, Unsubscribe
from gossipq.operator_messages import DropGroup
from gossipq.types import PartitionKey, partition_key
from gossipq.values import GroupOptions, Rate, Start, TopicOptions

SHARDS = 3
ADA = client("ada")
MOST = 60


class Limited(FakeWorker):
    """A topic with a partition in each of three shards, and a consumer of each."""

    def __init__(self, **limited: Any) -> None:
        super().__init__(SHARDS + 1)
        self.info = super().topic("orders", TopicOptions(partitions=SHARDS, retain="forever"))
        self.options = GroupOptions(order="fair", **limited)
        assert sorted(self.info.shards) == [1, 2, 3]
        self.join()

    def join(self) -> None:
        for at, shard in enumerate(self.info.shards):
            asked = [Start(self.partition(at))], 10_000, limits.CREDIT_BYTES, self.options
            answer = self.say(shard, Subscribe(1, "g", *asked, gaps=True, fetches=True))
            assert isinstance(answer, Subscribed), answer

    def partition(self, at: int) -> PartitionKey:
        return partition_key(self.info.id, at)

    def say(self, shard: int, message: Any) -> Any:
        return self.ask(shard, ADA, message, 2, (b"c", ADA.session))

    def publish_at(self, at: int, count: int) -> None:
        self.publish(self.partition(at), [b"x"] * count, shard=self.info.shards[at])

    def group(self, at: int) -> Any:
        (group,) = self.shards[self.info.shards[at]].dispatch.groups.values()
        return group

    def in_flight(self) -> list[int]:
        return [self.group(at).in_flight for at in range(SHARDS)]

    def finish(self, at: int, most: int) -> int:
        """Ack records that a consumer has, and let it have as many again."""
        (view,) = self.group(at).views.values()
        held = [offset for first, end, _ in view.window.leases() for offset in range(first, end)][:most]
        if held:
            self.say(self.info.shards[at], Ack(1, [(view.partition, each, each + 1) for each in held]))
            self.say(self.info.shards[at], Credit(1, len(held), limits.MIB))
        return len(held)

    def run(self, ms: int, finish: int = 0) -> list[int]:
        """Let time pass. Each consumer finishes records every 20 ms. Returns how many in all."""
        done = [0] * SHARDS
        for _ in range(ms // 20):
            self.advance(20)
            self.turn()
            assert not self.options.concurrency or sum(self.in_flight()) <= self.options.concurrency
            for at in range(SHARDS) if finish else ():
                done[at] += self.finish(at, finish)
        return done


def test_a_leader_with_all_the_backlog_has_nearly_all_of_the_limit() -> None:
    worker = Limited(concurrency=MOST)
    worker.publish_at(1, 500)
    worker.run(500)
    assert worker.in_flight()[0] == worker.in_flight()[2] == 0
    assert worker.in_flight()[1] >= 0.95 * MOST


def test_a_shift_of_the_backlog_is_followed_within_a_second() -> None:
    worker = Limited(concurrency=MOST)
    worker.publish_at(1, 500)
    worker.run(500)
    while worker.finish(1, MOST):
        pass
    worker.publish_at(2, 500)
    worker.run(500)
    assert worker.in_flight()[2] >= 0.95 * MOST


def test_the_limit_is_divided_by_backlog() -> None:
    worker = Limited(concurrency=MOST)
    for at, count in ((0, 1_000), (1, 3_000)):
        worker.publish_at(at, count)
    worker.run(1_000, finish=2)
    found = worker.in_flight()
    assert sum(found) >= 0.95 * MOST
    assert found[1] > 1.5 * found[0] > 0


def test_a_limit_below_the_number_of_leaders_is_used_by_the_one_with_records() -> None:
    worker = Limited(concurrency=1)
    worker.publish_at(2, 10)
    worker.run(500)
    assert worker.in_flight() == [0, 0, 1]


def test_a_rate_is_used_where_records_wait_and_never_exceeded() -> None:
    worker = Limited(rate=Rate(100, 1_000, 5))
    worker.publish_at(0, 1_000)
    worker.run(1_000, finish=5)
    assert 95 * 2 <= sum(worker.run(2_000, finish=5)) <= 100 * 2 + 5
    worker.publish_at(2, 1_000)
    done = worker.run(2_000, finish=5)
    assert 95 * 2 - 5 <= sum(done) <= 100 * 2 + 5
    assert min(done[0], done[2]) > 50


def test_new_leaders_divide_what_is_left() -> None:
    worker = Limited(concurrency=MOST)
    worker.publish_at(1, 500)
    worker.run(500)
    worker.settle()
    worker.restart()
    worker.join()
    worker.publish_at(2, 500)
    worker.run(1_000)
    assert sum(worker.in_flight()) == MOST
    worker.run(1_000, finish=2)
    assert min(worker.in_flight()[1:]) > 0


def test_a_limit_changes_while_the_group_works() -> None:
    worker = Limited(concurrency=MOST)
    worker.publish_at(1, 1_000)
    worker.run(500)
    worker.options = GroupOptions(order="fair")
    for shard in worker.info.shards:
        worker.say(shard, SetGroup(worker.info.id, "g", GroupOptions(concurrency=200)))
    worker.run(1_000)
    assert worker.in_flight()[1] >= 0.95 * 200
    for shard in worker.info.shards:
        worker.say(shard, SetGroup(worker.info.id, "g", GroupOptions(concurrency=20)))
    worker.run(1_000, finish=10)
    assert sum(worker.in_flight()) <= 20
    worker.options = GroupOptions(order="fair", concurrency=20)
    worker.run(500, finish=1)
    assert worker.in_flight()[1] >= 0.9 * 20


def test_a_leader_has_its_floor_while_nobody_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Limited(concurrency=FLOOR * SHARDS * 2)
    first = worker.info.shards[0]
    told = worker.turns._told_here
    monkeypatch.setattr(
        worker.turns, "_told_here", lambda shard, message: shard == first or told(shard, message)
    )
    worker.settle()
    worker.publish_at(1, 1_000)
    worker.run(1_000)
    assert worker.in_flight()[1] >= 2


def limit_rooms(worker: Limited) -> list[LimitRequests]:
    """The limits of groups, of each leader of the topic."""
    leaders = [worker.shards[shard].leadership for shard in worker.info.shards]
    rooms = [
        each for leader in leaders if leader for each in leader._timed if isinstance(each, LimitRequests)
    ]
    assert len(rooms) == SHARDS
    return rooms


def test_groups_without_such_limits_have_no_timer() -> None:
    worker = Limited(flow_concurrency=5)
    worker.run(10 * REPORT_MS)
    for room in limit_rooms(worker):
        assert not room._feed.divided
        assert room.next_deadline() is None


def test_the_parts_of_groups_that_were_removed_are_forgotten() -> None:
    worker = Limited(concurrency=MOST)
    worker.publish_at(1, 100)
    worker.run(1_000)
    assert all(room._parts.keys() == {(worker.info.id, "g")} for room in limit_rooms(worker))
    for shard in worker.info.shards:
        worker.say(shard, Unsubscribe(1))
        assert isinstance(worker.say(shard, DropGroup(worker.info.id, "g")), Done)
    for _ in range(4 * FORGET_MS // limits.SECOND_MS):
        worker.advance(limits.SECOND_MS)
        worker.turn()
    for room in limit_rooms(worker):
        assert [room._parts, room._used, room._reported, room._divisions] == [{}] * 4
        assert room.next_deadline() is None
