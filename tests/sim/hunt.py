"""Hunts for planted bugs over fresh seeds: is each seen, by the check that it names, and how soon?

`python -m sim.hunt` hunts for each ten times; `python -m sim.hunt NAME ...` for these; a first seed is
random, and printed. With `--note` what came of each is one more line of hunts.jsonl (or $GOSSIPQ_RESULTS).
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from random import SystemRandom

import pytest

from sim import jobs, world
from sim.checks import failures
from sim.many import commit
from sim.planted import PLANTED, Planted

RESULTS = Path(__file__).with_name("hunts.jsonl")
SEEDS_MAX = 200  #: within so many a bug must be caught
TRIES, CAUGHT_MIN = 10, 9


def fresh_seed() -> int:
    return SystemRandom().randrange(10**9)


def seen(planted: Planted, seed: int) -> set[str]:
    """Labels of all checks that fail in that run, or what the core itself raised; the bug is planted
    already."""
    try:
        return {text.split()[0] for text in failures(world.run(seed, adversary=planted.adversary))}
    except Exception as error:
        return {type(error).__name__}


def hunt(name: str, first: int, seeds: int = SEEDS_MAX) -> tuple[int, Counter[str]]:
    """Plants the bug and runs one seed after the other until the check that it names sees it: how many that
    took, 0 for never; and which checks failed in how many runs."""
    planted, labels = PLANTED[name], Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)
        if planted.under is not None:
            planted.under(patch)
        patch.setattr(world, "STORMY", planted.kinds)
        patch.setattr(jobs, "MODES", planted.modes)
        for seed in range(first, first + seeds):
            labels.update(found := seen(planted, seed))
            if planted.trips in found:
                return seed - first + 1, labels
    return 0, labels


def note(name: str, ran: str, firsts: list[int], took: list[int]) -> None:
    """A hunt on a tree that nobody can check out again is not kept."""
    row = {"commit": ran, "bug": name, "check": PLANTED[name].trips, "first": firsts, "seeds": took}
    if not ran.endswith("-dirty"):
        with Path(os.environ.get("GOSSIPQ_RESULTS", RESULTS)).open("a") as file:
            print(json.dumps(row), file=file)


def main() -> int:
    """Prints how each try ended; 1 when a bug was caught in fewer than nine of ten."""
    parser = argparse.ArgumentParser(prog="python -m sim.hunt")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--note", action="store_true", help="a line of hunts.jsonl for each")
    given = parser.parse_args()
    missed, ran = [], commit()
    for name in given.names or PLANTED:
        firsts, took = [fresh_seed() for _ in range(TRIES)], []
        for first in firsts:
            count, labels = hunt(name, first)
            took.append(count)
            print(
                f"{name}: {PLANTED[name].trips} after {count} seeds from {first}; {dict(labels)}", flush=True
            )
        caught = TRIES - took.count(0)
        print(f"{name}: caught in {caught} of {TRIES}, after {sorted(took)} seeds", flush=True)
        if given.note:
            note(name, ran, firsts, took)
        missed += [name] if caught < CAUGHT_MIN else []
    print(f"missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
