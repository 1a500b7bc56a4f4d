"""Times in text form, for readers of exports."""

import re
from datetime import UTC, datetime

from gossipq.errors import BadRequest


def micros(name: str, value: str) -> int:
    """Return microseconds since 1970 of a text. Raises BadRequest.

    The text is milliseconds since 1970, as in Kafka, or an ISO time (UTC by default).
    """
    text = value.strip()
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text) * 1_000
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(
            f"{name}={value!r}", hint="milliseconds since 1970, or 2026-11-21T09:00:00Z"
        ) from None
    since = (told if told.tzinfo else told.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def seconds(name: str, value: str) -> float:
    """Return the seconds of a duration such as 500ms, 30s, 15m, 2h. Raises BadRequest."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", value.strip())
    if found is None:
        raise BadRequest(f"{name}={value!r}", hint="500ms, 30s, 15m or 2h")
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]
