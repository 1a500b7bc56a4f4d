"""What tests over several real nodes share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[str], Host]]:
    """host(name) is a node that is not started yet; all are ended with the test."""
    hosts: list[Host] = []

    def make(name: str) -> Host:
        hosts.append(Host(tmp_path, name))
        return hosts[-1]

    yield make
    for each in hosts:
        each.kill()
