"""The terminal is given back as it was, however the dashboard ends; over a real pseudo terminal and a
recording."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gossipq_cli.dashboard.recordings import Recording

WAIT_S = 30.0
BACK = b"\x1b[?25h\x1b[?1049l"  #: cursor and screen, given back
CRASH = """
import gossipq_cli.dashboard.app as app
from gossipq_cli.main import main
def draw(*args):
    raise RuntimeError("planted")
app.screen = draw
raise SystemExit(main([{arguments}]))
"""
LOGGING = """
import logging
import gossipq_cli.dashboard.app as app
from gossipq_cli.main import main
draw = app.screen
def drawn(*args):
    logging.getLogger("gossipq_client").error("planted")
    return draw(*args)
app.screen = drawn
code = main([{arguments}])
logging.getLogger("gossipq_client").error("heard again")
raise SystemExit(code)
"""

#: as little of a shell as job control needs
SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
def front():
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
job = subprocess.Popen(sys.argv[1:], preexec_fn=front)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    os.tcsetpgrp(0, os.getpgrp())
    print("<stopped>", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, job.pid)
    os.kill(job.pid, signal.SIGCONT)
"""


class Session:
    """A program on a terminal of its own, and all that it wrote."""

    def __init__(self, command: list[str], size: tuple[int, int] = (100, 30), **environment: str) -> None:
        self.master, slave = os.openpty()
        self.slave = slave
        self.resize(*size)
        self.before = termios.tcgetattr(slave)
        plain = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        plain |= {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"} | environment
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=plain,
            preexec_fn=self._own_terminal,
            close_fds=True,
        )
        self.seen = b""

    def _own_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, data: bytes) -> None:
        os.write(self.master, data)

    def until(self, ready: Callable[[], bool]) -> None:
        """Reads on until `ready`, or fails."""
        end = time.monotonic() + WAIT_S
        while not ready():
            assert time.monotonic() < end, self.seen[-2_000:]
            readable, _, _ = select.select([self.master], [], [], 0.05)
            if readable:
                self.seen += os.read(self.master, 65_536)

    def sees(self, text: str) -> None:
        self.until(lambda: text.encode() in self.seen)

    def ended(self) -> int:
        self.until(lambda: self.process.poll() is not None)
        while select.select([self.master], [], [], 0.05)[0]:
            self.seen += os.read(self.master, 65_536)
        return self.process.returncode

    def sane(self) -> bool:
        """As it was before, with its own screen and a cursor."""
        now = termios.tcgetattr(self.slave)
        return now == self.before and self.seen.rindex(BACK) > self.seen.rindex(b"\x1b[?1049h")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def start(recording) -> Iterator[Callable[..., Session]]:
    made = []

    def begin(*arguments: str, code: str = "", **more: object) -> Session:
        line = ("top", "--replay", str(recording.FILE), *arguments)
        program = (
            ["-c", code.format(arguments=", ".join(map(repr, line)))]
            if code
            else ["-m", "gossipq_cli", *line]
        )
        made.append(Session([sys.executable, *program], **more))
        return made[-1]

    yield begin
    for session in made:
        session.close()


def test_q_gives_the_terminal_back(start: Callable[..., Session]) -> None:
    session = start()
    session.sees("backlog by group")
    assert not session.sane()
    session.press(b"q")
    assert (session.ended(), session.sane()) == (0, True)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)],
)
def test_signals_give_it_back(start: Callable[..., Session], number: int, code: int) -> None:
    session = start()
    session.sees("backlog by group")
    session.process.send_signal(number)
    assert (session.ended(), session.sane()) == (code, True)


def test_ctrl_c_is_a_signal_here(start: Callable[..., Session]) -> None:
    session = start()
    session.sees("backlog by group")
    session.press(b"\x03")
    assert (session.ended(), session.sane()) == (130, True)


def test_a_crash_gives_it_back_and_says_so(start: Callable[..., Session]) -> None:
    session = start(code=CRASH)
    assert session.ended() == 1
    assert session.sane()
    after = session.seen[session.seen.rindex(BACK) :]
    assert b"RuntimeError: planted" in after, "what is said is said where it can be read"


def test_what_the_client_logs_does_not_stand_across_the_screen(start: Callable[..., Session]) -> None:
    session = start(code=LOGGING)
    session.sees("backlog by group")
    session.press(b"q")
    assert session.ended() == 0
    assert b"planted" not in session.seen
    assert b"heard again" in session.seen


def test_stopped_and_continued(recording) -> None:
    line = [sys.executable, "-m", "gossipq_cli", "top", "--replay", str(recording.FILE)]
    session = Session([sys.executable, "-c", SHELL, *line])
    try:
        session.sees("backlog by group")
        session.press(b"\x1a")
        session.sees("<stopped>")
        assert session.sane()
        seen = len(session.seen)
        session.press(b"fg\n")
        session.until(lambda: b"backlog by group" in session.seen[seen:])
        assert not session.sane()
        session.press(b"q")
        assert (session.ended(), session.sane()) == (0, True)
    finally:
        session.close()


def test_the_other_end_is_gone(start: Callable[..., Session]) -> None:
    session = start()
    session.sees("backlog by group")
    os.close(session.master)
    session.master = os.open(os.devnull, os.O_RDWR)
    assert session.process.wait(WAIT_S) is not None


def test_keys_and_resize(start: Callable[..., Session]) -> None:
    session = start()
    session.sees("backlog by group")
    session.press(b"3\x1b[B\x1b[B\r")
    session.sees("followers")
    session.resize(20, 5)
    session.process.send_signal(signal.SIGWINCH)
    session.sees("20x5 is too small")
    seen = len(session.seen)
    session.resize(120, 40)
    session.process.send_signal(signal.SIGWINCH)
    session.until(lambda: b"followers" in session.seen[seen:])
    session.press(b"q")
    assert session.ended() == 0


def test_its_size_is_that_of_the_terminal_whatever_the_environment_says(
    start: Callable[..., Session],
) -> None:
    session = start(COLUMNS="100", LINES="30")
    session.sees("backlog by group")
    session.resize(20, 5)
    session.process.send_signal(signal.SIGWINCH)
    session.sees("20x5 is too small")
    session.press(b"q")
    assert session.ended() == 0


def held_back(session: Session) -> None:
    """The terminal takes nothing more, as after Ctrl-S, while screens are drawn anew."""
    session.sees("backlog by group")
    for _ in range(30):
        session.process.send_signal(signal.SIGWINCH)
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminal_that_takes_nothing_keeps_no_process(start: Callable[..., Session], number: int) -> None:
    session = start()
    held_back(session)
    session.process.send_signal(number)
    assert session.process.wait(WAIT_S) in (128 + signal.SIGTERM, 130)
    assert (session.ended(), session.sane()) == (session.process.returncode, True)


def test_keys_are_heard_while_the_terminal_takes_nothing(start: Callable[..., Session]) -> None:
    session = start()
    held_back(session)
    session.press(b"q")
    assert session.process.wait(WAIT_S) == 0


def test_a_slow_terminal_shows_the_newest_screen_whole(start: Callable[..., Session]) -> None:
    session = start()
    held_back(session)
    session.press(b"3\x1b[B\x1b[B\r")
    session.sees("followers")
    session.press(b"q")
    assert (session.ended(), session.sane()) == (0, True)


def test_output_that_does_not_block(start: Callable[..., Session]) -> None:
    """Another program on this terminal has set its open file so."""
    session = start(size=(200, 100))
    os.set_blocking(session.slave, False)
    held_back(session)
    assert session.process.poll() is None
    session.press(b"q")
    assert (session.ended(), session.sane()) == (0, True)


def test_no_color(start: Callable[..., Session]) -> None:
    session = start(NO_COLOR="1")
    session.sees("backlog by group")
    session.press(b"q")
    session.ended()
    assert set(re.findall(rb"\x1b\[([\d;]*)m", session.seen)) <= {b"0", b"1", b"1;7", b"7"}


def test_a_dumb_terminal_gets_one_screen_of_text(start: Callable[..., Session]) -> None:
    session = start(TERM="dumb")
    assert session.ended() == 0
    assert b"\x1b" not in session.seen
    assert b"backlog by group" in session.seen


def test_a_picture_by_a_key(start: Callable[..., Session], tmp_path: Path) -> None:
    target = tmp_path / "saved.svg"
    session = start()
    session.sees("backlog by group")
    session.press(f":svg {target}\r".encode())
    session.until(target.exists)
    session.press(f":svg {tmp_path}/{'none' * 20}/x.svg\r".encode())  # longer than the line: why comes first
    session.sees("No such file or directory")
    session.press(b"q")
    assert session.ended() == 0


def test_what_is_seen_can_be_recorded(start: Callable[..., Session], tmp_path: Path, recording) -> None:
    target = tmp_path / "copy.jsonl"
    session = start("--record", str(target), "--interval", "500ms")
    session.until(lambda: target.exists() and target.read_bytes().count(b"\n") == 3)
    session.press(b"q")
    assert session.ended() == 0
    assert list(Recording(target.read_bytes())) == list(Recording(recording.FILE.read_bytes()))
    assert target.stat().st_size < recording.FILE.stat().st_size, "what changed is in it"


def test_a_recording_is_wound_by_keys_and_by_time(start: Callable[..., Session]) -> None:
    """Its three snapshots are of 00:01:27 to 00:01:29."""
    session = start(size=(120, 30))
    session.sees("3/3  x1")
    session.press(b"p,,")
    session.sees("00:01:27Z  1/3")
    session.press(b".")
    session.sees("2/3")
    session.press(b"++")
    session.sees("x5")
    session.press(b"]")
    session.until(lambda: session.seen.rfind(b"3/3") > session.seen.rfind(b"2/3"))
    session.press(b":at 00:01:28\r")
    session.until(lambda: session.seen.rfind(b"2/3") > session.seen.rfind(b"3/3"))
    session.press(b":at noon\r")
    session.sees("write at HH:MM")
    session.press(b"q")
    assert session.ended() == 0
