"""Schedules of a shard: when their ticks are, and that each tick is stored once."""

from typing import Any

import msgspec
import pytest

from core.harness import WALL_MS, FakeWorker, client, single
from gossipq import limits
from gossipq.core.requests import ticks
from gossipq.core.requests.schedules import ARMED_PER_TURN, record_id
from gossipq.messages import (
    Done,
    DropSchedule,
    DropTopic,
    ListSchedules,
    RefusedMessage,
    RunSchedule,
    Schedules,
    SetSchedule,
)
from gossipq.types import ID_HASH, TTL
from gossipq.values import Schedule, ScheduleInfo
from gossipq.wire import batch as batches
from gossipq_node.adapters.calendar import CronCalendar

ADA = client("ada")
MINUTE_MS, DAY_MS = limits.MINUTE_MS, limits.DAY_MS
#: a Tuesday, 22:13:20 UTC
NOW_MS = WALL_MS


class Plan:
    """A worker with one topic of one partition."""

    def __init__(self) -> None:
        self.worker = FakeWorker()
        self.worker.settings = msgspec.structs.replace(self.worker.settings, calendar=CronCalendar())
        self.worker.restart()
        self.partition = single(self.worker.topic())

    def set(self, batch: bytes | None = None, **fields: Any) -> Any:
        sealed = bytes(batches.seal([b"report"])) if batch is None else batch
        return self.ask(SetSchedule(self.partition, Schedule("nightly", **fields)), sealed)

    def ask(self, message: Any, batch: bytes = b"") -> Any:
        origin, worker = (b"c", b"1"), self.worker
        effects = worker.turn(lambda: worker.step(1, origin, 1, ADA, message, batch=batch))
        answers = [m for each in effects.values() for _, _, m in each.replies]
        return answers[0] if answers else None

    def shown(self) -> ScheduleInfo:
        answer = self.ask(ListSchedules(self.partition))
        assert isinstance(answer, Schedules)
        return answer.rows[0]

    def stored(self) -> list[bytes]:
        """The ids of all records of the partition."""
        ledger, shard = self.worker.shards[1].ledger, self.worker.shards[1]
        found: list[bytes] = []
        for part in ledger.slices.between(self.partition, 0, ledger.partitions[self.partition].next):
            body, _ = shard.body(part[2].index)
            assert body is not None
            found += batches.Batch(body).column(batches.IDS) or [b""]
        return found

    def pass_time(self, ms: int, step_ms: int = 500) -> None:
        for _ in range(0, ms, step_ms):
            self.worker.tick(step_ms)


@pytest.fixture
def plan() -> Plan:
    return Plan()


def test_a_tick_is_one_record_with_its_time_as_id(plan: Plan) -> None:
    assert plan.set(every_ms=10_000) == Done(1)
    plan.pass_time(30_000)
    assert plan.stored() == [record_id("nightly", NOW_MS + ms) for ms in (10_000, 20_000, 30_000)]
    assert plan.stored()[0] == b"nightly/2023-11-14T22:13:30+00:00"
    shown = plan.shown()
    assert (shown.ticks, [tick.time_ms for tick in shown.last]) == (
        3,
        [NOW_MS + 10_000, NOW_MS + 20_000, NOW_MS + 30_000],
    )
    assert shown.next_ms == [NOW_MS + 10_000 * number for number in range(4, 9)]


def test_a_tick_keeps_the_columns_of_the_record(plan: Plan) -> None:
    from array import array

    batch = bytes(
        batches.seal(
            [b"report"], keys=[b"ada"], headers=[b"\x80"], route=b"eu", fixed={TTL: array("q", [5_000])}
        )
    )
    plan.set(batch, every_ms=10_000)
    plan.pass_time(10_000)
    body, _ = plan.worker.shards[1].body(plan.worker.shards[1].applied)
    assert body is not None
    found = batches.Batch(body)
    assert (found.values(), found.column(batches.KEYS), found.route) == ([b"report"], [b"ada"], b"eu")
    assert found.fixed(TTL) == array("q", [5_000])
    assert found.fixed(ID_HASH) is not None


def test_no_tick_is_early(plan: Plan) -> None:
    plan.set(cron="15 22 * * *")
    plan.pass_time(99_500)
    assert plan.stored() == []
    plan.pass_time(500)
    assert plan.stored() == [b"nightly/2023-11-14T22:15:00+00:00"]


def test_the_time_zone_of_a_cron_expression(plan: Plan) -> None:
    plan.set(cron="0 7 * * mon-fri", zone="Europe/Berlin")
    first, second = plan.shown().next_ms[:2]
    assert record_id("x", first) == b"x/2023-11-15T06:00:00+00:00"
    assert second - first == DAY_MS


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("none", []), ("last", [50]), ("all", [10, 20, 30, 40, 50])],
)
def test_ticks_of_a_time_without_a_leader(plan: Plan, missed: str, expected: list[int]) -> None:
    """The last tick is more than 10 s old when the node is back."""
    plan.set(every_ms=10_000, end_ms=NOW_MS + 60_000, missed=missed)
    plan.worker.advance(75_000)
    plan.worker.restart()
    plan.pass_time(1_000)
    assert plan.stored() == [record_id("nightly", NOW_MS + s * 1_000) for s in expected]


def test_all_missed_ticks_are_the_newest_so_many(plan: Plan) -> None:
    plan.set(every_ms=1_000, missed="all", missed_max=3)
    plan.worker.advance(3_600_000)
    plan.worker.restart()
    plan.worker.tick(0)
    assert plan.stored() == [record_id("nightly", NOW_MS + 3_600_000 - ms) for ms in (2_000, 1_000, 0)]


def test_a_restart_repeats_no_tick(plan: Plan) -> None:
    plan.set(every_ms=10_000)
    plan.pass_time(20_000)
    plan.worker.restart()
    plan.pass_time(10_000)
    assert len(plan.stored()) == len(set(plan.stored())) == 3


def test_a_refused_commit_loses_no_tick(plan: Plan) -> None:
    plan.set(every_ms=10_000)
    plan.worker.advance(10_000)
    plan.worker.turn(commit=False)
    plan.pass_time(1_000)
    assert plan.stored() == [record_id("nightly", NOW_MS + 10_000)]


def test_a_schedule_ends_after_its_count(plan: Plan) -> None:
    plan.set(every_ms=1_000, count_max=2)
    plan.pass_time(5_000)
    assert len(plan.stored()) == 2
    assert plan.shown().next_ms == []


def test_a_paused_schedule_has_no_ticks_and_misses_none(plan: Plan) -> None:
    plan.set(every_ms=10_000, missed="all")
    plan.set(b"", every_ms=10_000, missed="all", paused=True)
    plan.pass_time(60_000)
    assert plan.shown().next_ms == []
    plan.set(b"", every_ms=10_000, missed="all")
    plan.pass_time(10_000)
    assert plan.stored() == [record_id("nightly", NOW_MS + 70_000)]


def test_the_same_schedule_again_changes_nothing(plan: Plan) -> None:
    plan.set(every_ms=10_000)
    plan.worker.advance(15_000)
    assert plan.set(every_ms=10_000) == Done(0)
    plan.pass_time(1_000)
    assert len(plan.stored()) == 1


def test_a_removed_schedule_has_no_ticks(plan: Plan) -> None:
    plan.set(every_ms=10_000)
    assert plan.ask(DropSchedule(plan.partition, "nightly")) == Done(1)
    assert plan.ask(DropSchedule(plan.partition, "nightly")) == Done(0)
    plan.pass_time(30_000)
    assert plan.stored() == []
    assert plan.ask(ListSchedules(plan.partition)) == Schedules([])


def test_run_now_is_no_tick(plan: Plan) -> None:
    plan.set(every_ms=10_000, count_max=1)
    answer = plan.ask(RunSchedule(plan.partition, "nightly"))
    assert isinstance(answer, Done)
    assert answer.ref is not None
    assert answer.ref.offset == 0
    assert plan.shown().ticks == 0
    plan.pass_time(10_000)
    assert plan.stored() == [record_id("nightly", NOW_MS), record_id("nightly", NOW_MS + 10_000)]


@pytest.mark.parametrize(("overlap", "expected"), [("allow", 3), ("skip", 1), ("replace", 3)])
def test_a_tick_while_the_last_record_is_not_done(plan: Plan, overlap: str, expected: int) -> None:
    plan.worker.subscribe(ADA, plan.partition, records=0)
    plan.set(every_ms=10_000, overlap=overlap)
    plan.pass_time(30_000)
    assert len(plan.stored()) == expected
    ledger = plan.worker.shards[1].ledger
    assert [ledger.is_void(plan.partition, offset) for offset in range(expected)] == {
        "replace": [True, True, False]
    }.get(overlap, [False] * expected)
    assert [tick.offset for tick in plan.shown().last] == {"skip": [0, -1, -1]}.get(overlap, [0, 1, 2])


def test_replace_leaves_the_record_that_a_consumer_has(plan: Plan) -> None:
    plan.worker.subscribe(ADA, plan.partition)
    plan.set(every_ms=10_000, overlap="replace")
    plan.pass_time(20_000)
    assert not plan.worker.shards[1].ledger.is_void(plan.partition, 0)
    assert len(plan.stored()) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "bad_request"),
        ({"cron": "* * * * *", "every_ms": 1_000}, "bad_request"),
        ({"cron": "61 * * * *"}, "bad_request"),
        ({"cron": "* * * * * *"}, "bad_request"),
        ({"cron": "* * * * *", "zone": "Mars/Base"}, "bad_request"),
        ({"cron": "* * * * *", "zone": "../etc/passwd"}, "bad_request"),
        ({"every_ms": 999}, "bad_request"),
        ({"every_ms": 1_000, "missed": "some"}, "bad_request"),
        ({"every_ms": 1_000, "jitter_ms": 1_001}, "bad_request"),
        ({"every_ms": 1_000, "start_ms": -1}, "bad_request"),
    ],
)
def test_a_schedule_that_has_no_ticks_is_refused(plan: Plan, fields: dict[str, Any], code: str) -> None:
    answer = plan.set(**fields)
    assert isinstance(answer, RefusedMessage)
    assert answer.code == code
    assert plan.ask(ListSchedules(plan.partition)) == Schedules([])


def test_a_schedule_needs_one_record(plan: Plan) -> None:
    assert plan.set(b"", every_ms=1_000).code == "wrong_state"
    assert plan.set(bytes(batches.seal([b"a", b"b"])), every_ms=1_000).code == "bad_batch"


def test_schedules_go_with_their_topic(plan: Plan) -> None:
    plan.set(every_ms=1_000)
    plan.worker.ask(0, ADA, DropTopic("orders"))
    for _ in range(5):
        plan.worker.tick(1_000)
    state = plan.worker.tables[1].state
    assert not plan.worker.shards[1].ledger.timetable.rows
    assert not list(state.scan(b"s", b"t"))
    assert not list(state.scan(b"l", b"m"))


def test_jitter_is_the_same_for_every_leader() -> None:
    schedule = Schedule("nightly", every_ms=60_000, jitter_ms=30_000)
    waits = {ticks.jitter_ms(schedule, tick_ms) for tick_ms in range(0, 6_000_000, 60_000)}
    assert waits == {ticks.jitter_ms(schedule, tick_ms) for tick_ms in range(0, 6_000_000, 60_000)}
    assert len(waits) > 50
    assert 0 <= min(waits) <= max(waits) < 30_000


def test_a_full_disk_stops_ticks_until_there_is_space(plan: Plan) -> None:
    plan.set(every_ms=10_000)
    plan.worker.shards[1].desk.full = "the disk is full"
    plan.pass_time(30_000)
    assert plan.stored() == []
    answer = plan.ask(RunSchedule(plan.partition, "nightly"))
    assert isinstance(answer, RefusedMessage)
    assert answer.code == "store_full"
    plan.worker.shards[1].desk.full = ""
    plan.pass_time(2_000)
    assert plan.stored() == [record_id("nightly", NOW_MS + 30_000)]


def test_each_tick_of_a_jittered_schedule_comes_once(plan: Plan) -> None:
    plan.set(every_ms=10_000, jitter_ms=9_000)
    plan.pass_time(100_000)
    times = [tick.time_ms - NOW_MS for tick in plan.shown().last]
    assert times == [10_000 * number for number in range(1, len(times) + 1)]
    assert len(times) >= 9


def test_many_schedules_are_listed_in_pages(plan: Plan) -> None:
    batch = bytes(batches.seal([b"x"]))
    names = [f"job-{number:03d}" for number in range(150)]
    for name in names:
        plan.ask(SetSchedule(plan.partition, Schedule(name, every_ms=MINUTE_MS)), batch)
    first = plan.ask(ListSchedules(plan.partition))
    second = plan.ask(ListSchedules(plan.partition, first.more))
    assert [row.schedule.name for row in first.rows + second.rows] == names
    assert second.more == ""
    plan.pass_time(2 * MINUTE_MS, 1_000)
    assert len(plan.stored()) == 2 * len(names)


def test_rare_ticks_make_short_pages(plan: Plan) -> None:
    """An expression whose ticks are decades apart is slow to look up, and others wait meanwhile."""
    batch = bytes(batches.seal([b"x"]))
    names = [f"job-{number}" for number in range(9)]
    for name in names:
        plan.ask(SetSchedule(plan.partition, Schedule(name, cron="0 0 29 2 *")), batch)
    listed, more = list[str](), ""
    while True:
        page = plan.ask(ListSchedules(plan.partition, more))
        assert 1 <= len(page.rows) <= 2
        listed += [row.schedule.name for row in page.rows]
        more = page.more
        if not more:
            break
    assert listed == names
    one = plan.ask(ListSchedules(plan.partition, name="job-4"))
    assert [row.schedule.name for row in one.rows] == ["job-4"]


def test_a_new_leader_looks_at_some_schedules_in_each_turn(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the turn: a takeover with 100,000 schedules must not hold them."""
    batch = bytes(batches.seal([b"x"]))
    names = [f"job-{number:02d}" for number in range(50)]
    for name in names:
        plan.ask(SetSchedule(plan.partition, Schedule(name, cron="* * * * *")), batch)
    looked: list[int] = []
    after = CronCalendar.after
    monkeypatch.setattr(
        CronCalendar,
        "after",
        lambda calendar, *wanted: looked.append(1) or after(calendar, *wanted),
    )
    plan.worker.restart()
    before = len(looked)
    assert before <= ARMED_PER_TURN * 2
    plan.worker.tick(0)
    assert before < len(looked) <= before + ARMED_PER_TURN
    plan.pass_time(2 * MINUTE_MS, 1_000)
    assert len(plan.stored()) == 2 * len(names)
