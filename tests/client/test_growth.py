"""Curves made of roll-ups: gaps go on, counters become steps, takeovers and joins are marked."""

from gossipq.limits import HOUR_MS, MINUTE_MS
from gossipq.values import GrowthRow
from gossipq_client.values.growth import Point, series


def row(
    minute: int,
    published: int,
    acked: int = 0,
    backlog: int = 0,
    shard: int = 0,
    topic: str = "",
    term: int = 1,
    voters: int = 3,
):
    return GrowthRow(
        topic,
        shard,
        minute * MINUTE_MS,
        published,
        acked,
        0,
        0,
        published,
        published * 10,
        backlog,
        term,
        voters,
    )


def test_nothing_is_nothing() -> None:
    assert series([]) == []
    assert series([row(1, 5)]) == []


def test_counters_become_steps_and_gaps_go_on() -> None:
    points = series([row(1, 5), row(2, 9, acked=1, backlog=8), row(5, 19, acked=1, backlog=18)])
    assert [
        (point.time_ms // MINUTE_MS, point.published, point.acked, point.backlog) for point in points
    ] == [
        (2, 4, 1, 8),
        (3, 0, 0, 8),
        (4, 0, 0, 8),
        (5, 10, 0, 18),
    ]


def test_shards_and_topics_are_added() -> None:
    rows = [
        row(1, 5),
        row(3, 6),
        row(2, 100, shard=1),
        row(3, 103, shard=1),
        row(1, 7, topic="a"),
        row(2, 8, topic="a"),
    ]
    assert [(point.published, point.records) for point in series(rows)] == [
        (1, 5 + 100 + 8),
        (1 + 3, 6 + 103 + 8),
    ]


def test_takeovers_and_joins_are_marked() -> None:
    rows = [row(1, 5), row(2, 5, term=2), row(3, 5, term=2, voters=4), row(4, 5, term=2, voters=2)]
    rows += [row(1, 5, shard=1), row(2, 5, term=2, shard=1)]
    marks = [(point.takeovers, point.voters, point.joined, point.left) for point in series(rows)]
    assert marks == [(2, 3, False, False), (0, 3, True, False), (0, 2, False, True)]


def test_a_topic_that_went_makes_no_negative_steps() -> None:
    assert [point.published for point in series([row(1, 500), row(2, 20)])] == [0]


def test_hours() -> None:
    rows = [row(60, 5), row(180, 25)]
    assert series(rows, HOUR_MS) == [
        Point(2 * HOUR_MS, 0, 0, 0, 5, 50, 0, 0, 3, False, False),
        Point(3 * HOUR_MS, 20, 0, 0, 25, 250, 0, 0, 3, False, False),
    ]
