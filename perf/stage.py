"""A node to measure, and what it costs: start, memory, disk. Puts the source roots on the path, for this
process and below."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOTS = [
    str(HERE.parent / root)
    for root in ("", "nodes", "clients/python", "clients/terminal", "clients/gateway", "spark")
]
sys.path[:0] = ROOTS
os.environ["PYTHONPATH"] = os.pathsep.join(ROOTS)

from gossipq_cli.demo.stage import free_port  # noqa: E402

GOSSIPQ = [sys.executable, "-m", "gossipq_cli"]
WORKERS = 2
READY_S = 30.0
CPUCLOCK_SCHED = 2  # of linux/posix-timers.h


def answer(line: list[str], **how: Any) -> dict[str, Any]:
    """The JSON object on the last line of a command's stdout. `how`: where it runs, as `subprocess.run` takes
    it."""
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, **how)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def memory_mb(pid: int, field: str = "Pss") -> float:
    """Proportional set size of a process and all below it. "Pss_Anon" leaves out mapped files: the store is
    one."""
    total_kb = 0
    for each in tree(pid):
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        total_kb += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith(f"{field}:"))
    return total_kb / 1024


def cpu_s(pid: int) -> float:
    """Processor time of a node: all its processes, each by its own clock (clock_getcpuclockid(3)), which
    counts nanoseconds where /proc counts ticks of ten milliseconds."""
    return sum(time.clock_gettime(~each << 3 | CPUCLOCK_SCHED) for each in tree(pid))


def disk_mb(directory: Path) -> float:
    """Blocks in use, so that holes of sparse files do not count."""
    return sum(path.stat().st_blocks for path in directory.rglob("*") if path.is_file()) * 512 / 1e6


class Node(NamedTuple):
    pid: int
    server: str
    directory: Path
    ready_s: float


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gossipq-perf-") as name:
        yield Path(name)


@contextmanager
def node_in(home: Path) -> Iterator[Node]:
    """A node over what `home` holds; `ready_s` runs from exec to its ready line."""
    server = f"tcp://127.0.0.1:{free_port(WORKERS)}"
    line = [*GOSSIPQ, "node", "--data", str(home / "data"), "--bind", server, "--workers", str(WORKERS)]
    start = time.perf_counter()
    process = subprocess.Popen(line, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        ready_s = time.perf_counter() - start
        if not first.startswith("ready"):
            raise SystemExit(f"the node did not start: {first!r}")
        healthy = [*GOSSIPQ, "-s", server, "-q", "status", "--wait-healthy", str(READY_S)]
        subprocess.run(healthy, check=True, stdout=subprocess.DEVNULL)
        yield Node(process.pid, server, home, ready_s)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def node() -> Iterator[Node]:
    """A fresh one."""
    with directory() as home, node_in(home) as fresh:
        yield fresh
