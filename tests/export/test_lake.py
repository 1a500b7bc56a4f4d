"""lake.open: exports as tables without Spark and without a cluster, now and as they were."""

import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="a lake needs pyarrow")

from conftest import HOME
from gossipq.errors import BadRequest, DataLoss, ExportError, GossipqError, TornExport, UnknownTopic
from gossipq.wire import export
from gossipq_client import lake
from gossipq_node.export.compaction import compact
from gossipq_node.export.exporter import Exporter


def publish(mq, topic, count, first=0, **options):
    mq.publish_many(topic, [b"%d" % number for number in range(first, first + count)], **options, timeout=10)


@pytest.fixture
def filled(mq, broker, open_folder, tmp_path):
    """Two topics in several increments, and a group that has done some."""
    folder = open_folder("lake")
    mq.create_topic("orders", partitions=2)
    for number in range(3):
        publish(mq, "orders", 10, number * 10, partition=number % 2)
        publish(mq, "007", 1, number)
        Exporter(mq, folder).run()
    with broker.connect() as other:
        while batch := other.fetch("orders", "billing", n=30, wait=0.5):
            other.ack_soon(batch)
        other.flush(None)
    Exporter(mq, folder).run()
    return str(tmp_path / "lake")


def test_rows_in_every_dress(filled):
    opened = lake.open(filled)
    assert opened.topics == ["007", "orders"]
    expected = Counter(b"%d" % number for number in range(30))
    assert Counter(opened.table("orders").column("value").to_pylist()) == expected
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    assert Counter(opened.polars(["orders"]).collect()["value"].to_list()) == expected
    assert opened.polars().select(polars.len()).collect().item() == 33
    assert opened.polars("0*").filter(polars.col("offset") > 0).collect().height == 2
    assert opened.duckdb("orders").filter("partition = 0").aggregate("count(*)").fetchall() == [(20,)]
    with duckdb.connect() as mine:
        relation = opened.duckdb("orders", connection=mine)
        assert relation.aggregate("count(DISTINCT value)").fetchall() == [(30,)]
    assert opened.table("orders").schema.field("topic").type == "string", "007 is no number"


def test_pandas_or_what_to_install(filled, monkeypatch):
    try:
        import pandas
    except ImportError:
        with pytest.raises(GossipqError, match="pandas is not installed"):
            lake.open(filled).pandas()
    else:
        assert isinstance(lake.open(filled).pandas("orders"), pandas.DataFrame)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    for name in ("duckdb", "polars"):
        with pytest.raises(GossipqError, match=f"{name} is not installed") as caught:
            getattr(lake.open(filled), name)()
        assert caught.value.hint == f"pip install {name}"


def test_states_are_those_of_now(filled):
    rows = lake.open(filled).table("orders", data_set="deliveries").to_pylist()
    assert {(row["group_name"], row["state"]) for row in rows} == {("billing", "done")}
    assert sum(row["end_offset"] - row["start_offset"] for row in rows) == 30
    assert lake.open(filled).table("007", data_set="deliveries").num_rows == 0
    assert lake.open(filled).table(data_set="acks").num_rows > 0


def test_the_export_as_it_was(mq, open_folder, tmp_path, filled):
    folder = open_folder("lake")
    times = [export.decode(folder.manifest(number)).written_us for number in folder.sequences()]
    when = [datetime.fromtimestamp(time_us / 1e6, UTC) + timedelta(microseconds=1) for time_us in times]
    for given in (when, [each.isoformat() for each in when]):
        assert [lake.open(filled, as_of=each).table().num_rows for each in given] == [11, 22, 33, 33]
    compact(folder)
    assert lake.open(filled, as_of=when[0]).table().num_rows == 11, "what it was is kept for a while"
    assert lake.open(filled).table().num_rows == 33
    compact(folder, keep_s=0)
    with pytest.raises(ExportError, match=r"does not go back so far: .* begins at 20\d\d-"):
        lake.open(filled, as_of=when[0])
    with pytest.raises(ExportError, match="does not go back so far"):
        lake.open(filled, as_of="-1h")
    wrongs: list[Any] = ["noon", "-1 fortnight", datetime(2026, 1, 1), 5, b"noon", "9" * 5_000]
    for wrong in wrongs:
        with pytest.raises(BadRequest, match="as_of"):
            lake.open(filled, as_of=wrong)


def test_what_is_opened_stays_as_it_is(mq, open_folder, filled):
    opened = lake.open(filled)
    publish(mq, "007", 5)
    Exporter(mq, open_folder("lake")).run()
    assert opened.table("007").num_rows == 3
    assert lake.open(filled).table("007").num_rows == 8
    compact(open_folder("lake"), keep_s=-1.0)
    with pytest.raises(TornExport, match="is missing") as caught:
        opened.table("orders")
    assert "open the export once more" in caught.value.hint


def test_what_is_said(mq, open_folder, filled, tmp_path):
    with pytest.raises(UnknownTopic, match="'order' does not exist here") as caught:
        lake.open(filled).table("order")
    assert caught.value.hint == "did you mean orders?"
    with pytest.raises(BadRequest, match="data_set='message'"):
        lake.open(filled).table(data_set="message")
    with pytest.raises(TornExport, match="has no manifest"):
        lake.open(str(tmp_path / "nothing"))
    folder = open_folder("small")
    mq.create_topic("t", bytes_max=2_000, overflow="drop_oldest")
    publish(mq, "t", 5)
    Exporter(mq, folder, ["t"]).run()
    for first in range(5, 200):
        publish(mq, "t", 1, first)
    mq.advance("1m")
    deadline = time.monotonic() + 30
    while mq.admin.stats(["t"]).partitions[0].bytes > 2_000:  # until retention has done what it has to do
        assert time.monotonic() < deadline
    Exporter(mq, folder, ["t"], allow_gap=True).run()
    opened = lake.open(str(tmp_path / "small"))
    with pytest.raises(DataLoss, match="t/0: records 5 to"):
        opened.table("t")
    assert opened.table("t", allow_gap=True).num_rows == 200 - sum(gap.end - gap.start for gap in opened.gaps)
    lmdb = open_folder("lmdb")
    Exporter(mq, lmdb, ["t"], format="lmdb").run()
    with pytest.raises(BadRequest, match="has lmdb files"):
        lake.open(str(tmp_path / "lmdb")).table("t")


def test_the_document_shows_what_runs(filled, monkeypatch, capsys):
    pytest.importorskip("polars"), pytest.importorskip("duckdb")
    text = (HOME / "docs" / "how-to" / "export.md").read_text("utf-8")
    (shown,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "lake.open" in code)
    monkeypatch.chdir(Path(filled).parent)
    code, last = shown.rstrip().rsplit("\n", 1)
    exec(code, {})
    assert "['007', 'orders'] 30" in capsys.readouterr().out
    with pytest.raises(ExportError, match="does not go back so far"):  # this export is a second old
        exec(f"import gossipq\n{last}", {})
