"""Templates, formats and JSON lines."""

import json
from types import SimpleNamespace

import click
import pytest

from gossipq.times import time_of
from gossipq_cli import failures, records


def message(**more: object) -> SimpleNamespace:
    fields = {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "key": b"ada",
        "value": b"17 apples",
        "attempt": 1,
        "headers_shown": {},
        "route": "",
        "id_bytes": None,
        "own_options": {},
    }
    return SimpleNamespace(**fields | {"publish_time": time_of(1_767_323_045_678)} | more)


def test_fill() -> None:
    assert records.fill("m {n} of {x}", 7) == "m 7 of {x}"
    assert records.fill("{time}", 0).isdigit()
    one, two = (records.fill("{uuid}", number) for number in range(2))
    assert one != two
    assert len(one) == 36


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"%t %p %o %k %v\n", b"orders 3 17 ada 17 apples\n"),
        (r"%S\t%T\t%a%%", b"9\t1767323045678\t1%\n"),
        ("%r|%i", b"|\n"),
        (r"%v\0", b"17 apples\0"),
        (r"%k\n%v", b"ada\n17 apples"),
        (r"\\n", b"\\n\n"),
        ("", b"\n"),
        ("plain", b"plain\n"),
    ],
)
def test_format(pattern: str, text: bytes) -> None:
    assert records.formatter(pattern)(message()) == text


def test_format_without_key_and_with_headers() -> None:
    shown = records.formatter("%k|%h")(message(key=None, headers_shown={"a": b"\xff", "b": "2"}))
    assert shown == b"|a:\xff,b:2\n"


def test_format_of_route_and_id() -> None:
    assert records.formatter("%r %i")(message(route="eu.fr", id_bytes=b"order-\xff")) == b"eu.fr order-\xff\n"


@pytest.mark.parametrize("pattern", ["%q", "%"])
def test_unknown_format(pattern: str) -> None:
    with pytest.raises(click.BadParameter, match="is not known"):
        records.formatter(pattern)


def test_json_line() -> None:
    headers = {"a": b"1", "b": b"\xff", "c": "3"}
    row = json.loads(
        records.to_json(message(headers_shown=headers, id_bytes=b"\xff", own_options={"ttl": 0.5}))
    )
    assert row == {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "attempt": 1,
        "time": "2026-01-02T03:04:05.678+00:00",
        "key": "ada",
        "value": "17 apples",
        "headers": {"a": "1", "c": "3"},
        "headers_base64": {"a": "MQ==", "b": "/w=="},
        "id_base64": "/w==",
        "ttl": 0.5,
    }


@pytest.mark.parametrize("value", [b"", b"text", "grün".encode(), b"\xff\x00"])
@pytest.mark.parametrize("key", [None, b"", b"k", b"\xfe"])
def test_what_sub_writes_pub_reads(value: bytes, key: bytes | None) -> None:
    line = records.to_json(message(value=value, key=key, headers_shown={"h": "1"}))
    assert records.from_json(line, 1) == records.Record(value, key, {"h": "1"})


def test_a_time_out_of_every_calendar() -> None:
    assert json.loads(records.to_json(message(publish_time=time_of(2**62))))["time"].startswith(
        "9999-12-31T23"
    )


def test_route_and_id_go_with_the_record() -> None:
    line = records.to_json(message(route="eu.fr", id_bytes=b"order-17"))
    assert records.from_json(line, 1).options == {"route": "eu.fr", "id": "order-17"}


def test_what_is_bytes_stays_bytes() -> None:
    """Also where the bytes are text: a consumer gets a header as it was published."""
    headers = {"a": b"1", "b": b"\xff", "c": "3"}
    own = {"ttl": 0.5, "lease": 60.0, "attempts_max": 3, "backoff": 0.001}
    line = records.to_json(message(headers_shown=headers, id_bytes=b"\xff1", own_options=own))
    record = records.from_json(line, 1)
    assert record.headers == headers
    assert record.options == {**own, "id": b"\xff1"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value":{"a":1}}', b'{"a":1}'),
        (b'{"value":[1,2]}', b"[1,2]"),
        (b'{"value":5}', b"5"),
        (b'{"value":null}', b""),
    ],
)
def test_values_that_are_no_text_become_json(line: bytes, value: bytes) -> None:
    assert records.from_json(line, 1).value == value


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b"x",
        b'{"value_base64":"?"}',
        b'{"value":1,"headers":3}',
        b'{"value":1,"headers_base64":{"a":"?"}}',
    ],
)
def test_a_bad_line_is_named(line: bytes) -> None:
    with pytest.raises(failures.Failure, match="line 9 of the JSON lines"):
        records.from_json(line, 9)


def test_header() -> None:
    assert records.header("a:b:c") == ("a", "b:c")
    with pytest.raises(click.BadParameter):
        records.header(":b")
