"""When a schedule has its ticks: pure functions over a calendar."""

from hashlib import blake2b

from gossipq.core.storage import Calendar
from gossipq.values import Schedule

LATE_MS = 10_000  #: a tick that is later than this counts as missed


def next_tick(calendar: Calendar, schedule: Schedule, after_ms: int) -> int | None:
    """Return the first tick after a time; None if the schedule has ended."""
    after_ms = max(after_ms, schedule.start_ms - 1)
    if schedule.every_ms:
        periods = (after_ms - schedule.start_ms) // schedule.every_ms + 1
        tick_ms: int | None = schedule.start_ms + periods * schedule.every_ms
    else:
        tick_ms = calendar.after(schedule.cron, schedule.zone, after_ms)
    return tick_ms if tick_ms is not None and not _ended(schedule, tick_ms) else None


def next_ticks(calendar: Calendar, schedule: Schedule, after_ms: int, count: int) -> list[int]:
    """Return the next ticks, at most `count`."""
    ticks = list[int]()
    while len(ticks) < count and (tick_ms := next_tick(calendar, schedule, after_ms)) is not None:
        ticks.append(tick_ms)
        after_ms = tick_ms
    return ticks


def last_ticks(calendar: Calendar, schedule: Schedule, after_ms: int, now_ms: int, count: int) -> list[int]:
    """Return the newest ticks in (after_ms, now_ms], at most `count`, the oldest first."""
    after_ms = max(after_ms, schedule.start_ms - 1)
    end_ms = min(now_ms + 1, schedule.end_ms or now_ms + 1)
    ticks = list[int]()
    while len(ticks) < count and (tick_ms := _tick_before(calendar, schedule, end_ms)) is not None:
        if tick_ms <= after_ms:
            break
        ticks.append(tick_ms)
        end_ms = tick_ms
    return ticks[::-1]


def due_ticks(calendar: Calendar, schedule: Schedule, after_ms: int, now_ms: int) -> list[int]:
    """Return the ticks that get a record now. `missed` of the schedule decides about late ones."""
    count = schedule.missed_max if schedule.missed == "all" else 1
    ticks = last_ticks(calendar, schedule, after_ms, now_ms, count + 1)  # the newest may have to wait
    ticks = [tick_ms for tick_ms in ticks if tick_ms + jitter_ms(schedule, tick_ms) <= now_ms][-count:]
    if schedule.missed == "none":
        return [tick_ms for tick_ms in ticks if now_ms <= tick_ms + schedule.jitter_ms + LATE_MS]
    return ticks


def next_due(calendar: Calendar, schedule: Schedule, after_ms: int, now_ms: int) -> int | None:
    """Return when the schedule has to be looked at again: its next tick, and what it waits after that.

    A tick that was missed is due at once, unless the schedule drops those.
    """
    if due_ticks(calendar, schedule, after_ms, now_ms):
        return now_ms
    tick_ms = next_tick(calendar, schedule, max(after_ms, now_ms - schedule.jitter_ms))
    while tick_ms is not None and tick_ms + jitter_ms(schedule, tick_ms) <= now_ms:
        tick_ms = next_tick(calendar, schedule, tick_ms)
    return None if tick_ms is None else tick_ms + jitter_ms(schedule, tick_ms)


def jitter_ms(schedule: Schedule, tick_ms: int) -> int:
    """Return how long the record of a tick waits: the same on every leader."""
    if not schedule.jitter_ms:
        return 0
    hashed = blake2b(f"{schedule.name}/{tick_ms}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed) % schedule.jitter_ms


def _ended(schedule: Schedule, tick_ms: int) -> bool:
    return bool(schedule.end_ms) and tick_ms >= schedule.end_ms


def _tick_before(calendar: Calendar, schedule: Schedule, before_ms: int) -> int | None:
    if not schedule.every_ms:
        return calendar.before(schedule.cron, schedule.zone, before_ms)
    periods = (before_ms - 1 - schedule.start_ms) // schedule.every_ms
    return schedule.start_ms + periods * schedule.every_ms if periods >= 0 else None
