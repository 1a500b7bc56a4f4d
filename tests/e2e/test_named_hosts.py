"""A silent name server delays only connections to the node whose name it would have to tell.

A look-up takes 20 s in these tests, so a node or client that waits for one stands still for 20 s."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
APART = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "--net"]
SCRIPT = Path(__file__).with_name("named_hosts.py")
GAP_S_MAX = 4.0  #: a takeover on a loaded machine; a look-up takes 20 s


def may_live_apart() -> bool:
    try:
        return subprocess.run([*APART, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_live_apart(), reason="no network and mounts of its own for a process here")
@pytest.mark.parametrize("how", ["insecure", "secret"])
def test_a_dead_name_stops_nobody_else(tmp_path: Path, how: str) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GOSSIPQ")}
    done = subprocess.run(
        [*APART, sys.executable, str(SCRIPT), str(tmp_path), how],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    print(done.stdout)
    found = json.loads(done.stdout)
    assert found["errors"] == []
    gaps = {name: found[name] for name in ("gap_s", "stranger_s", "back_gap_s")}
    assert max(gaps.values()) < GAP_S_MAX, gaps
    assert found["status_s"] < 2 * GAP_S_MAX
