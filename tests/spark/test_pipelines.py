"""Jobs over exports and tables: imports that repeat themselves, reports, searches, and their commands."""

import json
import os
import random
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")

from pyspark.sql import functions as F

from gossipq.errors import BadRequest, DataLoss, ExportError
from gossipq.wire import export
from gossipq_cli.main import main
from gossipq_client import connect
from pyspark_gossipq import charts, read_export, read_table, reader, rollups
from pyspark_gossipq.asked import parse
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.layout import Part, Span
from pyspark_gossipq.pipelines import imports, records, reports
from spark.exports import SECOND_US, START_US, Exporter

DAY_US = 86_400 * SECOND_US
KILLS = int(os.environ.get("KILLS", "2"))


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gossipq(spark, capsys: pytest.CaptureFixture[str]):
    """gossipq("growth", ...) in this process, with the session of the tests."""

    def run(*argv: Any) -> Ran:
        capsys.readouterr()
        code = main(["spark", *map(str, argv)])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "SEGMENT_RECORDS", 100)


def offsets(spark, table: Path, topic: str = "007") -> list[int]:
    rows = read_table(spark, str(table)).where(F.col("topic") == topic).select("offset").collect()
    return sorted(row.offset for row in rows)


# --- import


@pytest.mark.slow
def test_importing_again_and_again(spark, exporter: Exporter, tmp_path: Path) -> None:
    table = tmp_path / "table"
    exporter.messages("007", 0, 250)
    exporter.messages("orders", 0, 5, topic_id=2)
    exporter.publish()
    first = imports.import_export(spark, str(exporter), str(table))
    assert [(each.topic, each.first, each.end) for each in first] == [("007", 0, 250), ("orders", 0, 5)]
    assert imports.import_export(spark, str(exporter), str(table)) == []
    exporter.messages("007", 250, 320)
    exporter.publish()
    (second,) = imports.import_export(spark, str(exporter), str(table))
    assert (second.first, second.end) == (250, 320)
    segments = sorted(int(path.name.rpartition("-")[2]) for path in (table / "messages").glob("segment=s1-*"))
    assert segments == [0, 100, 200, 250, 300], "what is there is not written anew"
    assert offsets(spark, table) == [*range(320)]
    assert offsets(spark, table, "orders") == [*range(5)]
    exporter.messages("007", 0, 320)
    exporter.messages("orders", 0, 5, topic_id=2)
    exporter.publish(base=True)  # compacted
    exporter.messages("007", 320, 330)
    exporter.publish()
    imports.import_export(spark, str(exporter), str(table), topics="0*")
    assert offsets(spark, table) == [*range(330)]
    assert read_table(spark, str(table)).schema == read_export(spark, str(exporter)).schema


def test_what_an_import_notes_is_on_the_disk(
    spark, exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may come right behind it."""
    table = tmp_path / "table"
    synced: dict[str, bool] = {}  #: path -> whether the table's note was there by then
    sync, note = os.fsync, table / imports.STATE

    def watched(opened: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{opened}")] = note.exists()
        sync(opened)

    monkeypatch.setattr(os, "fsync", watched)
    exporter.messages("007", 0, 250)
    exporter.publish()
    imports.import_export(spark, str(exporter), str(table))
    rows = [str(path) for path in (table / "messages").rglob("*.parquet")]
    names = [str(path) for path in (table, table / "messages", *(table / "messages").glob("segment=*"))]
    assert len(rows) >= 3
    assert all(synced[path] is False for path in (*rows, *names, f"{note}.new"))
    assert synced[str(note.parent)] is True


@pytest.mark.parametrize("form", [pytest.param("parquet", marks=pytest.mark.slow), "lmdb"])
def test_an_import_that_was_cut_off(
    spark, exporter: Exporter, tmp_path: Path, form: str, monkeypatch
) -> None:
    exporter.format, table = form, tmp_path / "table"
    exporter.messages("007", 0, 150)
    exporter.publish()
    imports.import_export(spark, str(exporter), str(table))
    exporter.messages("007", 150, 350)
    exporter.publish()
    with monkeypatch.context() as patch:  # killed after the rows were written, before the note about it
        patch.setattr(imports, "_keep", lambda *_: None)
        imports.import_export(spark, str(exporter), str(table))
    assert offsets(spark, table) == [*range(150)], "what it left does not count"
    exporter.messages("007", 350, 360)
    exporter.publish()
    (done,) = imports.import_export(spark, str(exporter), str(table))
    assert (done.first, done.end) == (150, 360)
    assert offsets(spark, table) == [*range(360)]


def test_segments_that_count() -> None:
    """From where a partition's table begins to where it ends; a run of an older version noted the same."""
    state = imports.State("c0", 100, {"1-0": imports.Place("007", 50, 250)})
    named = ("s1-0-0", "s1-0-50", "s1-0-100", "s1-0-249", "s1-0-250", "s1-0-300", "s1-1-50", "s11-0-50")
    counted = [name for name in named if imports._begins_in(name, state.places)]
    assert counted == ["s1-0-50", "s1-0-100", "s1-0-249"]


def test_hundreds_of_partitions_at_once(spark, exporter: Exporter) -> None:
    """A table has a part of them already, which the export has merged with new records."""
    file, options = exporter.messages("007", 0, 4), {"path": str(exporter)}
    spans = [Span("007", 1, number, 2, 4) for number in range(600)]
    parts = [
        Part(file.path, "parquet", 1, span.partition, 2, 4, False, file.rows, file.bytes) for span in spans
    ]
    frame = reader.rows_of(spark, Folder(str(exporter)), parts, parse(options))
    segment = imports._segment(spans, imports.State("c0", 100))
    assert [row.segment for row in frame.select(segment.alias("segment")).collect()] == ["s1-0-2"] * 2


def test_a_table_before_the_first_record(spark, exporter: Exporter, tmp_path: Path) -> None:
    exporter.positions[1, 0] = export.Position("007", 1, 0, 0, 0, 0)
    exporter.publish()
    assert imports.import_export(spark, str(exporter), str(tmp_path / "table")) == []
    assert offsets(spark, tmp_path / "table") == []


def test_a_note_that_is_torn_is_named(tmp_path: Path) -> None:
    """By a power cut, or a copy that was cut off."""
    note = tmp_path / imports.STATE
    note.parent.mkdir()
    note.write_bytes(b"")
    with pytest.raises(ExportError, match=r"_gossipq/import.json is not whole: .* truncated"):
        imports.gaps(str(tmp_path))


def test_a_note_that_went_back_to_an_older_copy(spark, exporter: Exporter, tmp_path: Path) -> None:
    """Of all that is behind it, nothing is in the table twice."""
    table = tmp_path / "table"
    for start, end in ((0, 50), (50, 80), (80, 130)):
        exporter.messages("007", start, end)
        exporter.publish()
        imports.import_export(spark, str(exporter), str(table))
        if not start:
            older = (table / imports.STATE).read_bytes()
    (table / imports.STATE).write_bytes(older)
    imports.import_export(spark, str(exporter), str(table))
    assert offsets(spark, table) == [*range(130)]


def test_one_import_at_a_time(exporter: Exporter, tmp_path: Path) -> None:
    exporter.messages("007", 0, 5)
    exporter.publish()
    table = str(tmp_path / "table")
    no_spark: Any = None
    with (
        imports._alone(Folder(table)),
        pytest.raises(ExportError, match="table is being imported to already"),
    ):
        imports.import_export(no_spark, str(exporter), table)
    with imports._alone(Folder(table)):
        pass


def test_what_cannot_be_imported(spark, exporter: Exporter, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    exporter.messages("007", 0, 250)
    exporter.publish()
    imports.import_export(spark, str(exporter), table)
    other = Exporter(tmp_path / "other", cluster="0c" * 16)
    other.messages("007", 0, 10)
    other.publish()
    with pytest.raises(ExportError, match="holds records of cluster c0c0"):
        imports.import_export(spark, str(other), table)
    later = Exporter(tmp_path / "later")
    later.messages("007", 260, 300)
    later.publish()
    with pytest.raises(DataLoss, match="records 250 to 259 are neither in the table nor in the export"):
        imports.import_export(spark, str(later), table)
    assert len(offsets(spark, tmp_path / "table")) == 250


@pytest.mark.parametrize("form", ["parquet", "lmdb"])
def test_a_table_with_records_that_the_cluster_has_lost(spark, tmp_path: Path, form: str) -> None:
    """The cluster went back to an older copy and was exported anew: nothing is
    appended after the lost records.
    """
    table = str(tmp_path / "table")

    def exported(name: str, end: int, value: bytes) -> str:
        made = Exporter(tmp_path / name, format=form)
        made.messages("007", 0, end, value=lambda at: value if at >= 50 else b"as before")
        made.publish()
        return str(made)

    imports.import_export(spark, exported("lake", 100, b"lost"), table)
    for end in (100, 150):
        with pytest.raises(ExportError, match="007/0 has another record 99 in the export than in the table"):
            imports.import_export(spark, exported(f"new{end}", end, b"since"), table)
    assert imports.import_export(spark, exported("older", 60, b"lost"), table) == []
    (done,) = imports.import_export(spark, exported("again", 150, b"lost"), table)
    assert (done.first, done.end) == (100, 150)


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["parquet", pytest.param("lmdb", marks=pytest.mark.slow)])
def test_values_of_topics_with_schemas_are_typed_in_a_table(spark, shared_node, tmp_path, form: str) -> None:
    """Each topic by its own schema, in one table, also after a version has come; together they are plain."""
    out, table = str(tmp_path / "lake"), str(tmp_path / "table")
    names = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("integer", "string", "plain")}

    def grown(kind: str, value: Any) -> None:
        mq.publish(names[kind], value, timeout=60)
        assert main(["-s", shared_node.endpoint, "-q", "export", "--out", out, "--format", form]) == 0
        imports.import_export(spark, out, table)

    with connect(shared_node.endpoint) as mq:
        for kind in ("integer", "string"):
            mq.publish(names[kind], b"before", timeout=60)
            mq.schema(names[kind], {"type": "object", "properties": {"n": {"type": kind}}})
        grown("integer", {"n": 7})
        mq.publish(names["plain"], b"x", timeout=60)
        grown("string", {"n": "seven"})
        more = {"n": {"type": "integer"}, "more": {"type": "boolean"}}
        mq.schema(names["integer"], {"type": "object", "properties": more})
        grown("integer", {"n": 8, "more": True})
    for kind, expected in (
        ("integer", [None, {"n": 7, "more": None}, {"n": 8, "more": True}]),
        ("string", [None, {"n": "seven"}]),
    ):
        rows = read_table(spark, table, topics=names[kind]).orderBy("offset").collect()
        assert [row.data and row.data.asDict() for row in rows] == expected
    assert "data" not in read_table(spark, table, topics=names["plain"]).columns
    together = read_table(spark, table, topics=",".join(names.values()))
    assert ("data" in together.columns, together.count()) == (False, 6)
    assert imports.rows(spark, table, topics=names["integer"]).where("data.more").count() == 1


def with_a_gap(exporter: Exporter) -> Exporter:
    exporter.messages("007", 0, 50)
    exporter.messages("orders", 0, 5, topic_id=2)
    exporter.publish()
    exporter.gaps.append(export.Gap("007", 1, 0, 50, 60))
    exporter.messages("007", 60, 90)
    exporter.publish()
    return exporter


@pytest.mark.slow
def test_gaps_are_allowed_and_told_by_every_job(spark, gossipq, exporter: Exporter, tmp_path: Path) -> None:
    with_a_gap(exporter)
    table, rollup = tmp_path / "table", tmp_path / "roll"
    replay = ("replay", exporter, "--to", "copies", "--dry-run")
    for job in (
        ("import", exporter, table),
        *((name, exporter) for name in ("growth", "latency", "search", "dedup")),
        replay,
    ):
        ran = gossipq(*job)
        assert ran.code != 0, job
        assert "007/0: records 50 to 59 left by retention" in ran.err, job
        assert "--allow-gap" in ran.err, job
    for job in (
        ("growth", exporter, "--rollups", rollup),
        ("search", exporter, "--text", "value 8"),
        ("dedup", exporter),
        ("latency", exporter),
        replay,
    ):
        ran = gossipq(*job, "--allow-gap")
        assert (ran.code, "missing: records 50 to 59 of 007/0" in ran.err) == (0, True), job
    assert [(gap.start, gap.end) for gap in rollups.load(str(rollup), "growth").gaps] == [(50, 60)]
    assert gossipq("growth", exporter, "-t", "orders").code == 0, "nothing of this topic is missing"
    for _ in range(2):
        assert gossipq("import", exporter, table, "--allow-gap").code == 0
    assert offsets(spark, table) == [*range(50), *range(60, 90)]
    ran = gossipq("growth", table)
    assert (ran.code, "missing: records 50 to 59 of 007/0" in ran.err) == (0, True)
    assert "not there" not in gossipq("growth", table, "-t", "orders").err


def test_a_topic_that_the_source_does_not_have(spark, gossipq, exporter: Exporter, tmp_path: Path) -> None:
    exporter.messages("orders", 0, 5)
    exporter.publish()
    imports.import_export(spark, str(exporter), str(tmp_path / "table"))
    for source in (exporter, tmp_path / "table"):
        ran = gossipq("growth", source, "-t", "ordes")
        assert ran.code == 4
        assert "hint: did you mean orders?" in ran.err


# --- reports


@pytest.fixture
def lived(exporter: Exporter) -> Exporter:
    """Two days of orders, of which a group has done some, failed with some, and not seen the rest."""
    exporter.messages(
        "orders",
        0,
        100,
        publish_time=lambda at: START_US + (at >= 60) * DAY_US,
        key=lambda at: b"k%d" % (at % 5),
    )
    exporter.messages("007", 0, 10, topic_id=7, value=b'{"user": "ada", "n": 5}')
    place = {"topic": "orders", "topic_id": 1, "partition": 0, "group_name": "billing"}
    # the last one again, after a requeue
    runs = [(0, 50, 2 * SECOND_US), (50, 60, 10 * SECOND_US), (40, 50, 99 * SECOND_US)]
    acks = [
        place
        | {
            "start_offset": first,
            "end_offset": end,
            "acked_at": START_US + after,
            "consumer": "c",
            "change_seq": at,
        }
        for at, (first, end, after) in enumerate(runs)
    ]
    exporter.write(export.ACKS, "orders", 1, 0, 0, 9, acks)
    told = {
        "attempts": 3,
        "failures": 3,
        "due_at": None,
        "changed_at": START_US,
        "consumer": None,
        "change_seq": 9,
    }
    states = [
        (0, 60, "done", None, None),
        (60, 64, "dead", "failures", "no money"),
        (64, 65, "dead", "expired", None),
    ]
    states += [(65, 70, "retrying", None, "slow"), (70, 100, "ready", None, None)]
    rows = [
        place
        | told
        | {"start_offset": first, "end_offset": end, "state": state, "reason": reason, "error": error}
        for first, end, state, reason, error in states
    ]
    voided = (
        place
        | told
        | {
            "group_name": "",
            "start_offset": 3,
            "end_offset": 4,
            "state": "voided",
            "reason": None,
            "error": None,
        }
    )
    exporter.write(export.DELIVERIES, "orders", 1, 0, 0, 9, [*rows, voided])
    exporter.publish()
    return exporter


def test_growth(gossipq, lived: Exporter, tmp_path: Path) -> None:
    ran = gossipq(
        "growth", lived, "--picture", tmp_path / "g.svg", "--rollups", tmp_path / "roll", "-o", "json"
    )
    assert ran.code == 0
    rows = {(row["topic"], row["day"]): (row["records"], row["records_total"]) for row in json.loads(ran.out)}
    assert rows == {
        ("007", "2026-09-21"): (10, 10),
        ("orders", "2026-09-21"): (60, 60),
        ("orders", "2026-09-22"): (40, 100),
    }
    assert sum(row["bytes"] for row in json.loads(ran.out) if row["topic"] == "orders") == 10 * 7 + 90 * 8
    kept = rollups.load(str(tmp_path / "roll"), "growth")
    assert (kept.kind, kept.source, kept.dicts()) == ("growth", str(lived), json.loads(ran.out))
    assert ElementTree.parse(tmp_path / "g.svg").getroot().tag.endswith("svg")
    assert [line.split()[0] for line in gossipq("growth", lived, "-t", "00*").out.splitlines()] == [
        "topic",
        "007",
    ]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_days_and_times_are_utc_in_every_session(spark, exporter: Exporter, zone: str) -> None:
    midnight = 1_790_035_200 * SECOND_US
    exporter.messages("t", 0, 4, publish_time=lambda at: midnight + (at - 2) * SECOND_US)
    place = {
        "topic": "t",
        "topic_id": 1,
        "partition": 0,
        "group_name": "g",
        "start_offset": 0,
        "end_offset": 4,
    }
    exporter.write(
        export.ACKS, "t", 1, 0, 0, 9, [place | {"acked_at": midnight - 1, "consumer": "c", "change_seq": 1}]
    )
    exporter.publish()
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        messages, acks = (
            read_export(spark, str(exporter), dataSet=data_set) for data_set in ("messages", "acks")
        )
        days = {str(row.day): row.records for row in reports.growth(messages).collect()}
        (sketch,) = reports.latency_sketches(messages, acks).collect()
        found = (
            records.search(messages, since="2026-09-22").count(),
            records.search(messages, until="2026-09-22").count(),
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert days == {"2026-09-21": 2, "2026-09-22": 2}
    assert str(sketch.day) == "2026-09-21"
    assert found == (2, 2)


@pytest.mark.parametrize(
    ("apart_us", "by", "points"),
    [
        (2 * DAY_US, "day", ["2026-09-21", "2026-09-23", "2026-09-25"]),
        (2 * 3_600 * SECOND_US, "hour", ["2026-09-21 14:00", "2026-09-21 16:00", "2026-09-21 18:00"]),
        (90 * SECOND_US, "minute", ["2026-09-21 14:13", "2026-09-21 14:14", "2026-09-21 14:16"]),
        (2 * SECOND_US, "second", ["2026-09-21 14:13:20", "2026-09-21 14:13:22", "2026-09-21 14:13:24"]),
    ],
)
def test_a_young_export_is_drawn_in_fine_steps(
    spark, gossipq, exporter: Exporter, tmp_path: Path, apart_us: int, by: str, points: list[str]
) -> None:
    exporter.messages("t", 0, 3, publish_time=lambda at: START_US + at * apart_us)
    exporter.publish()
    messages = read_export(spark, str(exporter))
    assert reports.fitting_step(messages) == by
    steps, days = ([row.asDict() for row in reports.growth(messages, each).collect()] for each in (by, "day"))
    assert [str(row[by]) for row in steps] == points
    if by != "day":
        assert reports.days_of(steps, by) == [row | {"day": str(row["day"])} for row in days]
    assert gossipq("growth", exporter, "--picture", tmp_path / "g.svg").code == 0
    drawn = (tmp_path / "g.svg").read_text()
    assert f"Records by {by}" in drawn
    assert drawn.count("<circle") == 3


def test_records_of_one_moment_are_a_bar(gossipq, exporter: Exporter, tmp_path: Path) -> None:
    exporter.messages("t", 0, 7, publish_time=START_US)
    exporter.publish()
    assert gossipq("growth", exporter, "--picture", tmp_path / "g.svg").code == 0
    assert "t: records 7" in (tmp_path / "g.svg").read_text()


def test_status_and_dead_letters(gossipq, lived: Exporter, tmp_path: Path) -> None:
    ran = gossipq("status", lived, "-o", "json", "--picture", tmp_path / "s.svg")
    (row,) = json.loads(ran.out)
    counts = {"ready": 30, "in_flight": 0, "retrying": 5, "parked": 0, "dead": 5, "done": 60}
    assert row == {"topic": "orders", "group": "billing", **counts}
    assert "orders billing: done 60" in (tmp_path / "s.svg").read_text()
    ran = gossipq("dead", lived, "-o", "json", "--rollups", tmp_path / "roll")
    assert [(row["reason"], row["records"], row["last_error"]) for row in json.loads(ran.out)] == [
        ("failures", 4, "no money"),
        ("expired", 1, None),
    ]
    assert rollups.load(str(tmp_path / "roll"), "dead").dicts()[0]["first_at"].endswith("+00:00")


def test_latency_and_sketches_that_merge(spark, gossipq, lived: Exporter, tmp_path: Path) -> None:
    ran = gossipq(
        "latency",
        lived,
        "--total",
        "-o",
        "json",
        "--rollups",
        tmp_path / "roll",
        "--picture",
        tmp_path / "l.svg",
    )
    (row,) = json.loads(ran.out)
    assert (row["topic"], row["group"], row["records"]) == ("orders", "billing", 60), (
        "the first ack of a record counts"
    )
    assert (row["p50_ms"], row["p99_ms"], row["max_ms"]) == (2_000, 10_000, 10_000)
    kept = spark.read.parquet(str(tmp_path / "roll" / "latency.parquet"))
    (twice,) = reports.latency(kept.unionAll(kept), by_day=False).collect()
    assert (twice.records, twice.p50_ms) == (120, 2_000)
    assert "p50" in (tmp_path / "l.svg").read_text()


# --- records


def test_search(gossipq, lived: Exporter) -> None:
    ran = gossipq("search", lived, "--text", "value 7", "-o", "json")
    assert [row["ref"] for row in json.loads(ran.out)] == [f"orders/0/{at}" for at in (7, *range(70, 80))]
    assert (
        len(json.loads(gossipq("search", lived, "--field", "$.user=ada", "-k", "", "-o", "json").out)) == 10
    )
    one = json.loads(
        gossipq("search", lived, "-k", "k3", "--from", "2026-09-22", "-n", "1", "-o", "json").out
    )
    assert [(row["ref"], row["key"], row["value"]) for row in one] == [("orders/0/63", "k3", "value 63")]
    ran = gossipq("search", lived, "--until", "2020-01-01")
    assert (ran.code, ran.out, ran.err) == (0, "", "no such record\n")


def test_headers_are_found(spark, exporter: Exporter) -> None:
    exporter.messages("t", 0, 10, headers=lambda at: [{"key": "shop", "value": b"n%d" % (at % 2)}])
    exporter.publish()
    found = records.search(read_export(spark, str(exporter)), header={"shop": "n1"})
    assert sorted(row.offset for row in found.collect()) == [1, 3, 5, 7, 9]


def test_deduplication(spark, gossipq, exporter: Exporter, tmp_path: Path) -> None:
    exporter.messages("t", 0, 10, id=lambda at: b"%d" % (at % 4) if at < 8 else None)
    exporter.publish()
    (row,) = json.loads(gossipq("dedup", exporter, "--to", tmp_path / "once", "-o", "json").out)
    assert row == {"topic": "t", "records": 8, "distinct": 4, "duplicates": 4}
    once = spark.read.parquet(str(tmp_path / "once"))
    assert sorted(row.offset for row in once.collect()) == [0, 1, 2, 3, 8, 9]
    with pytest.raises(BadRequest, match="by='moon'"):
        records.duplicates(read_export(spark, str(exporter)), "moon")


@pytest.mark.e2e
def test_from_a_node_to_a_table_and_back(gossipq, shared_node, spark, tmp_path: Path) -> None:
    """The whole way: publish, export, import twice, replay a part twice under one name."""
    export_to, table = tmp_path / "export", tmp_path / "table"
    with connect(shared_node.endpoint) as mq:
        mq.publish_many("007", [b"%d" % at for at in range(1_000)], timeout=30)
        mq.publish("007", b"x" * (1 << 20), key=b"big", headers={"h": "v"}, timeout=30)
        mq.create_topic("nobody")
        assert main(["-s", shared_node.endpoint, "export", "--out", str(export_to)]) == 0
        for _ in range(2):
            assert gossipq("import", export_to, table).code == 0
        assert offsets(spark, table) == [*range(1_001)]
        big = read_table(spark, str(table)).where("key is not null").first()
        assert (len(big.value), big.headers[0].key) == (1 << 20, "h")
        mq.create_topic("again")
        line = (
            "-s",
            shared_node.endpoint,
            "replay",
            table,
            "-t",
            "007",
            "--text",
            "99",
            "--to",
            "again",
            "--id",
            "r1",
        )
        dry = json.loads(gossipq(*line[2:], "--dry-run", "-o", "json").out)
        assert (dry["records"], mq.topic("again").positions()) == (19, {0: (0, 0)})
        for _ in range(2):
            assert (
                main(["spark", "replay", *map(str, line[3:]), "-s", shared_node.endpoint, "--rate", "1000"])
                == 0
            )
        found = Counter(msg.headers["x-replay-of"] for msg in mq.read("again"))
        assert len(found) == sum(found.values()) == 19
    ran = gossipq("replay", table, "--to", "007")
    assert ran.code == 2
    assert ran.err.startswith("error: records of '007' would go back to it")


@pytest.mark.e2e
@pytest.mark.slow
def test_killed_exports_imported_twice_hold_every_confirmed_record_once(
    spark, make_node, tmp_path: Path
) -> None:
    """Under load, with the exporter killed at random points and an import after each kill."""
    from export.test_export_kill import Load, export, finish

    node, dice, folder, table = (
        make_node().start(),
        random.Random(3),
        tmp_path / "export",
        str(tmp_path / "table"),
    )
    with connect(node.endpoint) as mq:
        for topic in ("007", "orders", "big"):
            mq.create_topic(topic, partitions=2)
    load = Load(node.endpoint)
    load.start()
    try:
        for _ in range(KILLS):
            process = export(node, folder, "--follow", "--every", "0.01s", "--roll", "0s")
            time.sleep(dice.uniform(0.8, 1.5))
            process.kill()
            process.communicate()
            if list(folder.glob("manifests/*.json")):
                imports.import_export(spark, str(folder), table)
    finally:
        load.stop()
    finish(export(node, folder))
    finish(export(node, folder, "--compact"))
    for _ in range(2):
        imports.import_export(spark, str(folder), table)
    rows = read_table(spark, table).select("topic", "partition", "offset", "value").collect()
    assert len(rows) == len(load.confirmed)
    assert {(row.topic, row.partition, row.offset): bytes(row.value) for row in rows} == load.confirmed


# --- what goes wrong, and what is small


def test_commands_say_what_is_wrong(gossipq, tmp_path: Path) -> None:
    ran = gossipq("growth", tmp_path / "nothing")
    assert (ran.code, ran.out) == (1, "")
    assert "has no manifest: nothing was exported there\n hint: gossipq export --out DIR" in ran.err
    assert "name a file that ends in .svg" in gossipq("growth", tmp_path, "--picture", "a.png").err
    assert "write NAME:VALUE" in gossipq("search", tmp_path, "-H", "x").err
    assert gossipq("search", tmp_path, "--field", "x").code == 2


def test_a_later_roll_up_is_refused(tmp_path: Path) -> None:
    rollups.save(str(tmp_path), "growth", "here", ["a"], [{"a": 1}])
    path = tmp_path / "growth.json"
    path.write_text(path.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(ExportError, match="has version 2"):
        rollups.load(str(tmp_path), "growth")


@pytest.mark.parametrize("picture", [charts.bars("none", {}), charts.lines("none", {})])
def test_empty_pictures(picture: str) -> None:
    assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_a_legend_names_the_largest_eight_and_counts_the_rest() -> None:
    series = {
        f"topic-{number:02}": [("2026-01-01", float(number)), ("2026-01-02", 1.0)] for number in range(20)
    }
    picture = ElementTree.fromstring(charts.lines("Growth", series))
    texts = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text.startswith("topic-")] == [
        f"topic-{number:02}" for number in range(19, 11, -1)
    ]
    assert "12 more" in texts
    right = [
        float(text.get("x", 0)) + 7 * len(text.text or "")
        for text in picture.iter("{http://www.w3.org/2000/svg}text")
    ]
    assert max(right) < float(picture.get("width", 0)) + 40
    few = charts.lines("Growth", {"a": [("2026-01-01", 1.0)]})
    assert "more" not in few


def test_pictures_escape_what_they_show() -> None:
    hostile = "<script>&"
    drawn = charts.bars(hostile, {hostile: {hostile: 3.5}}, "ms") + charts.lines(
        hostile, {hostile: [("2026-01-01", 2e6)]}
    )
    assert "<script" not in drawn
    assert "2.0M" in drawn
