"""A cluster of one node that goes back to an older copy of its directory: its log says something else from
there on."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from gossipq.clock import SystemClock
from gossipq_client import Client, connect, testing
from gossipq_node import store_tool
from gossipq_node.inline import InlineNode


@contextlib.contextmanager
def running(root: Path) -> Iterator[Client]:
    node = InlineNode(str(root), SystemClock(), testing.broker.SHARDS)
    try:
        with connect(node.endpoint) as mq:
            yield mq
    finally:
        node.close()


def gone_back(root: Path, copy: Callable[[Client], None], lost: int) -> None:
    """The node of an empty directory stores records of which it loses the last `lost`. copy: called when each
    of the two parts is stored."""
    root.mkdir()
    older = root.with_name("older")
    with running(root) as mq:
        publish(mq, "first", 5)
        copy(mq)
    shutil.copytree(root, older)
    with running(root) as mq:
        publish(mq, "lost", lost)
        copy(mq)
    shutil.rmtree(root)
    older.rename(root)
    (data,) = {path.parent for path in root.rglob("stores")}
    store_tool.adopt(data)


def publish(mq: Client, text: str, count: int) -> None:
    for at in range(count):
        mq.publish("orders", f"{text} {at}")
