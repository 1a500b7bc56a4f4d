"""Records as text: templates for `pub`, formats for `sub`, JSON lines for both (what `sub` writes, `pub` reads)."""

import base64
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from gossipq_cli import failures

if TYPE_CHECKING:
    from gossipq_client import Message

JSON_FIELDS = ("value", "value_base64", "key", "key_base64", "headers")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


class Record(NamedTuple):
    value: bytes
    key: bytes | None = None
    headers: dict[str, str | bytes] | None = None


def fill(template: str, number: int) -> str:
    """{n} is the number of the record from 0, {time} unix milliseconds, {uuid} a fresh one."""
    if "{" not in template:
        return template
    text = template.replace("{n}", str(number)).replace("{time}", str(time.time_ns() // 1_000_000))
    return text.replace("{uuid}", str(uuid.uuid4())) if "{uuid}" in text else text


def header(text: str) -> tuple[str, str]:
    """K:V as given with -H."""
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise click.BadParameter(f"{text!r}; write NAME:VALUE", param_hint="-H")
    return name, value


def from_json(line: bytes, number: int) -> Record:
    """One line of `--jsonl`; `number` counts from 1 and is only for the error."""
    try:
        found = msgspec.json.decode(line)
        if not isinstance(found, dict) or not ("value" in found or "value_base64" in found):
            raise ValueError('an object with "value" or "value_base64" is needed')
        headers = found.get("headers")
        if headers is not None and not isinstance(headers, dict):
            raise ValueError('"headers" is an object')
        value = _binary(found, "value")
        return Record(b"" if value is None else value, _binary(found, "key"), headers)
    except ValueError as error:
        message, hint = f"line {number} of the JSON lines: {error}", 'one object a line: {"value": "...", "key": "..."}'
        raise failures.Failure("usage", message, hint, failures.USAGE) from None


def _binary(found: Mapping[str, Any], name: str) -> bytes | None:
    """A field as bytes: base64, a string as UTF-8, any other value as its JSON."""
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    value = found.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def to_json(message: "Message") -> bytes:
    """One line for `sub --json`; bytes that are not UTF-8 are written as base64 under their own name."""
    row: dict[str, Any] = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
    row |= {
        "attempt": message.attempt,
        "time": datetime.fromtimestamp(message.publish_time, UTC).isoformat(timespec="milliseconds"),
        "key": None,
    }
    for name, value in (("key", message.key), ("value", message.value)):
        if value is not None:
            row |= _readable(name, value)
    if message.headers:
        row["headers"] = {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            for name, value in message.headers.items()
        }
    return msgspec.json.encode(row) + b"\n"


def _readable(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _headers(message: "Message") -> bytes:
    pairs = (
        f"{name}:{value.decode('utf-8', 'replace') if isinstance(value, bytes) else value}"
        for name, value in message.headers.items()
    )
    return ",".join(pairs).encode()


_FIELDS: dict[str, Callable[["Message"], bytes]] = {
    "t": lambda m: m.topic.encode(),
    "p": lambda m: b"%d" % m.partition,
    "o": lambda m: b"%d" % m.offset,
    "k": lambda m: m.key or b"",
    "v": lambda m: m.value,
    "S": lambda m: b"%d" % len(m.value),
    "T": lambda m: b"%d" % round(m.publish_time * 1_000),
    "h": _headers,
    "a": lambda m: b"%d" % m.attempt,
    "%": lambda m: b"%",
}


def formatter(pattern: str) -> Callable[["Message"], bytes]:
    """A function that writes one record as `pattern` says; a pattern that has neither newline nor NUL ends in a newline."""
    parts: list[bytes | Callable[[Message], bytes]] = []
    text, at = "", 0
    while at < len(pattern):
        two = pattern[at : at + 2]
        if two in _ESCAPES:
            text, at = text + _ESCAPES[two], at + 2
        elif pattern[at] == "%":
            if two[1:] not in _FIELDS:
                raise click.BadParameter(f"%{two[1:]} is not known; there are %" + " %".join(_FIELDS), param_hint="-f")
            parts += [text.encode(), _FIELDS[two[1:]]]
            text, at = "", at + 2
        else:
            text, at = text + pattern[at], at + 1
    parts.append(text.encode())
    if not any(end in part for part in parts if isinstance(part, bytes) for end in (b"\n", b"\0")):
        parts.append(b"\n")
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts if part)
