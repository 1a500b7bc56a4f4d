"""Turns the answers of `growth()` into curves: the rows of several shards and topics become one
point for each minute or hour.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gossipq.limits import MINUTE_MS
from gossipq.values import GrowthRow

Curve = dict[int, GrowthRow]  #: rows of one topic in one shard, by time


class Point(NamedTuple):
    """All rows together, at the end of a minute or hour."""

    time_ms: int  #: unix
    published: int  #: records published in this step
    acked: int  #: records acked in this step, over all groups
    dead: int  #: dead letters kept at that time
    records: int  #: readable records at that time
    bytes: int  #: stored bytes at that time
    backlog: int  #: published records that were not done at that time, over all groups
    takeovers: int  #: shards that got another leader, or a restarted one, since the last step
    voters: int  #: fewest copies of a shard
    joined: bool  #: a shard has more copies than before
    left: bool  #: a shard has fewer copies than before


def series(rows: Iterable[GrowthRow], step_ms: int = MINUTE_MS) -> list[Point]:
    """Points from the second row's time to the last row's, each step once. A step without a
    change repeats the last values.
    """
    curves: dict[tuple[str, int], Curve] = {}
    for row in rows:
        curves.setdefault((row.topic, row.shard), {})[row.time_ms] = row
    times = [time_ms for curve in curves.values() for time_ms in curve]
    if not times:
        return []
    points = []
    before = {name: curve[min(curve)] for name, curve in curves.items()}
    for time_ms in range(min(times), max(times) + 1, step_ms):
        now = {name: curve.get(time_ms, before[name]) for name, curve in curves.items()}
        known = [(before[name], row) for name, row in now.items() if row.time_ms <= time_ms]
        if time_ms > min(times):
            points.append(_point(time_ms, known))
        before = now
    return points


def _point(time_ms: int, pairs: list[tuple[GrowthRow, GrowthRow]]) -> Point:
    """The point between two states."""
    rows = [row for _, row in pairs]
    return Point(
        time_ms,
        sum(max(0, row.published - before.published) for before, row in pairs),
        sum(max(0, row.acked - before.acked) for before, row in pairs),
        sum(row.dead for row in rows),
        sum(row.records for row in rows),
        sum(row.bytes for row in rows),
        sum(row.backlog for row in rows),
        sum(row.term != before.term for before, row in pairs),
        min((row.voters for row in rows), default=0),
        any(row.voters > before.voters for before, row in pairs),
        any(row.voters < before.voters for before, row in pairs),
    )
