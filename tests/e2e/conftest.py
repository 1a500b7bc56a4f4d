"""Fixtures of the tests with faults: nodes whose log is kept, raw clients."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from e2e.harness import Node, Raw


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """make(*flags, data=...) is a node of two workers that is not started yet; all are ended with the
    test."""
    made: list[Node] = []

    def make(*flags: str, data: Path | None = None, workers: int = 2) -> Node:
        made.append(Node(data or tmp_path / f"node-{len(made)}", "--workers", str(workers), *flags))
        return made[-1]

    with ExitStack() as ends:
        yield make
        for node in made:
            ends.push(node)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One running node of two workers for all tests of a module."""
    with Node(tmp_path_factory.mktemp("served") / "node", "--workers", "2") as node:
        yield node


@pytest.fixture
def raw() -> Iterator[Callable[..., Raw]]:
    """raw(endpoint) is a raw client."""
    made: list[Raw] = []
    with zmq.Context() as context:

        def connect(endpoint: str, receive_queue: int = 1_000) -> Raw:
            made.append(Raw(context, endpoint, receive_queue))
            return made[-1]

        yield connect
        for each in made:
            each.close()
