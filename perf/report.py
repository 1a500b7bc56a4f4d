"""Rows of RESULTS.md: what was measured, on what, by which command."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

HEAD = """# Results

Medians, newest run last. `make perf` adds a section; perf/README.md says what each figure is. Only ratios
travel between machines: product and raw loop ran in turns, records of 100 bytes, fsync before each confirm,
node and clients on the same cores, each consumed byte checked.
"""
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


def write(path: Path, rows: list[Row], pairs: int) -> None:
    """Appends one section."""
    lines = [f"\n## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {machine()}, {pairs} pairs\n"]
    lines += ["| figure | gossipq | compared with | ratio | asked | command |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    before = path.read_text() if path.exists() else HEAD
    path.write_text(before + "\n".join(lines) + "\n")
