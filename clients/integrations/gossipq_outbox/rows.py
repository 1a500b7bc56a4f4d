"""A row of an outbox: one record that a transaction publishes, and its options as JSON."""

import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gossipq.clock import Clock
from gossipq.errors import BadRequest
from gossipq_client.values import duration_ms, inputs, payloads, publish_options

#: columns that the caller of a transaction fills; `number` and `refused` belong to the table and the relay
COLUMNS = ("id", "topic", "key", "value", "options", "created_ms")


class Row(NamedTuple):
    """One record that waits for the relay."""

    number: int  #: given by the table, in order of insertion
    id: str
    topic: str
    key: bytes | None
    value: bytes
    options: str  #: JSON: the options of the publish but id and key; due times as `at`, in s since 1970
    created_ms: int  #: unix time


def new_row(topic: str, value: Any, options: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Return the columns of a new row; its times are right whenever it is published.

    `options` are those of `publish`. A row without `id` gets a random one. Raises BadRequest for options that
    the broker would refuse, for `wait` and `level="none"`, and for ids and headers that are no text.
    """
    if "wait" in options:
        raise BadRequest("wait= is not an option of a row", hint="the relay waits until the broker has room")
    given = {"id": uuid.uuid4().hex, **{name: each for name, each in options.items() if each is not None}}
    checked = publish_options(clock.now, **given)
    if checked.level == "none":
        raise BadRequest('level="none" has no confirm', hint="the relay keeps a row until it is confirmed")
    record_id = _text(inputs.id_bytes(given.pop("id")))
    given.pop("key", None)
    now_ms = clock.now().wall_ms
    if "delay" in given:
        given["at"] = (now_ms + duration_ms(given.pop("delay"), "delay")) / 1_000
    if checked.headers:
        given["headers"] = payloads.headers_of(checked.headers)
    return {
        "id": record_id,
        "topic": inputs.text_of(topic, "topic"),
        "key": checked.key,
        "value": inputs.value_bytes(value),
        "options": _json(given),
        "created_ms": now_ms,
    }


def _text(record_id: bytes) -> str:
    """Return an id as a column of text holds it. Raises BadRequest."""
    try:
        text = record_id.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"id={record_id!r} is no text", hint="the id of a row is text") from None
    if "\0" in text:  # PostgreSQL stores no such text
        raise BadRequest(f"id={text!r} has a character 0", hint="leave it out")
    return text


def _json(options: Mapping[str, Any]) -> str:
    def plain(value: object) -> object:
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, datetime):
            return value.timestamp()
        raise BadRequest(f"{value!r} cannot be stored in an outbox", hint="pass text or a number")

    return json.dumps(options, default=plain, separators=(",", ":"))


def publish_arguments(row: Row, now_ms: int) -> dict[str, Any]:
    """Return the options for the publish of a row at `now_ms`, unix time.

    The time to live runs while the row waits, starting when it was due. Raises ValueError if the options are
    no JSON object.
    """
    options = json.loads(row.options or "{}")
    if not isinstance(options, dict):
        raise ValueError(f"options of row {row.number} are {row.options!r}, no JSON object")
    if options.get("ttl") is not None:
        due_ms = max(row.created_ms, round(options.get("at", 0) * 1_000))
        left_ms = duration_ms(options["ttl"], "ttl") - max(0, now_ms - due_ms)
        options["ttl"] = max(1, left_ms) / 1_000
    return {**options, "key": row.key, "id": row.id}
