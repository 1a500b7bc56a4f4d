"""A live cluster in Spark: batches, streams that tell their group how far they are, and writes that repeat
themselves."""

import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType

from conftest import RunningNode
from gossipq.errors import BadRequest, DataLoss, ExportError
from gossipq_client import Client, Records, connect
from pyspark_gossipq import layout, live, schemas, writer
from pyspark_gossipq.asked import parse
from spark.queries import run_out
from spark.topics import values

pytestmark = pytest.mark.e2e
PATIENCE_S = 240


def load(spark, node: RunningNode, topic: str, **options: str):
    return spark.read.format("gossipq").options(servers=node.endpoint, topics=topic, **options).load()


def test_a_batch(spark, shared_node: RunningNode, mq: Client, topic: str) -> None:
    mq.publish_many(topic, [b"%d" % at for at in range(3_000)], partition=0, timeout=30)
    mq.publish(topic, b"one", key=b"k", headers={"h": "v"}, route="eu", partition=1, timeout=30)
    read = load(spark, shared_node, topic, maxRecordsPerPartition="1000")
    assert read.rdd.getNumPartitions() == 4
    assert {row.partition: row["count"] for row in read.groupBy("partition").count().collect()} == {
        0: 3_000,
        1: 1,
    }
    row = read.where("partition = 1").first()
    assert (row.topic, row.offset, bytes(row.key), bytes(row.value), row.route) == (
        topic,
        0,
        b"k",
        b"one",
        "eu",
    )
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"v")]
    assert read.count() == 3_001, "a frame can be used again"
    begin, end = f'{{"{topic}": {{"0": 10}}}}', f'{{"{topic}": {{"0": 15, "1": -2}}}}'
    some = load(spark, shared_node, topic, startingOffsets=begin, endingOffsets=end)
    assert sorted(row.offset for row in some.collect()) == [10, 11, 12, 13, 14]
    with connect(shared_node.endpoint) as mq:
        for option, count in (("startingTimestamp", 3_001), ("endingTimestamp", 0)):
            asked = parse({"servers": shared_node.endpoint, "topics": topic, option: "2020-01-01"})
            assert sum(max(0, each.end - each.start) for each in live.between(mq, asked)) == count


def test_offsets_by_timestamp(shared_node: RunningNode, mq: Client, topic: str) -> None:
    mq.publish_many(topic, [b"a"] * 5, partition=0, timeout=30)
    mq.publish_many(topic, [b"a"] * 5, partition=1, timeout=30)
    early, late = 0, 4_000_000_000_000
    told = f'{{"{topic}": {{"0": {early}, "1": {late}}}}}'
    asked = parse({"servers": shared_node.endpoint, "topics": topic, "startingOffsetsByTimestamp": told})
    assert sum(max(0, each.end - each.start) for each in live.between(mq, asked)) == 5
    stream = live.LiveStream(schemas.of("messages"), asked)
    found = stream.initialOffset()
    stream.stop()
    name = f"{topic}#{mq.topics(topic)[0].id}"
    assert found == {name: {"0": 0, "1": 5}, "#": {mq.admin.status().cluster.hex(): 0}}


def test_an_unknown_topic_is_named(spark, shared_node: RunningNode) -> None:
    with pytest.raises(PySparkException, match="topic 'nobody' does not exist"):
        load(spark, shared_node, "nobody").count()


def test_values_of_a_topic_with_a_schema_are_typed(
    spark, shared_node: RunningNode, mq: Client, topic: str, tmp_path: Path
) -> None:
    """In batches and streams; a query that began before a field was added continues without it."""
    kinds: dict[str, Any] = {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}
    mq.schema(topic, {"type": "object", "properties": kinds})
    with connect(shared_node.endpoint) as other:  # which checks nothing
        other.publish_many(topic, [b'{"n": 1, "tags": ["a"]}', b"no"], partition=0, timeout=PATIENCE_S)
    frame = load(spark, shared_node, topic)
    assert [row.data and row.data.asDict() for row in frame.orderBy("offset").collect()] == [
        {"n": 1, "tags": ["a"]},
        None,
    ]
    before = load(spark, shared_node, topic)
    mq.schema(topic, {"type": "object", "properties": {"more": {"type": "boolean"}, **kinds}})
    mq.publish(topic, {"more": True, "n": 3}, partition=0, timeout=PATIENCE_S)
    assert [row.asDict() for row in before.where("data.n = 3").select("data.*").collect()] == [
        {"n": 3, "tags": None}
    ]
    assert load(spark, shared_node, topic).where("data.more").count() == 1
    assert "data" not in load(spark, shared_node, topic, kafkaSchema="true").columns
    options = {"servers": shared_node.endpoint, "topics": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("gossipq").options(**options).load()
    out, marks = str(tmp_path / "out"), str(tmp_path / "marks")
    writer = stream.select("offset", "data.n").writeStream.option("checkpointLocation", marks)
    run_out(lambda: writer.trigger(availableNow=True).start(out, format="parquet"), PATIENCE_S)
    assert sorted((row.offset, row.n) for row in spark.read.parquet(out).collect()) == [
        (0, 1),
        (1, None),
        (2, 3),
    ]


def test_frames_of_topics_with_one_schema_are_typed(
    spark, shared_node: RunningNode, mq: Client, topic: str
) -> None:
    """A column has one type: topics without a schema or with different
    ones have no common `data`.
    """
    other = f"{topic}-other"
    mq.create_topic(other)
    declared = {"type": "object", "properties": {"n": {"type": "integer"}}}
    mq.schema(topic, declared)
    assert "data" not in load(spark, shared_node, f"{topic},{other}").columns
    mq.schema(other, declared)
    for number, name in enumerate((topic, other)):
        mq.publish(name, {"n": number})
    found = load(spark, shared_node, f"{topic},{other}").select("topic", "data.n").collect()
    assert sorted((row.topic, row.n) for row in found) == [(topic, 0), (other, 1)]


class Run:
    """A query that counts what it read, by value."""

    def __init__(self, spark, node: RunningNode, topic: str, folder: Path) -> None:
        self.spark, self.node, self.topic, self.folder = spark, node, topic, folder

    def run(self, **options: str) -> int:
        stream = self.spark.readStream.format("gossipq").options(
            servers=self.node.endpoint, topics=self.topic, **options
        )
        writer = stream.load().writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        table = str(self.folder / "table")
        return sum(
            run_out(lambda: writer.trigger(availableNow=True).start(table, format="parquet"), PATIENCE_S)
        )

    def values(self) -> Counter[bytes]:
        table = self.spark.read.schema(schemas.of("messages")).parquet(str(self.folder / "table"))
        return Counter(bytes(row.value) for row in table.select("value").collect())


def lag(mq: Client, topic: str, group: str) -> int:
    return sum(row.ready for row in mq.topic(topic).groups() if row.group == group)


@pytest.mark.slow
def test_a_stream_restarts_and_tells_its_group(
    spark, shared_node: RunningNode, mq: Client, topic: str, tmp_path: Path
) -> None:
    run = Run(spark, shared_node, topic, tmp_path)
    sent = [b"%d" % at for at in range(2_500)]
    mq.publish_many(topic, sent[:2_000], partition=0, timeout=30)
    options = {"startingOffsets": "earliest", "group": "spark", "maxOffsetsPerTrigger": "900"}
    assert run.run(**options) == 2_000
    assert lag(mq, topic, "spark") == 0
    mq.publish_many(topic, sent[2_000:], partition=1, timeout=30)
    assert lag(mq, topic, "spark") == 500
    assert run.run(**options) == 500
    assert run.run(**options) == 0
    assert run.values() == Counter(sent)
    assert lag(mq, topic, "spark") == 0


@pytest.mark.slow
def test_what_retention_took_stops_a_stream(
    spark, shared_node: RunningNode, mq: Client, tmp_path: Path
) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    mq.create_topic(name, bytes_max=60_000, overflow="drop_oldest")
    run = Run(spark, shared_node, name, tmp_path)
    mq.publish_many(name, [b"a" * 100] * 100, timeout=30)
    assert run.run(startingOffsets="earliest") == 100
    for _ in range(50):
        mq.publish_many(name, [b"b" * 100] * 100, timeout=30)
    with pytest.raises(PySparkException, match=r"records 100 to \d+ cannot be read any more"):
        run.run()
    left = run.run(failOnDataLoss="false")
    first, end = mq.topic(name).positions()[0]
    assert first > 100
    assert left == end - first


# --- writing


def write(frame: Any, node: RunningNode, topic: str, **options: str) -> None:
    frame.write.format("gossipq").mode("append").options(servers=node.endpoint, topic=topic, **options).save()


def test_rows_with_all_they_have(spark, shared_node: RunningNode, mq: Client, topic: str) -> None:
    header = F.array(F.struct(F.lit("h").alias("key"), F.lit("v").cast("binary").alias("value")))
    frame = spark.range(20).select(
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") % 2 == 0, F.lit("k")).alias("key"),
        F.when(F.col("id") < 5, header).alias("headers"),
        F.when(F.col("id") == 7, F.lit("eu.fr")).alias("route"),
    )
    write(frame, shared_node, topic)
    found = {int(msg.value): msg for msg in mq.read(topic)}
    assert sorted(found) == list(range(20))
    assert [at for at, msg in found.items() if msg.headers == {"h": b"v"}] == [at for at in found if at < 5]
    assert (found[7].route, found[8].key, found[9].key) == ("eu.fr", b"k", None)


@F.udf(StringType())  # without type hints, for which Spark would want pandas
def attempt_of(number):
    """The attempt that a row is made by; the first one fails on its way."""
    attempt = TaskContext.get().attemptNumber()
    if attempt == 0 and number % 1_500 == 1_400:
        time.sleep(1)  # the rows before are published by then
        raise RuntimeError("this attempt fails on purpose")
    return str(attempt)


@pytest.mark.parametrize("by", [pytest.param("content", marks=pytest.mark.slow), "id"])
def test_a_task_that_is_tried_again_makes_no_duplicate(
    spark, shared_node: RunningNode, mq: Client, topic: str, by: str
) -> None:
    # more than Spark collects before it passes rows on
    text = F.rpad((F.col("id") % 1_000).cast("string"), 500, ".")
    frame = spark.range(0, 3_000, 1, 2).select(F.col("id").alias("number"), text.alias("value"))
    tried = F.array(
        F.struct(F.lit("attempt").alias("key"), attempt_of("number").cast("binary").alias("value"))
    )
    if by == "id":
        frame = frame.select("value", F.col("number").cast("string").alias("id"), tried.alias("headers"))
    else:
        frame = frame.where(attempt_of("number") >= "0").select("value")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 200)
    try:
        write(frame, shared_node, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(mq, topic) == Counter({(b"%d" % at).ljust(500, b"."): 3 for at in range(1_000)})
    if by == "id":
        tries = Counter(msg.headers["attempt"] for msg in mq.read(topic))
        assert tries == {b"0": tries[b"0"], b"1": tries[b"1"]}
        assert tries[b"0"] >= 200, "no attempt failed half way"


def test_writing_again_under_the_same_name(spark, shared_node: RunningNode, mq: Client, topic: str) -> None:
    frame = spark.range(0, 500, 1, 2).select(F.lit("same").alias("value"))
    for _ in range(2):
        write(frame, shared_node, topic, writeId="monday")
    assert values(mq, topic) == {b"same": 500}
    write(frame, shared_node, topic)
    assert values(mq, topic) == {b"same": 1_000}, "another write is another"


@pytest.mark.slow
def test_a_stream_that_repeats_its_batch(
    spark, shared_node: RunningNode, mq: Client, topic: str, tmp_path: Path
) -> None:
    """As after a crash between the last confirm and Spark's own note that the batch is done."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("".join(f"{at % 10}\n" for at in range(400)))

    def run() -> None:
        stream = spark.readStream.text(str(tmp_path / "in")).writeStream.format("gossipq")
        writer = stream.options(servers=shared_node.endpoint, topic=topic)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_out(writer.trigger(availableNow=True).start, PATIENCE_S)

    run()
    done = list((tmp_path / "checkpoint" / "commits").glob("*0*"))
    assert done, "Spark keeps its notes elsewhere"
    for note in done:
        note.unlink()
    run()
    assert values(mq, topic) == Counter({b"%d" % at: 40 for at in range(10)})


def test_rows_of_a_topic_say_where_they_come_from(
    spark, shared_node: RunningNode, mq: Client, topic: str
) -> None:
    mq.publish_many(topic, [b"same"] * 10, partition=0, timeout=30)
    mq.create_topic(target := f"{topic}.again")
    read = load(spark, shared_node, topic)
    for _ in range(2):
        write(read, shared_node, target, writeId="r1")
    found = list(mq.read(target))
    assert sorted(msg.headers["x-replay-of"] for msg in found) == sorted(
        f"{topic}/0/{at}" for at in range(10)
    )
    assert {msg.headers["x-replay-id"] for msg in found} == {"r1"}
    with pytest.raises(
        PySparkException, match="rows that were read from a topic never go back by themselves"
    ):
        read.write.format("gossipq").mode("append").option("servers", shared_node.endpoint).save()


def test_a_topic_must_be_there(spark, shared_node: RunningNode, mq: Client) -> None:
    with pytest.raises(PySparkException, match="topic 'not-there' does not exist"):
        write(spark.range(3).select(F.lit("x").alias("value")).coalesce(1), shared_node, "not-there")
    assert mq.topics("not-there") == []


@pytest.mark.parametrize(
    ("columns", "options", "overwrite", "says"),
    [
        ("value binary", {}, False, "servers= says where"),
        ("value binary", {"servers": "x"}, False, "there is no column topic"),
        ("value binary", {"servers": "x", "topic": "t"}, True, "only appended to"),
        ("value binary", {"servers": "x", "topics": "t"}, False, "option 'topics' is not known"),
        ("value int", {"servers": "x", "topic": "t"}, False, "column value is int"),
        ("v string", {"servers": "x", "topic": "t"}, False, "no column value"),
        (
            "value string, headers map<string,string>",
            {"servers": "x", "topic": "t"},
            False,
            "column headers is map",
        ),
        (
            "value string",
            {"servers": "x", "topic": "t", "recordsPerSecond": "-1"},
            False,
            "recordsPerSecond='-1'",
        ),
        ("value string, topic string, partition int, offset long", {"servers": "x"}, False, "never go back"),
    ],
)
def test_wrong_writes(spark, columns: str, options: dict[str, str], overwrite: bool, says: str) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(BadRequest) as caught:
        writer.parse(options, schema, overwrite)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_batch_asks_once_how_far_topics_are_and_notices_what_is_gone(
    shared_node: RunningNode, mq: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = parse({"servers": shared_node.endpoint, "topics": topic, "startingOffsets": "earliest"})
    stream, known, calls = live.LiveStream(schemas.of("messages"), asked), live.known, []
    monkeypatch.setattr(live, "known", lambda *given: calls.append(given) or known(*given))
    stream.poll_s = 60.0
    try:
        mq.publish_many(topic, [b"x"] * 10, partition=0, timeout=30)
        start = stream.initialOffset()
        end = stream.latestOffset(
            {name: dict.fromkeys(ends, 0) for name, ends in start.items()}, ReadAllAvailable()
        )
        first, again = stream.partitions(start, end), stream.partitions(start, end)
        assert [task.span for task in first] == [task.span for task in again]
        assert [(task.span.start, task.span.end) for task in first] == [(0, 10)]
        assert len(calls) == 2, "one for where to begin, one for the end of the batch"
        assert sum(block.num_rows for block in stream.read(first[0])) == 10
        mq.topic(topic).delete()
        with pytest.raises(DataLoss, match="records 0 to 9 cannot be read any more"):
            list(stream.read(first[0]))
    finally:
        stream.stop()


def test_a_stream_that_has_read_more_than_there_is(shared_node: RunningNode, mq: Client, topic: str) -> None:
    """A cluster that went back to an older copy gives the same offsets to other records."""
    mq.publish_many(topic, [b"x"] * 10, partition=0, timeout=30)
    name = f"{topic}#{mq.topics(topic)[0].id}"
    ahead = {name: {"0": 15, "1": 0}}
    options = {"servers": shared_node.endpoint, "topics": topic}
    stream = live.LiveStream(schemas.of("messages"), parse(options))
    with pytest.raises(DataLoss, match="records 10 to 14 were there, and it ends at 10 now"):
        stream.latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(DataLoss, match="records 10 to 14 were there"):
        stream.partitions({name: {"0": 5, "1": 0}}, ahead)
    task = live.SpanTask(layout.Span(topic, mq.topics(topic)[0].id, 0, 5, 15))
    with pytest.raises(DataLoss, match="records 10 to 14 were there"):
        list(stream.read(task))
    stream.stop()
    stream = live.LiveStream(schemas.of("messages"), parse(options | {"failOnDataLoss": "false"}))
    back = stream.latestOffset(ahead, ReadAllAvailable())
    assert back == {name: {"0": 10, "1": 0}, "#": {mq.admin.status().cluster.hex(): 0}}
    with pytest.raises(ExportError, match="the checkpoint is of cluster 0d0d"):
        stream.latestOffset(ahead | {"#": {"0d" * 16: 0}}, ReadAllAvailable())
    assert stream.partitions(ahead, back) == []
    mq.publish_many(topic, [b"y"] * 10, partition=0, timeout=30)
    time.sleep(stream.poll_s)
    (task,) = stream.partitions(back, stream.latestOffset(back, ReadAllAvailable()))
    assert (task.span.start, task.span.end) == (10, 20)
    stream.stop()


def test_a_topic_made_anew_during_a_read_is_not_mixed_in(
    shared_node: RunningNode, mq: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.publish_many(topic, [b"old"] * 2_000, partition=0, timeout=30)
    old = mq.topics(topic)[0].id
    task = live.SpanTask(layout.Span(topic, old, 0, 0, 2_000))
    batches = Records.batches

    def anew(records: Records, partition: int) -> Any:
        """Between the plan and the first answer."""
        mq.topic(topic).delete()
        mq.create_topic(topic, partitions=2)
        mq.publish_many(topic, [b"new"] * 2_000, partition=0, timeout=30)
        return batches(records, partition)

    monkeypatch.setattr(Records, "batches", anew)
    options = {"servers": shared_node.endpoint, "topics": topic}
    found: list[bytes] = []
    read = live.rows(parse(options), task, schemas.of("messages"))
    with pytest.raises(DataLoss, match="records 0 to 1999 cannot be read any more"):
        found.extend(value for block in read for value in block.column("value").to_pylist())
    monkeypatch.setattr(Records, "batches", batches)
    assert b"new" not in found
    lenient = parse({**options, "failOnDataLoss": "false"})
    assert list(live.rows(lenient, task, schemas.of("messages"))) == []
