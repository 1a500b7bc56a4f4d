"""One kind of fault after the other, each on the leader of what is watched: how long is any partition without
a confirm? `make chaos-kinds KIND=isolate TIMES=10`; without KIND all of them.

Each kind is a run of its own with an account at its end, and a line in results.jsonl."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from chaos import faults
from chaos.places import places
from chaos.runs import COMMIT, SEED, finish, judged, noted, percentile, recorded
from e2e.cluster import cluster
from e2e.load import Load, Pulse

KIND = os.environ.get("GOSSIPQ_KIND", "")
TIMES = int(os.environ.get("GOSSIPQ_TIMES", "10"))
KINDS = (
    *("kill", "pause", "hang", "isolate", "mute", "unheard", "torn_wire", "halves", "flapping"),
    *("full_disk", "full_return", "stuck_sync", "slow_sync", "clock", "clock_steps"),
    *("slow_wire", "lossy_wire", "restart", "drain"),
)
NODES = 3
HOLD_S = (4.5, 7.0)  #: long enough for a takeover
PAUSE_S = 0.02
AFTER_S = 12.0  #: leadership goes back within it
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 120 * TIMES),
    pytest.mark.skipif("GOSSIPQ_KIND" not in os.environ, reason="make chaos-kinds runs it"),
]


@pytest.mark.parametrize("kind", KIND.split(",") if KIND else KINDS)
def test_no_partition_is_long_without_a_confirm(tmp_path: Path, kind: str) -> None:
    print(f"\nseed {SEED}, commit {COMMIT}")
    row: dict[str, Any] = {"commit": COMMIT, "seed": SEED, "nodes": NODES, "kind": kind}
    with (
        places(tmp_path, NODES, small_disks=NODES) as stage,
        cluster(tmp_path, NODES, dress=stage.dress) as nodes,
        recorded(tmp_path, f"kind-{kind}-{SEED}") as recorder,
        noted(row, nodes),
    ):
        nodes.wait_healthy(NODES, patience_s=90)
        load = Load(nodes.servers, SEED, publishers=1, probes=0, pulses=1, pause_s=PAUSE_S, recorder=recorder)
        load.prepare()
        arena = faults.Arena(nodes, stage, random.Random(f"{SEED} {kind}"))
        fault = faults.by_name(stage, NODES)[kind]
        gaps_ms: list[int] = []
        row |= {"faults": {kind: TIMES}, "missing": stage.missing}
        with load.running():
            load.wait_going()
            for _ in range(TIMES):
                partition = arena.random.randrange(Pulse.PARTITIONS)
                victim = nodes.members.index(nodes.leader(Pulse.TOPIC, partition))
                since_s = time.monotonic()
                with fault(arena, victim):
                    time.sleep(arena.random.uniform(*HOLD_S))
                load.wait_going()
                nodes.wait_healthy(NODES, patience_s=90)
                time.sleep(AFTER_S)
                gaps_ms.append(max(pulse.gap_ms(since_s) for pulse in load.pulses))
                print(f"{kind} on {nodes.members[victim].name}: gap {gaps_ms[-1]} ms", flush=True)
        found, whole = finish(nodes, load)
        row["gap_ms"] = {"p50": percentile(gaps_ms, 0.5), "max": max(gaps_ms), "of": gaps_ms}
        row |= {"account": found._asdict(), "replicas_whole": whole, "deliveries": load.history.deliveries}
        row["history"] = judged(load)
        assert found.clean, found
        assert whole == NODES
        assert "Traceback" not in nodes.logs()
