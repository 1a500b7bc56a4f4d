"""A Spark session that keeps to this machine and is quiet; under spark-submit, what the user set there
holds."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import gossipq
from pyspark_gossipq.source import DefaultSource

LOOPBACK = "127.0.0.1"
#: what holds unless it is set by spark-submit, spark-defaults.conf or the caller
SETTINGS = {
    "spark.ui.enabled": "false",  # it would listen on all interfaces
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.python.filterPushdown.enabled": "false",  # a frame that is used twice would give wrong rows
    # on a local disk the default starts twenty programs a batch (readlink, chmod) for two small files, which
    # is a third of the time of a short one; this class, which Spark falls back to by itself, starts four
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
}


def session(name: str = "gossipq", master: str = "local[*]", **settings: str) -> SparkSession:
    """The running session, or a new one with these settings ("spark.sql.shuffle.partitions"="2" as a dict
    with **).

    Under spark-submit the master and the addresses are those of spark-submit; otherwise everything listens on
    loopback only.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return _knowing(running)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers take `python3` of the path otherwise
    builder = SparkSession.builder.appName(name)
    if "SPARK_SUBMIT" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        _let_workers_import()
        builder = (
            builder.master(master)
            .config("spark.driver.host", LOOPBACK)
            .config("spark.driver.bindAddress", LOOPBACK)
        )
        builder = builder.config("spark.sql.warehouse.dir", os.path.join(os.getcwd(), "spark-warehouse"))
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return _knowing(builder.getOrCreate())


def _knowing(spark: SparkSession) -> SparkSession:
    """Spark finds the source by itself where it can list the package; of a source tree it cannot."""
    spark.dataSource.register(DefaultSource)
    return spark


def _let_workers_import() -> None:
    """Workers of a local session find these packages also when they run from a source tree."""
    import gossipq_client

    there = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    roots = {
        str(Path(file).resolve().parents[1]) for file in (gossipq.__file__, gossipq_client.__file__, __file__)
    }
    os.environ["PYTHONPATH"] = os.pathsep.join([*sorted(roots - set(there)), *there])
