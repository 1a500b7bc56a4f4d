"""The standard streams of a command, as another program may hand them over."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from cli.dashboard import recording

PIPE_BYTES = 4_096
LINE = ["-m", "gossipq_cli", "top", "--replay", str(recording.FILE), "-o", "json"]
SAYS_A_WORD = """
import sys
from gossipq_cli import streams
streams.prepare()
print("a line", file=sys.stderr)
sys.stdout.write("a word")
sys.stdin.read()
"""


def start(
    line: list[str], unbuffered: bool, stdin: int | None = None, stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Python, and as under `-u` if `unbuffered`."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUNBUFFERED": "1" if unbuffered else "",
    }
    return subprocess.Popen(
        [sys.executable, *line], env=environment, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE
    )


def taken(read: int, pause_s: float) -> bytes:
    found = b""
    while more := os.read(read, PIPE_BYTES):
        found += more
        time.sleep(pause_s)
    return found


@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_gets_all_of_the_output(blocking: bool, unbuffered: bool) -> None:
    """Of a pipe that does not block, Python drops what does not fit, and ends with 0."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(write, blocking)
    with start(LINE, unbuffered, stdout=write) as process:
        os.close(write)
        found = taken(read, 0.01)
    os.close(read)
    assert process.returncode == 0
    assert len(found) > 2 * PIPE_BYTES
    assert found.rstrip().endswith(b"}")


@pytest.mark.parametrize("unbuffered", [True, False])
def test_a_full_disk_is_told_once_and_ends_the_command_with_1(unbuffered: bool) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with start(LINE, unbuffered, stdout=full) as process:
        os.close(full)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert told.count(b"No space left on device") == 1


@pytest.mark.parametrize("unbuffered", [True, False])
def test_a_reader_that_leaves_ends_the_command_with_1_without_a_word(unbuffered: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    with start(LINE, unbuffered, stdout=write) as process:
        os.close(write)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (1, b"")


@pytest.mark.parametrize("unbuffered", [True, False])
def test_stderr_shows_each_line_at_once(unbuffered: bool) -> None:
    with start(["-c", SAYS_A_WORD], unbuffered, stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"a line\n"
        process.communicate(timeout=30)


def test_under_u_a_word_is_shown_before_its_line_ends() -> None:
    with start(["-c", SAYS_A_WORD], True, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"a word"
        process.communicate(timeout=30)
