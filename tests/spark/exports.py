"""Exports made by hand, with cases that a real exporter hardly makes: gaps, torn files,
overlaps, older versions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'gossipq[spark]'")

import lmdb
import msgspec
import pyarrow.parquet as pq

from gossipq.wire import export
from gossipq.wire.export import File, Gap, Manifest, Newest, Position

START_US = 1_790_000_000_000_000  #: publish time of offset 0; each later one is a second more
SECOND_US = 1_000_000
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)]))
_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": _HEADERS,
}


def schema(data_set: str, without: Iterable[str] = ()) -> Any:
    columns = [column for column in export.SCHEMAS[data_set] if column.name not in without]
    return pa.schema([pa.field(column.name, _TYPES[column.type], column.nullable) for column in columns])


def message(topic: str, topic_id: int, partition: int, offset: int, **more: Any) -> dict[str, Any]:
    row = {"topic": topic, "topic_id": topic_id, "partition": partition, "offset": offset}
    row |= {
        "publish_time": START_US + offset * SECOND_US,
        "key": None,
        "headers": None,
        "value": b"value %d" % offset,
    }
    return row | {"route": None, "id": None, "deliver_at": None} | more


@dataclass
class Exporter:
    """Writes increments; `publish` makes a manifest of everything added since the last one."""

    root: Path
    cluster: str = "c0" * 16
    format: str = "parquet"
    sequence: int = 0
    files: list[File] = field(default_factory=list)
    positions: dict[tuple[int, int], Position] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    previous: str = ""

    def messages(
        self,
        topic: str,
        start: int,
        end: int,
        *,
        topic_id: int = 1,
        partition: int = 0,
        holes: Sequence[int] = (),
        without: Sequence[str] = (),
        **more: Any,
    ) -> File:
        """A file of records [start, end), but for those in `holes`; `more` are columns, or functions of the
        offset."""
        rows = [
            message(topic, topic_id, partition, at)
            | {name: value(at) if callable(value) else value for name, value in more.items()}
            for at in range(start, end)
            if at not in holes
        ]
        file = self.write(export.MESSAGES, topic, topic_id, partition, start, end, rows, without)
        began, newest = self.positions.get((topic_id, partition)), None
        if rows:
            newest = Newest.of(rows[-1]["offset"], rows[-1]["publish_time"], rows[-1]["value"])
        self.positions[topic_id, partition] = Position(
            topic, topic_id, partition, began.start if began else start, end, 0, end, end, newest=newest
        )
        return file

    def write(
        self,
        data_set: str,
        topic: str,
        topic_id: int,
        partition: int,
        start: int,
        end: int,
        rows: list[dict[str, Any]],
        without: Sequence[str] = (),
    ) -> File:
        table = pa.Table.from_pylist(rows, schema(data_set, without))
        path = self.root / "written"
        path.parent.mkdir(parents=True, exist_ok=True)
        (_parquet if self.format == "parquet" else _lmdb)(table, path)
        raw = path.read_bytes()
        digest = sha256(raw).hexdigest()
        name = export.file_path(data_set, topic, topic_id, partition, start, end, digest, self.format)
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(self.root / name)
        times = [row["publish_time"] for row in rows] if data_set == export.MESSAGES else []
        place = (topic, topic_id, partition, start, end)
        self.files.append(
            File(
                name,
                data_set,
                *place,
                len(rows),
                len(raw),
                digest,
                min(times, default=None),
                max(times, default=None),
            )
        )
        return self.files[-1]

    def publish(self, base: bool = False, version: int = export.VERSION) -> Path:
        self.sequence += 1
        manifest = Manifest(
            version,
            self.cluster,
            self.sequence,
            self.previous,
            START_US,
            self.format,
            base,
            self.files,
            list(self.positions.values()),
            self.gaps,
        )
        raw = export.encode(manifest)
        path = self.root / export.manifest_path(self.sequence)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        self.previous, self.files = sha256(raw).hexdigest(), []
        return path

    def __str__(self) -> str:
        return str(self.root)


def _parquet(table: Any, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", row_group_size=1_000)


def _lmdb(table: Any, path: Path) -> None:
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28) as environment,
        environment.begin(write=True) as txn,
    ):
        for number, block in enumerate(table.to_batches(1_000)):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_batch(block)
            txn.put(number.to_bytes(8, "big"), sink.getvalue().to_pybytes())


def edited(path: Path, **changes: Any) -> None:
    """Changes fields of a manifest as it lies there."""
    told = msgspec.json.decode(path.read_bytes()) | changes
    path.write_bytes(msgspec.json.encode(told))
