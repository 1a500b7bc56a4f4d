"""Clients in other languages: how to start their drivers, and which tools
this machine lacks for that.
"""

import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import NamedTuple

CLIENTS = Path(__file__).resolve().parents[2] / "clients"
JAVASCRIPT, C, GO, JAVA = (CLIENTS / name for name in ("javascript", "c", "go", "java"))
JEROMQ = Path("/usr/share/java/jeromq.jar")
JAVA_DRIVER = JAVA / "build" / "driver" / "Driver.class"


class Language(NamedTuple):
    name: str
    level: str  #: how far its client goes, see gossipq_cli.conformance
    command: str  #: starts its driver
    missing: str = ""  #: what has to be there, and how to get it


def languages() -> list[Language]:
    minimal = f"{quote(sys.executable)} {quote(str(CLIENTS / 'minimal_driver.py'))}"
    javascript = f"node {quote(str(JAVASCRIPT / 'driver.mjs'))}"
    classes = ":".join(
        quote(str(each)) for each in (JAVA_DRIVER.parent, JAVA / "build" / "gossipq.jar", JEROMQ)
    )
    return [
        Language("minimal", "cluster", minimal),
        Language("javascript", "columns", javascript, javascript_misses()),
        Language("c", "columns", f"{quote(sys.executable)} {quote(str(C / 'driver.py'))}", c_misses()),
        Language("go", "columns", quote(str(GO / "build" / "driver")), go_misses()),
        Language("java", "reconnect", f"java -cp {classes} Driver", java_misses()),
    ]


def javascript_misses() -> str:
    if shutil.which("node") is None:
        return "node is not installed: make bindings"
    return (
        "" if (JAVASCRIPT / "node_modules" / "zeromq").is_dir() else "node has no zeromq here: make bindings"
    )


def c_misses() -> str:
    sources = [*C.glob("*.[ch]"), *C.glob("test/*.c"), *C.glob("examples/*.c")]
    return _not_built("C", C / "build" / "built", sources)


def go_misses() -> str:
    sources = [*GO.glob("**/*.go"), *C.glob("*.[ch]")]
    return c_misses() or _not_built("Go", GO / "build" / "driver", sources)


def java_misses() -> str:
    if shutil.which("java") is None or not JEROMQ.exists():
        return "no JDK or no JeroMQ here: make bindings"
    return _not_built("Java", JAVA_DRIVER, [*JAVA.glob("src/gossipq/*.java"), *JAVA.glob("driver/*.java")])


def _not_built(language: str, product: Path, sources: list[Path]) -> str:
    if not product.exists():
        return f"the client for {language} is not built: make bindings"
    stale = max(each.stat().st_mtime for each in sources) > product.stat().st_mtime
    return f"the client for {language} is older than its sources: make bindings" if stale else ""
