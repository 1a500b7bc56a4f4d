"""Implements the core's `Calendar` with cronsim, which reads cron expressions as Debian's cron does."""

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from gossipq.errors import BadRequest

FIELDS = 5
REPEATED = timedelta(hours=3)  #: of wall time, at most; Debian's cron takes longer changes for corrections
EXAMPLES = "five fields are allowed: '0 7 * * mon-fri' is 7 o'clock from Monday to Friday"


class CronCalendar:
    """Ticks by the tables of time zones of this machine."""

    def check(self, cron: str, zone: str) -> None:
        try:
            _zone(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise BadRequest(f"no time zone {zone!r}", hint="use a name as Europe/Berlin") from None
        if len(cron.split()) != FIELDS:
            raise BadRequest(f"{cron!r} is no cron expression", hint=EXAMPLES)
        try:
            found = self.after(cron, zone, 0)
        except CronSimError as error:
            raise BadRequest(f"{cron!r} is no cron expression: {error}", hint=EXAMPLES) from None
        if found is None:
            raise BadRequest(f"{cron!r} names a day that no calendar has", hint=EXAMPLES)

    def after(self, cron: str, zone: str, time_ms: int) -> int | None:
        ticks = CronSim(cron, datetime.fromtimestamp(time_ms // 1_000, _zone(zone)))
        # when an hour repeats, cronsim continues from the first of both, so its next ticks can be in the past
        return next((tick_ms for tick_ms in map(_ms, ticks) if tick_ms > time_ms), None)

    def before(self, cron: str, zone: str, time_ms: int) -> int | None:
        # a whole second is looked at as the one after it: the tick of that second is before the time
        at = datetime.fromtimestamp(-(-time_ms // 1_000), _zone(zone))
        if at.fold:  # all ticks of the hour that repeats are over: they came the first time
            at += REPEATED
        ticks = CronSim(cron, at, reverse=True)
        return next((tick_ms for tick_ms in map(_ms, ticks) if tick_ms < time_ms), None)


@lru_cache(maxsize=1_000)
def _zone(name: str) -> tzinfo:
    return ZoneInfo(name) if name else UTC


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)
