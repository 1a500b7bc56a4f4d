"""All attacks at once on three nodes under honest load, for GOSSIPQ_SIEGE_MINUTES:
make siege MINUTES=10. With NICE=19 the attackers get only spare processor time, as if
they had another machine.

It reports the waits of honest publishers before and during the attacks, lost records,
and workers that restarted.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from attacks.siege import Facts
from chaos.runs import SEED, finish, percentile
from e2e.cluster import Cluster, cluster
from e2e.load import Load
from gossipq.types import partition_key
from gossipq_client import GossipqError, connect

MINUTES = float(os.environ.get("GOSSIPQ_SIEGE_MINUTES", "0"))
NICE = os.environ.get("GOSSIPQ_SIEGE_NICE", "") or "0"  #: of the attackers: 19 is the least
USUAL_S, PUBLISH_EVERY_S = 30.0, 0.02
LARGE = "siege-large"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900 + 120 * MINUTES),
    pytest.mark.skipif(not MINUTES, reason="make siege runs it"),
]


def facts(nodes: Cluster) -> Facts:
    with connect(nodes.servers) as mq:
        mq.publish(LARGE, bytes(2 << 20), timeout=30)
        (info,) = mq.topics(LARGE)
        name = mq.admin.status().cluster
    ports = [member.port for member in nodes.members]
    names, copies = [member.name for member in nodes.members], [status.copy for status in nodes.statuses()]
    return Facts(ports, names, copies, name, info.shards[0], partition_key(info.id, 0))


def waits_ms(nodes: Cluster, seconds: float) -> list[int]:
    """The waits of one honest publisher for its confirms, one after the other, in ms."""
    found: list[int] = []
    end = time.monotonic() + seconds
    with connect(nodes.servers) as mq:
        while time.monotonic() < end:
            started_s = time.monotonic()
            with suppress(GossipqError):
                mq.publish("honest", b"x", timeout=60)
            found.append(int((time.monotonic() - started_s) * 1_000))
            time.sleep(PUBLISH_EVERY_S)
    return found


def restarts(nodes: Cluster) -> int:
    return sum(worker.restarts for status in nodes.statuses() for worker in status.workers)


def test_all_attacks_at_once(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as nodes:
        nodes.wait_healthy(3, patience_s=90)
        load = Load(nodes.servers, SEED, publishers=1, pause_s=0.02)
        load.prepare()
        line = [sys.executable, "-m", "attacks.siege", msgspec.json.encode(facts(nodes)).decode(), NICE]
        paths = os.pathsep.join(path for path in sys.path if path)
        with load.running():
            load.wait_going()
            usual = waits_ms(nodes, USUAL_S)
            with subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths},
            ) as siege:
                under = waits_ms(nodes, 60 * MINUTES)
                rounds, _ = siege.communicate("")
            again = restarts(nodes)
        found, whole = finish(nodes, load)
        p99 = percentile(usual, 0.99), percentile(under, 0.99)
        print(f"\n{MINUTES:g} minutes: {found}, {whole} replicas whole, {again} workers started again")
        print(
            f"an honest publish, p50 and p99: {percentile(usual, 0.5)} and {p99[0]} ms before, "
            f"{percentile(under, 0.5)} and {p99[1]} ms meanwhile; {rounds.strip()}"
        )
        assert rounds, "the attackers failed"
        assert found.clean, found
        assert (whole, again) == (3, 0)
        assert "Traceback" not in nodes.logs()
