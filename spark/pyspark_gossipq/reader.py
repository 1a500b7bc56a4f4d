"""`read_export`: reads an export. Python reads the manifests, Spark itself reads the files."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gossipq.errors import BadRequest
from gossipq.wire import export
from gossipq.wire.schemas import Shape
from pyspark_gossipq import layout, schemas
from pyspark_gossipq.asked import Asked, parse
from pyspark_gossipq.batch import plan
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.layout import Part

Offsets = str | Mapping[str, Mapping[int | str, int]]
Time = str | int | datetime


def read_export(
    spark: SparkSession,
    path: str,
    topics: str | Iterable[str] | None = None,
    partitions: int | Iterable[int] | None = None,
    startingOffsets: Offsets | None = None,
    endingOffsets: Offsets | None = None,
    startingTimestamp: Time | None = None,
    endingTimestamp: Time | None = None,
    dataSet: str = export.MESSAGES,
    failOnDataLoss: bool = True,
    verify: bool | None = None,
    kafkaSchema: bool = False,
    asOf: Time | None = None,
    **more: str | int | bool,
) -> DataFrame:
    """Return the rows of an export as it is now. Later exports need another call.

    `topics`: names and patterns with *. Offsets: "earliest", "latest" or {"orders": {0: 23}}.
    Times, of `publish_time`: aware datetime, ISO text or milliseconds. `dataSet`: messages, acks or
    deliveries. `verify`: check the SHA-256 of each file that is read; None: if the files have at
    most 256 MiB. `asOf`: read the export as it was at a time that it still knows.

    Raises BadRequest, UnknownTopic, TornExport, ExportVersion, DataLoss.
    """
    options = {
        "path": path,
        "topics": topics if isinstance(topics, str) or topics is None else ",".join(topics),
        "partitions": None if partitions is None else _numbers(partitions),
        "startingOffsets": _offsets(startingOffsets),
        "endingOffsets": _offsets(endingOffsets),
        "startingTimestamp": _time("startingTimestamp", startingTimestamp),
        "endingTimestamp": _time("endingTimestamp", endingTimestamp),
        "dataSet": dataSet,
        "failOnDataLoss": _flag(failOnDataLoss),
        "verify": None if verify is None else _flag(verify),
        "kafkaSchema": _flag(kafkaSchema),
        "asOf": _time("asOf", asOf),
        **{name: _flag(value) if isinstance(value, bool) else str(value) for name, value in more.items()},
    }
    given = {name: value for name, value in options.items() if value is not None}
    asked, folder = parse(given), Folder(path)
    exported = folder.read(asked.as_of_us)
    parts = plan(folder, exported, asked)
    if parts and (parts[0].format == "lmdb" or folder.by_python):
        return spark.read.format("gossipq").options(**given).load()
    frame = rows_of(spark, folder, parts, asked, layout.shape(exported, asked))
    return as_kafka(frame) if asked.kafka_schema else frame


def rows_of(
    spark: SparkSession, folder: Folder, parts: list[Part], asked: Asked, shape: Shape | None = None
) -> DataFrame:
    """Return the rows of parts of Parquet files. `shape` is that of the column `data`.

    Files are read whole. If a span ends inside a file, its rows are filtered.
    """
    schema = schemas.of(asked.data_set, shape)
    if not parts:
        return spark.createDataFrame([], schema)
    if parts[0].format == "lmdb" or folder.by_python:
        ranges = json.dumps([[part.topic_id, part.partition, part.start, part.end] for part in parts])
        typed = {} if shape is None else {"topics": ",".join(asked.topics)}
        source = spark.read.format("gossipq").options(path=folder.path, ranges=ranges, verify="false")
        return source.options(**typed).load()
    reader = spark.read.schema(schema)
    whole = [folder.address(part.path) for part in parts if part.whole]
    cut = [part for part in parts if not part.whole]
    frames = [reader.parquet(*whole)] if whole else []
    if cut:
        # each file once, for all of its parts
        files = dict.fromkeys(folder.address(part.path) for part in cut)
        frames.append(reader.parquet(*files).where(any_of(list(map(_inside, cut)))))
    frame = reduce(DataFrame.unionAll, frames)
    if asked.starting_us is not None:
        frame = frame.where(F.col("publish_time") >= F.timestamp_micros(F.lit(asked.starting_us)))
    if asked.ending_us is not None:
        frame = frame.where(F.col("publish_time") < F.timestamp_micros(F.lit(asked.ending_us)))
    return frame


def _inside(part: Part) -> Column:
    place = (F.col("topic_id") == part.topic_id) & (F.col("partition") == part.partition)
    return place & (F.col("offset") >= part.start) & (F.col("offset") < part.end)


def any_of(conditions: list[Column]) -> Column:
    """Join conditions as a balanced tree: a chain of hundreds is too deep for Spark."""
    middle = len(conditions) // 2
    return any_of(conditions[:middle]) | any_of(conditions[middle:]) if middle else conditions[0]


def as_kafka(frame: DataFrame) -> DataFrame:
    """Return the columns of spark-sql-kafka."""
    return frame.select(
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        F.col("publish_time").alias("timestamp"),
        F.lit(0).alias("timestampType"),
        "headers",
    )


def positions(path: str, topics: str | None = None) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Return (topic, its id, partition) -> (first offset, end) of an export."""
    asked = parse({"path": path, **({"topics": topics} if topics else {})})
    return {
        (at.topic, at.topic_id, at.partition): (at.first, at.end)
        for at in layout.known(Folder(path).read(), asked)
    }


def _numbers(partitions: int | Iterable[int]) -> str:
    return str(partitions) if isinstance(partitions, int) else ",".join(map(str, partitions))


def _offsets(given: Offsets | None) -> str | None:
    return given if given is None or isinstance(given, str) else json.dumps(given)


def _time(name: str, given: Time | None) -> str | None:
    if given is None:
        return None
    if isinstance(given, datetime) and given.tzinfo is None:
        raise BadRequest(f"{name}={given!r}", hint="pass an aware datetime: datetime.now(UTC)")
    return given.isoformat() if isinstance(given, datetime) else str(given)


def _flag(value: bool) -> str:
    return str(value).lower()
