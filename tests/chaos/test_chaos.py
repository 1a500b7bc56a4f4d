"""Random faults on real nodes for GOSSIPQ_MINUTES, under load: make chaos MINUTES=30. GOSSIPQ_SEED repeats a
run's choices.

Each run ends with the account of all that was promised, as a reader and as every replica has it, and is
appended as one line of JSON to tests/chaos/results.jsonl (or $GOSSIPQ_RESULTS), with seed and commit, the
faults, and how many takeovers there really were. The history of each run is written into $GOSSIPQ_HISTORY as
JSON and EDN, and checked by tests/history."""

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaos import faults
from chaos.places import places
from chaos.runs import COMMIT, SEED, finish, judged, noted, percentile, recorded
from e2e.cluster import Cluster, cluster
from e2e.load import Load
from gossipq.errors import GossipqError
from history import workloads

MINUTES = float(os.environ.get("GOSSIPQ_MINUTES", "0"))
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 180 * MINUTES),
    pytest.mark.skipif("GOSSIPQ_MINUTES" not in os.environ, reason="make chaos runs it"),
]
PROBED = "probe-0"
HOLD_S = (0.3, 6.0)  #: how long a fault lasts
PAUSE_S = 0.02  #: about a thousand records a second: what is looked for is not in the load
SHARE = {3: 0.6, 5: 0.4}  #: of the minutes, by the number of nodes


class Chaos:
    def __init__(self, nodes: Cluster, load: Load, arena: faults.Arena, possible: list[faults.Fault]) -> None:
        self.nodes, self.load, self.arena, self.possible = nodes, load, arena, possible
        self.counts: Counter[str] = Counter()
        self.takeovers = self.leader_changes = 0
        self.gaps_ms: list[int] = []  #: of faults that made another node lead the probed partition
        self._leads: dict[int, str] = {}

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.round()

    def round(self) -> None:
        choose = self.arena.random
        fault, hold_s = choose.choice(self.possible), choose.uniform(*HOLD_S)
        leader = self.nodes.members.index(self.nodes.leader(PROBED))
        victim = leader if choose.random() < 0.7 else choose.randrange(len(self.nodes.members))
        name = fault.__name__
        self.counts[name] += 1
        since_s = time.monotonic()
        recorder = self.load.history.recorder
        recorder.fault(name, begins=True, value=self.nodes.members[victim].name)
        with fault(self.arena, victim):
            time.sleep(hold_s)
            if hold_s >= faults.TAKEOVER_S and fault not in faults.STANDSTILLS:
                self.load.wait_going()  # while it lasts
        recorder.fault(name, begins=False, value=self.nodes.members[victim].name)
        self.load.wait_going()
        gap_ms = max(self.load.gaps_ms(since_s))
        took_over = (
            self._look()
            and fault not in faults.STANDSTILLS
            and self.nodes.members.index(self.nodes.leader(PROBED)) != leader
        )
        if took_over:
            self.takeovers += 1
            self.gaps_ms.append(gap_ms)
        said = f"{name} on {self.nodes.members[victim].name} for {hold_s:.1f} s: gap {gap_ms} ms"
        print(said + (", another leads" if took_over else ""), flush=True)
        if choose.random() < 0.8:
            self.nodes.wait_healthy(len(self.nodes.members), patience_s=90)

    def _look(self) -> bool:
        """Counts how many shards are led elsewhere now."""
        try:
            leads = {lead.shard: lead.copy for lead in self.nodes.running()[0].status().leads}
        except GossipqError:
            return False
        self.leader_changes += sum(self._leads.get(shard, copy) != copy for shard, copy in leads.items())
        self._leads = leads
        return True


@pytest.mark.parametrize("count", sorted(SHARE))
def test_random_faults(tmp_path: Path, count: int) -> None:
    print(f"\nseed {SEED}, commit {COMMIT}")
    row: dict[str, Any] = {"commit": COMMIT, "seed": SEED, "nodes": count}
    with (
        places(tmp_path, count) as stage,
        cluster(tmp_path, count, dress=stage.dress) as nodes,
        recorded(tmp_path, f"chaos-{count}-{SEED}") as recorder,
        noted(row, nodes),
    ):
        nodes.wait_healthy(count, patience_s=90)
        load = Load(nodes.servers, SEED, publishers=1, pause_s=PAUSE_S, churns=1, plains=1, recorder=recorder)
        load.prepare()
        workloads.add_to(load, SEED)
        arena = faults.Arena(nodes, stage, random.Random(f"{SEED} {count} faults"))
        chaos = Chaos(nodes, load, arena, faults.possible(stage, count))
        row |= {"faults": chaos.counts, "missing": stage.missing}
        started_s = time.monotonic()
        with load.running():
            load.wait_going()
            chaos.run(60 * MINUTES * SHARE[count])
        found, whole = finish(nodes, load)
        row["minutes"] = round((time.monotonic() - started_s) / 60, 1)
        row |= {"takeovers": chaos.takeovers, "leader_changes": chaos.leader_changes}
        row["gap_ms"] = {f"p{share}": percentile(chaos.gaps_ms, share / 100) for share in (50, 99)} | {
            "of": chaos.gaps_ms
        }
        row["topics"] = sum(churn.topics for churn in load.churns)
        row |= {"account": found._asdict(), "replicas_whole": whole, "deliveries": load.history.deliveries}
        assert found.clean, found
        assert whole == count
        row["history"] = judged(load)
        assert chaos.takeovers, "a run without a takeover proves nothing"
        assert "Traceback" not in nodes.logs()
