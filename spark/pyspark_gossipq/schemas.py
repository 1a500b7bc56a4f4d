"""The columns of each data set in Spark. Every column may be null there, as in all that Spark reads from
files."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gossipq.wire import export
from gossipq.wire.schemas import Shape

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS,
}
#: of a schema's fields
SCALARS: dict[str, DataType] = {
    "string": StringType(),
    "timestamp": TimestampType(),
    "date": DateType(),
    "binary": BinaryType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
#: what spark-sql-kafka gives, with headers: for code that was written for it
KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),  # always 0: the time is the producer's
        StructField("headers", HEADERS),
    ]
)
#: column of the Kafka form -> column of `messages`
KAFKA_NAMES = {"timestamp": "publish_time"}
KAFKA_TIMESTAMP_TYPE = "timestampType"


def of(data_set: str, shape: Shape | None = None) -> StructType:
    """shape: of the column `data`."""
    fields = [StructField(column.name, TYPES[column.type]) for column in export.SCHEMAS[data_set]]
    return StructType(fields if shape is None else [*fields, StructField(export.DATA, typed(shape))])


def typed(shape: Shape) -> DataType:
    """What the schema of a topic says, as Spark says it."""
    if shape.name == "struct":
        return StructType([StructField(field.name, typed(field.shape)) for field in shape.fields])
    if shape.item is not None:
        item = typed(shape.item)
        return ArrayType(item) if shape.name == "list" else MapType(StringType(), item)
    return SCALARS[shape.name]
