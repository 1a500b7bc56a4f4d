"""Exports of topics with a schema: a typed column beside `value`, and a table of
records that do not match.
"""

from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="an export needs pyarrow")

from gossipq.errors import Busy, ExportError
from gossipq.wire import export
from gossipq_client import lake
from gossipq_node.export.compaction import compact
from gossipq_node.export.exporter import Exporter


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    user: str
    n: int
    price: float | None = None
    at: datetime | None = None
    day: date | None = None
    lines: list[Line] = []
    tags: dict[str, int] | None = None
    raw: bytes | None = None
    first: Line | None = None


class Longer(Order):
    note: str | None = None


FULL = Order(
    "ada",
    2**63 - 1,
    1.5,
    datetime(2026, 11, 22, 1, 2, 3, 4, UTC),
    date(2026, 11, 22),
    [Line("a"), Line("b", 2)],
    {"x": 1},
    b"\x00\xff",
    Line("c"),
)
#: what breaks decoders and columns
BAD = [
    b"",
    b"{}",
    b"\xff",
    b"null",
    b'{"user":"a","n":9223372036854775808}',
    b'{"user":"a","n":"1"}',
    b'{"user":"\xed\xa0\x80","n":1}',
    b'{"user":"\\ud800","n":1}',
    b'{"user":"a","n":1},{"user":"b","n":2}',
    b'{"user":"a","n":1,"lines":[{"sku":"x"},null]}',
    b'{"user":"a","n":1,"price":1e999}',
    b'{"user":"a","n":1,"lines":' + b"[" * 5_000,
]


def rows(folder: Any, **asked: Any) -> list[dict[str, Any]]:
    return list(lake.open(str(folder.root)).table("orders", **asked).to_pylist())


@pytest.mark.parametrize("format", ["parquet", "lmdb"])
def test_typed_beside_the_bytes_and_misfits_with_place_error_and_bytes(
    mq, broker, open_folder, format: str
) -> None:
    folder = open_folder()
    mq.create_topic("orders")
    mq.create_topic("plain")
    mq.schema("orders", Order)
    mq.publish("plain", b"{}")
    good = [
        msgspec.json.encode(FULL),
        msgspec.json.encode(Order("bob", -1)),
        b'{"n":1,"user":"eve","more":[]}',
    ]
    with broker.connect() as other:  # who does not ask
        other.publish_many("orders", [good[0], *BAD, *good[1:]])
    done = Exporter(mq, folder, format=format).run()
    assert (done.records, done.misfits) == (len(good) + len(BAD) + 1, len(BAD))
    if format == "lmdb":
        return
    found = rows(folder)
    assert [row["value"] for row in found] == [good[0], *BAD, *good[1:]]
    assert [row["data"] is not None for row in found] == [True, *[False] * len(BAD), True, True]
    data = found[0]["data"]
    assert data["tags"] == [("x", 1)]
    assert {name: value for name, value in data.items() if name != "tags"} == {
        "user": "ada",
        "n": 2**63 - 1,
        "price": 1.5,
        "at": FULL.at,
        "day": FULL.day,
        "lines": [{"sku": "a", "count": None}, {"sku": "b", "count": 2}]
        if "count" not in good[0].decode()
        else [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}],
        "raw": b"\x00\xff",
        "first": {"sku": "c", "count": 1},
    }
    assert found[-1]["data"] == dict.fromkeys(Order.__struct_fields__) | {"user": "eve", "n": 1}
    misfits = rows(folder, data_set="misfits")
    assert [(row["offset"], row["value"]) for row in misfits] == list(enumerate(BAD, 1))
    assert all(row["error"] and row["schema_version"] == 1 for row in misfits)
    assert "$.n" in misfits[5]["error"]
    assert "data" not in lake.open(str(folder.root)).table("plain").column_names
    assert "data" not in lake.open(str(folder.root)).table(["orders", "plain"]).column_names


def test_what_no_column_can_hold_is_a_misfit_and_loses_nothing(mq, broker, open_folder) -> None:
    folder = open_folder()
    mq.create_topic("orders")
    mq.schema("orders", Order)
    ends = [b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"2026-11-22T00:00:00"]
    with broker.connect() as other:
        other.publish_many("orders", [b'{"user":"a","n":1,"at":"%s"}' % at for at in ends])
    Exporter(mq, folder).run()
    found = rows(folder)
    assert [row["data"] is None for row in found] == [True, True, False]
    assert ["in UTC" in row["error"] for row in rows(folder, data_set="misfits")] == [True, True]
    assert found[2]["data"]["at"] == datetime(2026, 11, 22, tzinfo=UTC)


def test_versions_lie_side_by_side_and_merging_keeps_them(mq, open_folder, tmp_path) -> None:
    folder = open_folder()
    mq.create_topic("orders")
    mq.publish("orders", b"before")
    Exporter(mq, folder).run()
    for number, kind in enumerate((Order, Order, Longer, Longer)):
        mq.schema("orders", kind)
        mq.publish("orders", kind("ada", number))
        Exporter(mq, folder).run()
    mq.topic("orders").delete_schema()
    mq.publish("orders", b"after")
    Exporter(mq, folder).run()
    before = rows(folder)
    assert [row["data"] and (row["data"]["n"], row["data"]["note"]) for row in before] == [
        None,
        (0, None),
        (1, None),
        (2, None),
        (3, None),
        None,
    ]
    assert compact(folder, keep_s=0) == 2
    assert rows(folder) == before
    messages = folder.read().of(export.MESSAGES)
    assert [(file.start, file.end, file.schema) for file in messages] == [
        (0, 1, 0),
        (1, 3, 1),
        (3, 5, 2),
        (5, 6, 0),
    ]
    mq.schema("orders", {"type": "object", "properties": {"user": {"type": "integer"}}})
    mq.publish("orders", {"user": 7})
    Exporter(mq, folder).run()
    assert "data" not in lake.open(str(folder.root)).table("orders").column_names, (
        "two that exclude each other"
    )


def test_tables_know_it_too(mq) -> None:
    mq.create_topic("orders")
    mq.publish("orders", b"before")
    mq.schema("orders", Order)
    mq.publish("orders", Order("ada", 1))
    assert [data and data["user"] for data in mq.read("orders").to_arrow().column("data").to_pylist()] == [
        None,
        "ada",
    ]


def test_a_table_of_iceberg_for_each_topic_with_a_schema(mq, open_folder, tmp_path) -> None:
    pytest.importorskip("pyiceberg")
    from gossipq_node.export import iceberg

    folder, catalog = open_folder(), iceberg.catalog(str(tmp_path / "tables"))
    mq.create_topic("orders")
    mq.publish("orders", b"before")
    for number, kind in enumerate((Order, Longer)):
        Exporter(mq, folder).run()
        schema = mq.schema("orders", kind)
        mq.publish("orders", kind("ada", number))
        Exporter(mq, folder).run()
        iceberg.Iceberg(folder, catalog).commit()
    table = catalog.load_table(f"gossipq.orders_{schema.topic_id}").scan().to_arrow()
    assert sorted(row["n"] for row in table.column("data").to_pylist()) == [0, 1]
    assert catalog.load_table("gossipq.messages").scan().to_arrow().column("value").to_pylist() == [b"before"]


def test_a_schema_that_is_declared_anew_has_a_table_of_its_own(mq, open_folder, tmp_path) -> None:
    """One that follows what was there before it was removed stays in the table; commits go on either way."""
    pytest.importorskip("pyiceberg")
    from gossipq_node.export import iceberg

    folder, catalog = open_folder(), iceberg.catalog(str(tmp_path / "tables"))
    mq.create_topic("orders")
    other = {"type": "object", "properties": {"user": {"type": "integer"}}}
    more = {"type": "object", "properties": {**other["properties"], "note": {"type": "string"}}}
    for declared, value in ((Order, Order("ada", 1)), (Longer, Longer("bob", 2)), (other, {"user": 3})):
        schema = mq.schema("orders", declared)
        mq.publish("orders", value)
        Exporter(mq, folder).run()
        mq.topic("orders").delete_schema()
        iceberg.Iceberg(folder, catalog).commit()
    mq.schema("orders", more)
    mq.publish("orders", {"user": 4, "note": "x"})
    Exporter(mq, folder).run()
    compact(folder, keep_s=0)
    assert iceberg.Iceberg(folder, catalog).commit().records == 1

    def users(name: str) -> list[Any]:
        table = catalog.load_table(f"gossipq.orders_{schema.topic_id}{name}").scan().to_arrow()
        return sorted(row["user"] for row in table.column("data").to_pylist())

    assert users("") == ["ada", "bob"]
    assert users("_v5") == [3, 4]


def test_no_manifest_has_misfits_without_their_records(mq, broker, open_folder, monkeypatch) -> None:
    """The next run exported them once more, and two files had the same offsets."""
    monkeypatch.setattr("gossipq_node.export.exporter.CHECKPOINT_ROWS", 2)
    folder = open_folder()
    mq.create_topic("orders")
    mq.schema("orders", Order)
    with broker.connect() as other:
        other.publish_many("orders", [b"no"] * 3)

    class Killed(Exception):
        pass

    def killed(manifest: export.Manifest, publish: Any = folder.publish) -> None:
        publish(manifest)
        raise Killed

    monkeypatch.setattr(folder, "publish", killed)
    with pytest.raises(Killed):
        Exporter(mq, folder).run()
    folder = open_folder()
    Exporter(mq, folder).run()
    assert [row["offset"] for row in rows(folder, data_set="misfits")] == [0, 1, 2]
    assert [row["offset"] for row in rows(folder)] == [0, 1, 2]


def test_files_of_a_run_that_failed_keep_their_schema(mq, open_folder, monkeypatch) -> None:
    """The next run publishes them, and the topic may have another one by then, or none."""
    folder = open_folder()
    mq.create_topic("orders")
    exporter = Exporter(mq, folder)

    def busy(*_: object) -> None:
        raise Busy("nobody leads it", hint="")

    for number, kind in enumerate((Order, Longer)):
        mq.schema("orders", kind)
        mq.publish("orders", kind("ada", number))
        with monkeypatch.context() as patch:
            patch.setattr(exporter, "_states", busy)
            with pytest.raises(Busy):
                exporter.run()
    mq.topic("orders").delete_schema()
    exporter.run()
    assert [row["data"]["n"] for row in rows(folder)] == [0, 1]
    told = folder.read().schemas.items()
    assert {version: "note" in str(each.document) for (_, version), each in told} == {1: False, 2: True}


def test_a_version_that_is_another_schema_by_now_is_refused(mq, open_folder) -> None:
    """Its files would be read as those of the one before."""
    folder = open_folder()
    mq.create_topic("orders")
    mq.schema("orders", Order)
    mq.publish("orders", Order("ada", 1))
    Exporter(mq, folder).run()
    before = rows(folder)
    mq.topic("_schemas").delete()
    other = {"type": "object", "properties": {"user": {"type": "integer"}}}
    assert mq.schema("orders", other).version == 1
    mq.publish("orders", {"user": 7})
    with pytest.raises(ExportError, match="schema version 1 of orders is another one than in the export"):
        Exporter(mq, folder).run()
    assert rows(folder) == before
    mq.topic("orders").delete_schema()
    mq.schema("orders", other)
    Exporter(mq, folder).run()
    assert [row["value"] for row in rows(folder)] == [before[0]["value"], b'{"user":7}']
