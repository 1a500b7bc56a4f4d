"""Reads a range of one partition for files, and notes holes and misfits."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from gossipq.types import Offset
from gossipq.wire.export import Newest
from gossipq.wire.schemas import Schema
from gossipq_client import columns
from gossipq_client.session import Stretch

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

Hole = tuple[Offset, Offset]  #: half-open


def newest_of(stretch: Stretch) -> Newest:
    """Return the newest record of a stretch."""
    return Newest.of(stretch.end - 1, columns.time_us(stretch.batch.info.publish_ms), stretch.values()[-1])


class Extract:
    def __init__(
        self, stretches: Iterable[Stretch], start: Offset, end: Offset, schema: Schema | None
    ) -> None:
        self._stretches = stretches
        self._start = start
        self._end = end
        self._schema = schema
        self._holes: list[Hole] = []
        self._misfits: list[RecordBatch] = []
        self._newest: list[Newest] = []  #: the last record of each batch

    def batches(self, progress: Callable[[int], None]) -> "Iterator[tuple[Offset, RecordBatch]]":
        """Yield (end offset, record batch), with the column `data` if there is a schema.

        `progress` is called with the number of offsets done.
        """
        gathering, at = columns.Gathering(), self._start
        for stretch in self._stretches:
            if stretch.first > at:
                self._holes.append((at, stretch.first))
            at = stretch.end
            for batch in gathering.add(stretch):
                yield at, self._noted(batch, stretch)
                progress(at - self._start)
        for batch in gathering.rest():
            yield at, self._noted(batch, stretch)
        if at < self._end:
            self._holes.append((at, self._end))

    def _noted(self, batch: "RecordBatch", last: Stretch) -> "RecordBatch":
        self._newest.append(newest_of(last))
        if self._schema is not None:
            batch, wrong = columns.typed(batch, self._schema)
            self._misfits += [wrong] if wrong is not None else []
        return batch

    def newest(self, end: Offset) -> Newest:
        """Return the last record below `end`, where a file ends."""
        return [each for each in self._newest if each.offset < end][-1]

    def take_holes(self, end: Offset) -> list[Hole]:
        """Return ranges below `end` without records, each once. A file never ends within a hole."""
        holes = [hole for hole in self._holes if hole[1] <= end]
        del self._holes[: len(holes)]
        return holes

    def take_misfits(self, end: Offset) -> "Table | None":
        """Return records below `end` whose value does not fit the schema, each once."""
        if not self._misfits:
            return None
        pa = columns.arrow()
        rows = pa.Table.from_batches(self._misfits)
        inside = pa.compute.less(rows.column("offset"), end)
        self._misfits = rows.filter(pa.compute.invert(inside)).to_batches()
        mine = rows.filter(inside)
        return mine if mine.num_rows else None
