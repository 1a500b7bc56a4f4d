"""Parquet: zstd, row groups of at most 65,536 rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

ROW_GROUP_ROWS = 65_536
ZSTD_LEVEL = 1  #: twice as fast as level 3, for a few percent more bytes
#: columns with few different values; testing the others costs time
DICTIONARIES = [
    "topic",
    "topic_id",
    "partition",
    "publish_time",
    "route",
    "group_name",
    "state",
    "consumer",
    "reason",
]


class ParquetWriter:
    def __init__(self, path: Path, schema: "Schema") -> None:
        from pyarrow import parquet

        dictionaries = [name for name in DICTIONARIES if name in schema.names]
        self._writer = parquet.ParquetWriter(
            path, schema, compression="zstd", compression_level=ZSTD_LEVEL, use_dictionary=dictionaries
        )

    def write(self, rows: "RecordBatch") -> None:
        self._writer.write_batch(rows, row_group_size=ROW_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()


def read(path: Path) -> "Iterator[RecordBatch]":
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=ROW_GROUP_ROWS)
