"""How long `gossipq top` takes from its start to its first frame, and to all figures.

The clock is printed: a busy machine stretches it. Asserted are processor time, and that the first frame waits
for no node.

By hand, against a node that runs: python tests/cli/dashboard/test_first_frame.py tcp://127.0.0.1:7700 [TIMES]
"""

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SIZE = 120, 40
PATIENCE_S = 30.0
FIRST_CPU_S_MAX, WHOLE_CPU_S_MAX = (
    0.8,
    1.2,
)  #: four times what it takes: a library that is not needed yet, loaded before it, is more
FRAME, WHOLE = b"7 growth", b"shards 32/32"  #: ends of the first frame, and what only a node can tell


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, which a busy machine does not stretch."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def frames_s(endpoint: str, *marks: bytes) -> list[tuple[float, float]]:
    """Seconds until each of these is drawn: by the clock, and of processor time."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TERM": "xterm-256color",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's modules are compiled once
    line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, "top"]
    began_s = time.monotonic()
    process = subprocess.Popen(
        line, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    seen, found = b"", {}  # mark -> (seconds, of processor time)
    try:
        while len(found) < len(marks):
            left_s = began_s + PATIENCE_S - time.monotonic()
            assert left_s > 0, f"not {marks} in {seen[-2_000:]!r}"
            if select.select([ours], [], [], left_s)[0]:
                seen += os.read(ours, 1 << 16)
                now = time.monotonic() - began_s, cpu_s(process.pid)
                found |= {each: now for each in marks if each in seen and each not in found}
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return [found[mark] for mark in marks]


def told(endpoint: str, times: int) -> str:
    """The middle of several."""
    taken = [frames_s(endpoint, FRAME, WHOLE) for _ in range(times)]
    first, whole = (sorted(column)[times // 2] for column in zip(*taken, strict=True))
    frame, figures = (f"{clock:.2f} s ({cpu:.2f} s of a processor)" for clock, cpu in (first, whole))
    return f"gossipq top: first frame after {frame}, all figures after {figures}, middle of {times}"


def test_the_first_frame_of_a_node_costs_little(shared_node) -> None:
    frames_s(shared_node.endpoint, FRAME)  # modules are compiled
    (first_s, first_cpu_s), (whole_s, whole_cpu_s) = frames_s(shared_node.endpoint, FRAME, WHOLE)
    print(
        f"first frame after {first_s:.2f} s ({first_cpu_s:.2f} s), all figures after {whole_s:.2f} s "
        f"({whole_cpu_s:.2f} s)"
    )
    assert first_s <= whole_s
    assert first_cpu_s < FIRST_CPU_S_MAX
    assert whole_cpu_s < WHOLE_CPU_S_MAX


def test_the_first_frame_waits_for_no_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        frames_s(f"tcp://127.0.0.1:{silent.getsockname()[1]}", FRAME)


if __name__ == "__main__":
    print(told(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5))
