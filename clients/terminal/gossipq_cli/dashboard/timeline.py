"""Converts rows of growth to steps on a time axis: each step once, up to the present. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from gossipq.limits import HOUR_MS
from gossipq_ops.history import History
from gossipq_ops.rows import Growth, Snapshot
from gossipq_ops.sums import lag_of, records_of

VOTERS = ("leader", "follower", "witness")  #: roles of copies that are counted
MOVED = ("leader-move", "leader-back")  #: events of a takeover
STEP_COLUMNS = 8  #: maximum width of a step


def hourly(hours: Sequence[Growth], minutes: Sequence[Growth]) -> list[Growth]:
    """Return hours, and those known only from minutes, with the marks of their minutes."""
    found: dict[int, Growth] = {}
    for row in minutes:
        end_ms = -(-row.time_ms // HOUR_MS) * HOUR_MS
        before = found.get(end_ms, Growth(time_ms=end_ms))
        found[end_ms] = _both(before, replace(row, time_ms=end_ms))
    for row in hours:
        short = found.get(row.time_ms, row)
        marks = {"joined": row.joined or short.joined, "left": row.left or short.left}
        found[row.time_ms] = replace(row, takeovers=max(row.takeovers, short.takeovers), **marks)
    return [found[time_ms] for time_ms in sorted(found)]


def _both(before: Growth, row: Growth) -> Growth:
    """Combine two rows of one step: add flows and marks, take gauges from the later one."""
    return replace(
        row,
        published=before.published + row.published,
        acked=before.acked + row.acked,
        takeovers=before.takeovers + row.takeovers,
        joined=before.joined or row.joined,
        left=before.left or row.left,
    )


def steps(rows: Sequence[Growth], step_ms: int, history: History, most: int) -> list[Growth]:
    """Return at most `most` steps up to the present.

    Without a row, gauges stay and flows are 0. After the newest row, gauges are those of the
    snapshot, and takeovers those of the events.
    """
    if not rows:
        return []
    now = history.now
    stored = {row.time_ms: row for row in rows}
    newest, level = rows[-1], rows[0]
    end_ms = max(newest.time_ms, -(-now.time_ms // step_ms) * step_ms)
    begin_ms = max(rows[0].time_ms, end_ms - (most - 1) * step_ms)
    found = []
    for row in rows:
        if row.time_ms > begin_ms:
            break
        level = row
    for time_ms in range(begin_ms, end_ms + 1, step_ms):
        level = stored.get(time_ms) or _still(level, time_ms)
        if time_ms == end_ms:
            level = _both(level, _live(now, level)) if time_ms - now.time_ms < step_ms else level
        moved = sum(
            event.kind in MOVED and time_ms - step_ms < event.time_ms <= time_ms for event in history.events
        )
        level = replace(level, takeovers=max(level.takeovers, moved))
        found.append(level)
    return found


def _still(level: Growth, time_ms: int) -> Growth:
    """Return a step in which nothing was stored."""
    return replace(level, time_ms=time_ms, published=0, acked=0, takeovers=0, joined=False, left=False)


def _live(now: Snapshot, level: Growth) -> Growth:
    """Return the present gauges; unknown ones stay as they were."""
    copies = [sum(copy.role in VOTERS for copy in shard.copies) for shard in now.shards if shard.copies]
    voters = min(copies, default=level.voters)
    return Growth(
        time_ms=level.time_ms,
        dead=sum(group.dead for group in now.groups) if now.partitions else level.dead,
        records=sum(map(records_of, now.partitions)) if now.partitions else level.records,
        bytes=sum(part.bytes for part in now.partitions) if now.partitions else level.bytes,
        backlog=sum(map(lag_of, now.groups)) if now.partitions else level.backlog,
        voters=voters,
        joined=voters > level.voters,
        left=voters < level.voters,
    )


class Axis:
    """The columns of steps in a chart, the newest on the right. `per`
    values fit into one column.
    """

    def __init__(self, count: int, width: int, per: int = 1) -> None:
        self._count, self._room, self._per = max(1, count), max(0, width) * per, per
        self._shown = min(
            self._room, self._count * min(STEP_COLUMNS * per, max(1, self._room // self._count))
        )

    def column(self, step: int) -> int:
        """Return the first column of a step."""
        return self._begin(step) // self._per

    def _begin(self, step: int) -> int:
        return self._room - self._shown + step * self._shown // self._count

    def laid(self, values: Sequence[float]) -> list[float]:
        """Return a value for each place; steps that share a place are averaged."""
        places: list[list[float]] = [[] for _ in range(self._room)]
        for step, value in enumerate(values):
            begin = self._begin(step)
            for place in places[begin : max(begin + 1, self._begin(step + 1))]:
                place.append(value)
        return [sum(place) / len(place) if place else 0.0 for place in places]
