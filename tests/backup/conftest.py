"""A broker to back up, and brokers over what was restored."""

import contextlib
from pathlib import Path

import pytest

from backup.life import Life
from gossipq.clock import SystemClock
from gossipq_client import connect, testing
from gossipq_node.backup.backup import Backup, Pace
from gossipq_node.backup.folder import folder_at
from gossipq_node.backup.restore import Restore
from gossipq_node.inline import InlineNode

SHARDS = testing.broker.SHARDS


@pytest.fixture
def broker():
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker):
    with broker.connect() as mq:
        yield mq


@pytest.fixture
def life(mq):
    return Life(mq, 1)


@pytest.fixture
def back_up(mq, tmp_path):
    """back_up() makes a point in the test's folder, and returns what the run did."""

    def run(place=None, keep_s=None):
        with folder_at(place or str(tmp_path / "backup"), writes=True) as folder:
            return Backup(mq.admin.raw, folder, Pace(0), lambda done: None).run(keep_s)

    return run


@pytest.fixture
def restore(tmp_path):
    """restore(as_of_ms=, topics=) makes a directory of a point; a node starts there, and this is its
    client."""
    with contextlib.ExitStack() as stack:
        count = 0

        def run(as_of_ms=None, topics=(), place=None):
            nonlocal count
            count += 1
            root = Path(tmp_path, f"restored-{count}")
            root.mkdir()
            with folder_at(place or str(tmp_path / "backup"), writes=False) as folder:
                Restore(folder, root / "data", 1).run(as_of_ms, topics)
            node = InlineNode(str(root), SystemClock(), SHARDS)
            stack.callback(node.close)
            return stack.enter_context(connect(node.endpoint))

        yield run
