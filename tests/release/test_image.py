"""The container image of nodes/gossipq_node/deploy/Dockerfile, and three of it by compose.yaml."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import HOME

DEPLOY = HOME / "nodes" / "gossipq_node" / "deploy"
IMAGE = os.environ.get("GOSSIPQ_IMAGE", "")
BYTES_MAX = 150_000_000
PATIENCE_S = 60.0
NODES = ("node-1", "node-2", "node-3")
#: of a host that allows fewer open files than compose.yaml asks for
LIMITS = "services:\n" + "".join(f"  {node}: {{ulimits: {{nofile: 16384, nproc: 8192}}}}\n" for node in NODES)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not IMAGE, reason="make image-test runs it"),
]


def podman(*words: str, stdin: str = "") -> str:
    """Run podman, and return what it printed to stdout. A command that fails shows all of its output."""
    done = subprocess.run(["podman", *words], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def container(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a running node with a volume of its own."""
    name = f"gossipq-{os.getpid()}"
    start(name)
    yield name
    podman("rm", "--force", name)
    podman("volume", "rm", "--force", name)


def start(name: str) -> None:
    limits = ("--ulimit", "nofile=16384:16384", "--ulimit", "nproc=8192:8192")
    podman("run", "--detach", "--name", name, *limits, "--volume", f"{name}:/var/lib/gossipq", IMAGE)
    podman("exec", name, "gossipq", "status", "--wait-healthy", "60s")


def test_the_image_is_small_and_runs_as_a_user_without_rights() -> None:
    (told,) = json.loads(podman("image", "inspect", IMAGE))
    assert told["Size"] < BYTES_MAX
    assert told["Config"]["User"] == "7700"
    assert "/var/lib/gossipq" in told["Config"]["Volumes"]


def test_a_container_is_healthy_drains_and_keeps_its_records(container: str) -> None:
    podman("exec", container, "gossipq", "pub", "orders", "17 apples")
    podman("healthcheck", "run", container)
    begin_s = time.monotonic()
    podman("stop", "--time", "30", container)
    assert podman("inspect", container, "--format", "{{.State.ExitCode}}") == "0\n"
    assert time.monotonic() - begin_s < 30, "it ended by SIGTERM, not by SIGKILL"
    podman("rm", container)
    start(container)
    assert podman("exec", container, "gossipq", "sub", "orders", "--exit-at-end") == "17 apples\n"


class Compose:
    """The three nodes of compose.yaml."""

    def __init__(self, directory: Path) -> None:
        self._limits = directory / "limits.yaml"
        self._limits.write_text(LIMITS)
        self._project = f"gossipq-{os.getpid()}"

    def run(self, *words: str) -> None:
        files = ("-f", str(DEPLOY / "compose.yaml"), "-f", str(self._limits))
        done = subprocess.run(
            ["podman-compose", "-p", self._project, *files, *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def container(self, node: str) -> str:
        return f"{self._project}_{node}_1"

    def gossipq(self, node: str, *words: str, stdin: str = "") -> str:
        return podman("exec", "--interactive", self.container(node), "gossipq", *words, stdin=stdin)

    def wait_healthy(self, node: str) -> None:
        self.gossipq(node, "status", "--wait-healthy", f"{PATIENCE_S}s", "--nodes", str(len(NODES)))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Compose]:
    compose = Compose(tmp_path)
    try:
        compose.run("up", "--no-build", "--detach")
        compose.wait_healthy("node-1")
        yield compose
    finally:
        compose.run("down", "--volumes")


def test_three_nodes_survive_a_kill_and_are_replaced_in_turn(cluster: Compose) -> None:
    """Each container is made anew, as for another image. Records are stored all the while."""
    number = 0

    def store(node: str) -> None:
        nonlocal number
        lines = "".join(f"{at}\n" for at in range(number, number + 1_000))
        cluster.gossipq(node, "pub", "orders", "--lines", "--timeout", f"{PATIENCE_S}s", stdin=lines)
        number += 1_000

    store("node-1")
    podman("kill", "--signal", "KILL", cluster.container("node-3"))
    store("node-1")
    podman("start", cluster.container("node-3"))
    cluster.wait_healthy("node-1")
    for at, node in enumerate(NODES):
        podman("stop", "--time", "30", cluster.container(node))
        podman("rm", cluster.container(node))
        store(NODES[at - 1])
        cluster.run("up", "--no-build", "--no-recreate", "--detach", node)
        cluster.wait_healthy(NODES[at - 1])
    read = cluster.gossipq("node-2", "sub", "orders", "--exit-at-end").split()
    assert sorted(map(int, read)) == list(range(number))
