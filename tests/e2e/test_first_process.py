"""Only the first process of a node is killed: the others end by themselves."""

import os
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.cluster import cluster
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.mark.skipif(
    shutil.which("serf") is None, reason="the serf program is not installed: apt-get install serf"
)
def test_no_client_is_taken_while_the_node_leaves_the_gossip(tmp_path: Path) -> None:
    """It would wait until its time limit for an answer."""

    def refused() -> bool:
        with socket.socket() as probe, suppress(ConnectionRefusedError):
            probe.connect(("127.0.0.1", node.port))
            return False
        return True

    with cluster(tmp_path, count=2, serf=True) as nodes:
        node = nodes.members[1]
        until(node.agent_pids)
        assert node.process is not None
        agents = node.agent_pids()
        for pid in agents:  # else its goodbye may be over before anybody looks
            os.kill(pid, signal.SIGSTOP)
        os.kill(node.process.pid, signal.SIGKILL)
        until(refused)
        assert node.agent_pids() == agents
        for pid in agents:
            os.kill(pid, signal.SIGCONT)
