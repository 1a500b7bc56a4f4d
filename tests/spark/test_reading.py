"""Reading exports: what counts is counted once, however a frame is used; what is torn or lost is said."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from gossipq.errors import BadRequest, DataLoss, ExportVersion, GossipqError, TornExport
from gossipq.wire import export
from gossipq.wire.export import Gap
from gossipq_node.export import files as export_files
from gossipq_node.export import lmdb_file
from pyspark_gossipq import files, layout, read_export, read_table, schemas
from pyspark_gossipq.asked import parse
from pyspark_gossipq.batch import arrow_schema
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.pipelines import imports
from spark import exports
from spark.exports import SECOND_US, START_US, Exporter, edited

WAYS = ("read_export", "format")
FORMATS = {"read_export": "parquet", "format": "lmdb"}  #: the other two pairs have a test of their own


def frame(spark, way: str, exporter: Exporter, **options):
    """The same rows by Spark itself, or through the data source."""
    if way == "read_export":
        return read_export(spark, str(exporter), **options)
    return spark.read.format("gossipq").options(**options).load(str(exporter))


def offsets(read, topic: str = "orders", partition: int = 0) -> list[int]:
    rows = (
        read.where((F.col("topic") == topic) & (F.col("partition") == partition)).select("offset").collect()
    )
    return sorted(row.offset for row in rows)


@pytest.fixture
def filled(exporter: Exporter, request: pytest.FixtureRequest) -> Exporter:
    """Two topics of which one is called 007, three partitions, two increments, a hole, keys and headers."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    exporter.format = FORMATS[params.get("way", "read_export")]
    exporter.messages("orders", 0, 1_500, key=lambda at: b"k%d" % (at % 7), holes=[3])
    exporter.messages("orders", 0, 10, partition=1)
    exporter.messages("007", 0, 20, topic_id=7, headers=lambda at: [{"key": "n", "value": b"%d" % at}])
    exporter.publish()
    exporter.messages("orders", 1_500, 2_000)
    exporter.publish()
    return exporter


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_both_formats(spark, filled: Exporter, way: str) -> None:
    read = frame(spark, way, filled)
    counts = {
        (row.topic, row.partition): row["count"]
        for row in read.groupBy("topic", "partition").count().collect()
    }
    assert counts == {("orders", 0): 1_999, ("orders", 1): 10, ("007", 0): 20}
    row = read.where("topic = '007' and offset = 12").first()
    assert (row.topic_id, bytes(row.value), row.key) == (7, b"value 12", None)
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("n", b"12")]
    assert row.publish_time.timestamp() * 1_000_000 == START_US + 12 * SECOND_US
    assert bytes(read.where("topic = 'orders' and partition = 0 and offset = 8").first().key) == b"k1"


def test_identical_rows_from_both_formats(spark, tmp_path: Path) -> None:
    found = []
    for form in ("parquet", "lmdb"):
        exporter = Exporter(tmp_path / form, format=form)
        exporter.messages(
            "t", 0, 300, headers=lambda at: [{"key": "a", "value": b"%d" % at}] if at % 2 else None
        )
        exporter.publish()
        found += [sorted(map(str, frame(spark, way, exporter).collect())) for way in WAYS]
    assert len(found[0]) == 300
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_can_be_used_again_and_again(spark, filled: Exporter, way: str) -> None:
    """Here Spark's own pushdown of filters would lose rows."""
    read = frame(spark, way, filled, topics="orders")
    assert read.where("offset = 5 and partition = 0").count() == 1
    assert read.count() == 2_009
    three, four = read.where("offset = 4 and partition = 0"), read.where("offset = 5 and partition = 0")
    assert sorted(row.offset for row in three.union(four).collect()) == [4, 5]
    assert three.union(read).union(four).count() == 2_011
    left, right = read.alias("a"), read.alias("b")
    same = (F.col("a.partition") == F.col("b.partition")) & (F.col("a.offset") == F.col("b.offset"))
    assert left.join(right, same).count() == 2_009
    assert left.where("a.offset < 100").join(right.where("b.offset >= 50"), same).count() == 50
    assert read.limit(7).count() == 7
    assert read.where("key is not null").count() == 1_499


@pytest.mark.parametrize("way", WAYS)
def test_sql_views(spark, filled: Exporter, way: str) -> None:
    frame(spark, way, filled).createOrReplaceTempView("seen")
    count = spark.sql("select count(*) c from seen where partition = 1").first().c
    again = spark.sql("select count(*) c from seen").first().c
    both = spark.sql(
        "select count(*) c from (select * from seen where offset = 1 union all select * from seen where "
        "offset = 2)"
    )
    assert (count, again, both.first().c) == (10, 2_029, 6)
    spark.catalog.dropTempView("seen")


def test_a_view_made_in_sql(spark, filled: Exporter) -> None:
    spark.sql(
        f"create temporary view asked using gossipq options (path '{filled}', topics '0*', startingOffsets "
        "'earliest')"
    )
    assert [row.topic for row in spark.sql("select distinct topic from asked").collect()] == ["007"]
    assert spark.sql("select count(*) c from asked where offset < 5").first().c == 5
    assert spark.sql("select count(*) c from asked").first().c == 20
    spark.catalog.dropTempView("asked")


@pytest.mark.parametrize("way", WAYS)
def test_offsets_and_times_choose_rows(spark, filled: Exporter, way: str) -> None:
    begin, end = {"orders": {"0": 1_490}}, {"orders": {"0": 1_510}}
    if way == "format":
        begin, end = '{"orders": {"0": 1490}}', '{"orders": {"0": 1510}}'
    read = frame(spark, way, filled, topics="orders", startingOffsets=begin, endingOffsets=end)
    assert offsets(read) == list(range(1_490, 1_510))
    assert offsets(read, partition=1) == list(range(10)), "a partition that is not named is read whole"
    since = datetime.fromtimestamp(START_US / 1_000_000, UTC) + timedelta(seconds=1_995)
    assert offsets(frame(spark, way, filled, topics="orders", startingTimestamp=str(since))) == [
        *range(1_995, 2_000)
    ]
    until_ms = str((START_US + 3 * SECOND_US) // 1_000)
    assert offsets(frame(spark, way, filled, endingTimestamp=until_ms, partitions="0")) == [0, 1, 2]
    assert frame(spark, way, filled, topics="orders", startingOffsets="latest").count() == 0
    assert frame(spark, way, filled, topics="nothing*").count() == 0


@pytest.mark.parametrize("way", WAYS)
def test_names_that_are_not_there(spark, filled: Exporter, way: str) -> None:
    """A slip of the pen would read nothing, or all there is."""
    told = refused(spark, way, filled, topics="order")
    assert "UnknownTopic: topic 'order' does not exist here" in told
    assert "did you mean orders?" in told
    assert "did you mean orders?" in refused(
        spark, way, filled, topics="orders", startingOffsets='{"ordres": {"0": 7}}'
    )
    assert "there are orders" in refused(
        spark, way, filled, topics="orders", endingOffsets='{"007": {"0": 7}}'
    )
    assert "orders/5, which is not read" in refused(
        spark, way, filled, startingOffsets='{"orders": {"5": 7}}'
    )
    assert "'orders' has no partition 2" in refused(spark, way, filled, assign='{"orders": [0, 2]}')
    assert "did you mean 007?" in refused(spark, way, filled, topics="00", dataSet="acks")


@pytest.mark.parametrize("way", WAYS)
def test_ranges_hold_every_offset_once(spark, filled: Exporter, way: str) -> None:
    def some(*ranges: tuple[int, int]) -> list[int]:
        asked = json.dumps([[1, 0, start, end] for start, end in ranges])
        return offsets(frame(spark, way, filled, ranges=asked))

    assert some((10, 20), (30, 40)) == [*range(10, 20), *range(30, 40)]
    assert some((1_000, 1_200), (1_100, 1_200)) == [*range(1_000, 1_200)]
    assert some((30, 40), (1_490, 1_510), (35, 45), (40, 41)) == [*range(30, 45), *range(1_490, 1_510)]
    assert "ranges=" in refused(spark, way, filled, ranges="[[1, 0, 5, 4]]")


@pytest.mark.parametrize("form", ["parquet", "lmdb"])
def test_states_are_read_once_however_long_the_log_is(spark, exporter: Exporter, form: str) -> None:
    """Files of states hold log indices instead of offsets, so tasks cannot share them."""
    exporter.format = form
    exporter.messages("orders", 0, 10)
    place = {
        "topic": "orders",
        "topic_id": 1,
        "partition": 0,
        "group_name": "billing",
        "start_offset": 0,
        "end_offset": 100,
    }
    more = dict.fromkeys(("due_at", "changed_at", "reason", "error", "consumer"))
    state = place | more | {"state": "done", "attempts": 0, "failures": 0, "change_seq": 5}
    exporter.write(export.DELIVERIES, "orders", 1, 0, 0, 1_200_000, [state])
    exporter.write(
        export.ACKS, "orders", 1, 0, 0, 1_200_000, [place | {"acked_at": 0, "consumer": "c", "change_seq": 5}]
    )
    exporter.publish()
    for data_set in ("deliveries", "acks"):
        for options in ({}, {"minPartitions": "4"}, {"maxRecordsPerPartition": "1"}):
            read = spark.read.format("gossipq").options(dataSet=data_set, **options).load(str(exporter))
            assert [row.end_offset for row in read.collect()] == [100], (data_set, options)


def test_a_folder_whose_name_looks_like_patterns(spark, tmp_path: Path) -> None:
    name = "la?e[1]* {a,b} with space, comma, a\\b"
    for folder, count in (
        ("lake1 a with space, comma, a\\b", 7),
        ("lake1X {a,b} with space, comma, a\\b", 7),
        (name, 3),
    ):
        exporter = Exporter(tmp_path / folder)
        exporter.messages("orders", 0, count)
        exporter.publish()
    assert offsets(read_export(spark, str(tmp_path / name))) == [0, 1, 2]
    assert offsets(read_export(spark, str(tmp_path / name), startingOffsets={"orders": {0: 1}})) == [1, 2]
    imports.import_export(spark, str(tmp_path / name), str(tmp_path / "table[1]*"))
    assert read_table(spark, str(tmp_path / "table[1]*")).count() == 3


def test_kafka_schema(spark, filled: Exporter) -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    for way, on in (("read_export", True), ("format", "true")):
        read = frame(spark, way, filled, kafkaSchema=on, topics="orders")
        assert read.columns == names
        row = read.where("partition = 1 and offset = 3").first()
        assert (bytes(row.value), row.timestampType, row.timestamp.second) == (b"value 3", 0, 23)


def test_pandas_or_what_to_install(spark, filled: Exporter) -> None:
    read = read_export(spark, str(filled), topics="007").select("offset")
    if find_spec("pandas") is not None:
        assert len(read.toPandas()) == 20
        return
    with pytest.raises(ImportError, match=r"[Pp]andas >= .* must be installed"):
        read.toPandas()


def test_a_schema_of_ones_own_is_honoured(spark, filled: Exporter) -> None:
    read = spark.read.format("gossipq").schema("offset long, topic string").load(str(filled))
    assert read.columns == ["offset", "topic"]
    assert read.where("topic = '007'").agg(F.sum("offset")).first()[0] == 190


def test_tasks_are_cut_and_joined(spark, filled: Exporter) -> None:
    read = spark.read.format("gossipq").options(minPartitions="3", topics="orders").load(str(filled))
    assert read.rdd.getNumPartitions() >= 3
    assert read.select("partition", "offset").distinct().count() == 2_009
    asked = parse({"path": str(filled), "maxRecordsPerPartition": "100"})
    folder = Folder(str(filled))
    exported = folder.read()
    tasks = layout.tasks(
        layout.parts(exported, layout.spans(layout.known(exported, asked), asked), asked), asked
    )
    assert len(tasks) >= 20
    assert all(sum(part.end - part.start for part in parts) <= 100 for parts in tasks)
    assert spark.read.format("gossipq").load(str(filled)).rdd.getNumPartitions() == 1


def test_headers_of_slices() -> None:
    """Rows are handed over in slices; lists with nulls among them keep their headers."""
    told = [None if at % 3 == 0 else [{"key": f"k{at}", "value": b"%d" % at}] * (at % 4) for at in range(50)]
    source = pa.record_batch([pa.array(told, exports.schema("messages").field("headers").type)], ["headers"])
    wanted = arrow_schema(schemas.of("messages"))
    wanted = pa.schema([wanted.field("headers"), wanted.field("route")])
    for start, count in ((0, 50), (7, 20), (49, 1), (10, 0)):
        shaped = files.shaped(source.slice(start, count), wanted)
        shaped.validate(full=True)
        assert shaped.column("headers").to_pylist() == told[start : start + count]
        assert shaped.column("route").null_count == count


def test_batches_are_bounded_in_bytes(exporter: Exporter) -> None:
    exporter.messages("big", 0, 100, value=b"x" * (1 << 20))
    exporter.publish()
    asked, folder = parse({"path": str(exporter)}), Folder(str(exporter))
    exported = folder.read()
    (part,) = layout.parts(exported, layout.spans(layout.known(exported, asked), asked), asked)
    sizes = [block.nbytes for block in files.read(folder, part, arrow_schema(schemas.of("messages")), asked)]
    assert len(sizes) > 3
    assert max(sizes) <= 40 << 20


@pytest.mark.parametrize("form", ["parquet", "lmdb"])
def test_a_part_of_a_file_has_its_offsets_and_no_others(tmp_path: Path, form: str) -> None:
    """Cut at, before and behind the seam of two LMDB entries; every second offset is gone."""
    entry, there = lmdb_file.ROWS_MAX, range(10, 200_000, 2)
    seam, last = there[entry], there[-1]
    writer = export_files.writer(form, tmp_path / "part", pa.schema([("offset", pa.int64())]))
    writer.write(pa.record_batch([pa.array(there, pa.int64())], ["offset"]))
    writer.close()
    wanted = arrow_schema(StructType([StructField("offset", LongType())]))
    for start, end in (
        (0, 11),
        (10, seam),
        (seam - 1, seam + 1),
        (seam, seam + 3),
        (last, last + 9),
        (last + 1, last + 9),
        (0, last),
    ):
        part = layout.Part("part", form, 1, 0, start, end, False, 0, 0)
        blocks = files.read(Folder(str(tmp_path)), part, wanted, parse({"path": str(tmp_path)}))
        read = [at for block in blocks for at in block.column("offset").to_pylist()]
        assert read == [at for at in there if start <= at < end]


def test_big_values(spark, exporter: Exporter) -> None:
    exporter.messages("big", 0, 12, value=lambda at: bytes([at]) * (1 << 20))
    exporter.publish()
    for way in WAYS:
        read = frame(spark, way, exporter).select(
            F.length("value").alias("size"), F.md5("value").alias("sum")
        )
        rows = read.collect()
        assert {row.size for row in rows} == {1 << 20}
        assert len({row.sum for row in rows}) == 12


def test_names_that_folders_would_hide(spark, exporter: Exporter) -> None:
    for topic_id, name in enumerate(("_hidden", ".dot", "a.b-c"), 1):
        exporter.messages(name, 0, 5, topic_id=topic_id)
    exporter.publish()
    for way in WAYS:
        counts = frame(spark, way, exporter).groupBy("topic").count().collect()
        assert {row.topic: row["count"] for row in counts} == {"_hidden": 5, ".dot": 5, "a.b-c": 5}


def test_an_empty_topic(spark, exporter: Exporter) -> None:
    exporter.messages("empty", 0, 0)
    exporter.files.clear()
    exporter.publish()
    for way in WAYS:
        read = frame(spark, way, exporter)
        assert (read.count(), read.columns) == (0, [column.name for column in export.SCHEMAS["messages"]])


def test_acks_and_deliveries(spark, exporter: Exporter) -> None:
    exporter.messages("orders", 0, 10)
    place = {
        "topic": "orders",
        "topic_id": 1,
        "partition": 0,
        "group_name": "billing",
        "start_offset": 0,
        "end_offset": 8,
    }
    ack = place | {"acked_at": START_US, "consumer": "c", "change_seq": 5}
    exporter.write(export.ACKS, "orders", 1, 0, 0, 6, [ack])
    more = dict.fromkeys(("due_at", "changed_at", "reason", "error", "consumer"))
    state = place | more | {"state": "done", "attempts": 0, "failures": 0, "change_seq": 5}
    exporter.write(export.DELIVERIES, "orders", 1, 0, 0, 6, [state])
    exporter.publish()
    state |= {"end_offset": 10, "change_seq": 9}
    exporter.write(export.DELIVERIES, "orders", 1, 0, 0, 10, [state])
    exporter.publish()
    for way in WAYS:
        assert frame(spark, way, exporter, dataSet="acks").first().end_offset == 8
        assert [row.end_offset for row in frame(spark, way, exporter, dataSet="deliveries").collect()] == [10]


# --- what must be said


def refused(spark, way: str, exporter: Exporter, **options) -> str:
    with pytest.raises((GossipqError, PySparkException)) as caught:
        frame(spark, way, exporter, **options).count()
    if isinstance(caught.value, GossipqError):
        return f"{type(caught.value).__name__}: {caught.value.message}\nhint: {caught.value.hint}"
    return str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_retention_gap_is_an_error(spark, exporter: Exporter, way: str) -> None:
    exporter.messages("orders", 0, 10)
    exporter.publish()
    exporter.gaps.append(Gap("orders", 1, 0, 10, 15))
    exporter.messages("orders", 15, 20)
    exporter.publish()
    told = refused(spark, way, exporter)
    assert "DataLoss: orders/0: records 10 to 14 left by retention" in told
    assert "failOnDataLoss=false" in told
    off = False if way == "read_export" else "false"
    assert offsets(frame(spark, way, exporter, failOnDataLoss=off)) == [*range(10), *range(15, 20)]
    begin = {"orders": {"0": 15}} if way == "read_export" else '{"orders": {"0": 15}}'
    assert offsets(frame(spark, way, exporter, startingOffsets=begin)) == [*range(15, 20)]


@pytest.mark.parametrize("way", WAYS)
def test_a_start_before_the_export_is_an_error(spark, exporter: Exporter, way: str) -> None:
    exporter.messages("orders", 50, 60)
    exporter.publish()
    begin = {"orders": {"0": 40}} if way == "read_export" else '{"orders": {"0": 40}}'
    assert "records 40 to 49 cannot be read any more" in refused(spark, way, exporter, startingOffsets=begin)
    assert offsets(frame(spark, way, exporter)) == [*range(50, 60)]


@pytest.mark.parametrize("way", WAYS)
def test_torn_exports(spark, exporter: Exporter, way: str) -> None:
    file = exporter.messages("orders", 0, 10)
    exporter.publish()
    path = exporter.root / file.path
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    assert f"TornExport: {file.path} is not as it was written" in refused(spark, way, exporter)
    path.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    assert "another SHA-256" in refused(spark, way, exporter)
    path.unlink()
    assert f"TornExport: {file.path} is missing" in refused(spark, way, exporter)
    shutil.rmtree(exporter.root / "manifests")
    assert "has no manifest" in refused(spark, way, exporter)


@pytest.mark.parametrize("way", WAYS)
def test_overlaps(spark, exporter: Exporter, way: str) -> None:
    exporter.messages("orders", 0, 10)
    exporter.messages("orders", 9, 20)
    exporter.publish()
    assert "overlap: [9, 10) is in both" in refused(spark, way, exporter)


def test_what_no_manifest_names_is_not_read(spark, exporter: Exporter) -> None:
    exporter.messages("orders", 0, 10)
    exporter.publish()
    exporter.messages("orders", 10, 20)  # its manifest was never published
    (exporter.root / "manifests" / ".0000000002.json").write_bytes(b"{")
    for way in WAYS:
        assert offsets(frame(spark, way, exporter)) == [*range(10)]


def test_a_missing_manifest_and_a_later_version(spark, exporter: Exporter) -> None:
    for at in range(3):
        exporter.messages("orders", at * 10, at * 10 + 10)
        paths = exporter.publish()
    (exporter.root / export.manifest_path(2)).unlink()
    with pytest.raises(TornExport, match=r"0000000002.json is missing"):
        read_export(spark, str(exporter))
    edited(paths, version=export.VERSION + 1)
    with pytest.raises(ExportVersion, match="has version 3; this gossipq reads versions up to 2"):
        read_export(spark, str(exporter))


def test_an_older_format_has_fewer_columns(spark, exporter: Exporter) -> None:
    exporter.messages("orders", 0, 5, without=["deliver_at", "route", "id"])
    exporter.messages("orders", 5, 10, route="eu")
    edited(
        exporter.publish(),
        positions=[{"topic": "orders", "topic_id": 1, "partition": 0, "start": 0, "end": 10, "retained": 0}],
    )
    for way in WAYS:
        rows = frame(spark, way, exporter).orderBy("offset").collect()
        assert [row.route for row in rows] == [None] * 5 + ["eu"] * 5
        assert rows[0].deliver_at is None


def test_compacted_exports_are_read_once(spark, exporter: Exporter) -> None:
    for at in range(4):
        exporter.messages("orders", at * 10, at * 10 + 10)
        exporter.publish()
    exporter.messages("orders", 0, 40)
    exporter.publish(base=True)
    for way in WAYS:
        assert offsets(frame(spark, way, exporter)) == [*range(40)]


@pytest.mark.parametrize(
    ("options", "says", "hint"),
    [
        ({}, "path= or servers=", ""),
        ({"path": "x", "servers": "y"}, "path= or servers=", ""),
        (
            {"path": "x", "maxOffsetPerTrigger": "5"},
            "'maxOffsetPerTrigger' is not known",
            "did you mean maxOffsetsPerTrigger?",
        ),
        ({"path": "x", "topics": "a", "subscribe": "b"}, "topics and subscribe say the same", "keep one"),
        ({"path": "x", "topics": "a", "assign": '{"a": [0]}'}, "exclude each other", ""),
        ({"path": "x", "startingOffsets": "soon"}, "startingOffsets='soon'", "earliest, latest"),
        ({"path": "x", "startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets=", "-2"),
        ({"path": "x", "startingTimestamp": "noon"}, "startingTimestamp='noon'", "milliseconds"),
        ({"path": "x", "failOnDataLoss": "maybe"}, "failOnDataLoss='maybe'", "true or false"),
        ({"path": "x", "minPartitions": "0"}, "minPartitions='0'", "a whole number from 1"),
        ({"path": "x", "subscribePattern": "("}, "topicsPattern='('", "regular expression"),
        (
            {"path": "x", "dataSet": "acks", "startingOffsets": "latest"},
            "choose messages, not acks",
            "filter",
        ),
        ({"path": "x", "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon'", "15m"),
        ({"path": "x", "asOf": "noon"}, "asOf='noon'", "milliseconds"),
        ({"servers": "x", "asOf": "2026-01-01"}, "asOf is for exports", "endingTimestamp"),
        (
            {"path": "x", "startingOffsetsByTimestamp": '{"a": {"0": 5}}'},
            "is for clusters",
            "startingTimestamp",
        ),
        ({"servers": "x", "startingOffsetsByTimestamp": '{"a": 5}'}, "startingOffsetsByTimestamp=", '{"0"'),
        ({"servers": "x", "dataSet": "acks"}, "dataSet=acks comes from an export", ""),
        ({"path": "x", "dataSet": "stuff"}, "dataSet='stuff'", "messages, acks, deliveries"),
        ({"path": "x", "ranges": "[]"}, "ranges='[]' chooses nothing", "leave it away"),
        ({"path": "x", "assign": "{}"}, "assign='{}' chooses nothing", "leave it away"),
        ({"path": "x", "topics": ", "}, "topics=', ' chooses nothing", "leave it away"),
        ({"path": "x", "topicsPattern": ""}, "topicsPattern='' chooses nothing", "leave it away"),
    ],
)
def test_wrong_options(options: dict[str, str], says: str, hint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(options)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_a_time_says_of_which_zone_it_is(spark) -> None:
    for option in ("startingTimestamp", "endingTimestamp", "asOf"):
        with pytest.raises(BadRequest, match=option):
            read_export(spark, "x", **{option: datetime(2026, 1, 1)})


def test_ways_to_name_topics() -> None:
    assert parse({"path": "x", "SUBSCRIBE": "a, b.*"}).wants("b.c", 3)
    assert not parse({"path": "x", "topics": "a,b.*"}).wants("ab", 0)
    assert parse({"path": "x", "topicsPattern": "a|b.+"}).wants("bc", 0)
    assert parse({"path": "x", "assign": '{"a": [1, 2]}'}).wants("a", 2)
    assert not parse({"path": "x", "assign": '{"a": [1, 2]}'}).wants("a", 0)
    assert not parse({"path": "x", "partitions": "1,2"}).wants("a", 0)


def test_data_loss_is_an_export_error() -> None:
    assert issubclass(DataLoss, GossipqError)


@pytest.mark.parametrize("way", WAYS)
def test_the_export_as_it_was(spark, exporter: Exporter, way: str) -> None:
    for number in range(3):
        exporter.messages("orders", number * 10, number * 10 + 10)
        edited(path := exporter.publish(), written_us=START_US + number * SECOND_US)
        exporter.previous = sha256(path.read_bytes()).hexdigest()
    when = [str((START_US + at * SECOND_US) // 1_000) for at in range(3)]
    assert [len(offsets(frame(spark, way, exporter, asOf=each))) for each in when] == [10, 20, 30]
    assert "does not go back so far" in refused(spark, way, exporter, asOf="2020-01-01T00:00Z")


@pytest.mark.e2e
def test_values_of_a_topic_with_a_schema_are_typed(spark, shared_node, tmp_path) -> None:
    from gossipq_cli.main import main
    from gossipq_client import connect

    kinds = {"n": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    kinds["tags"] = {"type": "object", "additionalProperties": {"type": "integer"}}
    lines = {"type": "object", "properties": {"sku": {"type": "string"}}}
    out = str(tmp_path / "lake")
    with connect(shared_node.endpoint) as mq:
        mq.create_topic("typed")
        for properties in (kinds, {**kinds, "lines": {"type": "array", "items": lines}}):
            mq.schema("typed", {"type": "object", "properties": properties})
            record = {"n": 1, "at": "2026-11-22T00:00:00Z", "tags": {"x": 1}, "lines": [{"sku": "a"}]}
            with connect(shared_node.endpoint) as other:
                other.publish_many("typed", [msgspec.json.encode(record), b"no"], timeout=60)
            assert main(["-s", shared_node.endpoint, "-q", "export", "typed", "--out", out]) == 0
    by_python = spark.read.format("gossipq").options(topics="typed").load(out)
    for frame in (read_export(spark, out, "typed"), by_python):
        rows = [row.data and row.data.asDict(recursive=True) for row in frame.orderBy("offset").collect()]
        assert (rows[1], rows[3]) == (None, None)
        assert [(row["n"], row["at"].year, row["tags"]) for row in rows[::2]] == [(1, 2026, {"x": 1})] * 2
        assert [row["lines"] for row in rows[::2]] == [None, [{"sku": "a"}]]
        assert frame.where("data.n = 1").count() == 2
    misfits = read_export(spark, out, "typed", dataSet="misfits")
    assert [(row.offset, bytes(row.value)) for row in misfits.orderBy("offset").collect()] == [
        (1, b"no"),
        (3, b"no"),
    ]
