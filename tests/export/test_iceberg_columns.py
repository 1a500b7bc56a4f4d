"""Columns of a table that its user renamed, dropped, moved or added: rows stay readable, before and after."""

from typing import Any

import msgspec
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'gossipq[lake]'")

from gossipq.errors import ExportError
from gossipq_node.export import iceberg
from gossipq_node.export.exporter import Exporter


class Order(msgspec.Struct):
    user: str
    amount: int


class Longer(Order):
    note: str | None = None


@pytest.fixture
def catalog(tmp_path):
    return iceberg.catalog(str(tmp_path / "tables"))


class Feed:
    """Publishes to orders, exports, commits."""

    def __init__(self, mq, folder, catalog) -> None:
        self.catalog, self._mq, self._folder = catalog, mq, folder
        self.kind: type[Order] = Order
        self.count = 0
        mq.create_topic("orders")
        self._topic_id = mq.schema("orders", self.kind).topic_id

    def evolve(self, kind: type[Order]) -> None:
        self.kind = kind
        self._mq.schema("orders", kind)

    def more(self, count: int = 3) -> None:
        for _ in range(count):
            self._mq.publish("orders", self.kind(f"u{self.count}", self.count), key=f"k{self.count}")
            self.count += 1
        Exporter(self._mq, self._folder).run()
        iceberg.Iceberg(self._folder, self.catalog).commit()

    @property
    def table(self) -> Any:
        return self.catalog.load_table(f"gossipq.orders_{self._topic_id}")

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        return sorted(self.table.scan(**options).to_arrow().to_pylist(), key=lambda row: row["offset"])


@pytest.fixture
def feed(mq, open_folder, catalog):
    return Feed(mq, open_folder(), catalog)


def keys(count: int) -> list[bytes]:
    return [b"k%d" % number for number in range(count)]


def test_a_renamed_column_keeps_its_rows_and_gets_more(feed) -> None:
    feed.more()
    with feed.table.update_schema() as update:
        update.rename_column("key", "customer")
        update.rename_column("data.amount", "euros")
    feed.more()
    feed.evolve(Longer)
    feed.more()
    assert "key" not in feed.table.schema().column_names
    assert [row["customer"] for row in feed.rows()] == keys(9)
    assert [row["data"]["euros"] for row in feed.rows()] == list(range(9))
    assert set(feed.rows()[0]["data"]) == {"user", "euros", "note"}
    first = feed.table.snapshots()[0]
    assert [row["key"] for row in feed.rows(snapshot_id=first.snapshot_id)] == keys(3)
    found = feed.table.scan(row_filter="offset = 7").to_arrow().to_pylist()
    assert [row["customer"] for row in found] == [b"k7"]


def test_a_dropped_column_does_not_come_back(feed) -> None:
    feed.more()
    with feed.table.update_schema() as update:
        update.delete_column("headers")
        update.delete_column("data.amount")
    feed.more()
    feed.evolve(Longer)
    feed.more()
    assert "headers" not in feed.rows()[0]
    assert [row["data"] for row in feed.rows()] == [{"user": f"u{at}", "note": None} for at in range(9)]


def test_a_column_that_a_user_added_is_null_and_stays(feed) -> None:
    from pyiceberg.types import StringType

    feed.more()
    with feed.table.update_schema() as update:
        update.add_column("region", StringType())
    feed.more()
    feed.evolve(Longer)
    feed.more()
    assert [row["region"] for row in feed.rows()] == [None] * 9
    assert [row["data"]["note"] for row in feed.rows()] == [None] * 9
    assert [row["key"] for row in feed.rows()] == keys(9)


def test_a_column_of_a_user_that_has_the_former_name_of_ours(feed) -> None:
    """`key` in the files is ours, whatever `key` in the table is."""
    from pyiceberg.types import StringType

    feed.more()
    with feed.table.update_schema() as update:
        update.rename_column("key", "customer")
    with feed.table.update_schema() as update:
        update.add_column("key", StringType())
    feed.more()
    assert [(row["customer"], row["key"]) for row in feed.rows()] == [(key, None) for key in keys(6)]


def test_moved_columns_are_told_by_their_ids(feed) -> None:
    feed.more()
    with feed.table.update_schema() as update:
        update.move_first("value")
        update.move_before("offset", "topic")
    feed.more()
    assert [row["key"] for row in feed.rows()] == keys(6)
    assert [row["data"]["amount"] for row in feed.rows()] == list(range(6))


def test_a_column_of_a_user_that_takes_the_name_of_a_new_one_is_refused_by_name(feed) -> None:
    from pyiceberg.types import StringType

    feed.more()
    with feed.table.update_schema() as update:
        update.add_column(("data", "note"), StringType())
    feed.evolve(Longer)
    with pytest.raises(ExportError, match=r"has a column data\.note of somebody else"):
        feed.more()
    with feed.table.update_schema() as update:
        update.rename_column("data.note", "remark")
    feed.more(0)
    assert [row["data"]["note"] for row in feed.rows()] == [None] * 6
    assert len(feed.rows()) == 6


def test_other_engines_read_the_same_rows(feed, monkeypatch) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    feed.more()
    with feed.table.update_schema() as update:
        update.rename_column("key", "customer")
        update.delete_column("headers")
    feed.more()
    found = polars.scan_iceberg(feed.table).select("offset", "customer").collect().sort("offset")
    assert found["customer"].to_list() == keys(6)
    arrow = feed.table.scan().to_arrow()
    asked = duckdb.from_arrow(arrow).order('"offset"').project("customer").fetchall()
    assert [customer for (customer,) in asked] == keys(6)


@pytest.mark.parametrize("step", ["update_schema", "set_properties", "update_snapshot", "commit_transaction"])
def test_a_commit_that_is_killed_at_any_step_is_done_by_the_next(feed, monkeypatch, step) -> None:
    """New columns, their ids and the files are committed together."""
    from pyiceberg.table import Transaction

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    feed.more()
    with feed.table.update_schema() as update:
        update.rename_column("key", "customer")
    feed.evolve(Longer)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, step, killed)
        with pytest.raises(Killed):
            feed.more()
    assert [row["customer"] for row in feed.rows()] == keys(3)
    feed.more(0)
    assert [row["customer"] for row in feed.rows()] == keys(6)
    assert [row["data"]["note"] for row in feed.rows()] == [None] * 6
