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
    """It would wait until its time limit for an answer. The goodbye takes 4 s at most; on a busy machine
    it may be over before this test looks at the port."""
    assert any(refuses_before_it_has_left(tmp_path / str(number)) for number in range(4))


def refuses_before_it_has_left(place: Path) -> bool:
    def refused() -> bool:
        with socket.socket() as probe, suppress(ConnectionRefusedError):
            probe.connect(("127.0.0.1", node.port))
            return False
        return True

    place.mkdir()
    with cluster(place, count=2, serf=True) as nodes:
        node = nodes.members[1]
        until(node.agent_pids)
        assert node.process is not None
        agents = node.agent_pids()
        for pid in agents:  # else its goodbye may be over before anybody looks
            os.kill(pid, signal.SIGSTOP)
        os.kill(node.process.pid, signal.SIGKILL)
        until(refused)
        has_left = node.agent_pids() != agents
        for pid in agents:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return not has_left
