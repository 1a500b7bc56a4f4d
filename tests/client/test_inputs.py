"""Allowed inputs of users, and the errors for others."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import gossipq_client
from gossipq import limits
from gossipq.errors import BadRequest, TooLarge
from gossipq_client.values import Undecodable, inputs, payloads


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1_000),
        (0.25, 250),
        (timedelta(minutes=2), 120_000),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("7d", 604_800_000),
    ],
)
def test_durations(given: inputs.Duration, expected: int) -> None:
    assert inputs.duration_ms(given) == expected


@pytest.mark.parametrize(
    "given", ["", "5", "5 s", "s", "1h-", "1w", float("nan"), True, None, b"5s", [5], "-5s"]
)
def test_what_is_no_duration(given: inputs.Duration) -> None:
    with pytest.raises(BadRequest, match="is not a duration"):
        inputs.duration_ms(given)
    with pytest.raises(BadRequest, match=r"wait=.* is not a duration"):
        inputs.seconds(given)


def test_a_wait_may_be_what_is_left_of_a_longer_one() -> None:
    assert inputs.seconds("1.5s") == inputs.limit_s(timedelta(seconds=1.5)) == 1.5
    assert [inputs.limit_s(wait) for wait in (-0.5, float("inf"), None)] == [-0.5, float("inf"), None]


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        (-1, "wait=-1 is negative", "10ms to 1h are allowed"),
        (-0.001, "negative", "10ms"),
        (timedelta(days=-1), "negative", "10ms"),
        (0, "wait=0 is too short", "10ms"),
        ("9ms", "too short", "10ms"),
        (3_600.001, "too long", "1h"),
        (float("inf"), "too long", "1h"),
        (10**400, "too long", "1h"),
    ],
)
def test_durations_out_of_bounds(given: inputs.Duration, says: str, hint: str) -> None:
    with pytest.raises(BadRequest, match=says) as refused:
        inputs.duration_ms(given, "wait", 10, limits.HOUR_MS)
    assert hint in refused.value.hint
    assert inputs.duration_ms("1h", "wait", 10, limits.HOUR_MS) == limits.HOUR_MS


def test_spans() -> None:
    spans = {
        0: "0ms",
        1: "1ms",
        1_500: "1500ms",
        2_000: "2s",
        90_000: "90s",
        3_600_000: "1h",
        limits.DELAY_MS_MAX: "3650d",
    }
    assert {ms: inputs.span(ms) for ms in spans} == spans
    assert all(inputs.duration_ms(text) == ms for ms, text in spans.items())


def test_whole_numbers() -> None:
    assert [inputs.whole(number, "n", 1, 3) for number in (1, 3)] == [1, 3]
    for wrong in (0, 4, 1.0, "2", None, True):
        with pytest.raises(BadRequest, match="n="):
            inputs.whole(wrong, "n", 1, 3)  # type: ignore[arg-type]


def test_starts() -> None:
    assert inputs.start_of("first", 0) == ("first", 0)
    assert inputs.start_of("new", 0) == ("new", 0)
    assert inputs.start_of(17, 0) == ("offset", 17)
    assert inputs.start_of("-10m", 1_000_000) == ("time", 400_000)
    assert inputs.start_of(datetime.fromtimestamp(12.5, UTC), 0) == ("time", 12_500)
    for wrong in ("last", -1, 2**63, True, datetime.fromtimestamp(0), "-", "--5s"):
        with pytest.raises(BadRequest):
            inputs.start_of(wrong, 0)


def test_values_and_keys() -> None:
    assert [inputs.value_bytes(value) for value in ("é", bytearray(b"a"), memoryview(b"b"), b"")] == [
        "é".encode(),
        b"a",
        b"b",
        b"",
    ]
    assert inputs.values_of(["a", b"b"]) == [b"a", b"b"]
    assert inputs.values_of(value for value in (b"a",)) == [b"a"]
    with pytest.raises(TooLarge):
        inputs.values_of([b"", bytes(limits.VALUE_BYTES_MAX + 1)])
    assert inputs.keys_of(b"k", None, 2) == [b"k", b"k"]
    assert inputs.keys_of(None, ["k", None], 2) == [b"k", None]
    assert inputs.keys_of(None, None, 2) is None
    with pytest.raises(BadRequest):
        inputs.keys_of(b"k", ["k"], 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x01",
        b"\x81\xa1a\x01",
        b"\x81\xa1a\xc0",
        b"\x81\x01\xa1x",
        b"\x81\xa3\xed\xa0\x80\xa1x",
        b"\x81\xa1a\xa1\xff",
        b"\x82\xa1a",
        b"\x81\xa1a" + b"\x91" * 5_000,
    ],
)
def test_headers_of_another_make(raw: bytes) -> None:
    with pytest.raises(Undecodable, match="no map of text to text or bytes"):
        payloads.headers_of(raw)
    assert payloads.headers_shown(raw) == {"gossipq-unreadable-headers": raw}
    assert inputs.header_bytes(raw) == raw, "whoever passes a record on does not change them"


def test_headers() -> None:
    assert payloads.headers_of(inputs.header_bytes({"a": "b", "raw": b"\xff"})) == {"a": "b", "raw": b"\xff"}
    assert payloads.headers_of(b"") == {}
    assert inputs.header_bytes(None) == inputs.header_bytes({}) == b""
    with pytest.raises(BadRequest, match="int"):
        inputs.header_bytes({"a": 1})  # type: ignore[dict-item]
    for large in ({"a": "b" * 65_536}, b"\xc1" * 65_537):
        with pytest.raises(TooLarge, match="headers"):
            inputs.header_bytes(large)
    with pytest.raises(TooLarge, match="route"):
        inputs.route_bytes("x" * 256)
    with pytest.raises(BadRequest, match="route must be str, not int"):
        inputs.route_bytes(5)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="route="):
        inputs.route_bytes("\ud800")


def test_topics() -> None:
    assert inputs.names_of("a") == ["a"]
    assert inputs.names_of(["a", "b.*", "a"]) == ["a", "b.*"]
    for wrong in ("", [], [""]):
        with pytest.raises(BadRequest):
            inputs.names_of(wrong)


def test_exported_names_are_sorted_and_there() -> None:
    assert gossipq_client.__all__ == sorted(gossipq_client.__all__)
    assert all(hasattr(gossipq_client, name) for name in gossipq_client.__all__)


NAN, INFINITE = float("nan"), float("inf")


@dataclass
class Point:
    x: float


class Track(msgspec.Struct):
    points: list[Point]


class Model:
    """It cannot be made of its fields."""

    def model_dump(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (NAN, "the value has nan at $, and JSON has no such number"),
        (-INFINITE, "the value has -inf at $,"),
        ({"x": NAN}, "nan at $.x,"),
        ({"list": [None, (1.0, {"deep": INFINITE})]}, "inf at $.list[1][1].deep,"),
        (Track([Point(0.5), Point(NAN)]), "nan at $.points[1].x,"),
        ({"raw": msgspec.Raw(b"null"), "x": NAN}, "nan at $.x,"),
    ],
)
def test_numbers_that_json_does_not_have_are_refused_with_their_place(value: Any, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        inputs.value_bytes(value)
    assert says in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ({"a": None, "b": [1.5, None]}, b'{"a":null,"b":[1.5,null]}'),
        ({"text": "null", "far": 1e308}, b'{"text":"null","far":1e308}'),
        ({"raw": msgspec.Raw(b'{"x": null}')}, b'{"raw":{"x": null}}'),
        (Decimal("NaN"), b'"NaN"'),
    ],
)
def test_a_null_that_was_meant_stays(value: Any, raw: bytes) -> None:
    assert inputs.value_bytes(value) == raw


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "says", "hint"),
    [
        (None, "the value is None", 'publish b""'),
        (object(), "JSON cannot express a value of type object", "a dataclass, a msgspec.Struct"),
        ({"order": Model()}, "JSON cannot express a value of type Model", "a dataclass"),
        (endless(), "contains itself", "dict, list"),
        ({(1, 2): 3}, "JSON cannot express a value of type tuple", "dict, list"),
        ("\ud800", "surrogates not allowed", "UTF-8"),
        ({"a": "\ud800"}, "surrogates not allowed", "dict, list"),
    ],
)
def test_values_that_cannot_be_published_are_named_with_what_to_do(value: Any, says: str, hint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        inputs.value_bytes(value)
    assert says in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    "take",
    [
        lambda text: inputs.key_bytes(text),
        lambda text: inputs.id_bytes(text),
        lambda text: inputs.ids_of([text]),
        lambda text: inputs.header_bytes({text: "x"}),
        lambda text: inputs.header_bytes({"x": text}),
        lambda text: inputs.route_bytes(text),
    ],
)
def test_text_that_utf8_cannot_express_is_refused(take: Callable[[str], object]) -> None:
    with pytest.raises(BadRequest, match="surrogates not allowed"):
        take("\ud800")
