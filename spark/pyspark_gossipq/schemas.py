"""The columns of each data set in Spark. All are nullable, as always when Spark reads files."""

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
#: types of a schema's fields
SCALARS: dict[str, DataType] = {
    "string": StringType(),
    "timestamp": TimestampType(),
    "date": DateType(),
    "binary": BinaryType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
#: columns of spark-sql-kafka, with headers, for existing code
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
    """Return the columns of a data set. `shape` is that of the column `data`."""
    fields = [StructField(column.name, TYPES[column.type]) for column in export.SCHEMAS[data_set]]
    return StructType(fields if shape is None else [*fields, StructField(export.DATA, typed(shape))])


def typed(shape: Shape) -> DataType:
    """Return a topic's schema as a type of Spark."""
    if shape.name == "struct":
        return StructType([StructField(field.name, typed(field.shape)) for field in shape.fields])
    if shape.item is not None:
        item = typed(shape.item)
        return ArrayType(item) if shape.name == "list" else MapType(StringType(), item)
    return SCALARS[shape.name]
