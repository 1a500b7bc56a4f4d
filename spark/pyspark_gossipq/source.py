"""The data source "gossipq", found by Spark as DefaultSource of a package named pyspark_*.

The code for clusters is imported late, because Spark starts a process for each use of a source.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from gossipq.errors import ExportError
from gossipq.wire.schemas import Shape
from pyspark_gossipq import asked, layout, schemas
from pyspark_gossipq.batch import ExportReader
from pyspark_gossipq.folders import Folder
from pyspark_gossipq.stream import ExportStream


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "gossipq"

    def schema(self) -> StructType:
        told = asked.parse(self.options)
        return schemas.KAFKA if told.kafka_schema else schemas.of(told.data_set, self._shape(told))

    @staticmethod
    def _shape(told: asked.Asked) -> Shape | None:
        if not layout.may_be_typed(told):
            return None
        if told.servers:
            from pyspark_gossipq import live

            return live.shape(told)
        try:
            return layout.shape(Folder(told.path).read(told.as_of_us), told)
        except ExportError:
            return None  # the read itself reports it

    def reader(self, schema: StructType) -> DataSourceReader:
        told = asked.parse(self.options)
        if not told.servers:
            return ExportReader(schema, told)
        from pyspark_gossipq.live import LiveReader

        return LiveReader(schema, told)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        told = asked.parse(self.options)
        if not told.servers:
            return ExportStream(schema, told)
        from pyspark_gossipq.live import LiveStream

        return LiveStream(schema, told)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_gossipq import writer

        return writer.Writer(writer.parse(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_gossipq import writer

        return writer.Writer(writer.parse(self.options, schema, overwrite, streams=True))
