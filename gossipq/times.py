"""Points in time: aware datetimes of the unix milliseconds that the wire has, and back."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_TIME_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS


def time_of(unix_ms: int) -> datetime:
    """Return a point in time. A time that a datetime cannot have, as a producer may send it, becomes the
    nearest one."""
    return _EPOCH + max(0, min(unix_ms, _TIME_MS_MAX)) * _MS


def known_time(unix_ms: int) -> datetime | None:
    """Return a point in time; None for 0, with which a node says that it does not know."""
    return time_of(unix_ms) if unix_ms else None


def unix_ms_of(time: datetime | None) -> int:
    """Return unix milliseconds; 0 for None."""
    return 0 if time is None else (time - _EPOCH) // _MS
