"""How long `gossipq top` takes from its start to its first frame, and to all figures: printed, never asserted.

By hand, against a node that runs: python tests/cli/dashboard/test_first_frame.py tcp://127.0.0.1:7700 [TIMES]
"""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SIZE = 120, 40
PATIENCE_S = 20.0
FRAME, WHOLE = b"7 growth", b"shards 32/32"  #: ends of the first frame, and what only a node can tell


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, which a busy machine does not stretch."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_frame_s(endpoint: str) -> tuple[float, float, float, float]:
    """Seconds until something is drawn, and until the cluster is; by the clock, and of processor time."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm-256color"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's modules are compiled once
    line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, "top"]
    began_s = time.monotonic()
    process = subprocess.Popen(line, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    seen, found = b"", {}  # mark -> (seconds, of processor time)
    try:
        while WHOLE not in found:
            left_s = began_s + PATIENCE_S - time.monotonic()
            assert left_s > 0, f"no whole frame in {seen[-2_000:]!r}"
            if select.select([ours], [], [], left_s)[0]:
                seen += os.read(ours, 1 << 16)
                now = time.monotonic() - began_s, cpu_s(process.pid)
                found |= {each: now for each in (FRAME, WHOLE) if each in seen and each not in found}
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return *found[FRAME], *found[WHOLE]


def told(endpoint: str, times: int) -> str:
    """The middle of several."""
    taken = [first_frame_s(endpoint) for _ in range(times)]
    first, first_cpu, whole, whole_cpu = (sorted(column)[times // 2] for column in zip(*taken, strict=True))
    frame, figures = f"{first:.2f} s ({first_cpu:.2f} s of a processor)", f"{whole:.2f} s ({whole_cpu:.2f} s)"
    return f"gossipq top: first frame after {frame}, all figures after {figures}, middle of {times}"


def test_the_first_frame_of_a_node(shared_node) -> None:
    print(told(shared_node.endpoint, 1))


if __name__ == "__main__":
    print(told(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5))
