"""gossipq in Spark: read exports and live clusters, stream them, publish back.

    from pyspark_gossipq import read_export, session

    spark = session()
    read_export(spark, "export", topics="orders").groupBy("topic").count().show()
    spark.readStream.format("gossipq").option("servers", "tcp://127.0.0.1:7700").option("topics",
    "orders").load()

spark/README.md has the rest. Needs the extra: pip install "gossipq[spark]", and Java 17 or later.
"""

from pyspark_gossipq.failures import plainly
from pyspark_gossipq.pipelines.imports import read_table
from pyspark_gossipq.reader import read_export
from pyspark_gossipq.sessions import session
from pyspark_gossipq.source import DefaultSource

__all__ = ["DefaultSource", "plainly", "read_export", "read_table", "session"]
