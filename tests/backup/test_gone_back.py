"""A cluster whose only node went back to an older copy of its directory: its log says something else from
there on."""

import contextlib
import shutil
from pathlib import Path

import pytest

from gossipq.clock import SystemClock
from gossipq_client import connect, testing
from gossipq_node import store_tool
from gossipq_node.backup.backup import Backup, Pace
from gossipq_node.backup.folder import folder_at
from gossipq_node.inline import InlineNode


@contextlib.contextmanager
def running(root: Path):
    node = InlineNode(str(root), SystemClock(), testing.broker.SHARDS)
    try:
        with connect(node.endpoint) as mq:
            yield mq
    finally:
        node.close()


@pytest.mark.parametrize(("lost", "since"), [(40, 10), (10, 40), (20, 20)])
def test_what_was_backed_up_of_what_is_gone_is_not_taken_for_what_is_there(tmp_path, restore, lost, since):
    """The older log is shorter, longer or as long as the one that was lost."""
    root, older = tmp_path / "node", tmp_path / "older"
    root.mkdir()

    def back_up(mq):
        with folder_at(str(tmp_path / "backup"), writes=True) as folder:
            return Backup(mq.admin, folder, Pace(0), lambda done: None).run()

    def publish(mq, text, count):
        for at in range(count):
            mq.publish_and_wait("orders", f"{text} {at}")

    with running(root) as mq:
        publish(mq, "first", 5)
        back_up(mq)
    shutil.copytree(root, older)
    with running(root) as mq:
        publish(mq, "lost", lost)
        back_up(mq)
    shutil.rmtree(root)
    older.rename(root)
    (data,) = {path.parent for path in root.rglob("stores")}
    store_tool.adopt(data)
    with running(root) as mq:
        publish(mq, "since", since)
        back_up(mq)
        expected = [message.value for message in mq.consume("orders", start="first", stop_at_end=True)]
    assert len(expected) == 5 + since
    again = restore()
    found = [message.value for message in again.consume("orders", start="first", stop_at_end=True)]
    assert found == expected
