"""Run many seeds on all cores. Print the faults of each seed, and the sum of the events in all of them.

`python -m sim.many FIRST SEEDS` runs them in this process alone, so that a tracer sees them. With
`--note` all cores run them, and the result becomes a line of seeds.jsonl (or $GOSSIPQ_RESULTS).
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from traceback import format_exc

from gossipq import __version__
from sim import world
from sim.checks import failures

RESULTS = Path(__file__).with_name("seeds.jsonl")
CHUNK = 50
Outcome = tuple[Counter[str], dict[int, list[str]]]  #: counts of all runs; seed -> its faults


def commit() -> str:
    """The commit of the running tree; "-dirty" marks a tree with changes."""
    git = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or __version__


def run_some(first: int, end: int) -> Outcome:
    totals: Counter[str] = Counter()
    wrong: dict[int, list[str]] = {}
    for seed in range(first, end):
        try:
            history = world.run(seed)
            broken = failures(history)
        except Exception:  # assertions in the core itself
            wrong[seed] = [format_exc()]
            continue
        totals.update(history.counts)
        totals.update(
            runs=1, confirmed=len(history.confirmed), acked=len(history.acks), jobs=len(history.job_confirms)
        )
        if broken:
            wrong[seed] = broken[:5]
    return totals, wrong


def run_many(first: int, seeds: int, processes: int | None = None) -> Iterator[Outcome]:
    """Yields outcomes as they come, each of at most CHUNK seeds. Without `processes` there is
    one process for each core.
    """
    starts = range(first, first + seeds, CHUNK)
    ends = [min(start + CHUNK, first + seeds) for start in starts]
    if len(starts) == 1 or processes == 1:
        yield from map(run_some, starts, ends)
        return
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_some, starts, ends)


def note(commit: str, first: int, seeds: int, counts: Counter[str], failed: dict[int, list[str]]) -> None:
    """Prints the result. It is stored only for a committed tree, because other trees
    cannot be checked out again.
    """
    labels = {seed: sorted({text.split()[0] for text in broken}) for seed, broken in failed.items()}
    row = {
        "commit": commit,
        "first": first,
        "seeds": seeds,
        "failed": labels,
        "counts": dict(sorted(counts.items())),
    }
    print(json.dumps(row))
    if not commit.endswith("-dirty"):
        with Path(os.environ.get("GOSSIPQ_RESULTS", RESULTS)).open("a") as file:
            print(json.dumps(row), file=file)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.many")
    parser.add_argument("first", type=int)
    parser.add_argument("seeds", type=int)
    parser.add_argument("--note", action="store_true", help="on all cores, and a line of seeds.jsonl")
    given = parser.parse_args()
    ran, counts, failed = commit(), Counter[str](), dict[int, list[str]]()
    outcomes = (
        run_many(given.first, given.seeds)
        if given.note
        else [run_some(given.first, given.first + given.seeds)]
    )
    for some, broken in outcomes:
        counts += some
        failed |= broken
        print(*(f"{seed}: {why}" for seed, why in broken.items()), sep="\n", end="", flush=True)
    if given.note:
        note(ran, given.first, given.seeds, counts, failed)
    else:
        print(dict(counts))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
