"""Records as text: templates of `pub`, formats of `sub`, and JSON lines.

`pub` reads the JSON lines that `sub` writes.
"""

import base64
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from gossipq.record_options import RECORD_OPTIONS, OptionKind, RecordOption
from gossipq.texts import iso, moment, printable, readable, size
from gossipq_cli import failures
from gossipq_cli.output import json_text
from gossipq_ops.answers import header_text, published_ms
from gossipq_ops.hints import nearest
from gossipq_ops.inputs import moment_of, seconds_of

SCREEN_BYTES, SCREEN_LINES = 4_096, 40  #: of a value on screen

if TYPE_CHECKING:
    from gossipq_client import Record as ReadRecord

CONTENT = ("value", "value_base64", "key", "key_base64", "headers", "headers_base64", "id_base64")
TOLD = (
    "topic",
    "partition",
    "offset",
    "ref",
    "attempt",
    "time",
)  #: fields that `pub` ignores: the place of a record does not determine its target
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


class Record(NamedTuple):
    """A record to publish. `options` are further arguments of `publish`."""

    value: bytes
    key: bytes | None = None
    headers: dict[str, str | bytes] | None = None
    options: Mapping[str, Any] = {}


def fill(template: str, number: int) -> str:
    """Fill a template: {n} is the record's number from 0, {time} unix
    milliseconds, {uuid} a new one.
    """
    if "{" not in template:
        return template
    text = template.replace("{n}", str(number)).replace("{time}", str(time.time_ns() // 1_000_000))
    return text.replace("{uuid}", str(uuid.uuid4())) if "{uuid}" in text else text


def header(text: str) -> tuple[str, str]:
    """Parse K:V of -H."""
    name, found, value = text.partition(":")
    if not found or not name:
        raise click.BadParameter(f"{text!r}; write NAME:VALUE", param_hint="-H")
    return name, value


def from_json(line: bytes, number: int) -> Record:
    """Parse one line of `--jsonl`. `number` counts from 1, for errors."""
    try:
        found = msgspec.json.decode(line)
        if not isinstance(found, dict) or not ("value" in found or "value_base64" in found):
            raise ValueError('an object with "value" or "value_base64" is needed')
        value, options = _binary(found, "value"), _options(found)
        if found.get("id_base64") is not None:
            options["id"] = _binary(found, "id")
        return Record(b"" if value is None else value, _binary(found, "key"), _headers_in(found), options)
    except ValueError as error:
        message, hint = (
            f"line {number} of the JSON lines: {error}",
            'one object a line: {"value": "...", "key": "..."}',
        )
        raise failures.Failure("usage", message, hint, failures.USAGE) from None


def _headers_in(found: Mapping[str, Any]) -> dict[str, str | bytes] | None:
    """Return the headers of both fields. If a name is in both, the bytes win."""
    if found.get("headers") is None and found.get("headers_base64") is None:
        return None
    texts = _strings(found, "headers")
    raw = {name: _decoded(text) for name, text in _strings(found, "headers_base64").items()}
    return {**raw, **{name: text for name, text in texts.items() if name not in raw}}


def _strings(found: Mapping[str, Any], name: str) -> dict[str, str]:
    try:
        return msgspec.convert(found.get(name) or {}, dict[str, str])
    except msgspec.ValidationError:
        raise ValueError(f'"{name}" is an object of strings') from None


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _options(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields except the content.

    Unknown fields are errors, because a misspelt `delay` would publish at once.
    """
    options: dict[str, Any] = {}
    for name, value in found.items():
        if name in CONTENT or name in TOLD or value is None:
            continue
        if name not in _OPTIONS:
            known = [*CONTENT, *_OPTIONS]
            raise ValueError(f'no field "{name}"{nearest(name, known) or "; there are " + ", ".join(known)}')
        try:
            options[name] = _OPTIONS[name](value)
        except ValueError as error:
            raise ValueError(f'"{name}": {error}') from None
    return options


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string is needed")
    return value


def _reader(option: RecordOption) -> Callable[[Any], Any]:
    """Return the function that reads an option of a record in JSON lines. It raises ValueError."""

    def whole(value: Any) -> int:
        if type(value) is not int or not option.low <= value <= option.high:
            raise ValueError(f"a number from {option.low} to {option.high} is needed")
        return value

    readers: dict[OptionKind, Callable[[Any], Any]] = {
        "choice": _text,
        "duration": seconds_of,
        "moment": lambda value: moment_of(_text(value)),
        "text": _text,
        "until": lambda value: value if value == "acked" else seconds_of(value),
        "whole": whole,
    }
    return readers[option.kind]


#: a level is that of all lines
_OPTIONS = {option.name: _reader(option) for option in RECORD_OPTIONS if option.name != "level"}


def _binary(found: Mapping[str, Any], name: str) -> bytes | None:
    """Return a field as bytes: base64, a string as UTF-8, other values as their JSON."""
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        return _decoded(encoded)
    value = found.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def as_row(record: Any) -> dict[str, Any]:
    """Return a record as a JSON object, without fields of a delivery."""
    row = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    return row | {"time": iso(published_ms(record))} | content(record)


def content(record: Any) -> dict[str, Any]:
    """Return the producer's content, byte for byte."""
    row: dict[str, Any] = {"key": None}
    for name, value in (("key", record.key), ("value", record.value)):
        if value is not None:
            row |= text_or_base64(name, value)
    row |= _headers_out(record.headers_shown)
    if record.route:
        row["route"] = record.route
    if record.id_bytes is not None:
        row |= text_or_base64("id", record.id_bytes)
    row |= record.own_options
    return row


def _headers_out(headers: Mapping[str, str | bytes]) -> dict[str, dict[str, str]]:
    """Return texts under "headers", and values published as bytes under "headers_base64"."""
    texts, raw = dict[str, str](), dict[str, str]()
    for name, value in headers.items():
        if isinstance(value, bytes):
            raw[name] = base64.b64encode(value).decode()
        with suppress(UnicodeDecodeError):
            texts[name] = value if isinstance(value, str) else value.decode()
    return {name: found for name, found in (("headers", texts), ("headers_base64", raw)) if found}


def id_text(record: Any) -> str:
    """Return the id of a message, or of a stored record."""
    return record.id or ""


def as_text(record: Any) -> str:
    """Format a stored record for people: its facts line by line, then its value."""
    fields = {"ref": record.ref, "published": moment(published_ms(record))}
    fields |= {"key": readable(record.key)} if record.key is not None else {}
    fields |= {f"header {name}": header_text(value) for name, value in record.headers_shown.items()}
    fields |= {"route": record.route} if record.route else {}
    fields |= {"id": id_text(record)} if record.id else {}
    fields["size"] = size(len(record.value))
    width = max(map(len, fields))
    lines = [f"{printable(name):<{width}}  {printable(text)}" for name, text in fields.items()]
    return "\n".join([*lines, "", cut(record.value)])


def cut(value: bytes) -> str:
    """Cut a value for people to one screen."""
    shown = readable(value[:SCREEN_BYTES], keep="\n\t")
    head = "\n".join(shown.splitlines()[:SCREEN_LINES])
    if len(value) <= SCREEN_BYTES and head.count("\n") == shown.rstrip("\n").count("\n"):
        return shown
    return f"{head}\n... cut: {size(len(value))} in all; --raw has every byte, -o json all of the record"


def to_json(message: "ReadRecord") -> bytes:
    """Return one line for `sub -o jsonl`, from which `from_json` makes the same record."""
    return json_text(as_row(message) | {"attempt": message.attempt}).encode() + b"\n"


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _headers(message: "ReadRecord") -> bytes:
    return b",".join(
        name.encode() + b":" + (value.encode() if isinstance(value, str) else value)
        for name, value in message.headers_shown.items()
    )


_FIELDS: dict[str, Callable[["ReadRecord"], bytes]] = {
    "t": lambda m: m.topic.encode(),
    "p": lambda m: b"%d" % m.partition,
    "o": lambda m: b"%d" % m.offset,
    "k": lambda m: m.key or b"",
    "v": lambda m: m.value,
    "S": lambda m: b"%d" % len(m.value),
    "T": lambda m: b"%d" % published_ms(m),
    "h": _headers,
    "a": lambda m: b"%d" % m.attempt,
    "r": lambda m: m.route.encode(),
    "i": lambda m: m.id_bytes or b"",
    "%": lambda m: b"%",
}


def formatter(pattern: str) -> Callable[["ReadRecord"], bytes]:
    """Return a function that formats one record by `pattern`.

    A pattern without newline and NUL ends in a newline.
    """
    parts: list[bytes | Callable[[ReadRecord], bytes]] = []
    text, at = "", 0
    while at < len(pattern):
        two = pattern[at : at + 2]
        if two in _ESCAPES:
            text, at = text + _ESCAPES[two], at + 2
        elif pattern[at] == "%":
            if two[1:] not in _FIELDS:
                raise click.BadParameter(
                    f"%{two[1:]} is not known; there are %" + " %".join(_FIELDS), param_hint="-f"
                )
            parts += [text.encode(), _FIELDS[two[1:]]]
            text, at = "", at + 2
        else:
            text, at = text + pattern[at], at + 1
    parts.append(text.encode())
    if not any(end in part for part in parts if isinstance(part, bytes) for end in (b"\n", b"\0")):
        parts.append(b"\n")
    return lambda message: b"".join(
        part if isinstance(part, bytes) else part(message) for part in parts if part
    )
