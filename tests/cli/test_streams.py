"""The standard streams of a command, as another program may hand them over."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from cli.dashboard import recording

PIPE_BYTES = 4_096
LINE = ["top", "--replay", str(recording.FILE), "-o", "json"]


def taken(read: int, pause_s: float) -> bytes:
    found = b""
    while more := os.read(read, PIPE_BYTES):
        found += more
        time.sleep(pause_s)
    return found


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_gets_all_of_the_output(blocking: bool) -> None:
    """Of a pipe that does not block, Python drops what does not fit, and ends with 0."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(write, blocking)
    command = [sys.executable, "-m", "gossipq_cli", *LINE]
    paths = os.pathsep.join(sys.path)
    with subprocess.Popen(command, stdout=write, env=os.environ | {"PYTHONPATH": paths}) as process:
        os.close(write)
        found = taken(read, 0.01)
    os.close(read)
    assert process.returncode == 0
    assert len(found) > 2 * PIPE_BYTES
    assert found.rstrip().endswith(b"}")
