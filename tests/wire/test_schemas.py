"""Schemas: their form, which documents match, and which versions may follow."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from gossipq.errors import BadRequest, SchemaMismatch
from gossipq.wire import schemas
from gossipq.wire.schemas import Declaration, Declared, Schema


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    user: str
    amount: float
    lines: list[Line]
    at: datetime | None = None
    tags: dict[str, int] = {}
    raw: bytes = b""


@dataclass
class Plain:
    user: str
    day: date | None = None


def schema(declared: Any, version: int = 1) -> Schema:
    return Schema("orders", 7, version, schemas.document_of(declared))


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def test_what_python_encodes_fits_its_own_schema() -> None:
    made = schema(Order)
    order = Order("ada", 1.5, [Line("x")], datetime(2026, 11, 22, tzinfo=UTC), {"a": 1}, b"\x00")
    raw = msgspec.json.encode(order)
    assert made.decode(raw)["lines"] == [{"sku": "x", "count": 1}]
    row = made.decode_row(raw)
    assert (row.f0, row.f1, row.f2[0].f0, row.f3.year, row.f4, row.f5) == (
        "ada",
        1.5,
        "x",
        2026,
        {"a": 1},
        b"\x00",
    )
    assert schema(Plain).trouble(b'{"user":"ada","day":"2026-11-22","more":1}') == "", (
        "producers may be newer"
    )


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"amount":1,"lines":[]}', "missing required field `user`"),
        (b'{"user":1,"amount":1,"lines":[]}', "$.user"),
        (b'{"user":"a","amount":"1","lines":[]}', "$.amount"),
        (b'{"user":"a","amount":1,"lines":[{"sku":null}]}', "$.lines[0].sku"),
        (b'{"user":"a","amount":1,"lines":[{"sku":"x","count":9223372036854775808}]}', "count"),
        (b'{"user":"\xff","amount":1,"lines":[]}', ""),
        (b'{"user":"a","amount":1,"lines":' + b"[" * 100_000, ""),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(value: bytes, place: str) -> None:
    trouble = schema(Order).trouble(value)
    assert trouble
    assert place in trouble
    with pytest.raises(SchemaMismatch, match="does not fit schema version 1 of orders"):
        schema(Order).check(value)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("[", "not JSON"),
        ([1], "no schema can be made"),
        ({"type": "string"}, r"\$: a schema describes an object"),
        ({"type": "object"}, "an object needs to say what is in it"),
        (of(a={}), r"\$.a: type None is not known"),
        (of(a={"type": "text"}), r"\$.a: type 'text' is not known"),
        (of(a={"oneOf": [TEXT, WHOLE]}), r"\$.a: one type, or it and null"),
        (of(a={"type": ["string", "integer"]}), "one type, or it and null"),
        (of(a={"type": "string", "minimum": 1}), r"\$.a: 'minimum' is not known"),
        (of(a={"type": "array"}), r"\$.a\[\]: None is no schema"),
        (of(a={"type": "array", "items": {"$ref": "#/$defs/A"}}), "is not defined"),
        (of(a={"$ref": "#"}), "a type that contains itself"),
        (of(a={"$ref": "http://x/y"}), "lies outside"),
        (of(a={"enum": ["x", 1]}), "a list of texts"),
        (of(a={"enum": []}), "a list of texts"),
        (of(a={"enum": [[1]]}), "a list of texts"),
        (of(a={"enum": 7}), "a list of texts"),
        (of(a={"type": "string", "pattern": "("}), "cannot be checked with"),
        (of(a={"type": "integer", "minimum": "x"}), "cannot be checked with"),
        (of(a=TEXT, A=TEXT), "differ in case only"),
        (of(**{"a.b": TEXT, "a": of(b=TEXT)}), r"\$.a.b: two columns of this name"),
        (of(**{"l.element": TEXT, "l": {"type": "array", "items": TEXT}}), "two columns"),
        (of(**{"": TEXT}), "characters"),
        (of(a=TEXT) | {"required": ["b"]}, "required names what has no property"),
        (of(a=TEXT) | {"required": 7}, "required names"),
        (of(a=TEXT) | {"allOf": []}, "'allOf' is not known"),
        (of(**{f"f{at}": TEXT for at in range(1_001)}), "more than 1000 fields"),
        (of(a={"type": "string", "description": "x" * 70_000}), "bytes"),
    ],
)
def test_what_is_no_schema_says_where_and_why(document: Any, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        schemas.document_of(document)


def test_deep_nesting_is_refused_and_harms_nobody() -> None:
    document: dict[str, Any] = TEXT
    for _ in range(200):
        document = of(a=document)
    with pytest.raises(BadRequest, match="deeper than 16"):
        schemas.document_of(document)
    with pytest.raises(BadRequest):
        schemas.document_of(b'{"a":' * 100_000)


FIRST = of(a=TEXT, b=WHOLE, c={"enum": ["x", "y"]}, d=of(e=TEXT)) | {"required": ["a"]}


@pytest.mark.parametrize(
    "then",
    [
        FIRST,
        of(**FIRST["properties"], more=WHOLE) | {"required": ["a"]},
        of(**FIRST["properties"]),
        of(**FIRST["properties"] | {"a": {"type": ["string", "null"]}}) | {"required": ["a"]},
        of(**FIRST["properties"] | {"c": {"enum": ["x", "y", "z"]}}),
        of(**FIRST["properties"] | {"c": TEXT}),
        of(**FIRST["properties"] | {"d": of(e=TEXT, f=TEXT)}),
        FIRST | {"title": "told", "$comment": "nothing"},
    ],
)
def test_what_may_follow(then: dict[str, Any]) -> None:
    schemas.require_follows(schema(FIRST), schema(then).shape)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (of(b=WHOLE, c=TEXT, d=of(e=TEXT)), r"\$.a: is gone"),
        (of(**FIRST["properties"] | {"b": {"type": "number"}}), r"\$.b: was integer, and is number"),
        (of(**FIRST["properties"], more=TEXT) | {"required": ["more"]}, r"\$.more: is new and required"),
        (FIRST | {"required": ["a", "b"]}, r"\$.b: is required now"),
        (of(**FIRST["properties"] | {"c": {"enum": ["x"]}}), r"\$.c: fewer choices"),
        (of(**FIRST["properties"] | {"a": {"enum": ["x"]}}), r"\$.a: fewer choices"),
        (of(**FIRST["properties"] | {"b": {"type": "integer", "minimum": 1}}), r"\$.b: minimum is new"),
        (of(**FIRST["properties"] | {"d": of(g=TEXT)}), r"\$.d.e: is gone"),
        (FIRST | {"additionalProperties": False}, "other fields are allowed no more"),
    ],
)
def test_what_may_not_follow(then: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaMismatch, match=told):
        schemas.require_follows(schema(FIRST), schema(then).shape)


def test_the_order_of_declarations_decides_and_strangers_change_nothing() -> None:
    def entry(version: int, document: Any, topic_id: int = 7) -> bytes:
        return schemas.encode(Declaration("orders", topic_id, version, document))

    more = of(**FIRST["properties"], more=TEXT)
    known = Declared(
        [
            b"nonsense",
            b'{"topic":"orders"}',
            entry(2, FIRST),  # no first version exists
            entry(1, {"type": "no"}),
            entry(1, FIRST),
            entry(1, more),  # the second entry for this version
            entry(2, of(z=TEXT)),  # would refuse values that matched before
            entry(2, more),
            entry(1, FIRST, 8),
            entry(2, None, 8),
        ]
    )
    assert {key: (each.version, each.document) for key, each in known.schemas.items()} == {7: (2, more)}
    assert known.versions == {7: 2, 8: 2}
    assert Declared([entry(1, FIRST), entry(2, None), entry(3, of(z=TEXT))]).schemas[7].version == 3
