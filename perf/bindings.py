#!/usr/bin/env python3
"""Measures the clients in other languages against the Python client, in turns: rows of RESULTS.md.

    python perf/bindings.py [--pairs 5] [--only NAME ...] [--out perf/RESULTS.md]

Each client publishes records of 100 bytes to the same node of two workers, into a fresh topic of two
partitions, until the last one is confirmed. It publishes 500 in a call, or one in a call, which its packer
combines into batches. Java publishes one and waits for its confirm. Clients that are not built are left out
(`make bindings` builds them).
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from report import Row, write
from stage import GOSSIPQ, HERE, WORKERS, Node, answer, node

CLIENTS = HERE.parent / "clients"
JEROMQ = "/usr/share/java/jeromq.jar"
SIZE = 100
_numbers = count(1)


class Figure(NamedTuple):
    name: str
    command: list[str]
    records: int
    batch: int
    needs: Path  #: what is there when the client is built
    asked: str


def figures() -> Iterator[Figure]:
    for name, command, needs, share, alone in (
        ("c", [str(CLIENTS / "c/build/load")], CLIENTS / "c/build/load", "1.5", "1,000,000/s"),
        (
            "javascript",
            ["node", str(CLIENTS / "javascript/perf/load.mjs")],
            CLIENTS / "javascript/node_modules",
            "0.8",
            "300,000/s",
        ),
        ("go", [str(CLIENTS / "go/build/load")], CLIENTS / "go/build/load", "0.8", "300,000/s"),
    ):
        yield Figure(f"{name} publish-500", command, 2_000_000, 500, needs, f"{share} of Python")
        yield Figure(f"{name} publish-one", command, 1_000_000, 1, needs, alone)
    build = CLIENTS / "java/build"
    classes = ":".join([str(build / "driver"), str(build / "gossipq.jar"), JEROMQ])
    java = ["java", "-cp", classes, "Load"]
    yield Figure("java publish-wait", java, 5_000, 1, build / "driver" / "Load.class", "stated")


def topic(at: Node) -> str:
    """A fresh one."""
    name = f"bindings-{next(_numbers)}"
    line = ["-s", at.server, "topic", "create", name, "--partitions", str(WORKERS)]
    subprocess.run([*GOSSIPQ, *line], check=True, stdout=subprocess.DEVNULL)
    return name


def python_rate(at: Node) -> float:
    line = ["bench", "pub", "--batch", "500", "--records", "2000000", "--topic", topic(at), "-o", "json"]
    rate: float = answer([*GOSSIPQ, "-s", at.server, *line])["published_per_s"]
    return rate


def measure(figure: Figure, at: Node, pairs: int) -> Row:
    ours, python = [], []
    for number in range(pairs):
        python.append(python_rate(at))
        words = [topic(at), str(figure.records), str(figure.batch), str(SIZE)]
        said = answer(
            [*figure.command, *words],
            env={"GOSSIPQ_SERVER": at.server, "PATH": "/usr/bin:/bin:/usr/local/bin"},
        )
        ours.append(said["published_per_s"])
        print(f"{figure.name} {number + 1}/{pairs}: {ours[-1]:,} of {python[-1]:,}", file=sys.stderr)
    ratio = statistics.median(mine / its for mine, its in zip(ours, python, strict=True))
    return Row(
        figure.name,
        f"{statistics.median(ours):,.0f}/s",
        f"{statistics.median(python):,.0f}/s",
        f"{ratio:.2f}",
        figure.asked,
        "perf/bindings.py, beside gossipq bench pub --batch 500",
    )


def main() -> None:
    found = {figure.name: figure for figure in figures()}
    parser = argparse.ArgumentParser(description="Clients in other languages against the one in Python.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=list(found))
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    rows = []
    for name in given.only or found:
        if found[name].needs.exists():
            with node() as at:
                rows.append(measure(found[name], at, given.pairs))
        else:
            print(f"{name} is left out: it is not built here. make bindings", file=sys.stderr)
    write(given.out, rows, given.pairs)


if __name__ == "__main__":
    main()
