"""Exports in an object store, read by Spark: its workers have what the environment of their session said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")
pytest.importorskip("obstore", reason="obstore is not installed: pip install 'gossipq[lake]'")
pytest.importorskip("moto", reason="moto is not installed")

from conftest import HOME
from export.test_objects import place, server
from gossipq_client import testing
from gossipq_node.export.exporter import Exporter
from gossipq_node.export.objects import folder_at

__all__ = ["place", "server"]  # fixtures
PATIENCE_S = 240
JOB = """
import sys
from pyspark_gossipq import read_export, read_table, session
from pyspark_gossipq.pipelines import imports

spark, place, table = session("objects", "local[1]"), sys.argv[1], sys.argv[2]
print("format", spark.read.format("gossipq").load(place).count())
print("read_export", read_export(spark, place, topics="t", startingOffsets={"t": {0: 5}}).count())
imports.import_export(spark, place, table)
print("table", read_table(spark, table).count())
"""


@pytest.mark.slow
def test_spark_reads_and_imports_from_an_object_store(place: str, tmp_path: Path) -> None:
    with testing.Broker() as broker, broker.connect() as mq, folder_at(place) as folder:
        for _ in range(2):
            mq.publish_many("t", [b"x"] * 10, timeout=10)
            Exporter(mq, folder).run()
    roots = ("", "spark", "nodes", "clients/python", "clients/terminal")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in roots)}
    command = [sys.executable, "-c", JOB, place, str(tmp_path / "table")]
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.stdout.splitlines() == ["format 20", "read_export 15", "table 20"], ran.stderr[-3_000:]
