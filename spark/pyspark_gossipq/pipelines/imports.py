"""Import into Parquet tables. Each record is stored once, and the next run repairs an aborted one.

    TABLE/messages/segment=s40-0-1200/*.parquet  records of partition 0 of topic 40, from 1,200 on;
                                                 with column `data` if the topic has a schema
    TABLE/acks, TABLE/deliveries                 as the export has them now
    TABLE/_gossipq/import.json                   position of each partition; written last

A run adds segments, each named by its first offset: the end of the last run, and each million
offsets. An aborted run has not updated import.json. So its segments are not read, and the next run
begins at the same offset and replaces them. Segments by day would not work: the second import of a
day would replace the first. The topic is a real column, so "007" stays a text.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from gossipq.errors import DataLoss, ExportError
from gossipq.wire import export
from gossipq.wire.export import Export, Gap, Newest
from gossipq.wire.schemas import Shape
from gossipq_client import columns
from pyspark_gossipq import batch, files, layout, reader, schemas
from pyspark_gossipq.asked import Asked, parse
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.layout import Known, Span

SEGMENT_RECORDS = 1_000_000
STATE, LOCK = "_gossipq/import.json", "_gossipq/.lock"
SEGMENT = "segment"


class Place(msgspec.Struct):
    """Offsets [start, end) of a partition are in the table."""

    topic: str
    start: int
    end: int
    newest: Newest | None = None  #: None: the table has no records, or an older version wrote it


class State(msgspec.Struct):
    cluster: str
    segment_records: int
    places: dict[str, Place] = {}  #: by "topic id-partition"
    gaps: list[Gap] = []  #: allowed gaps: these records are missing in the table
    shapes: dict[str, Shape] = {}  #: by topic: shape of the column `data` over all its segments


@dataclass(frozen=True)
class Imported:
    """The result of a run, for each partition that has grown."""

    topic: str
    partition: int
    first: int
    end: int


def import_export(
    spark: SparkSession,
    path: str,
    table: str,
    topics: str = "",
    verify: bool | None = None,
    allow_gap: bool = False,
) -> list[Imported]:
    """Import an export into a table.

    `allow_gap`: records that retention removed before they were exported are noted in the table,
    and not an error. Raises TornExport, DataLoss, UnknownTopic. Raises ExportError if the table
    is of another cluster, has records that its cluster has lost, or is in use by another import
    (by a lock, on a local disk).
    """
    options = {"path": path} | ({"topics": topics} if topics else {})
    asked, folder, target = parse(options), Folder(path), Folder(table)
    exported = folder.read()
    with _alone(target):
        return _import(spark, folder, exported, target, asked, verify, allow_gap)


def _import(
    spark: SparkSession,
    folder: Folder,
    exported: Export,
    target: Folder,
    asked: Asked,
    verify: bool | None,
    allow_gap: bool,
) -> list[Imported]:
    assert exported.newest is not None, "a folder without manifests is refused"
    state = _state(target, exported.newest.cluster)
    done, wanted = [], []
    for at in layout.known(exported, asked):
        place, newest = state.places.get(_name(at)), exported.positions[at.topic_id, at.partition].newest
        if place is not None and place.newest not in (None, newest):
            _require_same(folder, exported, at, place.newest, asked)
        came = place.end if place else at.first
        if at.end > came:
            wanted.append(_span(at, came))
            done.append(Imported(at.topic, at.partition, came, at.end))
            state.places[_name(at)] = Place(at.topic, place.start if place else at.first, at.end, newest)
    if wanted:
        if not allow_gap:
            layout.require(exported, wanted)
        _messages(spark, folder, exported, wanted, asked, target, state, verify)
    shapes = {name: exported.shape(name) for name in {place.topic for place in state.places.values()}}
    state.shapes = {name: shape for name, shape in sorted(shapes.items()) if shape is not None}
    state.gaps = [gap for gap in exported.gaps if f"{gap.topic_id}-{gap.partition}" in state.places]
    # of all topics, because they replace the present files
    for data_set in (export.ACKS, export.DELIVERIES):
        frame = reader.read_export(spark, folder.path, dataSet=data_set, verify=verify)
        frame.write.mode("overwrite").parquet(f"{target.path}/{data_set}")
    _keep(target, state, wanted)
    return done


@contextmanager
def _alone(target: Folder) -> Iterator[None]:
    """Lock the table. Raises ExportError.

    With two imports at once, one would note rows that the other has replaced by fewer.
    """
    if not _is_local(target):
        yield
        return
    path = target.locate(LOCK)
    target.system.create_dir(path.rpartition("/")[0], recursive=True)
    with open(path, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportError(
                f"{target.path} is being imported to already", hint="wait for that import, or end it"
            ) from None
        except OSError:
            pass  # a disk without locks is treated like object storage
        yield


def _is_local(target: Folder) -> bool:
    return isinstance(target.system, fs.LocalFileSystem)


def _span(at: Known, came: int) -> Span:
    """Return the new offsets. Raises DataLoss if the export begins after the end of the table."""
    if came < at.first:
        raise DataLoss(
            f"{at.topic}/{at.partition}: records {came} to {at.first - 1} are neither in the table nor in "
            "the export",
            hint="import the rest into a new table, or keep exports whole",
        )
    return Span(at.topic, at.topic_id, at.partition, came, at.end)


def _require_same(folder: Folder, exported: Export, at: Known, newest: Newest | None, asked: Asked) -> None:
    """Compare the newest record of the table with the export, if it has
    that. Raises ExportError.
    """
    if newest is None:
        return
    row = Span(at.topic, at.topic_id, at.partition, newest.offset, newest.offset + 1)
    schema = columns.schema(export.MESSAGES)
    wanted = pa.schema([schema.field("publish_time"), schema.field("value")])
    for part in layout.parts(exported, [row], asked):
        for block in files.read(folder, part, wanted, asked):
            times = block.column("publish_time").cast(pa.int64()).to_pylist()
            for publish_us, value in zip(times, block.column("value").to_pylist(), strict=True):
                if Newest.of(newest.offset, publish_us, value) != newest:
                    raise ExportError(
                        f"{at.topic}/{at.partition} has another record {newest.offset} in the export than "
                        "in the table",
                        hint="the cluster lost records that are in the table: import into a new table",
                    )


def _messages(
    spark: SparkSession,
    folder: Folder,
    exported: Export,
    wanted: list[Span],
    asked: Asked,
    target: Folder,
    state: State,
    verify: bool | None,
) -> None:
    """A topic with a schema is written alone, because its column `data` has a type of its own."""
    batch.check(folder, exported, layout.parts(exported, wanted, asked), verify)
    _clear(target, wanted)
    together: dict[tuple[str, ...], list[Span]] = {}
    for span in wanted:
        typed = exported.shape(span.topic) is not None
        together.setdefault((span.topic,) if typed else (), []).append(span)
    for names, spans in sorted(together.items()):
        one = replace(asked, topics=names)
        parts, shape = layout.parts(exported, spans, one), layout.shape(exported, one)
        frame = reader.rows_of(spark, folder, parts, one, shape).withColumn(SEGMENT, _segment(spans, state))
        writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(SEGMENT).parquet(f"{target.path}/{export.MESSAGES}")


def _segment(spans: list[Span], state: State) -> Column:
    # one CASE with many branches: nested conditions would be too deep for Spark
    came = reduce(lambda chain, span: chain.when(_is_of(span), F.lit(span.start)), spans, F).cast("long")
    million = F.floor(F.col("offset") / state.segment_records) * state.segment_records
    begin = F.greatest(came, million).cast("long")
    return F.concat_ws("-", F.concat(F.lit("s"), F.col("topic_id")), F.col("partition"), begin)


def _is_of(span: Span) -> Column:
    return (F.col("topic_id") == span.topic_id) & (F.col("partition") == span.partition)


def _name(at: Known) -> str:
    return f"{at.topic_id}-{at.partition}"


def _place(name: str) -> tuple[int, int]:
    topic_id, _, partition = name.partition("-")
    return int(topic_id), int(partition)


def _state(target: Folder, cluster: str) -> State:
    state = _known(target)
    if state is None:
        return State(cluster, SEGMENT_RECORDS)
    if state.cluster != cluster:
        raise ExportError(
            f"{target.path} holds records of cluster {state.cluster}, the export those of {cluster}",
            hint="import each cluster into a table of its own",
        )
    return state


def _known(target: Folder) -> State | None:
    path = target.locate(STATE)
    if target.system.get_file_info(path).type != fs.FileType.File:
        return None
    try:
        return msgspec.json.decode(target.content(path), type=State)
    except msgspec.MsgspecError as error:
        raise ExportError(
            f"{path} is not whole: {error}", hint="restore it from a copy, or import into a new table"
        ) from None


def _keep(target: Folder, state: State, written: list[Span]) -> None:
    """Write import.json by a rename. On a local disk, sync all files of the run before.

    Otherwise import.json could name empty files after a power cut.
    """
    path = target.locate(STATE)
    notes = path.rpartition("/")[0]
    target.system.create_dir(notes, recursive=True)
    with target.system.open_output_stream(f"{path}.new") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(state), indent=1))
    if _is_local(target):
        _sync_written(target, written)
    target.system.move(f"{path}.new", path)
    if _is_local(target):
        _sync(notes)


def _sync_written(target: Folder, written: list[Span]) -> None:
    """Sync all files of a run."""
    places = (export.ACKS, export.DELIVERIES, STATE.partition("/")[0])
    for root in (*_folders_of(target, written), *map(target.locate, places)):
        for folder, _, names in os.walk(root):
            for each in (*names, ""):
                _sync(os.path.join(folder, each))
    for folder in (target.locate(export.MESSAGES), target.root, os.path.dirname(target.root)):
        _sync(folder)


def _sync(path: str) -> None:
    """Sync a file, or the names in a folder."""
    with suppress(FileNotFoundError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _left(target: Folder, state: State) -> list[str]:
    """Return segments of an aborted or running import, which begin at or behind the table's end."""
    return [segment for segment in _segments(target) if not _begins_in(segment, state.places)]


def _clear(target: Folder, wanted: list[Span]) -> None:
    """Delete segments that an unknown run has left in the ranges of this one.

    Their names can differ if import.json was restored from an older copy.
    """
    for path in _folders_of(target, wanted):
        target.system.delete_dir(path)


def _folders_of(target: Folder, spans: list[Span]) -> list[str]:
    """Return the folders of segments that begin in these spans."""
    ranges = {f"{span.topic_id}-{span.partition}": span for span in spans}
    return [
        target.locate(f"{export.MESSAGES}/{SEGMENT}={segment}")
        for segment in _segments(target)
        if _begins_in(segment, ranges)
    ]


def _segments(target: Folder) -> list[str]:
    where = fs.FileSelector(target.locate(export.MESSAGES), allow_not_found=True)
    names = [info.base_name for info in target.system.get_file_info(where)]
    return [name.removeprefix(f"{SEGMENT}=") for name in names if name.startswith(f"{SEGMENT}=")]


def _begins_in(segment: str, ranges: Mapping[str, Place] | Mapping[str, Span]) -> bool:
    name, _, begin = segment.removeprefix("s").rpartition("-")
    at = ranges.get(name)
    return at is not None and at.start <= int(begin) < at.end


def is_table(path: str) -> bool:
    """True if the folder is an imported table."""
    folder = Folder(path)
    return folder.system.get_file_info(folder.locate(STATE)).type == fs.FileType.File


def read_table(
    spark: SparkSession, table: str, dataSet: str = export.MESSAGES, topics: str = ""
) -> DataFrame:
    """Return the rows of an imported table. Raises UnknownTopic, and ExportError for other folders.

    Spark gets the schema, because it would read topic "007" as a number. `topics` are names and
    patterns with *, separated by commas; "" = all. Messages of topics given by name that share a
    schema have the column `data`.
    """
    folder = Folder(table)
    state = _known(folder)
    if state is None:
        raise ExportError(f"{table} is no imported table", hint="gossipq spark import EXPORT TABLE")
    asked = parse({"path": table, "dataSet": dataSet} | ({"topics": topics} if topics else {}))
    places = {(place.topic, *_place(name)) for name, place in state.places.items()}
    layout.require_names(asked, {(topic, number) for topic, _, number in places})
    chosen = {(topic, topic_id) for topic, topic_id, number in places if asked.wants(topic, number)}
    typed = layout.may_be_typed(asked)
    shape = layout.common_shape(map(state.shapes.get, asked.topics)) if typed else None
    schema = schemas.of(dataSet, shape)
    if not chosen and (topics or dataSet == export.MESSAGES):
        return spark.createDataFrame([], schema)
    if dataSet == export.MESSAGES:
        schema = StructType([*schema.fields, StructField(SEGMENT, StringType())])
    frame = spark.read.schema(schema).parquet(folder.address(dataSet))
    if topics:
        frame = frame.where(F.col("topic").isin(sorted({topic for topic, _ in chosen})))
    if dataSet != export.MESSAGES:
        return frame
    # checked after Spark has listed the files: a running import adds no rows to this frame
    if left := _left(folder, state):
        frame = frame.where(~F.col(SEGMENT).isin(left))
    # files of other topics, whose `data` may have another type, are not opened
    if shape is not None:
        ids = sorted({topic_id for _, topic_id in chosen})
        frame = frame.where(reader.any_of([F.col(SEGMENT).startswith(f"s{topic_id}-") for topic_id in ids]))
    return frame.drop(SEGMENT)


def rows(
    spark: SparkSession, path: str, dataSet: str = export.MESSAGES, topics: str = "", allow_gap: bool = False
) -> DataFrame:
    """Return the rows of an export or an imported table. Raises UnknownTopic.

    Raises DataLoss for an export with gaps, unless `allow_gap`. Gaps of a table were
    allowed when it was imported.
    """
    if is_table(path):
        return read_table(spark, path, dataSet, topics)
    return reader.read_export(spark, path, topics or None, dataSet=dataSet, failOnDataLoss=not allow_gap)


def gaps(path: str, topics: str = "") -> list[Gap]:
    """Return records missing in an export or a table because retention removed them first."""
    asked, folder = parse({"path": path} | ({"topics": topics} if topics else {})), Folder(path)
    state = _known(folder)
    found = state.gaps if state is not None else folder.read().gaps
    return [gap for gap in found if asked.wants(gap.topic, gap.partition)]
