"""Two versions in one cluster: it is rolled from the commit in upgrade_from.txt to this tree, node by node,
and back, under load of clients of both. That commit is the first one that calls itself 0.2.0: what it stored
and says is what releases have to live with."""

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from chaos.runs import SEED, finish
from conftest import HOME, ROOTS
from e2e.cluster import Cluster, Member, cluster
from e2e.load import PATIENCE_S, Load
from gossipq_client import connect

FROM = (HOME / "tests" / "e2e" / "upgrade_from.txt").read_text().split()[0]
OLDER_CLIENT = """
import sys, threading
from gossipq_client import connect
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
confirmed = acked = 0
with connect(*sys.argv[1].split(","), timeout=30) as mq:
    while not over.is_set():
        mq.publish("older", b"%d" % confirmed).result(30)
        confirmed += 1
        batch = mq.fetch("older", "g", n=10, wait=0)
        mq.ack(batch)
        acked += len(batch)
    while batch := mq.fetch("older", "g", n=100, wait=1):
        mq.ack(batch)
        acked += len(batch)
    mq.flush(30)
print(confirmed, acked)
"""
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PYTHONPATH of that commit's tree."""
    done = subprocess.run(["git", "-C", str(HOME), "archive", FROM], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"{FROM} is not in this checkout's history: {done.stderr.decode().strip()}")
    place = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(place, filter="data")
    return paths(place)


def paths(home: Path) -> str:
    return os.pathsep.join(str(home / root) for root in ROOTS)


@contextmanager
def older_client(older: str, servers: list[str]) -> Iterator[list[int]]:
    """Publishes and consumes with the older client; afterwards the list has what was confirmed and acked."""
    said: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-P", "-c", OLDER_CLIENT, ",".join(servers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": older},
    ) as process:
        yield said
        out, _ = process.communicate("", timeout=4 * PATIENCE_S)
        said += map(int, out.split())


def roll(nodes: Cluster, python_path: str) -> None:
    """One node after the other: drained and ended, started from there, in step again."""
    for member in nodes.members:
        assert member.stop() == 0
        member.environment["PYTHONPATH"] = python_path
        member.start()
        nodes.wait_healthy(3, patience_s=120)


def test_a_cluster_is_rolled_to_this_version_and_back_under_load(tmp_path: Path, older: str) -> None:
    def begins(member: Member) -> None:
        member.environment["PYTHONPATH"] = older

    with cluster(tmp_path, 3, dress=begins) as nodes:
        nodes.wait_healthy(3, patience_s=120)
        load = Load(nodes.servers, SEED, publishers=1, consumers=1, probes=0, pulses=1, pause_s=0.01)
        load.prepare()
        with older_client(older, nodes.servers) as said, load.running():
            load.wait_going()
            since_s = time.monotonic()
            for python_path in (paths(HOME), older):
                roll(nodes, python_path)
                load.wait_going()
            gap_ms = load.pulses[0].gap_ms(since_s)
        confirmed, acked = said
        with connect(nodes.servers) as mq:
            (row,) = mq.topic("older").groups()
            stored = sum(part.next for part in mq.admin.stats(["older"]).partitions)
        found, whole = finish(nodes, load)
    print(f"\n{FROM} to this tree and back: {found}, {confirmed} of the older client, a gap of {gap_ms} ms")
    assert found.clean, found
    assert whole == 3
    assert stored == confirmed == row.acked <= acked


def test_each_version_reads_what_the_other_stored(tmp_path: Path, older: str) -> None:
    """One node, whose directory goes back and forth."""
    node = Member(tmp_path / "a", "--workers", "1", "--mode", "standalone")
    values: list[bytes] = []
    try:
        for number, python_path in enumerate((older, paths(HOME), older, paths(HOME))):
            node.environment["PYTHONPATH"] = python_path
            node.start()
            values += (more := [b"%d-%d" % (number, at) for at in range(300)])
            check_all(node.endpoint, more, values)
            assert node.stop() == 0
    finally:
        if node.running:
            node.kill()


def check_all(server: str, more: list[bytes], values: list[bytes]) -> None:
    """Stores some more, one of them delayed, acks some, and reads all that there is."""
    with connect(server) as mq:
        mq.publish_many("orders", more, ids=more, delays=[None] * 299 + [1.0], timeout=PATIENCE_S)
        mq.ack_soon(mq.fetch("orders", "g", n=100, wait=5))
        end = time.monotonic() + PATIENCE_S
        while mq.admin.stats(["orders"]).partitions[0].scheduled and time.monotonic() < end:
            time.sleep(0.1)
        found = mq.read("orders")
        assert sorted(msg.value for msg in found) == sorted(values)
