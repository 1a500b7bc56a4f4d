"""The unit nodes/gossipq_node/deploy/gossipq.service under a systemd in a container: `make systemd-test`."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import HOME

UNIT = HOME / "nodes" / "gossipq_node" / "deploy" / "gossipq.service"
IMAGE = os.environ.get("GOSSIPQ_SYSTEMD", "")
PATIENCE_S = 90.0
LIMITS = ("--ulimit", "nofile=16384:16384", "--ulimit", "nproc=8192:8192")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not IMAGE, reason="make systemd-test runs it"),
]


def podman(*words: str | Path, fails: bool = False) -> str:
    """Run podman, and return what it printed. A command that fails shows its output, unless it may fail."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True)
    assert fails or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Host:
    """A container in which systemd is the first process and the wheel is installed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, line: str, fails: bool = False) -> str:
        return podman("exec", self.name, "sh", "-c", line, fails=fails)

    def install(self, wheel: Path) -> None:
        podman("cp", wheel, f"{self.name}:/root/")
        self.run(f"/opt/gossipq/bin/pip install --quiet --force-reinstall '/root/{wheel.name}[server]'")

    def show(self, key: str) -> str:
        return self.run(f"systemctl show gossipq --property {key} --value").strip()

    def journal(self) -> str:
        return self.run("journalctl --unit gossipq --output cat --no-pager")

    def wait(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, self.run("systemctl status gossipq", fails=True) + self.journal()
            time.sleep(0.5)

    def is_active(self) -> bool:
        return self.show("ActiveState") == "active"

    def records(self) -> list[str]:
        return self.run("gossipq sub orders --exit-at-end --timeout 60s").split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = tmp_path_factory.mktemp("systemd") / "gossipq"
    subprocess.run(["git", "clone", "--quiet", HOME, clone], check=True)
    subprocess.run([".ci/dist"], cwd=clone, check=True, capture_output=True)
    (built,) = (clone / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def host(wheel: Path) -> Iterator[Host]:
    name = f"gossipq-systemd-{os.getpid()}"
    podman("run", "--detach", "--name", name, "--privileged", "--systemd=always", *LIMITS, IMAGE)
    try:
        host = Host(name)
        host.run("mkdir -p /etc/ssl/certs")
        if os.path.exists(CERTIFICATES):
            podman("cp", CERTIFICATES, f"{name}:{CERTIFICATES}")
        host.run("python3 -m venv /opt/gossipq; ln -s /opt/gossipq/bin/gossipq /usr/local/bin/gossipq")
        host.install(wheel)
        podman("cp", UNIT, f"{name}:/etc/systemd/system/")
        host.run("systemctl daemon-reload; systemctl enable --now gossipq")
        yield host
    finally:
        podman("rm", "--force", name)


def test_it_starts_and_stores(host: Host) -> None:
    assert host.is_active(), "start waits until the node takes clients"
    assert host.show("StatusText").endswith("at work")
    assert "ready in" in host.journal()
    host.run("gossipq pub orders one")
    assert host.records() == ["one"]


def test_a_node_that_is_killed_starts_again(host: Host) -> None:
    before = host.show("MainPID")
    host.run(f"kill -KILL {before}")
    host.wait(lambda: host.is_active() and host.show("MainPID") != before)
    assert host.records() == ["one"]


def test_a_loop_that_hangs_is_ended_by_the_watchdog(host: Host) -> None:
    before = host.show("MainPID")
    host.run(f"kill -STOP {before}")
    host.wait(lambda: host.is_active() and host.show("MainPID") != before)
    assert "watchdog" in host.journal().lower()
    assert host.records() == ["one"]


def test_an_upgrade_and_a_restart_keep_the_records(host: Host, wheel: Path) -> None:
    host.install(wheel)
    before = host.show("MainPID")
    host.run("systemctl restart gossipq")
    assert host.show("MainPID") != before
    assert "drained" in host.journal()
    assert host.records() == ["one"]


def test_a_wrong_configuration_is_not_tried_again(host: Host) -> None:
    host.run("mkdir -p /etc/gossipq; echo 'GOSSIPQ_NODE__WORKERS=none' >/etc/default/gossipq")
    host.run("systemctl restart gossipq", fails=True)
    assert (host.show("ActiveState"), host.show("ExecMainStatus")) == ("failed", "78")
    host.run("rm /etc/default/gossipq; systemctl reset-failed gossipq; systemctl start gossipq")
    assert host.records() == ["one"]


def test_it_is_stopped_and_removed(host: Host) -> None:
    host.run(
        "systemctl disable --now gossipq; rm /etc/systemd/system/gossipq.service; systemctl daemon-reload"
    )
    assert "gossipq" not in host.run("ps -e -o args 2>/dev/null || cat /proc/[0-9]*/comm")
    log = [json.loads(line) for line in host.journal().splitlines() if line.startswith("{")]
    assert log[-1]["event"] == "drained"
