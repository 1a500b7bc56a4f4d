#!/usr/bin/env python3
"""Measures this checkout against another one, in turns: what a change costs or gains.

    git worktree add ../before COMMIT
    python perf/against.py ../before [--pairs 5] [--only e2e-500 ...] [--out rows.md]

Nodes of both stand side by side, idle but for the one that is asked; a pair asks one and then the other, the
first one changes from pair to pair. Rows give both medians, the median of the ratios, and the raw loop's
figure of the same run.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import COPIES, PAIRS, Pair
from report import Row, write
from stage import HERE, answer

ROOTS = ("", "nodes", "clients/python", "clients/terminal", "spark")
HOLD = """
import sys
import cluster, stage
with {context} as found:
    print(",".join(found.servers) if hasattr(found, "servers") else found.server, flush=True)
    sys.stdin.read()
"""


class Side:
    """A checkout and its node or nodes."""

    def __init__(self, checkout: Path, copies: bool) -> None:
        path = os.pathsep.join(str(checkout / root) for root in (*ROOTS, "perf"))
        self._how: Any = {"cwd": checkout, "env": {**os.environ, "PYTHONPATH": path}}
        context = "cluster.cluster()" if copies else "stage.node()"
        line = [sys.executable, "-c", HOLD.format(context=context)]
        self._holder = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **self._how
        )
        assert self._holder.stdout is not None
        self._server = self._holder.stdout.readline().strip()
        if not self._server:
            raise SystemExit(f"no node of {checkout} started")

    def measure(self, pair: Pair) -> float:
        line = [sys.executable, "-m", "gossipq_cli", "-s", self._server, "bench", *pair.ours, "-o", "json"]
        return float(answer(line, **self._how)[pair.field])

    def end(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()


@contextmanager
def sides(checkouts: list[Path], copies: bool) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        found = []
        for checkout in checkouts:
            found.append(Side(checkout, copies))
            stack.callback(found[-1].end)
        yield found


def compare(pair: Pair, both: list[Side], times: int) -> Row:
    figures: tuple[list[float], list[float]] = ([], [])
    raw = answer([sys.executable, str(HERE / "limit.py"), *pair.raw])[pair.raw_field]
    for number in range(times + 1):
        order = (0, 1) if number % 2 else (1, 0)
        got = {at: both[at].measure(pair) for at in order}
        if number:  # the first round warms up
            figures[0].append(got[0])
            figures[1].append(got[1])
        print(f"{pair.name} {number}/{times}: {got[0]:,.0f} against {got[1]:,.0f}", file=sys.stderr)
    ratios = [mine / its for mine, its in zip(*figures, strict=True)]
    mine, its = (statistics.median(each) for each in figures)
    return Row(
        f"against {pair.name}",
        f"{mine:,.0f}/s",
        f"{its:,.0f}/s",
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{times} pairs; the raw loop in this run: {raw:,.0f}/s",
    )


def main() -> None:
    names = [pair.name for pair in PAIRS + COPIES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the other one")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=names, help=", ".join(names)
    )
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    chosen = parser.parse_args()
    checkouts, rows = [HERE.parent, chosen.checkout.resolve()], []
    for pairs, copies in ((PAIRS, False), (COPIES, True)):
        wanted = [pair for pair in pairs if not chosen.only or pair.name in chosen.only]
        if wanted:
            with sides(checkouts, copies) as both:
                rows += [compare(pair, both, chosen.pairs) for pair in wanted]
    write(chosen.out, rows, chosen.pairs)


if __name__ == "__main__":
    main()
