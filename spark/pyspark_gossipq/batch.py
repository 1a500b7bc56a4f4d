"""`spark.read.format("gossipq")`: reads an export through Python, or a range of a live cluster."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from gossipq.wire import export
from gossipq.wire.export import Export
from pyspark_gossipq import files, layout
from pyspark_gossipq.asked import Asked
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.layout import Part


class FileTask(InputPartition):
    """The input of one task."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__(parts)
        self.parts = parts


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares with."""
    return to_arrow_schema(schema, timezone="UTC")


def rows(path: str, task: InputPartition, schema: StructType, asked: Asked) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. An empty plan has one task without parts."""
    if isinstance(task, FileTask):
        folder, wanted = Folder(path), arrow_schema(schema)
        for part in task.parts:
            yield from files.read(folder, part, wanted, asked)


def plan(folder: Folder, exported: Export, asked: Asked) -> list[Part]:
    """Return the parts that a batch reads, checked. Raises DataLoss, TornExport."""
    if asked.data_set != export.MESSAGES:
        found = layout.states(exported, asked)
    else:
        wanted = layout.spans(layout.known(exported, asked), asked)
        if asked.fail_on_data_loss:
            layout.require(exported, wanted)
        found = layout.parts(exported, wanted, asked)
    check(folder, exported, found, asked.verify)
    return found


def check(folder: Folder, exported: Export, parts: list[Part], verify: bool | None) -> None:
    """Check that the files of these parts are unchanged. Raises TornExport."""
    paths = {part.path for part in parts}
    folder.check([file for file in exported.files if file.path in paths], verify)


class ExportReader(DataSourceReader):
    """Reads an export. Defines no pushFilters: Spark 4 applies the filters
    of one query to the next.

    Rows would be lost then.
    """

    def __init__(self, schema: StructType, asked: Asked) -> None:
        self.schema, self.asked = schema, asked

    def partitions(self) -> Sequence[InputPartition]:
        folder = Folder(self.asked.path)
        return [
            FileTask(parts)
            for parts in layout.tasks(plan(folder, folder.read(self.asked.as_of_us), self.asked), self.asked)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self.asked.path, partition, self.schema, self.asked)
