"""Rows of RESULTS.md: what was measured, on what, by which command."""

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

HEAD = """# Results

Medians. The first table has the newest run of each figure, below is every run, newest last. `make perf`
and `make race` add a section; perf/README.md says what each figure is. Only ratios travel between
machines: product and raw loop ran in turns, records of 100 bytes unless it says otherwise, fsync before
each confirm, node and clients on the same cores, each consumed byte checked.
"""
NEWEST, HISTORY = "\n## The newest run of each figure\n", "\n# Every run\n"
COLUMNS = ("figure", "gossipq", "compared with", "ratio", "asked", "command")
LIBRARIES = ("pyzmq", "lmdb", "msgspec")


class Row(NamedTuple):
    figure: str
    gossipq: str
    raw: str
    ratio: str
    asked: str
    command: str


def machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}, "
        f"{libraries}"
    )


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = tuple(columns)
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]]) + "\n"


def newest(history: str) -> str:
    """The table of the newest run of each figure, from the sections of all runs."""
    found: dict[str, tuple[str, ...]] = {}
    measured = ""
    for line in history.splitlines():
        if line.startswith("## "):
            measured = " ".join(line.removeprefix("## ").split()[:2])
        cells = tuple(cell.strip() for cell in line.strip("|").split("|")) if line.startswith("|") else ()
        if len(cells) == len(COLUMNS) and cells != COLUMNS and not cells[0].startswith("---"):
            found[cells[0]] = (cells[0], measured.rstrip(":"), *cells[1:])
    return table((COLUMNS[0], "measured (UTC)", *COLUMNS[1:]), found.values())


def whole(history: str) -> str:
    """The file, from the sections of all runs."""
    return HEAD + NEWEST + "\n" + newest(history) + HISTORY + history


def write(path: Path, rows: list[Row], pairs: int) -> None:
    """Adds one section."""
    before = path.read_text() if path.exists() else whole("")
    section = f"\n## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {machine()}, {pairs} pairs\n\n"
    path.write_text(whole(before.partition(HISTORY)[2] + section + table(COLUMNS, rows)))
