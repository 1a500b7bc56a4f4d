"""The cluster simulator, over many seeds; and what it must be able to see.

`make sim SEEDS=40000` runs more; `make sim SEEDS=1 FIRST=17` is seed 17 again, exactly.
"""

import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest

from gossipq import __version__
from sim import world
from sim.checks import failures
from sim.history import History
from sim.planted import PLANTED

FIRST = int(os.environ.get("GOSSIPQ_FIRST", "0"))
SEEDS = int(os.environ.get("GOSSIPQ_SEEDS", "500"))
CHUNK = 100
HOME = Path(__file__).resolve().parents[2]


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HOME, capture_output=True, text=True, check=False)
    return git.stdout.strip() or __version__


def digest(history: History) -> str:
    """Of everything that was seen in a run."""
    seen = (history.confirmed, history.pushed, history.seen, history.acks, history.topics, history.copies, history.counts)
    return blake2b(repr(seen).encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
@pytest.mark.timeout(600)
def test_every_property_holds_under_faults(first: int) -> None:
    totals: dict[str, int] = {}
    for seed in range(first, min(first + CHUNK, FIRST + SEEDS)):
        history = world.run(seed)
        broken = failures(history)
        assert not broken, f"seed {seed} of {commit()}: {broken[:5]}; again: make sim SEEDS=1 FIRST={seed}"
        for what, count in (*history.counts.items(), ("confirmed", len(history.confirmed)), ("acked", len(history.acks))):
            totals[what] = totals.get(what, 0) + count
    if SEEDS >= CHUNK:  # a run in which nothing happened proves nothing
        assert totals["takeover"] > CHUNK, totals
        assert totals["confirmed"] > 10 * CHUNK, totals
        assert totals["acked"] > 10 * CHUNK, totals
        assert all(totals.get(what) for what in ("crash", "pause", "cut", "failed commit", "change made")), totals


def test_a_seed_is_the_same_run_each_time_and_in_each_process() -> None:
    mine = [digest(world.run(seed)) for seed in range(3)]
    assert mine == [digest(world.run(seed)) for seed in range(3)]
    code = "from sim import test_sim as t; print([t.digest(t.world.run(seed)) for seed in range(3)])"
    paths = os.pathsep.join(path for path in sys.path if path)
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == repr(mine)


@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_rule_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED[name]
    planted.plant(monkeypatch)
    for seed in range(planted.seeds):
        try:
            if failures(world.run(seed, adversary=planted.adversary)):
                return
        except AssertionError:
            return  # the core's own assertions saw it
    pytest.fail(f"{name} went unseen through {planted.seeds} seeds")
