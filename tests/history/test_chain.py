"""The whole chain in seconds: one real node that is killed once, a recorded load, all checkers."""

from pathlib import Path

import pytest

from e2e.harness import Node
from e2e.load import Load, account, drain, read
from history import workloads
from history.judge import counts, failures, write_edn
from history.record import Recorder
from history.record import load as load_history

pytestmark = pytest.mark.e2e
PAUSE_S = 0.01


def test_a_node_is_killed_and_its_history_passes_all_checkers(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Node(tmp_path / "node", "--workers", "2") as node, Recorder(path) as recorder:
        load = Load([node.endpoint], seed=1, publishers=1, probes=0, pause_s=PAUSE_S, recorder=recorder)
        load.prepare()
        workloads.add_to(load, seed=1)
        with load.running():
            load.wait_going()
            recorder.fault("kill", begins=True)
            node.kill()
            node.start()
            recorder.fault("kill", begins=False)
            load.wait_going()
        drain(load.servers, load.history)
        workloads.finish(load)
        assert account(load.history, read(load.servers, load.history)).clean
    history = load_history(path)
    assert failures(history) == []
    found = counts(history)
    for function in (
        "send",
        "poll",
        "fetch",
        "settle",
        "acked",
        "publish",
        "schedule",
        "arrive",
        "write",
        "read",
    ):
        assert found[function] > 0, f"no {function} in the history"
    assert found["confirmed"] > 0
    assert len(write_edn(history, path)) == 4
