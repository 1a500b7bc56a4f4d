"""Rows of an outbox: options are checked in the transaction, and mean the same when they are published."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gossipq.errors import BadRequest
from gossipq.types import Now
from gossipq_outbox.rows import Row, new_row, publish_arguments


class Stopped:
    """A clock that stands still."""

    def now(self) -> Now:
        return Now(5_000, 1_000_000)

    def ticks_us(self) -> int:
        return 0


def row(value: Any = b"one", **options: Any) -> Row:
    columns = new_row("orders", value, options, Stopped())
    return Row(1, *(columns[name] for name in ("id", "topic", "key", "value", "options", "created_ms")))


def test_a_row_without_an_id_gets_one() -> None:
    first, second = row(), row()
    assert first.id != second.id
    assert publish_arguments(first, 1_000_000) == {"key": None, "id": first.id}


def test_options_survive_as_json() -> None:
    made = row(
        {"n": 1}, id="a-1", key="ada", headers={"shop": "north"}, route="eu.fr", backoff=timedelta(seconds=2)
    )
    assert made.value == b'{"n":1}'
    assert publish_arguments(made, 1_000_000) == {
        "id": "a-1",
        "key": b"ada",
        "headers": {"shop": "north"},
        "route": "eu.fr",
        "backoff": 2.0,
    }


@pytest.mark.parametrize("due", [{"delay": "1m"}, {"at": datetime.fromtimestamp(1_060, UTC)}])
def test_a_due_time_is_kept_however_late_the_relay_is(due: dict[str, Any]) -> None:
    assert publish_arguments(row(**due), 3_000_000)["at"] == 1_060


@pytest.mark.parametrize(
    ("options", "now_ms", "left_s"),
    [
        ({}, 1_004_000, 6),
        ({"delay": "5s"}, 1_004_000, 10),
        ({"delay": "5s"}, 1_006_000, 9),
        ({}, 9_000_000, 0.001),
    ],
)
def test_the_time_to_live_runs_while_a_row_waits(options: dict[str, Any], now_ms: int, left_s: float) -> None:
    assert publish_arguments(row(ttl="10s", **options), now_ms)["ttl"] == left_s


@pytest.mark.parametrize(
    "options",
    [
        {"wait": 0},
        {"level": "none"},
        {"id": b"\xff"},
        {"id": "a\0b"},
        {"headers": {"raw": b"\xff"}},
        {"ttl": "-1s"},
        {"delay": "1s", "at": 1_060},
    ],
)
def test_options_that_cannot_be_published_are_refused_in_the_transaction(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        row(**options)


def test_options_that_are_no_object_are_an_error() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        publish_arguments(row()._replace(options="[]"), 1_000_000)
