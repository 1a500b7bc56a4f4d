"""A broker for all tests of a module, a client of the node that all tests share, and an address where none
is."""

import uuid
from collections.abc import Iterator

import pytest

from conftest import RunningNode
from gossipq_client import Client, connect, testing
from ports import settled_port


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def nobody() -> str:
    return f"tcp://127.0.0.1:{settled_port()}"


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"
