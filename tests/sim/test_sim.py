"""The cluster simulator over many seeds; `test_planted` shows which bugs it finds.

`make sim SEEDS=40000` runs more; `make sim SEEDS=1 FIRST=17` repeats seed 17 exactly.
"""

import os
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import pytest

from gossipq.core.copies.placement import Target
from gossipq.core.storage import log
from gossipq.core.storage.payloads import CopySet
from sim import world
from sim.checks import failures
from sim.history import Asked, Copy, History, Job, JobHeard
from sim.job_checks import in_time
from sim.many import commit, run_many
from sim.results import GROUP, RESULT_CHECKS
from sim.small import small

FIRST = int(os.environ.get("GOSSIPQ_FIRST", "0"))
SEEDS = int(os.environ.get("GOSSIPQ_SEEDS", "8"))
#: kinds of entries that logs must have met; not those that come once an hour or that
#: operators set for a cluster
KINDS = {*range(log.NOOP, log.OPTIONS), log.ROLLUP, log.REGROUP} - {log.FORGET}


def digest(history: History) -> str:
    """Hash of everything that a run recorded."""
    seen = (
        history.confirmed,
        history.pushed,
        history.seen,
        history.acks,
        history.topics,
        history.copies,
        history.counts,
    )
    return blake2b(repr(seen).encode(), digest_size=8).hexdigest()


@pytest.mark.timeout(1_800)
def test_every_property_holds_under_faults() -> None:
    totals: Counter[str] = Counter()
    wrong: dict[int, list[str]] = {}
    # beside tests that wait for nodes, one process keeps one core busy and leaves the other to them
    processes = 1 if "PYTEST_XDIST_WORKER" in os.environ else None
    for counts, broken in run_many(FIRST, SEEDS, processes):
        totals += counts
        wrong |= broken
    again = "; ".join(f"make sim SEEDS=1 FIRST={seed}" for seed in wrong)
    assert not wrong, f"{len(wrong)} of {SEEDS} seeds of {commit()}: {wrong}; again: {again}"
    if SEEDS >= 100:  # a run without events proves nothing
        assert totals["takeover"] > SEEDS, totals
        assert totals["confirmed"] > 10 * SEEDS, totals
        assert totals["acked"] > 10 * SEEDS, totals
        assert totals["jobs"] > SEEDS, totals
        seen = (
            "crash",
            "pause",
            "cut",
            "failed commit",
            "change made",
            "roster changed",
            "polite end",
            "wipe",
            "tear",
            "clock jumped",
            "boot",
            "given to the idle",
        )
        assert all(totals[what] for what in seen), totals
        assert all(totals[f"entry {kind}"] for kind in KINDS), totals


@pytest.mark.timeout(1_800)
def test_a_seed_is_the_same_run_each_time_and_in_each_process() -> None:
    mine = digest(world.run(0))
    assert mine == digest(world.run(0))
    code = "from sim import test_sim as t; print(t.digest(t.world.run(0)))"
    paths = os.pathsep.join(path for path in sys.path if path)
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == mine


def test_a_copy_whose_turn_came_while_it_was_down_works_again_after_its_start() -> None:
    with small():
        cluster = world.World(0)
        cluster.run_until(world.FOUND_MS, lambda: bool(cluster.admin.places))
        node = next(iter(cluster.nodes.values()))
        cluster.wake(node, 100)
        node.crash()
        cluster.run_until(cluster.now + 10_000)
        node.start()
        turns: list[int] = []
        node.turn = lambda: turns.append(cluster.now)  # type: ignore[method-assign]
        cluster.run_until(cluster.now + 100)
    assert turns


def test_who_may_vote_after_the_next_step_counts_when_others_are_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "STORMY", ("drift",))
    with small():
        cluster = world.World(0)
        cluster.run_until(world.FOUND_MS, lambda: bool(cluster.admin.places))
        shard = next(iter(cluster.nodes.values())).shard
    assert shard is not None
    shard.replica.configure(shard.last, CopySet(["a.1", "b.2"], [], ["c.3"]))
    shard.target = Target(["a.1", "c.3"], [], [])
    assert cluster.may_vote(shard) == [{"a.1", "b.2"}, {"a.1", "b.2", "c.3"}, {"a.1"}]


@pytest.mark.parametrize(("way_ms", "wrong"), [(5, True), (9_336, False)])
def test_a_job_is_late_by_its_way_to_a_leader_and_by_no_more(way_ms: int, wrong: bool) -> None:
    history, job = History(), Job(b"job", 1_500, 0, 4_000, 0, 0, 0, b"")
    history.jobs[job.value], history.end_ms = job, 14_400
    history.shard_of[7] = 0
    history.took((job.value, b"no job"), way_ms)
    history.took((job.value,), 1)
    history.copies.append(Copy("a.1", 1, {}, "", {}, {}, {}, {}, (), {}, {7: {job.value: 1}}, {}, {}, {}))
    assert bool(list(in_time(history))) == wrong


def test_who_heals_a_core_that_could_decide_looks_at_logs_too() -> None:
    """A majority in every copy's list is not enough: a copy that may stand there may
    lack entries of another one.
    """

    def copy(name: str, voters: str, *place: int, hollow: bool = False) -> Any:
        state = SimpleNamespace(term=place[0], last=place[1])
        replica = SimpleNamespace(
            me=name, config=CopySet([*voters]), log=state, electable=name in voters, hollow=hollow
        )
        return SimpleNamespace(replica=replica)

    old, learner, rebuilt = (
        copy("a", "abce", 2, 439),
        copy("c", "abe", 3, 395),
        copy("e", "abe", 2, 344, hollow=True),
    )
    assert not world.electable([old, learner, rebuilt]), (
        "c has a newer entry than a, and by its own list it is no voter"
    )
    assert world.electable([old, learner, rebuilt, copy("b", "abe", 3, 395)])


def test_old_entries_bring_the_timer_time_of_their_leader() -> None:
    """A copy got entries of an earlier term from the leader of the next one, became leader before it had
    the first entry of that term, and released what was due by a timer time 6 ms ahead.
    """
    assert failures(world.run(96100212)) == []


def test_a_leader_without_a_majority_asks_no_consumer_to_share() -> None:
    """A consumer acked its last records while its leader waited for a majority. The leader served the group,
    and compared what its consumers hold, when the majority answered again.
    """
    assert failures(world.run(96200076)) == []


def test_a_client_that_acks_without_results_stores_none() -> None:
    """In a run whose consumers send results, the liar acked records that it claimed after a takeover."""
    assert failures(world.run(18)) == []


@pytest.mark.parametrize(
    ("with_results", "said", "faults"), [(False, b"", 0), (True, b"", 1), (False, b"x", 1)]
)
def test_an_ack_and_its_result_are_stored_together(with_results: bool, said: bytes, faults: int) -> None:
    history = History()
    history.keeps_results, history.shard_of[7] = True, 0
    history.asked.append(Asked(10, "c1", 7, 4, 5, well=True, with_results=with_results))
    history.heard_jobs.append(JobHeard(20, 21, 7, 4, "succeeded", said))
    history.copies.append(Copy("a.1", 1, {}, "", {}, {}, {}, {}, (), {}, {}, {}, {(7, GROUP): {4: 11}}, {}))
    assert len([fault for check in RESULT_CHECKS for fault in check(history)]) == faults


def test_a_torn_shard_stops_and_the_others_of_its_worker_are_opened() -> None:
    """The worker reports the shard when it has opened the others."""
    assert failures(world.run(98000897)) == []


def test_a_late_request_to_set_a_schedule_may_follow_its_removal() -> None:
    """The planner had sent it three times, and the first one came four seconds later."""
    assert failures(world.run(183)) == []
