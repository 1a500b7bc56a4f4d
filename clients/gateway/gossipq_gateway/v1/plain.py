"""Conversion of records between the client and JSON."""

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from gossipq.errors import BadRequest
from gossipq.types import HEADERS, IDS, KEYS
from gossipq_client import DeadLetter, Job, Receipt, Record, StoredRecord
from gossipq_client.session import Stretch
from gossipq_client.values import payloads, results
from gossipq_gateway.v1 import shapes
from gossipq_ops.questions import Act

#: by kind of subject and verb: the path of the POST that does it
_PATHS = {
    ("group", "seek"): "/v1/topics/{}/groups/{}/seek",
    ("schedule", "pause"): "/v1/topics/{}/schedules/{}/pause",
    ("schedule", "resume"): "/v1/topics/{}/schedules/{}/resume",
}
_text_of = msgspec.json.Decoder(str).decode


def undo(act: Act | None) -> shapes.Undo | UnsetType:
    """Return the request that does this act, which takes another one back."""
    if act is None:
        return UNSET
    names = (quote(name, safe="") for name in act.subject.names)
    path = _PATHS[act.subject.kind, act.verb].format(*names)
    return shapes.Undo(method="POST", path=path, body={"to": act.text} if act.text else UNSET)


def value_of(raw: msgspec.Raw, base64: str | None = None) -> bytes:
    """Return the bytes of a value: text as UTF-8, other JSON unchanged. Raises BadRequest."""
    written = bytes(raw)
    if base64 is not None:
        if written:
            raise BadRequest("value and value_base64 exclude each other", hint="pass one of them")
        return _decoded(base64, "value_base64")
    if not written:
        raise BadRequest("a record needs a value", hint='{"value": "text, or any JSON"}')
    if written[0] != 0x22:
        return written
    if b"\\" not in written:
        return written[1:-1]
    try:
        return _text_of(written).encode()
    except (msgspec.DecodeError, UnicodeError):
        raise BadRequest("value cannot be encoded as UTF-8", hint="pass bytes as value_base64") from None


def _decoded(base64: str, name: str) -> bytes:
    try:
        return a2b_base64(base64, strict_mode=True)
    except ValueError as error:
        raise BadRequest(f"{name} is no base64: {error}") from None


def published(record: shapes.Record) -> tuple[bytes, dict[str, Any]]:
    """Return the value of a record, and the other arguments of publish. Raises BadRequest."""
    options = options_of(
        record, "value", "value_base64", "key", "key_base64", "headers", "headers_base64", "id", "id_base64"
    )
    for name, text, base64 in (("key", record.key, record.key_base64), ("id", record.id, record.id_base64)):
        if text is not None and base64 is not None:
            raise BadRequest(f"{name} and {name}_base64 exclude each other", hint="pass one of them")
        if text is not None:
            options[name] = text
        elif base64 is not None:
            options[name] = _decoded(base64, f"{name}_base64")
    if headers := headers_in(record):
        options["headers"] = headers
    return value_of(record.value, record.value_base64), options


def sealed(body: shapes.Sealed) -> tuple[bytes, dict[str, Any]]:
    """Return the value of a record, and the other arguments of `schedule` or `join`. Raises BadRequest."""
    options = options_of(body, "value", "value_base64", "headers", "headers_base64")
    if headers := headers_in(body):
        options["headers"] = headers
    return value_of(body.value, body.value_base64), options


def headers_in(
    given: shapes.Record | shapes.Edit | shapes.Sealed,
) -> dict[str, str | bytes] | None:
    """Return the headers of both fields; None if both are missing. Raises BadRequest.

    If a name is in both, the bytes win.
    """
    if given.headers is None and given.headers_base64 is None:
        return None
    found: dict[str, str | bytes] = {
        name: _decoded(text, "headers_base64") for name, text in (given.headers_base64 or {}).items()
    }
    for name, text in (given.headers or {}).items():
        found.setdefault(name, text)
    return found


def headers_of(lines: Iterable[str]) -> dict[str, str] | None:
    """Parse NAME:VALUE lines. Raises BadRequest."""
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise BadRequest(f"header={line}", hint="write NAME:VALUE")
        found[name] = value
    return found or None


def start_of(text: str) -> str | int | datetime:
    """Parse a position in a topic. Raises BadRequest."""
    if text.isdecimal() and text.isascii():
        if len(text) > 18:
            raise BadRequest(f"start={text} is no offset")
        return int(text)
    if text in ("first", "new") or text.startswith("-"):
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        hint = '"first", "new", an offset, RFC 3339 with a zone, or "-10m"'
        raise BadRequest(f"start={text} is not a position in a topic", hint=hint) from None


def options_of(shape: msgspec.Struct, *without: str) -> dict[str, Any]:
    """Return the fields of a shape that were set."""
    return {
        name: value
        for name in shape.__struct_fields__
        if name not in without and (value := getattr(shape, name)) not in (None, "")
    }


def job(found: Job) -> shapes.Job:
    shape = shapes.Job(
        ref=found.ref,
        state=found.state,
        because=found.because,
        group=found.group,
        consumer=found.consumer,
        time=0.0 if found.time is None else found.time.timestamp(),
        attempt=found.attempt,
        failures=found.failures,
        error=found.error,
        traceback=found.traceback,
        kept=found.kept,
        text=found.text,
    )
    if found.progress is not None:
        shape.progress = found.progress
    if found.kind == results.BYTES:
        shape.result_base64 = b64encode(found.value).decode()
    elif found.kind == results.JSON:
        shape.result = msgspec.Raw(found.value)
    elif found.kept:
        shape.result = found.result()
    return shape


def stored(receipt: Receipt) -> shapes.Stored:
    return shapes.Stored(
        topic=receipt.topic,
        partition=receipt.partition,
        offset=receipt.offset,
        ref=receipt.ref,
        copies=receipt.copies,
        duplicate=receipt.duplicate,
        count=receipt.count,
        kept=receipt.kept or msgspec.UNSET,
    )


def stored_list(receipt: Receipt) -> shapes.StoredList:
    parts = receipt.receipts or (receipt,)
    return shapes.StoredList(
        count=receipt.count,
        copies=receipt.copies,
        duplicate=receipt.duplicate,
        receipts=[stored(part) for part in parts],
    )


def shown(record: StoredRecord | Record) -> shapes.Delivery:
    """Convert a record of any kind."""
    found = shapes.Delivery(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        ref=record.ref,
        publish_time=record.publish_time.timestamp(),
        route=record.route,
    )
    _content(found, record.value, record.key, record.headers_shown, record.id_bytes)
    return found


def delivery(msg: Record, lease: str = "") -> shapes.Delivery:
    """Convert a delivered record."""
    found = shown(msg)
    found.attempt, found.lease = msg.attempt, lease
    return found


def deliveries_of(stretch: Stretch) -> list[shapes.Delivery]:
    """Convert records that were read in bulk."""
    batch, topic, number = stretch.batch, stretch.topic, stretch.partition
    values, keys, headers, ids = batch.values(), batch.column(KEYS), batch.column(HEADERS), batch.column(IDS)
    route, made = batch.route.decode(errors="replace"), list[shapes.Delivery]()
    for offset in range(stretch.first, stretch.end):
        at = offset - stretch.base
        found = shapes.Delivery(
            topic=topic,
            partition=number,
            offset=offset,
            ref=f"{topic}/{number}/{offset}",
            publish_time=batch.info.publish_ms / 1000,
            route=route,
        )
        given = payloads.headers_shown(headers[at]) if headers else {}
        _content(found, values[at], keys[at] if keys else None, given, ids[at] if ids else None)
        made.append(found)
    return made


def dead(letter: DeadLetter, values: bool) -> shapes.Dead:
    found = shapes.Dead(
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        ref=letter.ref,
        group=letter.group,
        reason=letter.reason,
        error=letter.error,
        attempts=letter.attempts,
        time=letter.time.timestamp(),
        count=letter.count,
    )
    if values:
        _put(found, "value", letter.value)
    return found


def _content(
    found: shapes.Delivery,
    value: bytes,
    key: bytes | None,
    headers: Mapping[str, str | bytes],
    record_id: bytes | None,
) -> None:
    _put(found, "value", value)
    if key is not None:
        _put(found, "key", key)
    for name, each in headers.items():
        text = each if isinstance(each, str) else _either(each)[0]
        if text is not None:
            found.headers = {**found.headers, name: text}
        if isinstance(each, bytes):
            found.headers_base64 = {**found.headers_base64, name: b64encode(each).decode()}
    if record_id:
        _put(found, "id", record_id)


def _put(found: shapes.Delivery | shapes.Dead, name: str, raw: bytes) -> None:
    """Set a field to text, or the field for its base64."""
    text, base64 = _either(raw)
    setattr(found, f"{name}_base64" if text is None else name, base64 if text is None else text)


def _either(raw: bytes) -> tuple[str | None, str]:
    """Return text, or else base64."""
    try:
        return raw.decode(), ""
    except UnicodeDecodeError:
        return None, b64encode(raw).decode()
