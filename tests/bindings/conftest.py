"""A node for all tests of a module, and a client of it."""

from collections.abc import Iterator

import pytest

from conftest import RunningNode
from gossipq_client import Client, connect


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(
        tmp_path_factory.mktemp("bindings") / "data", "--mode", "standalone", "--workers", "2"
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def mq(node: RunningNode) -> Iterator[Client]:
    with connect(node.endpoint) as client:
        yield client
