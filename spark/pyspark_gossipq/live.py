"""Reads a live cluster: the driver asks for the ends of topics, tasks read ranges from the leaders.

No state is kept in the cluster.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from gossipq.errors import Forbidden, GossipqError, UnknownTopic
from gossipq.wire import export
from gossipq.wire.schemas import Schema, Shape
from gossipq_client import Client, columns, connect
from pyspark_gossipq import files, layout
from pyspark_gossipq.asked import LATEST, Asked, Bound
from pyspark_gossipq.batch import arrow_schema
from pyspark_gossipq.layout import Known, Span, Stamps
from pyspark_gossipq.stream import Stream

log = logging.getLogger("pyspark_gossipq")


class SpanTask(InputPartition):
    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def client(servers: Sequence[str]) -> Client:
    return connect(servers, name=f"spark-{os.getpid()}")


def shape(asked: Asked) -> Shape | None:
    """Return the present shape of the column `data`; None if the cluster does not answer.

    The read itself will report that.
    """
    try:
        with client(asked.servers) as mq:
            declared = [mq.topic(topic).schema() for topic in asked.topics]
    except GossipqError as error:
        log.warning("schemas are not known: %s", error)
        return None
    return layout.common_shape(None if each is None else each.shape for each in declared)


def known(mq: Client, asked: Asked) -> list[Known]:
    """Return the wanted partitions. Raises UnknownTopic for an unknown name."""
    found: list[Known] = []
    there: set[tuple[str, int]] = set()
    for name in asked.live_names:
        topics = [info for info in mq.topics(name) if not info.config.virtual]
        if not topics and "*" not in name:
            raise UnknownTopic(f"topic {name!r} does not exist", hint=f"gossipq topic create {name}")
        for info in topics:
            there |= {(info.name, number) for number in range(len(info.shards))}
            wanted = [number for number in range(len(info.shards)) if asked.wants(info.name, number)]
            bounds = mq.topic(info.name).positions() if wanted else {}
            found += [Known(info.name, info.id, number, *bounds[number]) for number in wanted]
    layout.require_names(asked, there)
    return sorted(set(found))


def between(mq: Client, asked: Asked) -> list[Span]:
    """Return the spans of a batch. Times are by the clock of the leader. Raises DataLoss."""
    partitions = known(mq, asked)
    begin, stop = starting(mq, partitions, asked), at_time(mq, partitions, asked.ending_us)
    return [
        each._replace(
            start=max(each.start, begin.get(each.place, 0)), end=min(each.end, stop.get(each.place, each.end))
        )
        for each in layout.spans(partitions, asked)
    ]


def starting(mq: Client, partitions: Sequence[Known], asked: Asked) -> dict[tuple[str, int], int]:
    """Return (topic, partition) -> offset of the wanted start times, or
    the end if none is so new.
    """
    found = at_time(mq, partitions, asked.starting_us)
    for time_us in {time_us for _, _, time_us in asked.starting_times}:
        places = {(topic, number) for topic, number, told_us in asked.starting_times if told_us == time_us}
        there = [at for at in partitions if (at.topic, at.partition) in places]
        found |= {place: offset for place, offset in at_time(mq, there, time_us).items() if place in places}
    return found


def at_time(mq: Client, partitions: Sequence[Known], time_us: int | None) -> dict[tuple[str, int], int]:
    """Return (topic, partition) -> offset at which a reader would start for this time."""
    if time_us is None:
        return {}
    when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
    return {
        (topic, number): first
        for topic in {at.topic for at in partitions}
        for number, (first, _) in mq.topic(topic).positions(when).items()
    }


def rows(asked: Asked, task: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task from the leader. Raises DataLoss, unless failOnDataLoss is off.

    `data` has the fields of `schema`, decoded by the present declaration of the topic.
    """
    if not isinstance(task, SpanTask):
        return
    span, wanted, gathering = task.span, arrow_schema(schema), columns.Gathering()
    with client(asked.servers) as mq:
        start, missing = _first(mq, span, asked), False
        if start >= span.end:
            return
        declared = mq.topic(span.topic).schema() if export.DATA in wanted.names else None
        at = start
        for stretch in mq.read(span.topic, start=start, end=span.end).batches(span.partition):
            if stretch.topic_id != span.topic_id:
                break  # the topic was removed and created again: the wanted records are gone
            missing |= stretch.first > at
            at = stretch.end
            for block in gathering.add(stretch):
                yield from files.pieces(_typed(block, declared), wanted)
        for block in gathering.rest():
            yield from files.pieces(_typed(block, declared), wanted)
        # holes are cancelled records, or retention removed records meanwhile
        if missing or at < span.end:
            _first(mq, span, asked)


def _typed(block: pa.RecordBatch, declared: Schema | None) -> pa.RecordBatch:
    """Add the column `data`, null where a value does not fit."""
    return block if declared is None else columns.typed(block, declared)[0]


def _first(mq: Client, span: Span, asked: Asked) -> int:
    """Return the first readable offset of the span. Raises DataLoss."""
    info = next((info for info in mq.topics(span.topic) if info.id == span.topic_id), None)
    if info is None:
        known = Known(span.topic, span.topic_id, span.partition, span.end, span.end)
    else:
        known = Known(
            span.topic, span.topic_id, span.partition, *mq.topic(span.topic).positions()[span.partition]
        )
    return layout.span(known, span.start, span.end, asked.fail_on_data_loss).start


class LiveReader(DataSourceReader):
    """A batch of the records that exist at planning. Defines no pushFilters, like ExportReader."""

    def __init__(self, schema: StructType, asked: Asked) -> None:
        self.schema, self.asked = schema, asked

    def partitions(self) -> Sequence[InputPartition]:
        with client(self.asked.servers) as mq:
            return [SpanTask(span) for span in layout.cut_spans(between(mq, self.asked), self.asked)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self.asked, partition, self.schema)


class LiveStream(Stream):
    """A stream of records published from now on, unless an option sets another start."""

    first_bound = Bound(LATEST)
    poll_s = 0.1

    def __init__(self, schema: StructType, asked: Asked) -> None:
        super().__init__(schema, asked)
        self._mq: Client | None = None
        self._told: Stamps = {}

    def _client(self) -> Client:
        """Return the client, for the life of the query's process; a new one after an error."""
        if self._mq is None:
            self._mq = client(self.asked.servers)
            with suppress(Forbidden):
                self.cluster = self._mq.admin.status().cluster.hex()
        return self._mq

    def _drop(self) -> None:
        mq, self._mq = self._mq, None
        if mq is not None:
            mq.close(flush=False)

    def known(self) -> list[Known]:
        try:
            return known(self._client(), self.asked)
        except GossipqError:
            self._drop()
            raise

    def initialOffset(self) -> Stamps:
        found = super().initialOffset()
        if self.asked.starting_us is not None or self.asked.starting_times:
            partitions = self.known()
            begin = starting(self._client(), partitions, self.asked)
            asked = {(at.name, at.partition): begin[at.place] for at in partitions if at.place in begin}
            found = layout.stamps(layout.positions(found) | asked, found)
        self._report(found)
        return found

    def latestOffset(self, start: Stamps, limit: ReadLimit) -> Stamps:
        # Spark asks for a batch when the last one is done; its commit comes one batch late
        self._report(start)
        return super().latestOffset(self._kept(start), limit)

    def _kept(self, start: Stamps) -> Stamps:
        """Return the offsets from which to continue. Raises DataLoss.

        If offsets that were read do not exist any more, the cluster was rolled back, and new
        records get the same offsets.
        """
        here = layout.positions(start)
        if any(at.end < here.get((at.name, at.partition), 0) for at in self.polled()):
            self._forget_polled()  # a recent answer may be older than `start`
        for at in self.polled():
            read = here.get((at.name, at.partition), 0)
            if at.end < read:
                layout.span(at, at.end, read, self.asked.fail_on_data_loss)
                here[at.name, at.partition] = at.end
        return layout.stamps(here, start)

    def _report(self, done: Stamps) -> None:
        """Report the query's progress to the group. Errors are only logged."""
        if not self.asked.group or done == self._told:
            return
        try:
            for name, numbers in layout.stamps(layout.positions(done)).items():
                topic, _, topic_id = name.rpartition(layout.MARK)
                if any(info.id == int(topic_id) for info in self._client().topics(topic)):
                    self._client().group(topic, self.asked.group).ack_below(
                        {int(number): end for number, end in numbers.items()}
                    )
            self._told = done
        except GossipqError as error:
            log.warning("progress of group %s is not reported: %s", self.asked.group, error)
            self._drop()

    def partitions(self, start: Stamps, end: Stamps) -> Sequence[InputPartition]:
        # the positions that set the end of this batch are new enough; each
        # task checks its start again
        return [
            SpanTask(span) for span in layout.cut_spans(self.spans(start, end, self.polled()), self.asked)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self.asked, partition, self.schema)

    def commit(self, end: Stamps) -> None:
        self._report(end)

    def stop(self) -> None:
        self._drop()

    def __getstate__(self) -> dict[str, object]:
        """Tasks get the reader without its connection."""
        return {**self.__dict__, "_mq": None}
