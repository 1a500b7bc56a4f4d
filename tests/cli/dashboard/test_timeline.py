"""Rows of growth on an axis of time: gaps, the step in which now is, what only snapshots and events know
yet."""

import pytest

from gossipq.limits import HOUR_MS, MINUTE_MS
from gossipq_cli.dashboard.timeline import Axis, hourly, steps
from gossipq_ops.figures import chart
from gossipq_ops.history import History
from gossipq_ops.rows import Copy, Event, Group, Growth, Partition, Shard, Snapshot

TEN = 10 * HOUR_MS


def lived(now_ms: int, **more: object) -> History:
    history = History()
    history.add(Snapshot(time_ms=now_ms, **more))  # type: ignore[arg-type]
    return history


def minute(number: int, **more: object) -> Growth:
    return Growth(time_ms=TEN + number * MINUTE_MS, **more)  # type: ignore[arg-type]


def test_where_no_row_is_levels_go_on_and_nothing_flows() -> None:
    rows = [
        minute(1, published=5, acked=4, records=5, bytes=50, backlog=1, takeovers=1, voters=3, joined=True),
        minute(4, published=7, records=12, bytes=120, backlog=8, voters=3),
    ]
    found = steps(rows, MINUTE_MS, lived(rows[-1].time_ms), 100)
    assert [row.time_ms for row in found] == [TEN + number * MINUTE_MS for number in (1, 2, 3, 4)]
    assert [row.published for row in found] == [5, 0, 0, 7]
    assert [row.acked for row in found] == [4, 0, 0, 0]
    assert [row.bytes for row in found] == [50, 50, 50, 120]
    assert [row.backlog for row in found] == [1, 1, 1, 8]
    assert [row.takeovers for row in found] == [1, 0, 0, 0]
    assert [row.joined for row in found] == [True, False, False, False]


def test_the_last_step_is_the_one_in_which_now_is_with_the_levels_of_now() -> None:
    rows = [minute(1, published=5, records=5, bytes=50, backlog=1, voters=1)]
    now_ms = TEN + 3 * MINUTE_MS + 20_000
    copies = [Copy(node="a", role="leader"), Copy(node="b", role="follower"), Copy(node="c", role="learner")]
    history = lived(
        now_ms,
        partitions=[Partition(topic="t", partition=0, shard=0, first=10, next=30, bytes=200)],
        groups=[Group(topic="t", group="g", partition=0, ready=3, retrying=1, dead=2)],
        shards=[Shard(shard=0, copies=copies), Shard(shard=1)],
    )
    history.events.append(Event(time_ms=now_ms - 5_000, kind="leader-move", who="8 shards"))
    history.events.append(Event(time_ms=now_ms - MINUTE_MS, kind="member-failed", who="b"))
    found = steps(rows, MINUTE_MS, history, 100)
    assert [row.time_ms for row in found] == [TEN + number * MINUTE_MS for number in (1, 2, 3, 4)]
    last = found[-1]
    assert (last.records, last.bytes, last.backlog, last.dead, last.voters) == (20, 200, 4, 2, 2)
    assert (last.joined, last.left, last.takeovers, last.published) == (True, False, 1, 0)
    assert [row.takeovers for row in found[:-1]] == [0, 0, 0]


def test_an_hour_in_progress_keeps_what_it_has_counted_so_far() -> None:
    hour = Growth(time_ms=TEN + HOUR_MS, published=70, takeovers=2, voters=3)
    found = steps([hour], HOUR_MS, lived(TEN + 60_000), 100)
    assert [(row.published, row.takeovers, row.voters) for row in found] == [(70, 2, 3)]


def test_no_more_steps_than_wished_and_none_without_rows() -> None:
    assert steps([], HOUR_MS, lived(TEN), 100) == []
    found = steps([Growth(time_ms=HOUR_MS, bytes=7)], HOUR_MS, lived(1_000_000 * HOUR_MS), 168)
    assert len(found) == 168
    assert found[0].bytes == 7


def test_the_hours_of_a_young_cluster_come_from_its_minutes() -> None:
    minutes = [minute(1, published=5, bytes=50, takeovers=1), minute(2, published=7, bytes=120, joined=True)]
    assert hourly([], minutes) == [
        Growth(time_ms=TEN + HOUR_MS, published=12, bytes=120, takeovers=1, joined=True)
    ]
    stored = Growth(time_ms=TEN + HOUR_MS, published=13, bytes=130)
    assert hourly([stored], minutes) == [
        Growth(time_ms=TEN + HOUR_MS, published=13, bytes=130, takeovers=1, joined=True)
    ]
    assert hourly([stored], []) == [stored]


@pytest.mark.parametrize(
    ("count", "width", "shown"),
    [(1, 20, "            ████████"), (3, 8, "  ████  "[:8]), (8, 8, "█▇▆▅▄▃▂▁"), (16, 8, "█▇▆▅▄▃▂▁")],
)
def test_few_steps_are_wide_and_many_share_a_column(count: int, width: int, shown: str) -> None:
    values = {1: [1.0], 3: [1.0, 1.0, 0.0], 8: list(range(8, 0, -1))}.get(count) or [
        each // 2 for each in range(17, 1, -1)
    ]
    assert chart(Axis(count, width).laid(values), width, 1) == [shown]


def test_a_mark_stands_under_the_begin_of_its_step() -> None:
    assert [Axis(3, 20).column(step) for step in range(3)] == [2, 8, 14]
    assert [Axis(3, 20, per=2).column(step) for step in range(3)] == [0, 7, 13]
    assert [Axis(4, 2).column(step) for step in range(4)] == [0, 0, 1, 1]
