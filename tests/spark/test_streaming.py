"""Streams over the manifests of an export that grows: limits, restarts, what is lost."""

from pathlib import Path
from zipfile import ZipFile

import pytest

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from gossipq.errors import ExportError
from gossipq.wire.export import Gap
from pyspark_gossipq import layout, schemas
from pyspark_gossipq.asked import parse
from pyspark_gossipq.layout import Known
from pyspark_gossipq.sessions import SETTINGS
from pyspark_gossipq.stream import ExportStream
from spark.exports import Exporter
from spark.queries import run_out

PATIENCE_S = 240
OF = {"#": {"c0" * 16: 0}}  # the cluster of exports that tests make


class Run:
    """A query into a Parquet folder; each `run` takes what is there and ends."""

    def __init__(self, spark, exporter: Exporter, folder: Path) -> None:
        self.spark, self.exporter, self.folder = spark, exporter, folder

    def run(self, **options: str) -> list[int]:
        """Rows of each batch."""
        read = self.spark.readStream.format("gossipq").options(**options).load(str(self.exporter))
        writer = read.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        table = str(self.folder / "table")
        return run_out(lambda: writer.trigger(availableNow=True).start(table, format="parquet"), PATIENCE_S)

    def offsets(self) -> list[tuple[str, int, int]]:
        table = self.spark.read.schema(schemas.of("messages")).parquet(str(self.folder / "table"))
        return sorted(
            (row.topic, row.topic_id, row.offset)
            for row in table.select("topic", "topic_id", "offset").collect()
        )


@pytest.fixture
def stream(spark, exporter: Exporter, tmp_path: Path) -> Run:
    return Run(spark, exporter, tmp_path)


@pytest.mark.slow
def test_batches_restart_and_new_rows(stream: Run) -> None:
    exporter = stream.exporter
    exporter.messages("007", 0, 3_000)
    exporter.publish()
    exporter.messages("007", 3_000, 4_000)
    exporter.publish()
    assert stream.run(maxOffsetsPerTrigger="1500") == [1_500, 1_500, 1_000]
    exporter.messages("007", 4_000, 4_010)  # not published: not there
    assert stream.run() == []
    exporter.publish()
    exporter.messages("007", 0, 5, topic_id=2)  # the topic was removed and made again
    exporter.publish()
    assert sum(stream.run()) == 15
    exporter.messages("007", 0, 4_010)
    exporter.messages("007", 0, 5, topic_id=2)
    exporter.publish(base=True)  # compacted
    assert stream.run() == []
    assert stream.offsets() == [
        *(("007", 1, at) for at in range(4_010)),
        *(("007", 2, at) for at in range(5)),
    ]


@pytest.mark.slow
def test_a_gap_stops_the_stream(stream: Run) -> None:
    exporter = stream.exporter
    exporter.messages("orders", 0, 10)
    exporter.publish()
    assert stream.run() == [10]
    exporter.gaps.append(Gap("orders", 1, 0, 10, 30))
    exporter.messages("orders", 30, 40)
    exporter.publish()
    with pytest.raises(
        (StreamingQueryException, PySparkException), match="records 10 to 29 left by retention"
    ):
        stream.run()
    assert stream.run(failOnDataLoss="false") == [10]
    assert [offset for _, _, offset in stream.offsets()] == [*range(10), *range(30, 40)]


def reader(exporter: Exporter, **options: str) -> ExportStream:
    return ExportStream(schemas.of("messages"), parse({"path": str(exporter), **options}))


def test_offsets_are_for_people(exporter: Exporter) -> None:
    exporter.messages("orders", 5, 10, partition=1)
    exporter.messages("007", 0, 4, topic_id=7)
    exporter.publish()
    assert reader(exporter).initialOffset() == {"007#7": {"0": 0}, "orders#1": {"1": 5}, **OF}
    assert reader(exporter, startingOffsets="latest").initialOffset() == {
        "007#7": {"0": 4},
        "orders#1": {"1": 10},
        **OF,
    }
    assert reader(exporter, topics="orders").reportLatestOffset() == {"orders#1": {"1": 10}}
    assert reader(exporter, maxOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMaxRows(9)
    assert reader(exporter).getDefaultReadLimit() == ReadAllAvailable()


def test_a_limit_is_shared_by_what_waits() -> None:
    there = [Known("a", 1, 0, 0, 1_000), Known("a", 1, 1, 0, 10), Known("b", 2, 0, 500, 500)]
    assert layout.advance({}, there, 101) == {"a#1": {"0": 100, "1": 1}, "b#2": {"0": 500}}
    assert layout.advance({"a#1": {"0": 999}}, there, 0) == {
        "a#1": {"0": 1_000, "1": 10},
        "b#2": {"0": 500},
    }
    assert layout.advance({"gone#9": {"0": 7}}, [], 5) == {"gone#9": {"0": 7}}
    start = {"a#1": {"0": 0, "1": 0}}
    for _ in range(2_000):
        start = layout.advance(start, there[:2], 7)
    assert start == {"a#1": {"0": 1_000, "1": 10}}, "every limit comes to the end"


def test_available_now_does_not_run_after_what_comes_later(exporter: Exporter) -> None:
    exporter.messages("orders", 0, 10)
    exporter.publish()
    read = reader(exporter)
    read.poll_s = 0
    read.prepareForTriggerAvailableNow()
    exporter.messages("orders", 10, 20)
    exporter.messages("later", 0, 5, topic_id=2)
    exporter.publish()
    assert read.latestOffset({"orders#1": {"0": 0}}, ReadAllAvailable()) == {"orders#1": {"0": 10}, **OF}


def test_a_checkpoint_of_what_is_gone(exporter: Exporter) -> None:
    exporter.messages("orders", 50, 60)
    exporter.publish()
    end = {"orders#1": {"0": 60}}
    with pytest.raises(Exception, match="records 10 to 49 cannot be read any more"):
        reader(exporter).partitions({"orders#1": {"0": 10}}, end)
    assert len(reader(exporter, failOnDataLoss="false").partitions({"orders#1": {"0": 10}}, end)) == 1
    assert reader(exporter).partitions(
        {"orders#1": {"0": 55}, "gone#9": {"0": 4}}, end | {"gone#9": {"0": 4}}
    )
    with pytest.raises(Exception, match="gone/0: records 4 to 8 cannot"):
        reader(exporter).partitions({"gone#9": {"0": 4}}, end | {"gone#9": {"0": 9}})


def test_a_batch_of_an_export_that_went_back_is_not_taken_for_whole(exporter: Exporter) -> None:
    """Spark has noted its end, and would note it as done with fewer rows."""
    exporter.messages("orders", 0, 60)
    exporter.publish()
    start, end = {"orders#1": {"0": 50}}, {"orders#1": {"0": 70}}
    with pytest.raises(Exception, match="records 60 to 69 were there, and it ends at 60 now"):
        reader(exporter).partitions(start, end)
    (task,) = reader(exporter, failOnDataLoss="false").partitions(start, end)
    assert [(part.start, part.end) for part in task.parts] == [(50, 60)]
    ahead = {"orders#1": {"0": 70}, **OF}
    assert reader(exporter).latestOffset(ahead, ReadAllAvailable()) == ahead, "it comes as far again"


def test_a_checkpoint_of_another_cluster_is_refused(exporter: Exporter) -> None:
    """A cluster that was made anew numbers topics and records from the same beginning."""
    exporter.messages("orders", 0, 10)
    exporter.publish()
    start = {"orders#1": {"0": 4}, "#": {"0d" * 16: 0}}
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(ExportError, match=f"of cluster {'0d' * 16}, and the records are of {'c0' * 16}"):
            reader(exporter, **options).latestOffset(start, ReadAllAvailable())
        with pytest.raises(ExportError, match="the checkpoint is of cluster"):
            reader(exporter, **options).partitions(start, start | {"orders#1": {"0": 8}})
    older = {"orders#1": {"0": 4}}  # that no version has marked
    end = reader(exporter).latestOffset(older, ReadAllAvailable())
    assert end == {"orders#1": {"0": 10}, **OF}
    (task,) = reader(exporter).partitions(older, end)
    assert [(part.start, part.end) for part in task.parts] == [(4, 10)]


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(exporter: Exporter, option: str) -> None:
    with pytest.raises(Exception, match="a stream has no end"):
        reader(exporter, **{option: "5" if option == "endingTimestamp" else "latest"})


def test_a_batch_waits_for_enough_but_not_for_ever(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("pyspark_gossipq.stream.time.monotonic", lambda: now[0])
    read = reader(exporter_of(exporter, 10), minOffsetsPerTrigger="100", maxTriggerDelay="5m")

    def latest(start: int) -> int:
        now[0] += 10
        return read.latestOffset({"orders#1": {"0": start}}, read.getDefaultReadLimit())["orders#1"]["0"]

    assert latest(0) == 10, "the first batch waits for nothing"
    exporter_of(exporter, 50)
    assert [latest(10) for _ in range(29)] == [10] * 29
    assert latest(10) == 50, "five minutes are over"
    exporter_of(exporter, 200)
    assert latest(50) == 200
    exporter_of(exporter, 210)
    assert latest(200) == 200
    read.prepareForTriggerAvailableNow()
    assert latest(200) == 210, "availableNow takes what there is"


def exporter_of(exporter: Exporter, end: int) -> Exporter:
    """The export goes on to this offset."""
    at = exporter.positions.get((1, 0))
    exporter.messages("orders", at.end if at else 0, end)
    exporter.publish()
    return exporter


def test_checkpoints_are_written_by_a_class_that_this_spark_has() -> None:
    name = SETTINGS["spark.sql.streaming.checkpointFileManagerClass"].replace(".", "/") + ".class"
    jars = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_*.jar")
    assert any(name in ZipFile(jar).namelist() for jar in jars)
