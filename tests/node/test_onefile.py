"""`make onefile`: the file runs node and clients with a bare Python."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HOME
from ports import settled_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 120


@pytest.fixture(scope="module")
def onefile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("shiv", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("shiv is not installed: pip install shiv")
    made = tmp_path_factory.mktemp("dist") / "gossipq.pyz"
    told = [
        f"ONEFILE={made}",
        f"VENV={Path(sys.executable).parent.parent}",
        "-o",
        f"{HOME}/.venv/.installed-dev",
    ]
    done = subprocess.run(["make", "-s", "onefile", *told], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def test_it_runs_a_node_and_clients(onefile: Path, tmp_path: Path) -> None:
    python = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    server = f"tcp://127.0.0.1:{settled_port()}"
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GOSSIPQ_SERVER": server}

    def run(*words: str) -> str:
        done = subprocess.run(
            [python, str(onefile), *words],
            env=bare,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert subprocess.run([python, "-c", "import msgspec"], env=bare, capture_output=True).returncode, (
        "it is bare"
    )
    assert run("--version").startswith("gossipq ")
    node = subprocess.Popen(
        [python, str(onefile), "node", "--bind", server, "--workers", "2", "--admin", ""],
        env=bare,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("ready")
        run("pub", "hello", "first message")
        assert run("sub", "hello", "--from", "first", "-n", "1").strip().endswith("first message")
        assert "hello/0/0" in run("why", "hello/0/0")
        assert "Usage: gossipq gateway" in run("gateway", "--help")
        node.terminate()
        assert node.wait(PATIENCE_S) == 0
    finally:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        node.stdout.close()  # type: ignore[union-attr]
