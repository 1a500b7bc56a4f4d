"""Turns user input into wire values: durations, starts, values, headers, addresses, topic names."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from operator import index
from typing import Any, Final, Literal, SupportsIndex

import msgspec

from gossipq import limits
from gossipq.errors import BadRequest, TooLarge
from gossipq.wire.plain import UNREADABLE
from gossipq_client.values.json_values import json_bytes

Duration = float | timedelta | str
Time = float | datetime
Start = str | int | datetime
Starts = Mapping[str, Mapping[int, int]]  #: topic -> partition -> offset
Value = bytes | bytearray | memoryview | str
RAW = (bytes, str, bytearray, memoryview)  #: for isinstance, which takes a union three times as long
Headers = Mapping[str, str | bytes]


class Unset(Enum):
    """The default of an argument that also takes None."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "..."


UNSET: Final = Unset.UNSET
#: how long a call waits: without it the client's timeout, None = for ever, 0 = not at all
Timeout = Duration | None | Literal[Unset.UNSET]

DURATION_MS_MAX = 100 * limits.DELAY_MS_MAX
OFFSET_END = 2**63  #: end of the offsets that the wire can carry
TIME_SECONDS_END = 100_000_000_000  #: beyond it, milliseconds were passed by mistake
_UNITS_MS = {"ms": 1, "s": limits.SECOND_MS, "m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WRITE_UTF8 = "pass text that can be encoded as UTF-8"
_encode = msgspec.msgpack.Encoder().encode


def seconds(wait: Duration, what: str = "wait") -> float:
    """A waiting time in seconds. A float may also be the rest of a longer wait, even below 0,
    or inf. Raises BadRequest.
    """
    if type(wait) is float and not math.isnan(wait):
        return wait
    return duration_ms(wait, what) / 1000


def limit_s(timeout: Duration | None) -> float | None:
    """The same; None means for ever. Raises BadRequest."""
    return None if timeout is None else seconds(timeout, "timeout")


def duration_ms(value: Duration, what: str = "", low_ms: int = 0, high_ms: int = DURATION_MS_MAX) -> int:
    """Seconds as a number, a timedelta, or text such as "500ms", "5s", "1h30m"; `what` names the option.
    Raises BadRequest."""
    milliseconds = _milliseconds(value)
    if not low_ms <= milliseconds < high_ms + 0.5:  # also false for NaN
        shown = f"{what}={value!r}" if what else repr(value)
        if math.isnan(milliseconds):
            raise BadRequest(
                f"{shown} is not a duration",
                hint='write seconds as a number, or "500ms", "5s", "1h30m", "7d"',
            )
        cause = (
            "is too long" if milliseconds > high_ms else "is negative" if milliseconds < 0 else "is too short"
        )
        raise BadRequest(f"{shown} {cause}", hint=f"{span(low_ms)} to {span(high_ms)} are allowed")
    return round(milliseconds)


def _milliseconds(value: Duration) -> float:
    """Milliseconds, or NaN for anything that is not a duration."""
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, str):
        parts = _PART.findall(value)
        if parts and "".join(number + unit for number, unit in parts) == value:
            return sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return value * 1000.0
    except OverflowError:  # an int larger than all floats
        return math.inf if value > 0 else -math.inf


def span(milliseconds: int) -> str:
    """A duration as text that may be passed as one, in the largest fitting unit."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms"


def time_ms(value: Time, what: str) -> int:
    """Unix milliseconds of an aware datetime, or of seconds since 1970; rounded up. Raises BadRequest."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadRequest(
                f"{what}= needs a datetime with a time zone", hint="datetime.now(timezone.utc) has one"
            )
        return math.ceil(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < TIME_SECONDS_END:
        raise BadRequest(
            f"{what}={value!r} is not a time",
            hint="pass an aware datetime, or seconds since 1970 as time.time()",
        )
    return math.ceil(value * 1000)


def start_of(value: Start, wall_ms: int, what: str = "start") -> tuple[str, int]:
    """Kind and value of a `messages.Start`: "first", "new", an offset, an aware datetime, or "-10m" before
    now."""
    if isinstance(value, datetime):
        return "time", time_ms(value, what)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < OFFSET_END:
            raise BadRequest(
                f"{what}={value}: offsets begin at 0", hint=f'a time before now is text: {what}="-10m"'
            )
        return "offset", value
    if value in ("first", "new"):
        return value, 0
    if isinstance(value, str) and value.startswith("-"):
        return "time", wall_ms - duration_ms(value[1:], what)
    raise BadRequest(f"{what}={value!r}", hint='use "first", "new", an offset, an aware datetime, or "-10m"')


def starts_of(value: Starts, names: Sequence[str], what: str = "start") -> dict[str, dict[int, int]]:
    """An offset for each partition of topics. Each topic is among `names` or matches a pattern
    there. Raises BadRequest.
    """
    found: dict[str, dict[int, int]] = {}
    for topic, offsets in value.items():
        if not isinstance(topic, str) or not fits(topic, names):
            raise BadRequest(
                f"{what}= names topic {topic!r}, which is not read", hint=f"{', '.join(names)[:200]} is"
            )
        if not isinstance(offsets, Mapping):
            hint = f'an offset for each partition: {what}={{"{topic}": {{0: 17, 1: 4}}}}'
            raise BadRequest(f"{what}={{{topic!r}: {offsets!r}}}", hint=hint)
        for partition, offset in offsets.items():
            whole(partition, f"partition of {topic} in {what}", 0, limits.PARTITIONS_MAX - 1)
            whole(offset, f"offset of {topic} in {what}", 0, OFFSET_END - 1)
        found[topic] = dict(offsets)
    return found


def fits(topic: str, names: Iterable[str]) -> bool:
    """True if the topic is one of these names, or matches a pattern there."""
    return any(fnmatchcase(topic, name) if "*" in name else topic == name for name in names)


def value_bytes(value: Any) -> bytes:
    """The bytes of one value. Text becomes UTF-8. Values that are neither text nor bytes become
    JSON: dict, list, a dataclass, a msgspec.Struct. Raises BadRequest, and BadRequest for None and
    for values that JSON cannot express.
    """
    if value is None:
        raise BadRequest("the value is None", hint='publish b"", or b"null" for the null of JSON')
    plain = isinstance(value, RAW)
    raw = as_bytes(value, "value") if plain else json_bytes(value)
    if len(raw) > limits.VALUE_BYTES_MAX:
        raise too_large("value", len(raw), limits.VALUE_BYTES_MAX)
    return raw


def values_of(values: Iterable[Any]) -> list[bytes]:
    """A list of values. A list of bytes is taken as it is, without a cost per value."""
    found = list(values)
    return found if are_plain(found) else [value_bytes(value) for value in found]


def are_plain(values: list[Any]) -> bool:
    """True if all values are bytes and fit together into one value; no value is looked at alone."""
    return set(map(type, values)) <= {bytes} and sum(map(len, values)) <= limits.VALUE_BYTES_MAX


def as_bytes(value: Value, what: str) -> bytes:
    """Raises BadRequest for another type, and for text that UTF-8 cannot express."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _utf8(value, what)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise _wrong_type(what, "bytes, bytearray, memoryview or str", value)


def _wrong_type(what: str, wanted: str, value: object) -> BadRequest:
    return BadRequest(
        f"{what} must be {wanted}, not {type(value).__name__}", hint=f"{what}={value!r} was passed"[:200]
    )


def _utf8(text: str, what: str) -> bytes:
    """Raises BadRequest."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{what}={text!r}: {error.reason}", hint=_WRITE_UTF8) from None


def key_bytes(key: Value) -> bytes:
    """Raises BadRequest."""
    raw = as_bytes(key, "key")
    if len(raw) > limits.KEY_BYTES_MAX:
        raise too_large("key", len(raw), limits.KEY_BYTES_MAX)
    return raw


def id_bytes(value: Value, what: str = "id", example: str = "order-17") -> bytes:
    """Raises BadRequest."""
    raw = as_bytes(value, what)
    if not raw:
        hint = f'name the record, as in {what}="{example}", or leave {what}= out'
        raise BadRequest(f"{what}= is empty", hint=hint)
    if len(raw) > limits.ID_BYTES_MAX:
        raise too_large(what, len(raw), limits.ID_BYTES_MAX)
    return raw


def flow_bytes(flow: str | None) -> bytes:
    """Raises BadRequest. b"" = no flow."""
    if flow is None:
        return b""
    if not isinstance(flow, str):
        raise _wrong_type("flow", "a text", flow)
    raw = _utf8(flow, "flow")
    if len(raw) > limits.FLOW_BYTES_MAX:
        raise too_large("flow", len(raw), limits.FLOW_BYTES_MAX)
    return raw


def unique_bytes(value: Value) -> bytes:
    """Raises BadRequest."""
    return id_bytes(value, "unique", "report:7")


def ids_of(ids: Sequence[Any], one: Callable[[Any], bytes] = id_bytes) -> list[bytes]:
    """`id_bytes` (or `one`) of each, b"" for None. A list of texts, or of bytes, costs little."""
    try:
        found = list(map(str.encode, ids)) if set(map(type, ids)) == {str} else list(ids)
    except UnicodeEncodeError:  # `id_bytes` names the wrong id
        found = list(ids)
    if set(map(type, found)) == {bytes} and b"" not in found and max(map(len, found)) <= limits.ID_BYTES_MAX:
        return found
    return [b"" if each is None else one(each) for each in ids]


def id_text(raw: bytes) -> str | None:
    """The text form of a record's id; None if the record has no id."""
    return raw.decode(errors="backslashreplace") or None


def whole(value: int, what: str, low: int, high: int) -> int:
    """Raises BadRequest unless it is a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{what}={value!r}", hint=f"a whole number from {low} to {high} is allowed")
    return value


def number_of(value: SupportsIndex | None, what: str) -> int | None:
    """A whole number of any type as an int. Raises BadRequest."""
    try:
        return None if value is None else int(index(value))
    except TypeError:
        raise _wrong_type(what, "a whole number", value) from None


def keys_of(key: bytes | None, keys: Sequence[Value | None] | None, count: int) -> list[bytes | None] | None:
    """One key for each of `count` values, or None without keys. Raises BadRequest."""
    if keys is None:
        return None if key is None else [key] * count
    if key is not None or len(keys) != count:
        raise BadRequest(
            "keys= needs one key for each value, without key=", hint=f"{len(keys)} keys for {count} values"
        )
    return [None if each is None else key_bytes(each) for each in keys]


def header_bytes(headers: Headers | bytes | None) -> bytes:
    """The msgpack map of one record's headers; b"" without headers. Bytes are the headers of
    another record and stay unchanged, whatever they contain; so do unreadable headers in the form
    of `headers_shown`. Raises BadRequest.
    """
    if not headers:
        return b""
    raw = headers if isinstance(headers, bytes) else _packed(headers)
    if len(raw) > limits.HEADERS_BYTES_MAX:
        raise too_large("headers", len(raw), limits.HEADERS_BYTES_MAX)
    return raw


def _packed(headers: Headers) -> bytes:
    if not isinstance(headers, Mapping):
        raise _wrong_type("headers", "a mapping of names to values", headers)
    unreadable = headers.get(UNREADABLE)
    if isinstance(unreadable, bytes) and len(headers) == 1:
        return unreadable
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise BadRequest(
                f"headers are text to text or bytes, not {type(name).__name__} to {type(value).__name__}",
                hint=f"write it as text: {str(name)!r}: {str(value)!r}"[:200],
            )
    try:
        return _encode(dict(headers))
    except UnicodeEncodeError as error:
        raise BadRequest(f"headers={headers!r}: {error.reason}", hint=_WRITE_UTF8) from None


def edited(value: Value | None, headers: Headers | None) -> tuple[bytes | None, bytes | None]:
    """The new value and headers of a record; None = unchanged. Raises BadRequest."""
    if value is None and headers is None:
        raise BadRequest("nothing to edit", hint="pass value= or headers=")
    return None if value is None else value_bytes(value), None if headers is None else header_bytes(headers)


def route_bytes(route: str) -> bytes:
    """Raises BadRequest."""
    raw = text_of(route, "route").encode()
    if len(raw) > limits.ROUTE_BYTES_MAX:
        raise too_large("route", len(raw), limits.ROUTE_BYTES_MAX)
    return raw


def too_large(what: str, size: int, size_max: int) -> TooLarge:
    return TooLarge(
        f"{what} of {size} bytes; at most {size_max} are allowed",
        hint="store it elsewhere and publish its address",
    )


def text_of(value: str, what: str) -> str:
    """The text, if a frame can carry it. Raises BadRequest."""
    if not isinstance(value, str):
        raise _wrong_type(what, "str", value)
    _utf8(value, what)
    return value


def level_of(level: str | None) -> str:
    if level in (None, "", "stored", "none"):
        return level or ""
    raise BadRequest(f"level={level!r}", hint='use "stored" (confirmed means kept) or "none" (no confirm)')


def names_of(topics: str | Iterable[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadRequest("no topic named", hint='pass "orders", ["a", "b"] or "orders.*"')
    return list(dict.fromkeys(text_of(name, "topic") for name in names))
