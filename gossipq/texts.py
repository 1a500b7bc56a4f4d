"""Numbers and times as text for people, the same on every surface."""

from datetime import UTC, datetime
from typing import Any


def many(count: int, noun: str, plural: str = "") -> str:
    """1 record, 1,200 records; 1 copy, 2 copies."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def size(value: int) -> str:
    """Bytes for people: 12 B, 3.4 KiB, 1.2 GiB."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(span_ms: int) -> str:
    """A time span for people: 40 ms, 1.5 h."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.1f}".removesuffix(".0") + f" {unit}"
    return f"{max(0, span_ms)} ms"


def number(value: int | float) -> str:
    return f"{value:,}"


def iso(unix_ms: int) -> str | None:
    """Return 2026-11-21T08:03:12.345+00:00; None for an impossible time,
    as a producer may send it.
    """
    try:
        return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


def moment(unix_ms: int) -> str:
    """Format a point in time for people: 2026-11-21 08:03:12.345Z."""
    text = iso(unix_ms)
    return f"{unix_ms} ms" if text is None else spaced(text)


def spaced(text: str | None) -> str:
    """Format the result of `iso` like `moment`. Other texts are unchanged."""
    return dashed(text).replace("T", " ").replace("+00:00", "Z")


def readable(value: bytes, keep: str = "") -> str:
    r"""Decode bytes of a record for people: UTF-8, other bytes as \\xNN, no control characters."""
    return printable(value.decode(errors="backslashreplace"), keep)


def brief(value: bytes, width: int = 60) -> str:
    """Like `readable`, cut to one line."""
    text = readable(value[: 4 * width])
    return text if len(value) <= 4 * width and len(text) <= width else f"{text[:width]}..."


def dashed(value: Any) -> str:
    """Return a dash for an empty value."""
    return str(value) if value not in (None, "") else "-"


def typed(value_ms: int) -> str:
    """A time span as users type it: 7d, 1h30m, 4.2s, 12ms."""
    if value_ms < 1_000:
        return f"{value_ms}ms"
    if value_ms < 60_000:
        return f"{value_ms / 1_000:g}s"
    parts, rest = [], value_ms // 1_000
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if rest >= seconds:
            parts.append(f"{rest // seconds}{unit}")
            rest %= seconds
    return "".join(parts[:2])


def printable(text: str, keep: str = "") -> str:
    """Replace control, invisible and direction-changing characters by escapes.

    Letters of every language, and the characters in `keep`, stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
