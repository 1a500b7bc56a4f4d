"""The power of real nodes is cut below their processes: what they did not sync is lost or torn.

GOSSIPQ_CUTS=500 makes a long run of it (`make power-cuts CUTS=500`), GOSSIPQ_SEED repeats the choices of one.
Each run ends with the account of the load and with all checkers of its history."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from random import Random, SystemRandom

import pytest

from chaos.results import committed
from chaos.runs import COMMIT
from conftest import HOME
from e2e.cluster import Cluster, Member, cluster
from e2e.harness import Node
from e2e.load import TOPIC, Account, Load, account, drain, read
from e2e.replicas import records
from gossipq_client import connect
from history import workloads
from history.judge import failures
from history.record import Recorder
from history.record import load as load_history
from waiting import until

CUTS = int(os.environ.get("GOSSIPQ_CUTS", "2"))
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or SystemRandom().randrange(1, 10**6)
THREE = 3
CUTS_OF_THREE = max(1, CUTS // 5)  #: cuts of all three nodes at once
PAUSE_S = 0.005  #: between two batches of the publisher
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 60 * CUTS),
    pytest.mark.skipif("GOSSIPQ_CUTS" not in os.environ, reason="make power-cuts runs it"),
    pytest.mark.skipif(find_spec("mfusepy") is None, reason="mfusepy is not installed"),
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse cannot be opened"),
]


RESULTS = Path(__file__).with_name("cuts.jsonl")


def note(nodes: int, cuts: int, found: Account, anomalies: list[str]) -> None:
    """Prints a run. It is stored in cuts.jsonl only for a committed tree, which can be checked out again."""
    row = {"commit": COMMIT, "seed": SEED, "nodes": nodes, "cuts": cuts, "account": found._asdict()}
    row |= {"anomalies": anomalies[:10], "time": int(time.time())}
    print(json.dumps(row))
    if committed(row):
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")


class LazyDisk:
    """The disk of one node, whose power can be cut."""

    def __init__(self, place: Path, name: str, *flags: str) -> None:
        self.mount = place / name
        self._disk, self._live = place / f"{name}-disk", place / f"{name}-live"
        self._flags, self._program = flags, None
        for path in (self.mount, self._disk):
            path.mkdir()

    _program: "subprocess.Popen[bytes] | None"

    def begin(self, seed: str) -> None:
        """Mount what is on the disk."""
        line = [sys.executable, "-m", "power.lazy", *map(str, (self._disk, self._live, self.mount)), seed]
        self._program = subprocess.Popen(
            [*line, *self._flags], env={**os.environ, "PYTHONPATH": str(HOME / "tests")}
        )
        until(lambda: os.path.ismount(self.mount), what="the file system is not mounted")

    def cut(self) -> None:
        """Lose what was not synced. The node must have been killed."""
        (self.mount / ".cut").open().close()
        self.end()

    def end(self) -> None:
        if self._program is None:
            return
        until(lambda: self._unmounted(), what="the file system is still in use")
        self._program.wait(60)
        self._program = None

    def _unmounted(self) -> bool:
        done = subprocess.run(["fusermount3", "-u", str(self.mount)], capture_output=True, check=False)
        return done.returncode == 0 or not os.path.ismount(self.mount)


@contextmanager
def lazy_node(place: Path, *flags: str) -> Iterator[tuple[Node, LazyDisk]]:
    """A running node on such a disk."""
    disk = LazyDisk(place, "lazy", *flags)
    disk.begin(f"{SEED} first")
    with ExitStack() as held:
        held.callback(disk.end)
        node = Node(disk.mount / "node", "--workers", "2")
        node.log_path = place / "node.log"
        yield held.enter_context(node), disk


def test_one_node_keeps_what_it_confirmed(tmp_path: Path) -> None:
    print(f"\nseed {SEED}")
    random, path = Random(f"{SEED} one"), tmp_path / "history.jsonl"
    with lazy_node(tmp_path) as (node, disk), Recorder(path) as recorder:
        load = Load([node.endpoint], SEED, publishers=1, probes=0, pause_s=PAUSE_S, recorder=recorder)
        load.prepare()
        workloads.add_to(load, SEED)
        with load.running():
            load.wait_going()
            for number in range(CUTS):
                time.sleep(random.random() * 0.3)
                recorder.fault("power-cut", begins=True)
                node.kill()
                disk.cut()
                disk.begin(f"{SEED} {number}")
                node.start()
                recorder.fault("power-cut", begins=False)
                if random.random() < 0.8 or number == CUTS - 1:
                    load.wait_going()
                load.check()
        drain(load.servers, load.history)
        workloads.finish(load)
        found = account(load.history, read(load.servers, load.history))
        assert node.stop() == 0
    anomalies = failures(load_history(path))
    note(1, CUTS, found, anomalies)
    assert found.clean, found
    assert anomalies == []
    assert "Traceback" not in node.log()


def test_three_nodes_keep_what_they_confirmed(tmp_path: Path) -> None:
    """All of them lose their power at once."""
    print(f"\nseed {SEED}")
    random, path = Random(f"{SEED} three"), tmp_path / "history.jsonl"
    disks: list[LazyDisk] = []

    def dress(member: Member) -> None:
        disk = LazyDisk(tmp_path, f"lazy-{len(disks)}")
        disk.begin(f"{SEED} {len(disks)} first")
        disks.append(disk)
        member.environment["GOSSIPQ_CLUSTER__COPIES"] = str(THREE)
        member.data = disk.mount / member.name

    def cut(nodes: Cluster, number: int) -> None:
        for member in nodes.members:
            member.kill()
        for disk in disks:
            disk.cut()
        for at, disk in enumerate(disks):
            disk.begin(f"{SEED} {number} {at}")
        nodes.start_at_once()

    with ExitStack() as held:
        held.callback(lambda: [disk.end() for disk in disks])
        nodes = held.enter_context(cluster(tmp_path, THREE, dress=dress))
        recorder = held.enter_context(Recorder(path))
        nodes.wait_healthy(THREE, patience_s=90)
        load = Load(nodes.servers, SEED, publishers=1, probes=0, pause_s=PAUSE_S, recorder=recorder)
        load.prepare()
        with load.running():
            load.wait_going()
            for number in range(CUTS_OF_THREE):
                time.sleep(random.random() * 0.3)
                recorder.fault("power-cut", begins=True)
                cut(nodes, number)
                recorder.fault("power-cut", begins=False)
                load.wait_going()
        nodes.wait_healthy(THREE, still=True, patience_s=90)
        drain(load.servers, load.history)
        seen = read(load.servers, load.history)
        found = account(load.history, seen)
        nodes.wait_healthy(THREE, still=True, patience_s=90)
        nodes.stop()
        whole = sum(records(member.data, TOPIC) == seen for member in nodes.members)
    anomalies = failures(load_history(path))
    note(THREE, CUTS_OF_THREE, found, anomalies)
    assert found.clean, found
    assert whole == THREE
    assert anomalies == []
    assert "Traceback" not in nodes.logs()


def test_a_disk_that_lies_about_syncs_is_noticed(tmp_path: Path) -> None:
    """Otherwise the layer would lose nothing, and the tests above would show nothing."""
    count = 50
    with lazy_node(tmp_path, "lie") as (node, disk):
        with connect(node.endpoint) as mq:
            for number in range(count):
                mq.publish("t", b"%d" % number)
        node.kill()
        disk.cut()
        disk.begin(f"{SEED} lie")
        try:
            node.start()
            with connect(node.endpoint) as mq:
                found = sum(1 for _ in mq.read("t"))
        except Exception as error:
            print(f"the node does not start: {error}")
            found = 0
    assert found < count
