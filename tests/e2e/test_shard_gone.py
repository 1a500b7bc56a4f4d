"""A client whose shard is gone hears why within its timeout: nothing waits for ever without a word."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import HOME, ROOTS
from e2e.harness import Node, stopped
from gossipq.errors import GossipqError
from gossipq_client import connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 45.0  #: far more than the two seconds that each command is given
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS)}


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[Node, str]]:
    """A node of which one worker does not turn any more, and a topic that it leads."""
    node = Node(tmp_path / "node", "--workers", "2").start()
    with connect(node.endpoint) as mq:
        names = (f"t{number}" for number in range(100))
        name = next(each for each in names if mq.create_topic(each).shards[0] % 2)
        mq.publish(name, b"before").result(PATIENCE_S)
        (pid,) = {worker.pid for worker in mq.admin.status().workers if worker.worker == 1}
    with stopped(pid):
        yield node, name
    os.kill(pid, signal.SIGCONT)
    node.stop()


def run(node: Node, *line: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gossipq_cli", "-s", node.endpoint, "--timeout", "2s", *line]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT
    )


@pytest.mark.slow
def test_commands_end_and_say_why(hung: tuple[Node, str]) -> None:
    node, name = hung
    for line in (
        ("pub", name, "x"),
        ("bench", "rtt", "--topic", name, "--records", "10"),
        ("bench", "pub", "--topic", name, "--records", "1000"),
        ("topic", "show", name),
        ("group", "ls", name),
    ):
        ran = run(node, *line)
        assert ran.returncode != 0, line
        assert ran.stderr.strip(), line
        assert "Traceback" not in ran.stderr, line
    status = run(node, "status")
    assert (status.returncode, "Traceback" in status.stderr) == (1, False)
    assert "worker" in status.stdout


def test_a_client_is_told_within_its_timeout(hung: tuple[Node, str]) -> None:
    node, name = hung
    with connect(node.endpoint, timeout=2) as mq:
        with pytest.raises(GossipqError):
            mq.publish(name, b"x").result(2)
        with pytest.raises(GossipqError):
            mq.admin.stats([name])
        mq.close(flush=False)
