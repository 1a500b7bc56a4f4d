"""Hunts for planted bugs with new seeds: does the named check find each bug, and how soon?

`python -m sim.hunt` hunts for each bug ten times; `python -m sim.hunt NAME ...` hunts for these
bugs. The first seed is random and is printed. With `--note` the result of each hunt becomes a line
of hunts.jsonl (or $GOSSIPQ_RESULTS).
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
SEEDS_MAX = 200  #: a bug must be found within this many seeds
TRIES, CAUGHT_MIN = 10, 9


def fresh_seed() -> int:
    return SystemRandom().randrange(10**9)


def seen(planted: Planted, seed: int) -> set[str]:
    """Runs a seed with the bug already planted. Returns labels of all checks that fail, or of the
    error that the core raised.
    """
    try:
        return {text.split()[0] for text in failures(world.run(seed, adversary=planted.adversary))}
    except Exception as error:
        return {type(error).__name__}


def hunt(name: str, first: int, seeds: int = SEEDS_MAX) -> tuple[int, Counter[str]]:
    """Plants the bug and runs seeds until the check that it names finds it. Returns the number of
    seeds that this took (0 for never), and how many runs each check failed in.
    """
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


def seen_before(name: str) -> list[int]:
    """Return the seeds at which the newest hunt in hunts.jsonl saw this bug: most show it still."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    newest = next((row for row in reversed(rows) if row["bug"] == name), {"first": [], "seeds": []})
    tries = zip(newest["first"], newest["seeds"], strict=True)
    return [first + took - 1 for first, took in tries if took]


def note(name: str, ran: str, firsts: list[int], took: list[int]) -> None:
    """Stores the result. A result of a tree with uncommitted changes is dropped, because it
    cannot be checked out again.
    """
    row = {"commit": ran, "bug": name, "check": PLANTED[name].trips, "first": firsts, "seeds": took}
    if not ran.endswith("-dirty"):
        with Path(os.environ.get("GOSSIPQ_RESULTS", RESULTS)).open("a") as file:
            print(json.dumps(row), file=file)


def main() -> int:
    """Prints how each try ended; returns 1 if a bug was found in fewer than nine of ten tries."""
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
