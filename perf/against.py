#!/usr/bin/env python3
"""Measures what a change costs or gains: this checkout and another one, in turns.

    git worktree add ../before COMMIT
    python perf/against.py ../before [--pairs 5] [--only e2e-500 ...] [--out rows.md]

Nodes of both run side by side, and only one has work at a time. A pair measures one and then the other; the
one that goes first changes from pair to pair. Rows give both medians, the median of the ratios, and the raw
loop's figure of the same run. A second row compares processor time per record, of clients and nodes. It
hardly changes when other programs run.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import COPIES, PAIRS, Pair
from costs import Measured, Spent, Watch, heard, in_turns, parts, row
from report import Row, write
from stage import HERE, answer

ROOTS = ("", "nodes", "clients/python", "clients/terminal", "clients/gateway", "spark")
HOLD = """
import sys
import cluster, stage
with {context} as found:
    print(",".join(found.servers) if hasattr(found, "servers") else found.server, flush=True)
    sys.stdin.read()
"""


FEW_RECORDS = 500  #: a run of this size shows the cost of starting and ending


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

    def measure(self, pair: Pair, records: int) -> Measured:
        """Processor times are those of this run less those of one of few records, which starts and ends as
        much."""
        few, few_spent = self._run(pair, FEW_RECORDS)
        answered, spent = self._run(pair, records)
        more = Spent(*(all_s - few_s for all_s, few_s in zip(spent, few_spent, strict=True)))
        cost = more.of_each(answered["records"] - few["records"])
        return cost._replace(per_s=float(answered[pair.field]))

    def _run(self, pair: Pair, records: int) -> tuple[dict[str, Any], Spent]:
        """Run the command. Returns its result and the processor time of its clients and of the nodes. With 0
        records, it uses its default."""
        line = [sys.executable, "-m", "gossipq_cli", "-s", self._server, "bench", *pair.ours]
        line += ["--records", str(records)] if records else []
        watch = Watch(self._holder.pid)
        answered = answer([*line, "-o", "json"], **self._how)
        return answered, watch.spent()

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


def compare(pair: Pair, both: list[Side], times: int, records: int) -> list[Row]:
    raw = answer([sys.executable, str(HERE / "limit.py"), *pair.raw])[pair.raw_field]
    found = in_turns([partial(side.measure, pair, records) for side in both], times, heard(pair.name, times))
    each = f" of {records:,} records" if records else ""
    speeds = f"{times} pairs{each}; the raw loop in this run: {raw:,.0f}/s"
    return [
        row(f"against {pair.name}", [[e.per_s for e in side] for side in found], "{:,.0f}/s", "", speeds),
        row(
            f"processor time of {pair.name}",
            [[e.us for e in side] for side in found],
            "{:.2f} us",
            "",
            parts(found),
        ),
    ]


def main() -> None:
    names = [pair.name for pair in PAIRS + COPIES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the other one")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=0, help="of each run; 0 = the default of the command")
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
                for pair in wanted:
                    rows += compare(pair, both, chosen.pairs, chosen.records)
    write(chosen.out, rows, chosen.pairs)


if __name__ == "__main__":
    main()
