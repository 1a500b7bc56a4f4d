"""Foreign sessions: a plain one in this environment, and spark-submit on a
standalone cluster of two workers.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")

from conftest import HOME, RunningNode
from gossipq_client import connect
from ports import settled_port
from spark.exports import Exporter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]
PATIENCE_S = 360
JOB = """
import os, sys
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("gossipq").option("minPartitions", "6").load(sys.argv[1])
print("rows", rows.count(), flush=True)
if len(sys.argv) > 2:
    here = F.udf(lambda value: os.environ.get("SPARK_EXECUTOR_DIRS", ""), "string", useArrow=False)
    print("executors", rows.select(here("value").alias("at")).distinct().count(), flush=True)
    values = rows.select(F.col("value"), F.col("key"))
    values.write.format("gossipq").mode("append").options(servers=sys.argv[2], topic="copies").save()
"""


@pytest.fixture
def environment() -> dict[str, str]:
    """As after `make dev`, with nothing of this test run. Skips where gossipq is not installed."""
    if shutil.which("java") is None:
        pytest.skip("no Java found: install OpenJDK 17 or later")
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))
    }
    plain |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    plain |= {"SPARK_HOME": str(Path(pyspark.__file__).parent), "PYTHONWARNINGS": "ignore"}
    installed = subprocess.run(
        [sys.executable, "-c", "import pyspark_gossipq"], env=plain, cwd="/", capture_output=True
    )
    if installed.returncode:
        pytest.skip("gossipq is not installed in this environment: make dev")
    return plain


@pytest.fixture
def filled(exporter: Exporter) -> Exporter:
    for partition in range(2):
        exporter.messages("orders", 0, 3_000, partition=partition, key=lambda at: b"k%d" % (at % 7))
    exporter.publish()
    return exporter


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def test_a_plain_session_finds_the_source(
    environment: dict[str, str], filled: Exporter, job: Path, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, str(job), str(filled)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "rows 6000" in ran.stdout, ran.stderr[-3_000:]


class Standalone:
    """A master and two workers of Spark, all on loopback."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.bin = Path(environment["SPARK_HOME"]) / "bin"
        self.master = f"spark://127.0.0.1:{(port := settled_port())}"
        common = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start("master.Master", *common, "--port", str(port))
        for number in range(2):
            folder = str(self.folder / f"worker-{number}")
            self._start(
                "worker.Worker",
                *common,
                "--cores",
                "1",
                "--memory",
                "1500m",
                "--work-dir",
                folder,
                self.master,
            )

    def _start(self, name: str, *flags: str) -> None:
        command = [str(self.bin / "spark-class"), f"org.apache.spark.deploy.{name}", *flags]
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.folder)
            )

    def submit(self, *argv: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.host": "127.0.0.1",
        }
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        settings |= {"spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.cores.max": "2"}
        flags = [flag for name, value in settings.items() for flag in ("--conf", f"{name}={value}")]
        command = [str(self.bin / "spark-submit"), "--master", self.master, *flags, *argv]
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S
        )

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(30)


@pytest.fixture
def standalone(environment: dict[str, str], tmp_path: Path) -> Iterator[Standalone]:
    made = Standalone(environment, tmp_path)
    yield made
    made.stop()


@pytest.mark.e2e
def test_spark_submit_on_a_standalone_cluster(
    standalone: Standalone, filled: Exporter, job: Path, shared_node: RunningNode
) -> None:
    with connect(shared_node.endpoint) as mq:
        mq.create_topic("copies", partitions=3)
        ran = standalone.submit(str(job), str(filled), shared_node.endpoint)
        assert ran.returncode == 0, ran.stderr[-3_000:]
        assert {"rows 6000", "executors 2"} <= set(ran.stdout.splitlines())
        found = Counter(msg.value for msg in mq.read("copies"))
    assert found == Counter({b"value %d" % at: 2 for at in range(3_000)})
    ran = standalone.submit(str(HOME / "spark" / "jobs" / "growth.py"), str(filled), "-o", "json")
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert json.loads(ran.stdout)[0]["records"] == 6_000
