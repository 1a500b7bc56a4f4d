"""Implements the core's `Calendar` with cronsim, which reads cron expressions as Debian's cron does."""

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from gossipq.errors import BadRequest

FIELDS = 5
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
        return _first(CronSim(cron, datetime.fromtimestamp(time_ms // 1_000, _zone(zone))))

    def before(self, cron: str, zone: str, time_ms: int) -> int | None:
        # a whole second is looked at as the one after it: the tick of that second is before the time
        end_s = -(-time_ms // 1_000)
        return _first(CronSim(cron, datetime.fromtimestamp(end_s, _zone(zone)), reverse=True))


@lru_cache(maxsize=1_000)
def _zone(name: str) -> tzinfo:
    return ZoneInfo(name) if name else UTC


def _first(ticks: CronSim) -> int | None:
    found = next(ticks, None)
    return None if found is None else round(found.timestamp() * 1_000)
