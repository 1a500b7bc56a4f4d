"""Ticks of cron expressions in time zones: compared with a plain model, minute by minute."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq.errors import BadRequest
from gossipq_node.adapters.calendar import CronCalendar

CALENDAR = CronCalendar()
MINUTE = timedelta(minutes=1)
SPAN = timedelta(hours=16)  #: that the model looks at
#: zones, each with a moment close to a change of its clocks: at night, at midnight, none. Lord Howe is left
#: out: it changes by half an hour, which expressions with a star do not follow in cronsim
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Adelaide", datetime(2026, 4, 4, 16, 30, tzinfo=UTC)),
    ("Australia/Adelaide", datetime(2026, 10, 3, 16, 30, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 3, 8, 5, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 7, 1, tzinfo=UTC)),
]


def matches(field: str, value: int) -> bool:
    """True if a field of numbers, ranges, steps and lists of these has a value."""
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0-59" if span == "*" else span).partition("-")
        if int(first) <= value <= int(last or first) and (value - int(first)) % int(step or 1) == 0:
            return True
    return False


def model(minute: str, hour: str, zone: ZoneInfo, start: datetime) -> list[datetime]:
    """Return the ticks in the span from `start` on, as Debian's cron has them.

    With a star in one of the two fields, ticks follow the minutes that pass. Others follow the clock on the
    wall: a time that is skipped comes at the next minute that exists, and one that repeats comes once.
    """
    found = set[datetime]()
    first = start.astimezone(zone).replace(tzinfo=None) - timedelta(hours=3)
    for at in range(int(SPAN / MINUTE)):
        passing = start + at * MINUTE
        if "*" in (minute[0], hour[0]):
            wall = passing.astimezone(zone)
            if matches(minute, wall.minute) and matches(hour, wall.hour):
                found.add(passing)
            continue
        wall = (first + at * MINUTE).replace(tzinfo=zone)
        if matches(minute, wall.minute) and matches(hour, wall.hour):
            while wall.astimezone(UTC).astimezone(zone) != wall:
                wall += MINUTE
            found.add(wall.astimezone(UTC))
    return sorted(tick for tick in found if start < tick)


def number(highest: int) -> st.SearchStrategy[str]:
    low = st.integers(0, highest)
    span = st.lists(low, min_size=2, max_size=2, unique=True).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.builds("{}/{}".format, st.one_of(span, st.just("*")), st.integers(2, 20))
    one = st.one_of(low.map(str), span, stepped)
    return st.one_of(st.just("*"), one, st.lists(low.map(str), min_size=2, max_size=4).map(",".join))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    minute=number(59),
    hour=number(23),
    change=st.sampled_from(CHANGES),
    before_minutes=st.integers(0, 240),
)
def test_ticks_are_those_of_the_model(
    minute: str, hour: str, change: tuple[str, datetime], before_minutes: int
) -> None:
    name, moment = change
    start = moment - before_minutes * MINUTE
    cron, expected = f"{minute} {hour} * * *", model(minute, hour, ZoneInfo(name), start)
    end = start + SPAN - timedelta(hours=5)  # the model begins three hours of wall time earlier
    at_ms, ticks = round(start.timestamp() * 1_000), list[datetime]()
    while len(ticks) < 100:
        found = CALENDAR.after(cron, name, at_ms)
        assert found is not None
        assert found > at_ms
        if found >= end.timestamp() * 1_000:
            break
        at_ms = found
        ticks.append(datetime.fromtimestamp(found / 1_000, UTC))
    assert ticks == [tick for tick in expected if tick < end][:100]
    for earlier, later in pairwise(ticks[:20]):
        assert CALENDAR.before(cron, name, round(later.timestamp() * 1_000)) == earlier.timestamp() * 1_000
        middle = earlier + (later - earlier) / 2
        assert (
            CALENDAR.before(cron, name, round(middle.timestamp() * 1_000) + 1) == earlier.timestamp() * 1_000
        )


def test_an_hour_that_repeats_has_its_ticks_once() -> None:
    """Berlin, 25 October: half past two is at 0:30 UTC, and 1:30 UTC has the same time on the wall."""
    zone, cron = "Europe/Berlin", "30 2 * * *"
    first, again = (datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp() * 1_000 for hour in (0, 1))
    within, day_ms = round(again) - 20 * 60_000, 24 * 3_600_000
    assert CALENDAR.after(cron, zone, round(first) - 1) == first
    assert CALENDAR.after(cron, zone, within) == again + day_ms
    assert CALENDAR.before(cron, zone, within) == first
    assert CALENDAR.before(cron, zone, round(again) + 1) == first


@pytest.mark.parametrize(
    ("cron", "year"),
    [("0 0 29 2 *", 2104), ("0 0 29 2 */7", 2128)],
)
def test_a_tick_that_comes_rarely_is_found(monkeypatch: pytest.MonkeyPatch, cron: str, year: int) -> None:
    """29 February, and 29 February on a Sunday: 2100 is no leap year."""
    looked, match_day = list[object](), CronSim.match_day

    def counted(ticks: CronSim, day: object) -> bool:
        looked.append(day)
        return match_day(ticks, day)  # type: ignore[arg-type]

    monkeypatch.setattr(CronSim, "match_day", counted)
    since = datetime(2097, 1, 1, tzinfo=UTC)
    found = CALENDAR.after(cron, "", round(since.timestamp() * 1_000))
    assert found is not None
    assert datetime.fromtimestamp(found / 1_000, UTC) == datetime(year, 2, 29, tzinfo=UTC)
    assert CALENDAR.before(cron, "", found) is not None
    assert len(looked) < 5_000


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 */2"])
def test_a_day_that_never_comes_is_refused(cron: str) -> None:
    with pytest.raises(BadRequest):
        CALENDAR.check(cron, "Europe/Berlin")
