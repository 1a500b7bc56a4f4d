"""Iceberg tables that an export feeds: every record once, whatever is killed, and nothing is taken from under
a table."""

import json
import random
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'gossipq[lake]'")

from export.rest_catalog import served
from export.test_follower import Clock
from gossipq.errors import Busy, ExportError
from gossipq_cli.main import main
from gossipq_client import connect, testing
from gossipq_node.export import iceberg
from gossipq_node.export.compaction import compact
from gossipq_node.export.exporter import Exporter
from gossipq_node.export.folder import Folder
from gossipq_node.export.follower import Follower
from gossipq_node.export.iceberg import Iceberg


def publish(mq, topic, count, first=0, **options):
    mq.publish_many(topic, [b"%d" % number for number in range(first, first + count)], **options, timeout=10)


def rows(catalog, data_set="messages", namespace="gossipq"):
    return catalog.load_table(f"{namespace}.{data_set}").scan().to_arrow().to_pylist()


def values(catalog):
    found = {(row["topic"], row["partition"], row["offset"]): row["value"] for row in rows(catalog)}
    assert len(found) == len(rows(catalog)), "a record is there twice"
    return found


@pytest.fixture
def catalog(tmp_path):
    return iceberg.catalog(str(tmp_path / "tables"))


def test_every_record_and_ack_once(mq, broker, open_folder, catalog, monkeypatch):
    folder = open_folder()
    mq.create_topic("t", partitions=2)
    acked = 0
    for number in range(3):
        publish(mq, "t", 10, number * 10, partition=number % 2, keys=[b"k"] * 10)
        with broker.connect() as other:
            batch = other.fetch("t", "g", n=5, wait=1.0)
            acked += len(batch)
            other.ack_soon(batch)
            other.flush(None)
        Exporter(mq, folder).run()
        done = Iceberg(folder, catalog).commit()
        assert done.records == 10
        assert len(values(catalog)) == number * 10 + 10
    assert Iceberg(folder, catalog).commit().files == {}, "nothing is new"
    assert Counter(values(catalog).values()) == Counter(b"%d" % number for number in range(30))
    assert sum(row["end_offset"] - row["start_offset"] for row in rows(catalog, "acks")) == acked > 0
    table = catalog.load_table("gossipq.messages")
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    assert polars.scan_iceberg(table).select(polars.len()).collect().item() == 30
    arrow = table.scan(row_filter="partition = 0").to_arrow()
    assert duckdb.from_arrow(arrow).aggregate("count(*)").fetchall() == [(20,)]
    first = table.snapshots()[0]
    assert table.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 10, "as it was"
    assert set(json.loads(first.summary.additional_properties["gossipq.positions"]).values()) == {10}


def test_merging_takes_nothing_from_under_a_table(mq, open_folder, tmp_path, catalog):
    folder = open_folder()
    for number in range(4):
        publish(mq, "t", 10, number * 10)
        Exporter(mq, folder).run()
    Iceberg(folder, catalog).commit()
    for number in range(4, 8):
        publish(mq, "t", 10, number * 10)
        Exporter(mq, folder).run()
    compact(folder, keep_s=0)
    assert [(file.start, file.end) for file in folder.read().of("messages")] == [
        *((at, at + 10) for at in range(0, 40, 10)),
        (40, 80),
    ]
    assert len(values(catalog)) == 40
    Iceberg(folder, catalog).commit()
    publish(mq, "t", 10, 80)
    Exporter(mq, open_folder()).run()
    compact(open_folder(), keep_s=0)
    assert len(values(catalog)) == 80
    assert len(folder.read().of("messages")) == 6


def test_a_follower_merges_first_and_commits_what_is_final(mq, open_folder, catalog):
    clock, folder = Clock(), open_folder()
    commit = Iceberg(folder, catalog).commit
    follower = Follower(Exporter(mq, folder), folder, clock, roll_s=0.0, keep_s=0.0, commit=commit)
    mq.create_topic("t")
    committed = 0
    for number in range(20):
        publish(mq, "t", 10, number * 10)
        look = follower.look()
        committed += look.committed.records if look.committed else 0
        clock.now += 720
    assert committed == 160
    assert len(values(catalog)) == 160
    table = catalog.load_table("gossipq.messages")
    assert len(list(table.scan().plan_files())) == 4, "one file for each hour, and the one of the start"


@pytest.mark.parametrize("step", ["manifest", "before the commit", "after the commit"])
def test_a_commit_that_is_cut_off_is_done_by_the_next(mq, open_folder, catalog, monkeypatch, step):
    class Killed(Exception):
        pass

    def killed(*_, **__):
        raise Killed

    def late(*given, append=iceberg._append):
        append(*given)
        raise Killed

    folder = open_folder()
    for number in range(1, 4):
        publish(mq, "t", 10, number * 10)
        Exporter(mq, folder).run()
        with monkeypatch.context() as patch:
            if step == "manifest":
                patch.setattr(folder, "publish", killed)
            else:
                patch.setattr(iceberg, "_append", killed if step == "before the commit" else late)
            with pytest.raises(Killed):
                Iceberg(folder, catalog).commit()
        folder = open_folder()
        compact(folder, keep_s=0)
        Iceberg(folder, catalog).commit()
        assert len(values(catalog)) == number * 10


def test_who_else_commits_is_waited_for(mq, open_folder, catalog, monkeypatch):
    from pyiceberg.exceptions import CommitFailedException

    publish(mq, "t", 10)
    folder = open_folder()
    Exporter(mq, folder).run()

    def lost(*_, **__):
        raise CommitFailedException("the branch main has changed")

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "_append", lost)
        with pytest.raises(Busy, match="branch main has changed"):
            Iceberg(folder, catalog).commit()
    assert Iceberg(folder, catalog).commit().records == 10


def test_a_catalog_that_another_program_has_locked_is_waited_for(mq, open_folder, tmp_path, catalog):
    publish(mq, "t", 10)
    folder = open_folder()
    Exporter(mq, folder).run()
    Iceberg(folder, catalog).commit()
    publish(mq, "t", 10, 10)
    Exporter(mq, folder).run()
    other = sqlite3.connect(tmp_path / "tables/catalog.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Busy, match="locked"):
        Iceberg(folder, catalog).commit()
    other.execute("ROLLBACK")
    other.close()
    assert Iceberg(folder, catalog).commit().records == 10


def test_old_snapshots_are_forgotten_and_the_rows_stay(mq, open_folder, catalog):
    folder, now = open_folder(), [datetime.now(UTC)]
    for number in range(6):
        publish(mq, "t", 10, number * 10)
        Exporter(mq, folder).run()
        now[0] += timedelta(days=1)
        Iceberg(folder, catalog, keep_s=3_600.0, now=lambda: now[0]).commit()
    table = catalog.load_table("gossipq.messages")
    assert len(table.snapshots()) == iceberg.SNAPSHOTS_MIN
    assert len(values(catalog)) == 60


def test_a_snapshot_that_has_a_tag_is_not_forgotten(mq, open_folder, catalog):
    folder, now = open_folder(), [datetime.now(UTC)]
    for number in range(4):
        publish(mq, "t", 10, number * 10)
        Exporter(mq, folder).run()
        now[0] += timedelta(days=1)
        Iceberg(folder, catalog, keep_s=3_600.0, now=lambda: now[0]).commit()
        table = catalog.load_table("gossipq.messages")
        if not number:
            table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "audit").commit()
    assert table.scan(snapshot_id=table.refs()["audit"].snapshot_id).to_arrow().num_rows == 10
    assert len(table.snapshots()) == iceberg.SNAPSHOTS_MIN + 1
    assert len(values(catalog)) == 40


def test_a_table_that_was_rolled_back_gets_what_it_lacks(mq, open_folder, catalog):
    """Rows that left with their snapshot are no longer in the table, though
    the snapshot is still known.
    """
    folder = open_folder()
    for number in range(3):
        publish(mq, "t", 10, number * 10)
        Exporter(mq, folder).run()
        Iceberg(folder, catalog).commit()
    table = catalog.load_table("gossipq.messages")
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    assert len(values(catalog)) == 10
    publish(mq, "t", 10, 30)
    Exporter(mq, folder).run()
    assert Iceberg(folder, catalog).commit().records == 30
    assert len(values(catalog)) == 40


def test_tables_of_others_are_left_alone(mq, open_folder, tmp_path, catalog):
    publish(mq, "t", 10)
    folder = open_folder()
    Exporter(mq, folder).run()
    Iceberg(folder, catalog).commit()
    again = open_folder("again")
    publish(mq, "t", 5)
    Exporter(mq, again).run()
    with pytest.raises(ExportError, match="begins before"):
        Iceberg(again, catalog).commit()
    with testing.Broker() as other, other.connect() as elsewhere:
        publish(elsewhere, "t", 1)
        third = open_folder("third")
        Exporter(elsewhere, third).run()
        with pytest.raises(ExportError, match="holds records of cluster"):
            Iceberg(third, catalog).commit()
        assert Iceberg(third, catalog, "second").commit().records == 1
    lmdb = open_folder("lmdb")
    Exporter(mq, lmdb, format="lmdb").run()
    with pytest.raises(ExportError, match="has lmdb files"):
        Iceberg(lmdb, catalog).commit()


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a\nb"])
def test_names_that_are_others_in_a_uri_are_refused(mq, tmp_path, catalog, name):
    with pytest.raises(ExportError, match="cannot be named in an Iceberg table"):
        iceberg.catalog(str(tmp_path / name))
    publish(mq, "t", 1)
    with Folder(tmp_path / name) as folder:
        Exporter(mq, folder).run()
        with pytest.raises(ExportError, match="cannot be named in an Iceberg table"):
            Iceberg(folder, catalog).commit()
    assert [path.name for path in tmp_path.iterdir() if path.name not in (name, "tables")] == []


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_of_a_follower_that_commits(make_node, tmp_path):
    from export.test_export_kill import Load, export, finish

    node, dice, out, place = make_node().start(), random.Random(5), tmp_path / "out", str(tmp_path / "tables")
    with connect(node.endpoint) as mq:
        for topic in ("007", "orders", "big"):
            mq.create_topic(topic, partitions=2)
    load = Load(node.endpoint)
    load.start()
    flags = ["--iceberg", place, "--keep", "0s"]
    try:
        for _ in range(10):
            process = export(
                node, out, "--follow", "--every", "0.01s", "--roll", "0s", "--base", "0.2s", *flags
            )
            time.sleep(dice.uniform(2.0, 5.0))
            process.kill()
            process.communicate()
    finally:
        load.stop()
    finish(export(node, out, *flags))
    found = values(iceberg.catalog(place))
    assert found == load.confirmed
    folder = Folder(out)
    folder.close()
    assert isinstance(process, subprocess.Popen)


def test_the_document_opens_the_tables_that_the_exporter_made(mq, open_folder, tmp_path):
    """Under the name that the exporter gave its catalog: an SQLite one knows its tables by that."""
    from conftest import HOME

    folder, place = open_folder(), str(tmp_path / "tables")
    mq.publish_many("orders", [b"x"] * 6, timeout=10)
    Exporter(mq, folder).run()
    Iceberg(folder, iceberg.catalog(place)).commit()
    text = (HOME / "docs" / "how-to" / "export.md").read_text("utf-8")
    code = text[text.index("from pyiceberg.catalog import") :].partition("```")[0]
    found = {}
    exec(code.replace("/data/tables", place), found)
    assert found["orders"].to_arrow().num_rows == 6


@pytest.mark.parametrize(
    ("status", "is_done", "error"),
    [(409, False, None), (503, False, Busy), (429, False, Busy), (504, True, Busy), (500, True, Busy)],
)
def test_a_rest_catalog_gets_every_record_once(mq, open_folder, tmp_path, status, is_done, error):
    """Even if a commit is refused, or its outcome is unknown."""
    folder = open_folder()
    with served(tmp_path / "served") as rest:
        catalog = iceberg.catalog(rest.uri)
        for number in range(3):
            publish(mq, "t", 10, number * 10)
            Exporter(mq, folder).run()
            if number == 1:
                (rest.unanswered if is_done else rest.refused).append(status)
                # pyiceberg itself tries again what another commit came before
                with pytest.raises(error) if error else nullcontext():
                    Iceberg(folder, catalog).commit()
            Iceberg(folder, iceberg.catalog(rest.uri)).commit()  # as after a restart
            assert len(values(catalog)) == number * 10 + 10
        assert Iceberg(folder, catalog).commit().files == {}
        assert rest.commits == 3


def test_a_rest_catalog_that_is_away_or_wants_a_token(mq, open_folder, tmp_path):
    folder = open_folder()
    publish(mq, "t", 10)
    Exporter(mq, folder).run()
    with served(tmp_path / "served") as rest:
        catalog = iceberg.catalog(rest.uri)
        rest.forbidden = True
        for ask in (Iceberg(folder, catalog).commit, lambda: iceberg.catalog(rest.uri)):
            with pytest.raises(ExportError, match="asked for"):
                ask()
    with pytest.raises(OSError):  # --follow waits it out
        Iceberg(folder, catalog).commit()
    with pytest.raises(ExportError, match="cannot be used"):
        iceberg.catalog(rest.uri)


def test_the_command_feeds_a_rest_catalog(broker, mq, tmp_path, capsys):
    publish(mq, "t", 10)
    with served(tmp_path / "served") as rest:
        out = ["export", "--out", str(tmp_path / "lake"), "--iceberg", rest.uri]
        assert main(["-s", broker.endpoint, *out, "--iceberg-namespace", "ours"]) == 0
        assert "10" in capsys.readouterr().err
        assert len(rows(iceberg.catalog(rest.uri), namespace="ours")) == 10
