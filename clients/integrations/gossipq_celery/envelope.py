"""A message of kombu as a record: its body is the value, and all the rest is one header."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kombu.utils import json as kombu_json

from gossipq import limits

HEADER = "kombu"
PARTS = ("content-type", "content-encoding", "headers", "properties")


def value_of(payload: Mapping[str, Any]) -> bytes:
    """Return the body of a message as bytes."""
    body = payload["body"]
    return body if isinstance(body, bytes) else str(body or "").encode()


def headers_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the record of a message. `task` and `task_id` are for people who search."""
    headers = {HEADER: _text_of({name: payload.get(name) for name in PARTS})}
    task = payload.get("headers") or {}
    if task.get("task") and task.get("id"):
        headers.update(task=str(task["task"]), task_id=str(task["id"]))
    return headers


def _text_of(parts: dict[str, Any]) -> str:
    """Return the parts of a message as JSON. As with AMQP, a property is dropped that is none of a message:
    the keywords of a signal of Celery, for example."""
    try:
        return str(kombu_json.dumps(parts))
    except TypeError:
        properties = parts["properties"]
        return str(
            kombu_json.dumps({**parts, "properties": {k: v for k, v in properties.items() if _is_json(v)}})
        )


def _is_json(value: Any) -> bool:
    try:
        kombu_json.dumps(value)
    except TypeError:
        return False
    return True


def payload_of(
    value: bytes, headers: Mapping[str, str | bytes], tag: int, redelivered: bool
) -> dict[str, Any]:
    """Return the message of a record as kombu's virtual transports have it. `tag` names the delivery.

    A record of another program lacks the header of kombu. It becomes a message without a type.
    """
    payload: dict[str, Any] = kombu_json.loads(headers[HEADER]) if HEADER in headers else {"properties": {}}
    properties = payload["properties"]
    properties["delivery_tag"] = tag
    properties.setdefault("delivery_info", {})["redelivered"] = redelivered
    payload["body"] = value
    return payload


def due_of(payload: Mapping[str, Any], now: datetime) -> float | None:
    """Return the seconds until a task is due; None if it is due now, or names no time with its zone."""
    eta = (payload.get("headers") or {}).get("eta")
    if not eta:
        return None
    try:
        due = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
    except ValueError:
        return None
    if due.tzinfo is None:
        return None
    seconds = (due.astimezone(UTC) - now).total_seconds()
    return min(seconds, limits.DELAY_MS_MAX / 1000) if seconds > 0 else None


def ttl_of(payload: Mapping[str, Any]) -> float | None:
    """Return the time to live of a message in seconds, from the property `expiration` in ms."""
    expiration = (payload.get("properties") or {}).get("expiration")
    try:
        return max(float(expiration) / 1000, 0.001) if expiration else None
    except ValueError:
        return None
