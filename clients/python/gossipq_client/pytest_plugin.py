"""Fixtures for tests of applications: `mq`, a client of a broker of its own, and `gossipq_broker`, that
broker."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gossipq_client.testing import Broker, Client


@pytest.fixture
def gossipq_broker(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Broker]":
    """An empty broker for this test; `connect()` without an address finds it."""
    from gossipq_client.testing import Broker

    with Broker() as broker:
        monkeypatch.setenv("GOSSIPQ_SERVER", broker.endpoint)
        yield broker


@pytest.fixture
def mq(gossipq_broker: "Broker") -> "Iterator[Client]":
    """A client of an empty broker; `mq.advance("1h")` moves its clock."""
    with gossipq_broker.connect() as client:
        yield client
