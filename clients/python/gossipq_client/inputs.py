"""What users may pass, turned into what the wire carries: durations, starts, values, headers, addresses, topic names."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from gossipq import limits
from gossipq.errors import BadRequest, TooLarge

Duration = float | timedelta | str
Start = str | int | datetime
Value = bytes | bytearray | memoryview | str
Headers = Mapping[str, str | bytes]

DEFAULT_ADDRESS = f"tcp://127.0.0.1:{limits.PORT}"
_UNITS_MS = {"ms": 1, "s": limits.SECOND_MS, "m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_encode = msgspec.msgpack.Encoder().encode


def duration_ms(value: Duration) -> int:
    """Seconds as a number, a timedelta, or text such as "500ms", "5s", "1h30m". Raises BadRequest."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, str):
        parts = _PART.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise BadRequest(f"{value!r} is not a duration", hint='write seconds as a number, or "500ms", "5s", "1h30m", "7d"')
        return round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
    return round(value * 1000)


def start_of(value: Start, wall_ms: int) -> tuple[str, int]:
    """Kind and value of a `messages.Start`: "first", "new", an offset, an aware datetime, or "-10m" before now."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadRequest("start= needs a datetime with a time zone", hint="datetime.now(timezone.utc) has one")
        return "time", round(value.timestamp() * 1000)
    if isinstance(value, int):
        if value < 0:
            raise BadRequest(f"start={value}: offsets begin at 0", hint='a time before now is text: start="-10m"')
        return "offset", value
    if value in ("first", "new"):
        return value, 0
    if value.startswith("-"):
        return "time", wall_ms - duration_ms(value[1:])
    raise BadRequest(f"start={value!r}", hint='use "first", "new", an offset, an aware datetime, or "-10m"')


def value_bytes(value: Value) -> bytes:
    """The bytes of one value; text becomes UTF-8. Raises TypeError, TooLarge."""
    raw = as_bytes(value, "value")
    if len(raw) > limits.VALUE_BYTES_MAX:
        raise too_large("value", len(raw), limits.VALUE_BYTES_MAX)
    return raw


def values_of(values: Iterable[Value]) -> list[bytes]:
    """A list of values; one that is a list of bytes already is taken as it is, at no cost per value."""
    found = list(values)
    if set(map(type, found)) <= {bytes} and sum(map(len, found)) <= limits.VALUE_BYTES_MAX:
        return found  # type: ignore[return-value]
    return [value_bytes(value) for value in found]


def as_bytes(value: Value, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} must be bytes, bytearray, memoryview or str, not {type(value).__name__}")


def key_bytes(key: Value) -> bytes:
    """Raises TypeError, TooLarge."""
    raw = as_bytes(key, "key")
    if len(raw) > limits.KEY_BYTES_MAX:
        raise too_large("key", len(raw), limits.KEY_BYTES_MAX)
    return raw


def keys_of(key: bytes | None, keys: Sequence[Value | None] | None, count: int) -> list[bytes | None] | None:
    """One key for each of `count` values, or None when there are none. Raises BadRequest."""
    if keys is None:
        return None if key is None else [key] * count
    if key is not None or len(keys) != count:
        raise BadRequest("keys= needs one key for each value, without key=", hint=f"{len(keys)} keys for {count} values")
    return [None if each is None else key_bytes(each) for each in keys]


def header_bytes(headers: Headers | None) -> bytes:
    """The msgpack map of one record's headers; b"" for none. Raises TypeError, TooLarge."""
    if not headers:
        return b""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise TypeError(f"headers are text to text or bytes, not {type(name).__name__} to {type(value).__name__}")
    raw = _encode(dict(headers))
    if len(raw) > limits.HEADERS_BYTES_MAX:
        raise too_large("headers", len(raw), limits.HEADERS_BYTES_MAX)
    return raw


def route_bytes(route: str) -> bytes:
    raw = route.encode()
    if len(raw) > limits.ROUTE_BYTES_MAX:
        raise too_large("route", len(raw), limits.ROUTE_BYTES_MAX)
    return raw


def too_large(what: str, size: int, size_max: int) -> TooLarge:
    return TooLarge(
        f"{what} of {size} bytes; at most {size_max} are allowed", hint="store it elsewhere and publish its address"
    )


def level_of(level: str | None) -> str:
    if level in (None, "", "stored", "none"):
        return level or ""
    raise BadRequest(f"level={level!r}", hint='use "stored" (confirmed means kept) or "none" (no confirm)')


def addresses_of(addresses: Iterable[str | Iterable[str]]) -> list[str]:
    """The endpoints to try; without any those of $GOSSIPQ_SERVER (comma separated), else the local default."""
    found: list[str] = []
    for address in addresses:
        found += [address] if isinstance(address, str) else list(address)
    found = found or os.environ.get("GOSSIPQ_SERVER", "").replace(",", " ").split() or [DEFAULT_ADDRESS]
    return [address if "://" in address else f"tcp://{address}" for address in found]


def names_of(topics: str | Iterable[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadRequest("no topic named", hint='pass "orders", ["a", "b"] or "orders.*"')
    return list(dict.fromkeys(names))
