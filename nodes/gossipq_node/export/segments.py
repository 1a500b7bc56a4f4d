"""Writes record batches of one partition into files of a good size, one
batch in memory at a time.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import file_digest
from typing import TYPE_CHECKING, Any

from gossipq.wire import export
from gossipq.wire.export import File
from gossipq.wire.schemas import Shape
from gossipq_client import columns
from gossipq_node.export import files
from gossipq_node.export.folder import Folder

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

#: maximum of one file, as columns in memory; its last batch may exceed it
FILE_ROWS, FILE_BYTES = (1 << 20, 128 << 20)


class Segment:
    """A file being written."""

    def __init__(self, place: "PartitionFiles") -> None:
        self._place, self._path = place, place.folder.new()
        self._writer = files.writer(place.format, self._path, columns.schema(place.data_set, place.shape))
        self._times: list[dict[str, int]] = []
        self.rows = self.bytes = 0

    @property
    def full(self) -> bool:
        return self.rows >= FILE_ROWS or self.bytes >= FILE_BYTES

    def add(self, batch: "RecordBatch") -> None:
        with self._whole():
            self._writer.write(batch)
        self.rows, self.bytes = self.rows + batch.num_rows, self.bytes + batch.nbytes
        if self._place.data_set == export.MESSAGES and batch.num_rows:
            pa: Any = columns.arrow()
            self._times.append(pa.compute.min_max(batch.column("publish_time").cast(pa.int64())).as_py())

    def keep(self, start: int, end: int) -> File:
        place = self._place
        with self._whole():
            self._writer.close()
            # pyarrow writes the file itself, so its bytes are read once more for the digest
            with self._path.open("rb") as opened:
                digest = file_digest(opened, "sha256").hexdigest()
            size = self._path.stat().st_size
            data_set, topic, topic_id, partition = place.name
            path = export.file_path(data_set, topic, topic_id, partition, start, end, digest, place.format)
            place.folder.keep(self._path, path)
        low, high = ([each[name] for each in self._times] for name in ("min", "max"))
        return File(
            path=path,
            data_set=data_set,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            start=start,
            end=end,
            rows=self.rows,
            bytes=size,
            sha256=digest,
            publish_min_us=min(low, default=None),
            publish_max_us=max(high, default=None),
            schema=place.schema,
            column_bytes=self.bytes,
        )

    def drop(self) -> None:
        with suppress(OSError):
            self._writer.close()
        self._path.unlink(missing_ok=True)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Delete the file on an error: otherwise a full disk would stay full."""
        try:
            yield
        except BaseException:
            self.drop()
            raise


class PartitionFiles:
    """The files of one data set and one partition, in a folder."""

    def __init__(
        self,
        folder: Folder,
        format: str,
        data_set: str,
        topic: str,
        topic_id: int,
        partition: int,
        schema: int = 0,
        shape: Shape | None = None,
    ) -> None:
        """`schema` is the version of the schema with this shape, for the column `data`."""
        self.folder = folder
        self.format = format
        self.data_set = data_set
        self.name = data_set, topic, topic_id, partition
        self.schema, self.shape = schema, shape

    def whole(self, rows: "Table", start: int, end: int) -> File:
        """Write all rows into one file, even if empty."""
        segment = Segment(self)
        for batch in rows.to_batches():
            segment.add(batch)
        return segment.keep(start, end)

    def split(self, batches: "Iterable[tuple[int, RecordBatch]]", start: int, end: int) -> Iterator[File]:
        """Yield files of [start, end). Each batch comes with its end offset.
        Without rows, no file is made.
        """
        segment: Segment | None = None
        reached = start
        try:
            for last, batch in batches:
                if segment is not None and segment.full:
                    done, segment = segment, None
                    yield done.keep(start, reached)
                    start = reached
                segment = segment or Segment(self)
                segment.add(batch)
                reached = last
            if segment is not None:
                done, segment = segment, None
                yield done.keep(start, end)
        finally:
            if segment is not None:
                segment.drop()
