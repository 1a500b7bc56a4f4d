"""Shared by tests over several real nodes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """host(name, address) is a node that is not started yet; all are ended with the test."""
    hosts: list[Host] = []

    def make(name: str, address: str = "127.0.0.1") -> Host:
        hosts.append(Host(tmp_path, name, address))
        return hosts[-1]

    yield make
    for each in hosts:
        each.kill()
