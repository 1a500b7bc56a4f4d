"""Many seeds over all cores: what went wrong in each, and what happened in all of them together."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from traceback import format_exc

from sim import world
from sim.checks import failures

CHUNK = 50
Outcome = tuple[Counter[str], dict[int, list[str]]]  #: counts, and what is wrong by seed


def run_some(first: int, end: int) -> Outcome:
    totals: Counter[str] = Counter()
    wrong: dict[int, list[str]] = {}
    for seed in range(first, end):
        try:
            history = world.run(seed)
            broken = failures(history)
        except Exception:  # the core's own assertions
            wrong[seed] = [format_exc()]
            continue
        totals.update(history.counts)
        totals.update(
            runs=1, confirmed=len(history.confirmed), acked=len(history.acks), jobs=len(history.job_confirms)
        )
        if broken:
            wrong[seed] = broken[:5]
    return totals, wrong


def run_many(first: int, seeds: int) -> Iterator[Outcome]:
    """Outcomes as they come, each of CHUNK seeds or less."""
    starts = range(first, first + seeds, CHUNK)
    ends = [min(start + CHUNK, first + seeds) for start in starts]
    if len(starts) == 1:
        yield run_some(starts[0], ends[0])
        return
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_some, starts, ends)


if __name__ == "__main__":  # in this process alone, so that a tracer sees it: python -m sim.many FIRST SEEDS
    first, seeds = map(int, sys.argv[1:])
    counts, broken = run_some(first, first + seeds)
    print(dict(counts))
    sys.exit(f"{broken}" if broken else 0)
