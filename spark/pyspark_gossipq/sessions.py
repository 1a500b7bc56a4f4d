"""A quiet Spark session on this machine only. Under spark-submit the user's settings win."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import gossipq
from pyspark_gossipq.source import DefaultSource

LOOPBACK = "127.0.0.1"
#: defaults, unless set by spark-submit, spark-defaults.conf or the caller
SETTINGS = {
    "spark.ui.enabled": "false",  # it would listen on all interfaces
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    # otherwise a frame that is used twice would give wrong rows
    "spark.sql.python.filterPushdown.enabled": "false",
    # On a local disk the default starts twenty programs (readlink, chmod) for two small
    # files of a batch. This is a third of the time of a short batch. This class, Spark's
    # own fallback, starts four.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
}


def session(name: str = "gossipq", master: str = "local[*]", **settings: str) -> SparkSession:
    """Return the running session, or a new one with these settings.

    Pass settings as a dict with **, for example {"spark.sql.shuffle.partitions": "2"}. Under
    spark-submit, master and addresses are those of spark-submit; otherwise it listens on loopback.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return _knowing(running)
    # otherwise workers run the `python3` in PATH
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
    """Register the source. Spark finds it in an installed package, but not in a source tree."""
    spark.dataSource.register(DefaultSource)
    return spark


def _let_workers_import() -> None:
    """Let workers of a local session import these packages from a source tree."""
    import gossipq_client

    there = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    roots = {
        str(Path(file).resolve().parents[1]) for file in (gossipq.__file__, gossipq_client.__file__, __file__)
    }
    os.environ["PYTHONPATH"] = os.pathsep.join([*sorted(roots - set(there)), *there])
