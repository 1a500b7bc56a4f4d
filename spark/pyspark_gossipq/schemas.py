"""The columns of each data set in Spark. Every column may be null there, as in all that Spark reads from
files."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gossipq.wire import export

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS,
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


def of(data_set: str) -> StructType:
    return StructType([StructField(column.name, TYPES[column.type]) for column in export.SCHEMAS[data_set]])
