"""Shared by all fault runs: the seed, the commit, the account at the end, and
the line in results.jsonl.
"""

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.results import RESULTS, committed
from conftest import HOME
from e2e.cluster import Cluster
from e2e.harness import bad_frames
from e2e.load import TOPIC, Account, Load, account, drain, read
from e2e.replicas import records
from gossipq.limits import SESSION_SILENCE_MS
from gossipq_client import connect
from history import judge, workloads
from history.record import Recorder
from history.record import load as load_history
from waiting import until

SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


def commit() -> str:
    """Of the tree that runs; "-dirty": changed since, but for files of results."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(HOME), *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude,glob)tests/**/*.jsonl"
    )
    return (git("describe", "--always") or "unknown") + ("-dirty" if changed else "")


COMMIT = commit()  #: read now, since the tree may change until the end
SETTLE_S = 2.0
STRAY_MAX = 100  #: late answers while a cluster is idle; a loop makes thousands a second
GHOST_S = 2 * SESSION_SILENCE_MS / 1_000  #: after which no session that is silent is a member anywhere


def members(nodes: Cluster) -> list[str]:
    """Groups that count a consumer."""
    with connect(*nodes.servers) as mq:
        return [f"{row.group} of {row.topic}" for row in mq.admin.stats().groups if row.consumers]


def strays(nodes: Cluster) -> int:
    """Messages that no process of the cluster could use."""
    return sum(map(bad_frames, nodes.statuses()))


def finish(nodes: Cluster, load: Load) -> tuple[Account, int]:
    """The account of what a reader gets, and the number of replicas that have exactly the same."""
    nodes.wait_healthy(len(nodes.members), still=True, patience_s=90)
    drain(load.servers, load.history)
    load.check()
    if load.others:
        workloads.finish(load)
    seen = read(load.servers, load.history)
    found = account(load.history, seen)
    nodes.wait_healthy(len(nodes.members), still=True, patience_s=90)
    time.sleep(SETTLE_S)
    until(lambda: not members(nodes), GHOST_S, "all clients have ended, and groups count consumers")
    before = strays(nodes)
    time.sleep(SETTLE_S)
    assert strays(nodes) - before < STRAY_MAX, "two processes answer each other for ever"
    nodes.stop()
    return found, sum(records(member.data, TOPIC) == seen for member in nodes.members)


@contextmanager
def recorded(place: Path, name: str) -> Iterator[Recorder]:
    """A recorder that writes NAME.jsonl into $GOSSIPQ_HISTORY, or else into `place`."""
    kept = Path(os.environ.get("GOSSIPQ_HISTORY") or place)
    kept.mkdir(parents=True, exist_ok=True)
    with Recorder(kept / f"{name}.jsonl") as recorder:
        yield recorder


def judged(load: Load) -> dict[str, int]:
    """Check the history of a load that has ended and write it as EDN. Returns counts of its operations."""
    recorder = load.history.recorder
    assert recorder.path is not None
    recorder.close()
    history = load_history(recorder.path)
    files = judge.write_edn(history, recorder.path)
    found = judge.failures(history)
    print(f"history in {recorder.path} and {', '.join(file.name for file in files)}")
    assert not found, f"{len(found)} failures: {found[:5]}"
    return judge.counts(history)


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0


def note(row: dict[str, Any]) -> None:
    """Prints the result. It is stored only for a committed tree, because other trees
    cannot be checked out again.
    """
    print(json.dumps(row))
    if not committed(row):
        return
    with Path(os.environ.get("GOSSIPQ_RESULTS", RESULTS)).open("a") as file:
        file.write(json.dumps(row) + "\n")


@contextmanager
def noted(row: dict[str, Any], nodes: Cluster) -> Iterator[None]:
    """A run that fails is noted as well; what the nodes said is the evidence."""
    try:
        yield
    except BaseException as error:
        print(f"logs in {nodes.place}")
        note(row | {"time": int(time.time()), "failed": f"{type(error).__name__}: {error}"[:300]})
        raise
    note(row | {"time": int(time.time())})
