"""Reads the rows of an export's files as Arrow batches, in the worker process of a task."""

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct

import lmdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from gossipq.errors import BadRequest, TornExport
from gossipq.wire import export
from pyspark_gossipq.asked import Asked
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.layout import Part
from pyspark_gossipq.schemas import KAFKA_NAMES, KAFKA_TIMESTAMP_TYPE

#: of one batch: Spark has a cost for each batch, and CPU caches suffer from large ones
ROWS, BYTES = 32_768, 32 << 20
_LMDB_KEY = Struct(">Q")
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


def read(folder: Folder, part: Part, schema: pa.Schema, asked: Asked) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part with the columns of `schema`. Raises TornExport."""
    names = _needed(schema, part, asked)
    blocks = _lmdb(folder, part) if part.format == "lmdb" else _parquet(folder, part, names)
    try:
        for block in blocks:
            yield from pieces(_within(block, part, asked), schema)
    except (pa.ArrowInvalid, OSError, lmdb.Error) as error:
        raise TornExport(
            f"{part.path} cannot be read: {error}", hint="restore it from a copy of the export"
        ) from error


def pieces(block: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows with the columns of `schema`, in batches of a good size."""
    rows = _rows(block.num_rows, block.nbytes)
    for at in range(0, block.num_rows, rows):
        yield shaped(block.slice(at, rows), schema)


def _rows(count: int, size: int) -> int:
    """Return how many of `count` rows, `size` bytes in total, fit into a batch."""
    return max(1, min(ROWS, BYTES * count // max(1, size)))


def _needed(schema: pa.Schema, part: Part, asked: Asked) -> list[str]:
    names = [KAFKA_NAMES.get(name, name) for name in schema.names if name != KAFKA_TIMESTAMP_TYPE]
    if asked.data_set == export.MESSAGES:
        names += [] if part.whole else ["offset"]
        names += [] if asked.starting_us is None and asked.ending_us is None else ["publish_time"]
    return list(dict.fromkeys(names))


def _parquet(folder: Folder, part: Part, names: list[str]) -> Iterator[pa.RecordBatch]:
    local = isinstance(folder.system, fs.LocalFileSystem)
    with folder.system.open_input_file(folder.locate(part.path)) as source:
        # useful if each request waits for a network
        file = pq.ParquetFile(source, pre_buffer=not local)
        there = set(file.schema_arrow.names)
        columns = [name for name in names if name in there] or ["topic"]
        groups = [at for at in range(file.num_row_groups) if part.whole or _overlaps(file, at, part)]
        told = [file.metadata.row_group(at) for at in groups]
        rows = min((_rows(each.num_rows, each.total_byte_size) for each in told if each.num_rows), default=1)
        # Spark runs a task for each core, so threads would compete with other tasks
        yield from file.iter_batches(rows, groups, columns, use_threads=False)


def _overlaps(file: pq.ParquetFile, group: int, part: Part) -> bool:
    """True if offsets may overlap, by the statistics of the row group, if it has any."""
    at = file.schema_arrow.get_field_index("offset")
    statistics = file.metadata.row_group(group).column(at).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < part.end and statistics.max >= part.start)


def _lmdb(folder: Folder, part: Part) -> Iterator[pa.RecordBatch]:
    if not isinstance(folder.system, fs.LocalFileSystem):
        raise BadRequest(
            f"{part.path} is an LMDB file and not on a local disk", hint="gossipq export --format parquet"
        )
    path = folder.locate(part.path)
    with (
        lmdb.open(path, subdir=False, readonly=True, lock=False, create=False) as environment,
        environment.begin(buffers=True) as transaction,
        transaction.cursor() as cursor,
    ):
        # Spark is done with a batch when it asks for the next, so copies are not needed
        if not part.whole:
            _seek(cursor, transaction.stat()["entries"], part.start)
        for _, value in cursor:
            with pa.ipc.open_stream(value, options=_ONE_THREAD) as stream:
                for block in stream:
                    if not part.whole and block.column("offset")[0].as_py() >= part.end:
                        return
                    yield block


def _seek(cursor: lmdb.Cursor, count: int, start: int) -> None:
    """Move to the entry that contains offset `start`, if any, without unpacking earlier ones.

    Keys count from 0 to `count`, and offsets rise.
    """

    def first(number: int) -> int:
        value = cursor.get(_LMDB_KEY.pack(number))
        with pa.ipc.open_stream(value) as stream:
            at = stream.schema.get_field_index("offset")
        with pa.ipc.open_stream(value, options=pa.ipc.IpcReadOptions(included_fields=[at])) as stream:
            return int(stream.read_next_batch().column(0)[0].as_py())

    cursor.set_key(_LMDB_KEY.pack(max(0, bisect_right(range(count), start, key=first) - 1)))


def _within(block: pa.RecordBatch, part: Part, asked: Asked) -> pa.RecordBatch:
    """Return the rows of the wanted offsets and times.

    Offsets rise within a file, so the ends of a block tell whether all of it is wanted.
    """
    if asked.data_set != export.MESSAGES or not block.num_rows:
        return block
    masks = []
    if not part.whole:
        offset = block.column("offset")
        first, last = offset[0].as_py(), offset[-1].as_py()
        if last < part.start or first >= part.end:
            return block.slice(0, 0)
        if first < part.start or last >= part.end:
            masks.append(pc.and_(pc.greater_equal(offset, part.start), pc.less(offset, part.end)))
    for compare, bound_us in ((pc.greater_equal, asked.starting_us), (pc.less, asked.ending_us)):
        if bound_us is not None:
            masks.append(
                compare(block.column("publish_time"), pa.scalar(bound_us, pa.timestamp("us", "UTC")))
            )
    for mask in masks[1:]:
        masks[0] = pc.and_(masks[0], mask)
    return block.filter(masks[0]) if masks else block


def shaped(block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, by name; columns that an older file lacks are null."""
    there, columns = set(block.schema.names), []
    for field in schema:
        name = KAFKA_NAMES.get(field.name, field.name)
        if field.name == KAFKA_TIMESTAMP_TYPE:
            columns.append(pa.array([0], field.type).take(pa.array([0] * block.num_rows, pa.int64())))
        elif name not in there or (column := block.column(name)).null_count == block.num_rows:
            # pa.nulls() of lists needs much memory
            columns.append(pa.array([], field.type).take(pa.nulls(block.num_rows, pa.int64())))
        else:
            columns.append(column if column.type == field.type else _cast(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to another nullability or width. A list keeps its buffers; only its items are cast."""
    if not (pa.types.is_list(kind) and pa.types.is_list(column.type)):
        return column.cast(kind)
    fields = [kind.value_type.field(at) for at in range(kind.value_type.num_fields)]
    rows = pa.StructArray.from_arrays(column.values.flatten(), fields=fields)
    return pa.Array.from_buffers(
        kind, len(column), column.buffers()[:2], column.null_count, column.offset, [rows]
    )
