# Made by clients/python/make_twins.py from api/aio/records.py: change that, then run it.
"""Reading records without a group: one by one, batch by batch, or as a table."""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self

from gossipq.errors import BadRequest
from gossipq_client import columns
from gossipq_client.api.sync.consumer import Consumer, Subscription
from gossipq_client.api.sync.reader import read_batches
from gossipq_client.api.sync.schemas import Schemas
from gossipq_client.operations import Progress, Search
from gossipq_client.session import Data, Joining, Record, Stretch
from gossipq_client.values import inputs


class Records(Generic[Data]):
    """Records of topics, as `mq.read("orders")`. Nothing is acked, and no group is changed. The `data` of its
    records is of the type that `read` named.

    Iterate over it for its records, or call `batches`, `to_arrow` or `where`. The iteration ends with the
    last record that exists when it begins, unless it follows the topics.
    """

    def __init__(
        self,
        consumer: Consumer,
        schemas: Schemas,
        asked: Joining,
        end: inputs.Start | None,
        *,
        follow: bool,
    ) -> None:
        """Raises BadRequest for `end` with `follow`."""
        if follow and end is not None:
            raise BadRequest("follow=True never ends", hint="leave end= out, or follow=")
        self._consumer, self._schemas, self._asked = consumer, schemas, asked
        self._end, self._follows = end, follow
        self._operator = consumer.operator
        self._loop: Subscription[Any] | None = consumer.subscribed(asked, False) if follow else None

    def _iterated(self) -> Subscription[Any]:
        if self._loop is None:
            self._loop = self._consumer.subscribed(self._asked, True)
        return self._loop

    def __iter__(self) -> Iterator[Record[Data]]:
        if self._end is not None:
            return self.where()
        return self._iterated().__iter__()

    def __next__(self) -> Record[Data]:
        """Return the next record. A cancelled wait loses none."""
        if self._end is not None:
            raise BadRequest("end= is for a loop", hint="iterate over it")
        return self._iterated().__next__()

    @property
    def trouble(self) -> str:
        """Why no record can come now, "" if nodes answer; as that of a subscription."""
        return "" if self._loop is None else self._loop.trouble

    def stop(self) -> None:
        """End the loop after the current record. Callable from any thread and from a signal handler."""
        if self._loop is not None:
            self._loop.stop()

    def close(self) -> None:
        """End reading. A second call is harmless."""
        if self._loop is not None:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def where(
        self,
        *,
        key: inputs.Value | None = None,
        contains: inputs.Value | None = None,
        headers: inputs.Headers | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Record[Data]]:
        """Yield the records with this key, with this text in their value, and with these headers; at most
        `limit`. `progress(looked, total)` is called now and then. Raises NotFound, and BadRequest."""
        self._require_end("where")
        start = self._asked.start
        if isinstance(start, Mapping):
            raise BadRequest("start= with an offset for each partition", hint="name one start for a search")
        search = Search(
            "first" if start is None else start,
            self._end,
            key,
            contains,
            headers,
            limit,
            progress,
            self._operator.wall_ms,
        )
        return self._found(search)

    def _found(self, search: Search) -> Iterator[Record[Data]]:
        for name in self._asked.names:
            self._operator.run(self._operator.asking.cover(name, search))
        if search.over:
            return
        for record in self._consumer.subscribed(self._asked, True):
            if search.wants(record):
                yield record
            if search.over:
                return
        search.report()

    def batches(self, partition: int | None = None) -> Iterator[Stretch]:
        """Yield the records of one topic batch by batch, in order within each partition. Raises NotFound,
        also if retention has removed `start`, BadRequest, and Refused."""
        self._require_end("batches")
        topic, start = self._asked.one_range()
        yield from read_batches(self._operator, topic, start, self._end, partition)

    def to_arrow(self, partition: int | None = None) -> "columns.Table":
        """Return the records of one topic as a pyarrow.Table: topic, topic_id, partition, offset,
        publish_time, key, headers, value, route, id, deliver_at; for a topic with a schema also data, which
        is null where the value does not fit. Needs pyarrow. Raises what `batches` raises."""
        columns.arrow()
        topic, _ = self._asked.one_range()
        schema = self._schemas.of(topic)
        return columns.table(list(self.batches(partition)), schema)

    def _require_end(self, verb: str) -> None:
        if self._follows:
            raise BadRequest(f"follow=True never ends, and {verb}() needs an end", hint="leave follow= out")
