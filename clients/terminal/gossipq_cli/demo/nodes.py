"""The nodes of the demo, in a temporary directory. They are always stopped at the end."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gossipq.errors import GossipqError
from gossipq.limits import GOSSIP_PORT_STEP
from gossipq_cli import ask
from gossipq_cli.demo import stage
from gossipq_cli.failures import FAILED, Failure
from gossipq_cli.options import Choices
from gossipq_ops import clusters
from gossipq_ops.clusters import ClusterView

READY_S = 30.0
WAIT_S = 90.0  #: for moves of shards
STOP_S = 10.0
LOOK_S = 0.5


class DemoNode:
    """One node over its restarts.

    It runs under the client's guard, which stops it when the demo ends in any way.
    """

    def __init__(self, directory: Path, name: str, flags: list[str], workers: int) -> None:
        self.name, self._directory, self._flags, self._workers = name, directory, flags, workers
        self.port = stage.free_port(workers)
        self.server = f"tcp://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # the demo uses defaults, not the user's cluster.toml or environment
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIPQ_")}
        data = self._directory / self.name
        data.mkdir(exist_ok=True)  # the guard locks it when its input ends
        guard = [sys.executable, "-m", "gossipq_client.embedded", str(data)]
        line = [*guard, sys.executable, "-m", "gossipq_node", "--name", self.name, "--bind", self.server]
        line += ["--data", str(data), "--workers", str(self._workers), "--admin", "", *self._flags]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                line,
                cwd=self._directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.name}.log"

    def last_word(self) -> str:
        said = self._log.read_text("utf-8", "replace").strip().splitlines()
        return said[-1] if said else ""

    def kill(self) -> None:
        """Kill all processes with SIGKILL, as when a machine fails."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self._bury(self.process)

    def tell(self) -> None:
        """Close the guard's input, so that it drains the node."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """After `tell`: wait for the drain, then kill the whole session, including workers."""
        if self.process is None:
            return
        try:
            self.process.wait(STOP_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._bury(self.process)

    def _bury(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self.process = None


class Nodes:
    def __init__(self, directory: Path, serf: bool) -> None:
        self.directory, self.serf = directory, serf
        self.members: list[DemoNode] = []

    def add(self, workers: int, alone: bool = False) -> DemoNode:
        """Start one more node. The first founds the cluster, the others join it."""
        if alone:
            flags = ["--mode", "standalone"]
        elif not self.members:
            flags = ["--mode", "serf" if self.serf else "static"]
        elif self.serf:
            flags = ["--join", f"127.0.0.1:{self.members[0].port + GOSSIP_PORT_STEP}"]
        else:
            flags = ["--peer", self.members[0].server]
        member = DemoNode(self.directory, f"node-{len(self.members) + 1}", flags, workers)
        self.members.append(member)
        member.start()
        return member

    @property
    def servers(self) -> list[str]:
        return [member.server for member in self.members if member.process is not None]

    def view(self) -> ClusterView:
        """Return a view of the cluster. Raises GossipqError if no node answers."""
        return ask.look(Choices(servers=self.servers))

    def led(self) -> dict[str, int]:
        """Return node -> number of shards that it leads."""
        view = self.view()
        counts = Counter(view.name_of(lead.copy) for lead in view.leads.values())
        return {member.name: counts[member.name] for member in self.members}

    def leader(self, shard: int) -> tuple[DemoNode | None, list[int]]:
        """Return the leader of a shard, and all shards that it leads."""
        view = self.view()
        lead = view.leads.get(shard)
        if lead is None:
            return None, []
        led = [each.shard for each in view.leads.values() if each.copy == lead.copy]
        return next((each for each in self.members if each.name == view.name_of(lead.copy)), None), led

    def wait(self, what: str, ready: Callable[[ClusterView], bool], wait_s: float = WAIT_S) -> None:
        """Wait until `ready`. Raises Failure with the last problem."""
        deadline, why = time.monotonic() + wait_s, ""
        while time.monotonic() < deadline:
            try:
                view = self.view()
                if len(view.nodes) >= len(self.members) and ready(view):
                    return
                why = clusters.unhealthy(view)
            except GossipqError as error:
                why = error.message
            time.sleep(LOOK_S)
        raise Failure(
            "failed",
            f"{what}: not within {wait_s:g} s: {why or self.members[-1].last_word()}",
            exit_code=FAILED,
        )

    def wait_healthy(self) -> None:
        self.wait("the demo's nodes did not start", lambda view: not clusters.unhealthy(view))


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """Run `count` nodes with default options in a temporary directory, healthy."""
    directory = Path(tempfile.mkdtemp(prefix="gossipq-demo-"))
    made = Nodes(directory, shutil.which("serf") is not None)
    try:
        for _ in range(count):
            workers = stage.core_count() if count == 1 else 1
            made.add(workers, alone=count == 1)
            try:
                ask.wait_healthy(Choices(servers=made.servers[:1]), READY_S)
            except Failure as error:
                said = made.members[-1].last_word() or error.message
                raise Failure("failed", f"the demo's node did not start: {said}", exit_code=FAILED) from None
        made.wait_healthy()
        yield made
    finally:
        for member in made.members:
            member.tell()
        for member in made.members:
            member.end()
        shutil.rmtree(directory, ignore_errors=True)
