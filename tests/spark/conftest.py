"""One Spark session for all tests here. Without Java or pyspark they are skipped, and say what is missing."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import RunningNode
from gossipq_client import Client, connect

if TYPE_CHECKING:
    from spark.exports import Exporter


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a JVM are slow. On a busy machine Spark may take minutes, and an interrupted test
    leaves no session for later ones.
    """
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two tasks at a time, each of which may fail twice."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")
    if shutil.which("java") is None:
        pytest.skip("no Java found: install OpenJDK 17 or later")
    from pyspark_gossipq import session
    from pyspark_gossipq.sessions import SETTINGS

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    made = session(
        "tests",
        "local[2,3]",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": warehouse,
            "spark.driver.memory": "1g",
            "spark.sql.adaptive.enabled": "false",  # these three: less to think about for jobs of a few rows
            "spark.sql.codegen.wholeStage": "false",
            "spark.driver.extraJavaOptions": (
                f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1"
            ),
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        },
    )
    yield made
    made.stop()


@pytest.fixture
def exporter(tmp_path: Path) -> "Exporter":
    """An export folder that the test fills by hand."""
    from spark.exports import Exporter

    return Exporter(tmp_path / "export")


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


@pytest.fixture
def topic(mq: Client) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    mq.create_topic(name, partitions=2)
    return name
