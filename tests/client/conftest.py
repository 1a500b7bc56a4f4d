"""A broker for all tests of a module, and an address where none is."""

from collections.abc import Iterator

import pytest

from gossipq_client import testing
from ports import settled_port


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def nobody() -> str:
    return f"tcp://127.0.0.1:{settled_port()}"
