"""Clients in other languages: how the driver of each is started, and what is missing here to start it."""

import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import NamedTuple

CLIENTS = Path(__file__).resolve().parents[2] / "clients"
JAVASCRIPT, C = CLIENTS / "javascript", CLIENTS / "c"


class Language(NamedTuple):
    name: str
    level: str  #: how far its client goes, see gossipq_cli.conformance
    command: str  #: starts its driver
    missing: str = ""  #: what has to be there, and how to get it


def languages() -> list[Language]:
    minimal = f"{quote(sys.executable)} {quote(str(CLIENTS / 'minimal_driver.py'))}"
    javascript = f"node {quote(str(JAVASCRIPT / 'driver.mjs'))}"
    return [
        Language("minimal", "cluster", minimal),
        Language("javascript", "cluster", javascript, javascript_misses()),
        Language("c", "cluster", f"{quote(sys.executable)} {quote(str(C / 'driver.py'))}", c_misses()),
    ]


def c_misses() -> str:
    library = C / "build" / "libgossipq.so"
    sources = [*C.glob("*.[ch]"), *C.glob("test/*.c"), *C.glob("examples/*.c")]
    if not library.exists():
        return "the C client is not built: make bindings"
    stale = max(each.stat().st_mtime for each in sources) > (C / "build" / "garbage").stat().st_mtime
    return "the C client is older than its sources: make bindings" if stale else ""


def javascript_misses() -> str:
    if shutil.which("node") is None:
        return "node is not installed: make bindings"
    return (
        "" if (JAVASCRIPT / "node_modules" / "zeromq").is_dir() else "node has no zeromq here: make bindings"
    )
