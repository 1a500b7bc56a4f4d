"""Exports as tables, without Spark and without a cluster.

    from gossipq_client import lake

    orders = lake.open("lake").table("orders")              # a pyarrow.Table
    lake.open("lake").duckdb("orders").aggregate("count(*)")
    lake.open("lake", as_of="-1h").polars("orders*").collect()

An open export does not change: a later export needs another `open`. A table of several topics has the column
`data` only if they share one schema, because a column has one type. Needs pip install "gossipq[lake]".
"""

import time
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gossipq.errors import BadRequest, GossipqError, UnknownTopic
from gossipq.wire import export
from gossipq.wire.export import File, Gap, Position
from gossipq.wire.schemas import Shape
from gossipq.wire.times import micros
from gossipq_client import columns
from gossipq_client.values import duration_ms

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.dataset import Dataset

Topics = str | Sequence[str] | None


def open(path: str, as_of: datetime | str | None = None, verify: bool | None = None) -> "Lake":
    """An export at a path or URI (s3://bucket/lake).

    as_of: open the export as it was at an aware datetime, at an ISO time (UTC by default), or some time ago
    ("-1h"). `gossipq export --keep` decides how far back that can be. verify: check the SHA-256 of each file
    that is read; None: of files up to 256 MiB. Raises TornExport, ExportVersion, ExportError, BadRequest."""
    columns.arrow("a lake")
    return Lake(path, _until_us(as_of), verify)


def _until_us(as_of: datetime | str | None) -> int | None:
    if as_of is None:
        return None
    if isinstance(as_of, str) and as_of.startswith("-") and not as_of[1:].isdigit():
        return (time.time_ns() // 1_000_000 - duration_ms(as_of[1:], "as_of")) * 1_000
    if isinstance(as_of, datetime) and as_of.tzinfo is None:
        raise BadRequest(
            "as_of= needs a datetime with a time zone", hint="datetime.now(timezone.utc) has one"
        )
    if not isinstance(as_of, datetime | str):
        raise BadRequest(f"as_of={as_of!r}", hint='an aware datetime, "2026-11-21T09:00:00Z" or "-1h"')
    return micros("as_of", as_of.isoformat() if isinstance(as_of, datetime) else as_of)


class Lake:
    """An export as it was when it was opened."""

    def __init__(self, path: str, until_us: int | None, verify: bool | None) -> None:
        from gossipq.lakes import ExportReader

        self._folder, self._verify = ExportReader(str(path)), verify
        self._export = self._folder.read(until_us)

    @property
    def topics(self) -> list[str]:
        """Names of the topics, also of those that the cluster has removed."""
        return sorted({at.topic for at in self._export.positions.values()})

    @property
    def positions(self) -> list[Position]:
        """How far the export has come, by partition."""
        return list(self._export.positions.values())

    @property
    def gaps(self) -> list[Gap]:
        """Records that retention removed before they were exported."""
        return list(self._export.gaps)

    def dataset(
        self, topics: Topics = None, data_set: str = export.MESSAGES, allow_gap: bool = False
    ) -> "Dataset":
        """A pyarrow.dataset.Dataset, which reads no more than a query needs.

        topics: names or patterns with *; None: all. data_set: "messages" (with a column `data` if one topic
        with a schema is read), "misfits" (values that do not fit their schema), "acks", or "deliveries" (the
        state of each record in each group). Raises NotFound, TornExport, and DataLoss for records that
        were lost before their export, unless `allow_gap`."""
        from pyarrow import dataset

        files = self._files(topics, data_set)
        schema = columns.schema(data_set, self._shape(topics, data_set))
        if not allow_gap and data_set == export.MESSAGES:
            for at in self._chosen(topics):
                export.check_loss(self._export, at.topic_id, at.partition, at.start, at.end)
        self._folder.check(files, self._verify)
        if not files:
            return dataset.dataset(schema.empty_table())
        paths = [self._folder.locate(file.path) for file in files]
        return dataset.dataset(paths, schema=schema, format="parquet", filesystem=self._folder.system)

    def table(
        self, topics: Topics = None, data_set: str = export.MESSAGES, allow_gap: bool = False
    ) -> "Table":
        """All rows as a pyarrow.Table, in memory."""
        return self.dataset(topics, data_set, allow_gap).to_table()

    def pandas(self, topics: Topics = None, data_set: str = export.MESSAGES, allow_gap: bool = False) -> Any:
        """All rows as a pandas.DataFrame, in memory."""
        table = self.table(topics, data_set, allow_gap)
        try:
            return table.to_pandas()
        except ModuleNotFoundError as error:
            raise _lacking(error) from None

    def polars(self, topics: Topics = None, data_set: str = export.MESSAGES, allow_gap: bool = False) -> Any:
        """A polars.LazyFrame; `.collect()` reads it."""
        found = self.dataset(topics, data_set, allow_gap)
        try:
            import polars
        except ModuleNotFoundError as error:
            raise _lacking(error) from None
        return polars.scan_pyarrow_dataset(found)

    def duckdb(
        self,
        topics: Topics = None,
        data_set: str = export.MESSAGES,
        allow_gap: bool = False,
        connection: Any = None,
    ) -> Any:
        """A relation of duckdb, in its default connection or in one of yours."""
        found = self.dataset(topics, data_set, allow_gap)
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise _lacking(error) from None
        return (connection or duckdb).from_arrow(found)

    # --- what is chosen

    def _shape(self, topics: Topics, data_set: str) -> Shape | None:
        """Of the column `data`: when one topic is chosen by its name."""
        names = [topics] if isinstance(topics, str) else list(topics or ())
        return self._export.shape(names[0]) if data_set == export.MESSAGES and len(names) == 1 else None

    def _chosen(self, topics: Topics) -> list[Position]:
        names = [topics] if isinstance(topics, str) else topics
        for name in names or ():
            if "*" not in name and name not in self.topics:
                from gossipq.lakes import nearest

                raise UnknownTopic(f"topic {name!r} does not exist here", hint=nearest(name, self.topics))
        wanted = self._export.positions.values()
        return [at for at in wanted if names is None or any(fnmatchcase(at.topic, name) for name in names)]

    def _files(self, topics: Topics, data_set: str) -> list[File]:
        if data_set not in export.SCHEMAS:
            raise BadRequest(f"data_set={data_set!r}", hint=f"one of {', '.join(export.SCHEMAS)}")
        if self._export.newest is not None and self._export.newest.format != "parquet":
            hint = "spark.read.format('gossipq') reads it, or export Parquet"
            raise BadRequest(f"{self._folder.path} has {self._export.newest.format} files", hint=hint)
        chosen = {(at.topic_id, at.partition) for at in self._chosen(topics)}
        return [
            file
            for file in self._export.of(data_set)
            if file.rows and (file.topic_id, file.partition) in chosen
        ]


def _lacking(error: ModuleNotFoundError) -> GossipqError:
    name = (error.name or "").partition(".")[0]
    return GossipqError(f"{name} is not installed", hint=f"pip install {name}")
