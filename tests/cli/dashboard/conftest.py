"""A recorded cluster of three nodes, one of them killed in the end, for all tests of the dashboard."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from cli.dashboard.states import working
from gossipq_cli.dashboard.state import Board
from gossipq_cli.dashboard.still import recorded
from gossipq_ops.questions import (
    Dead,
    Find,
    Open,
    Opened,
    Page,
    Record,
    Records,
    Runs,
    Stand,
    Standing,
    Stands,
    Taken,
    Work,
)
from gossipq_ops.rows import Snapshot


def _module(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def recording() -> ModuleType:
    return _module("recording")


@pytest.fixture(scope="session")
def states() -> ModuleType:
    return _module("states")


@pytest.fixture(scope="session")
def scene() -> ModuleType:
    return _module("scene")


@pytest.fixture(scope="session")
def pictures() -> ModuleType:
    return _module("pictures")


@pytest.fixture(scope="session")
def snapshots(recording: ModuleType) -> list[Snapshot]:
    return recording.three_nodes()


VALUE = b'{"id":9917,"sum":12.5,"cur":"EUR"}'
RECORDS = Records(
    [
        Record(
            f"orders/3/{offset}",
            "orders",
            3,
            offset,
            1_795_219_200_000 + offset,
            b"cust-%d" % offset,
            VALUE,
            len(VALUE),
        )
        for offset in range(88_120, 88_150)
    ],
    30,
    90_000,
    True,
)
OPENED = Opened(
    "orders/3/88120",
    [("stored", "2026-11-21 12:04:30.911Z"), ("key", "cust-42"), ("header source", "shop")],
    VALUE,
    len(VALUE),
    [
        Stands(
            "billing",
            "dead",
            "it failed 10 times; the last error was: no such customer",
            "gossipq dlq replay orders",
            1,
            10,
            10,
        ),
        Stands("shipping", "acked", "", "", 1_795_219_200_000, 1, 0),
    ],
    [
        Taken(1_000, "published"),
        Taken(1_009, "failed", "billing", "b-1", 1, "no such customer"),
        Taken(99_000, "dead", "billing"),
    ],
    ["billing: lease 30 s (cluster), dead after 10 failures (cluster)"],
)
STANDING = Standing(
    [
        (0, "moving", "3 consumers take records", ""),
        (1, "no consumer", "the group has no consumers", "gossipq sub orders -g billing"),
    ],
    [Dead("failures", "no such customer", 3, 1_795_219_200_000, "orders/0/17")],
)


@pytest.fixture
def board(snapshots: list[Snapshot]) -> Board:
    """All snapshots, and answers of a node."""
    board = recorded(snapshots)
    board.recorded = False
    board.keep(Page("orders", 3, 0, 20), RECORDS)
    board.keep(Find("orders", "EUR"), RECORDS._replace(looked=4_000))
    board.keep(Open("orders/3/88120"), OPENED)
    board.keep(Stand("orders", "billing"), STANDING)
    work, ticks = working(board.history.now.time_ms, "orders", "billing", "nightly", "page 4 of 10")
    board.keep(Work("orders", "billing"), work)
    board.keep(Runs("orders", "billing", "nightly"), ticks)
    return board
