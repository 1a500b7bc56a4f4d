"""Three hosts, each with a network of its own, become a closed and encrypted cluster by four commands."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.places import Network, run
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
NAMES = ("ada", "bob", "cat")
ADDRESSES = [f"10.77.0.{11 + number}" for number in range(len(NAMES))]


class Place:
    """A host: a network of its own, a home, a shell."""

    def __init__(self, network: Network, directory: Path, name: str) -> None:
        self.name, self.home = name, directory / name
        self.home.mkdir()
        self.prefix: list[str] = []
        self.port, self.endpoint = 0, ""
        network.add(self)  # type: ignore[arg-type]  # it gives these four
        self.node: subprocess.Popen[bytes] | None = None

    def _command(self, line: str) -> list[str]:
        return [*self.prefix, sys.executable, "-m", "gossipq_cli", *shlex.split(line)[1:]]

    @property
    def _environment(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "PYTHONPATH": os.pathsep.join(sys.path)}
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("GOSSIPQ", "XDG_"))}
        return kept | own | {"GOSSIPQ_NODE__WORKERS": "1", "GOSSIPQ_CLUSTER__SHARDS": "4"}

    def types(self, line: str, codes: tuple[int, ...] = (0,)) -> str:
        """The output of a command on both streams."""
        done = subprocess.run(
            self._command(line),
            cwd=self.home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode in codes, done.stdout
        return done.stdout

    @property
    def said(self) -> str:
        return (self.home / "log").read_text()

    def starts(self, line: str) -> None:
        """A node, until it is ready."""
        with open(self.home / "log", "ab") as log:
            command = [*self._command(line), "--name", self.name]
            environment = self._environment
            self.node = subprocess.Popen(command, cwd=self.home, env=environment, stdout=log, stderr=log)
        until(lambda: "ready in" in self.said, 60, lambda: self.said)

    def ends(self) -> None:
        if self.node is not None:
            self.node.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.node.wait(20)
            self.node.kill()
            self.node.wait()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Place]]:
    try:
        network = Network()
    except OSError as error:
        pytest.skip(f"this machine allows no network of its own: {error}")
    places = list[Place]()
    try:
        places += [Place(network, tmp_path, name) for name in NAMES]
        yield places
    finally:
        for place in places:
            place.ends()
        network.close()


def test_three_hosts_by_four_commands(hosts: list[Place], tmp_path: Path) -> None:
    ada, bob, cat = hosts
    told = ada.types(f"gossipq init --nodes 3 --bind tcp://{ADDRESSES[0]}:7700").splitlines()
    joins = [line for line in told if line.startswith("gossipq node --join")]
    assert len(joins) == 2
    ada.starts("gossipq node")
    bob.starts(joins[0])
    cat.starts(joins[1])
    # those were the four. Now it is used, and attacked
    assert all(name in ada.types("gossipq status --wait-healthy 60") for name in NAMES)
    ada.types("gossipq pub orders '17 apples'")
    ada.types("gossipq user role add reader")
    ada.types("gossipq user role grant reader orders read")
    ada.types("gossipq user add bob --role reader --save bob.token")
    token = bob.home / "bob.token"
    token.write_text((ada.home / "bob.token").read_text())
    token.chmod(0o600)
    by = f"-s {ADDRESSES[1]}:7700 --credentials bob.token"
    assert "17 apples" in bob.types(f"gossipq {by} sub orders --from first --exit-at-end")
    assert "needs the permission publish" in bob.types(f"gossipq {by} pub orders x", (6,))
    # an unencrypted token stays on its host, and a node without encryption gets no answer
    (bob.home / "bare").write_text(token.read_text().splitlines()[0])
    (bob.home / "bare").chmod(0o600)
    there = f"gossipq -s {ADDRESSES[0]}:7700"
    assert "in the clear" in bob.types(f"{there} --credentials bare status", (1, 2, 6, 64, 78))
    assert "answers encrypted only" in bob.types(f"{there} --timeout 3s status", (69, 1))
    # an invitation is good once
    again = subprocess.run(
        [*cat.prefix, *cat._command(joins[0])[len(cat.prefix) :], "--data", "other", "--bind",
         f"tcp://{ADDRESSES[2]}:7900", "--name", "eve"],
        cwd=cat.home, env=cat._environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert again.returncode
    assert "the invitation of eve is not good" in again.stderr
    # binding a network without is refused, by the command that helps
    refused = bob.types(f"gossipq node --data fresh --bind tcp://{ADDRESSES[1]}:7900", (78,))
    assert "gossipq init" in refused
    # a fourth invitation; then each node starts again with its old command
    assert ada.types("gossipq cluster invite").startswith("gossipq node --join ")
    bob.ends()
    bob.starts(joins[0])
    ada.types("gossipq status --wait-healthy 60")
    run("true")
