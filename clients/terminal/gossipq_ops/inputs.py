"""Times, durations and positions that users type, as the client takes them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gossipq.errors import BadRequest
from gossipq_client.values import duration_ms


def seconds_of(value: Any) -> float:
    """Return seconds. Raises ValueError with a text for people."""
    try:
        given = float(value) if isinstance(value, str) else value
    except ValueError:
        given = value
    try:
        return duration_ms(given) / 1_000
    except BadRequest as error:
        raise ValueError(f"{error.message}; {error.hint}") from None


def moment_of(text: str) -> datetime:
    """Return a point in time. Raises ValueError with a text for people."""
    back_s = seconds_of(text[1:]) if text.startswith("-") else None
    try:
        if back_s is not None:
            return datetime.now(UTC) - timedelta(seconds=back_s)
        return datetime.fromisoformat(text).astimezone()  # without a zone: local time
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; write 2026-11-21T09:00Z, 2026-11-21 09:00, or -10m for 10 minutes ago"
        ) from None


def place_of(text: str) -> str | int | datetime:
    """Return a position for a group, as the client takes it. Raises
    ValueError with a text for people.
    """
    if text in ("first", "new"):
        return text
    if text.isdecimal():
        return int(text)
    if text.removeprefix("-").isdecimal():  # the user may mean an offset from the end
        raise ValueError(
            f"{text!r} is no place; write {text}s for {text[1:]} seconds ago, first, new, or an offset"
        )
    try:
        return moment_of(text)
    except ValueError as error:
        raise ValueError(f"{error}; or first, new, or an offset") from None
