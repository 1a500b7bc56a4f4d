"""Curves of what `growth()` answers: rows of several shards and topics become one point for each minute or
hour."""

from collections.abc import Iterable
from typing import NamedTuple

from gossipq.limits import MINUTE_MS
from gossipq.values import GrowthRow

Curve = dict[int, GrowthRow]  #: of one topic in one shard, by time


class Point(NamedTuple):
    """All rows together at the end of a minute or hour."""

    time_ms: int  #: unix
    published: int  #: in this step
    acked: int  #: in this step, over all groups
    dead: int  #: dead letters that are kept then
    records: int  #: that can be read then
    bytes: int  #: stored then
    backlog: int  #: published and not done then, over all groups
    takeovers: int  #: shards that another leader, or a restarted one, leads since the step before
    voters: int  #: fewest copies of a shard
    joined: bool  #: some shard has more copies than before
    left: bool  #: some shard has fewer


def series(rows: Iterable[GrowthRow], step_ms: int = MINUTE_MS) -> list[Point]:
    """Points from the second row's time to the last one's, each step once; where nothing changed, what was
    before goes on."""
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
    """From what was before and what is now."""
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
