"""`spark.readStream.format("gossipq")` over the manifests of a growing export."""

import math
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gossipq.errors import BadRequest
from gossipq.wire import export
from gossipq.wire.export import Export
from pyspark_gossipq import batch, layout
from pyspark_gossipq.asked import EARLIEST, Asked, Bound
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.layout import Known, Span, Stamps


class Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of both streams.

    Offsets are {"orders#7": {"0": 12}}: topic and its id, partition, first unread offset.
    The key "#" has the cluster.
    """

    first_bound = Bound(EARLIEST)  #: start of a stream without startingOffsets
    #: an answer to `known` is used this long, because an idle query asks a hundred times a second
    poll_s = 1.0

    def __init__(self, schema: StructType, asked: Asked) -> None:
        if asked.ending is not None or asked.ending_us is not None:
            raise BadRequest(
                "a stream has no end", hint="leave endingOffsets and endingTimestamp away, or use spark.read"
            )
        if asked.as_of_us is not None:
            raise BadRequest("a stream goes on", hint="leave asOf away, or use spark.read")
        self.schema, self.asked = schema, asked
        #: the cluster of these records, known after `known` was called; "": unknown
        self.cluster = ""
        self._target: dict[tuple[str, int], int] | None = None
        self._polled: tuple[float, list[Known]]
        self._forget_polled()
        self._batch_s = -math.inf  #: start of the newest batch; the first one does not wait

    def known(self) -> list[Known]:
        """Return the wanted partitions, as they are now."""
        raise NotImplementedError

    def polled(self) -> list[Known]:
        """Return the wanted partitions, as they were a moment ago."""
        if time.monotonic() - self._polled[0] >= self.poll_s:
            self._polled = time.monotonic(), self.known()
        return self._polled[1]

    def _forget_polled(self) -> None:
        self._polled = -math.inf, []

    def initialOffset(self) -> Stamps:
        bound, there = self.asked.starting or self.first_bound, self.known()
        layout.require_offsets(self.asked, there)
        found = {
            (at.name, at.partition): layout.span(
                at,
                bound.of(at.topic, at.partition, at.first, at.end),
                at.end,
                self.asked.fail_on_data_loss,
            ).start
            for at in there
        }
        return layout.of_cluster(layout.stamps(found), self.cluster)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.asked.offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: Stamps, limit: ReadLimit) -> Stamps:
        there = self._before_target()
        marked = layout.of_cluster(start, self.cluster)
        found = layout.advance(marked, there, limit.max_rows if isinstance(limit, ReadMaxRows) else 0)
        now_s, new = time.monotonic(), layout.between(start, found)
        if (
            self._target is None
            and new < self.asked.offsets_min
            and now_s < self._batch_s + self.asked.trigger_delay_s
        ):
            return start
        if new:
            self._batch_s = now_s
        return found

    def reportLatestOffset(self) -> Stamps | None:
        return layout.stamps({(at.name, at.partition): at.end for at in self.polled()}) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {(at.name, at.partition): at.end for at in self.known()}

    def _before_target(self) -> list[Known]:
        """Return the partitions; with availableNow, their ends are those at its start."""
        found = self.polled()
        if self._target is None:
            return found
        return [
            at._replace(end=min(at.end, self._target[at.name, at.partition]))
            for at in found
            if (at.name, at.partition) in self._target
        ]

    def spans(self, start: Stamps, end: Stamps, partitions: list[Known]) -> list[Span]:
        """Return the spans between two offsets. Raises DataLoss, and
        ExportError for another cluster.
        """
        layout.of_cluster(end, self.cluster)
        begin, there, found = (
            layout.positions(start),
            {(at.name, at.partition): at for at in partitions},
            [],
        )
        for place, stop in layout.positions(end).items():
            at = there.get(place)
            if at is None:
                topic, _, topic_id = place[0].rpartition(layout.MARK)
                at = Known(topic, int(topic_id), place[1], stop, stop)
            found.append(layout.span(at, begin.get(place, at.first), stop, self.asked.fail_on_data_loss))
        return [each for each in found if each.start < each.end]


class ExportStream(Stream):
    def __init__(self, schema: StructType, asked: Asked) -> None:
        super().__init__(schema, asked)
        if asked.data_set != export.MESSAGES:
            raise BadRequest(
                f"a stream reads messages, not {asked.data_set}", hint="spark.read reads the others"
            )

    def known(self) -> list[Known]:
        return self._known(Folder(self.asked.path).read())

    def _known(self, exported: Export) -> list[Known]:
        self.cluster = exported.newest.cluster if exported.newest else ""
        return layout.known(exported, self.asked)

    def partitions(self, start: Stamps, end: Stamps) -> Sequence[InputPartition]:
        folder = Folder(self.asked.path)
        exported = folder.read()
        wanted = self.spans(start, end, self._known(exported))
        if self.asked.fail_on_data_loss:
            layout.require(exported, wanted)
        found = layout.parts(exported, wanted, self.asked)
        batch.check(folder, exported, found, self.asked.verify)
        return [batch.FileTask(parts) for parts in layout.tasks(found, self.asked)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batch.rows(self.asked.path, partition, self.schema, self.asked)
