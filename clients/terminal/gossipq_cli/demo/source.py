"""Real input that every machine has: the sources of Python's standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

FOREIGN = frozenset(("site-packages", "dist-packages"))


def library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def lines_of(root: Path) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield (name relative to `root`, lines without ends) of every .py file with lines, by name."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not FOREIGN.isdisjoint(name.parts) or not path.is_file():
            continue
        lines = path.read_bytes().splitlines()
        if lines:
            yield str(name).encode(), lines
