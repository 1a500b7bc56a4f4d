"""Files of rows in two formats, read and written as pyarrow record batches.

A file is written once, in one pass.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gossipq.wire.schemas import Shape
from gossipq_client import columns
from gossipq_node.export import lmdb_file, parquet_file

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema


class Writer(Protocol):
    def write(self, rows: "RecordBatch") -> None: ...
    def close(self) -> None:
        """Finish the file."""


def writer(format: str, path: Path, schema: "Schema") -> Writer:
    return (
        lmdb_file.LmdbWriter(path, schema) if format == "lmdb" else parquet_file.ParquetWriter(path, schema)
    )


def read(format: str, path: Path, data_set: str, shape: Shape | None = None) -> "Iterator[RecordBatch]":
    """Yield the rows of a file, also of one that an older version wrote."""
    rows = lmdb_file.read(path) if format == "lmdb" else parquet_file.read(path)
    return (columns.conform(batch, data_set, shape) for batch in rows)
