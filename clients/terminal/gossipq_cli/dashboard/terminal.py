"""The terminal: taken over by the dashboard, and always restored."""

import fcntl
import logging
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from gossipq_cli.dashboard.painter import in_ascii
from gossipq_ops.figures import speaks_unicode

#: alternate screen, no cursor, marked pastes; no mouse, so that copying works
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[2J"
LEAVE = "\x1b[?2026l\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
READ_BYTES = WRITE_BYTES = 4_096
GIVE_S = 0.5  #: for a terminal that accepts no output, before its last screen is discarded
SIZE = (80, 24)  #: of a terminal that does not report its size


class Terminal:
    """`with Terminal(...)`: reads raw keys and writes whole screens.

    Ctrl-C stays KeyboardInterrupt. Ctrl-Z restores the terminal and takes it again. SIGTERM and
    SIGHUP leave through every `finally`. Log lines are dropped meanwhile, because they would damage
    the screen, which shows errors itself.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called in a signal handler when the screen must be redrawn."""
        self._on_change = on_change
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._taken = False
        self._unsent = b""  # the rest of the last screen
        self._unicode = speaks_unicode(os.environ)
        self._unheard = logging.NullHandler()  # drops log records; otherwise they go to stderr
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
            fcntl.fcntl(end, fcntl.F_SETFD, fcntl.FD_CLOEXEC)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        self._screen = _opened_anew(self._out)
        handlers = {signal.SIGWINCH: self._resized, signal.SIGTSTP: self._suspend}
        handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), self._leave)
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        logging.getLogger().addHandler(self._unheard)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give()
        logging.getLogger().removeHandler(self._unheard)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._screen != self._out:
            os.close(self._screen)

    # --- for the loop

    def size(self) -> tuple[int, int]:
        """Return columns and lines of the terminal itself; $COLUMNS and
        $LINES do not change with it.
        """
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:  # the terminal is gone
            return SIZE
        return columns or SIZE[0], lines or SIZE[1]

    def wake(self) -> None:
        """Make `wait` return. From any thread or signal handler."""
        try:
            os.write(self._wake_write, b".")
        except OSError:
            pass  # already awake, or closed

    def wait(self, seconds: float) -> bytes:
        """Return typed bytes; empty after `wake` or a timeout. Raises
        EOFError if the terminal is gone.
        """
        unsent = [self._screen] if self._unsent else []
        readable, writable, _ = select.select([self._in, self._wake_read], unsent, [], max(0.0, seconds))
        if writable:
            self._flush()
        if self._wake_read in readable:
            os.read(self._wake_read, READ_BYTES)
        if self._in not in readable:
            return b""
        try:
            typed = os.read(self._in, READ_BYTES)
        except BlockingIOError:  # another process read from the non-blocking input
            return b""
        except OSError:
            typed = b""
        if not typed:
            raise EOFError("the terminal is gone")
        return typed

    @property
    def behind(self) -> bool:
        """True if the terminal has not accepted the last screen: a slow one gets fewer screens."""
        return bool(self._unsent)

    def write(self, text: str) -> None:
        """Write a screen. Does nothing while the terminal is given back."""
        if self._taken:
            self._send(text)

    def _send(self, text: str) -> None:
        shown = text if self._unicode else in_ascii(text)
        self._unsent += shown.encode(errors="backslashreplace")
        self._flush()

    def _flush(self) -> None:
        """Write as much as the terminal accepts now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._screen, self._unsent[:WRITE_BYTES]) :]
        except BlockingIOError:
            pass

    # --- taking and restoring

    def _take(self) -> None:
        tty.setcbreak(self._in)
        self._taken = True
        self._send(ENTER)

    def _give(self) -> None:
        if not self._taken:
            return
        self._taken = False
        try:
            self._send(LEAVE)
            # for example after Ctrl-S: it would keep the process from ending
            if not self._flushed(GIVE_S):
                termios.tcflush(self._out, termios.TCOFLUSH)
                self._unsent = LEAVE.encode()
                self._flush()
                self._unsent = b""
            termios.tcsetattr(self._in, termios.TCSANOW, self._before or [])
        except (OSError, termios.error):
            pass  # the terminal is gone

    def _flushed(self, seconds: float) -> bool:
        """Return whether the terminal accepts all output within this time."""
        end = time.monotonic() + seconds
        while self._unsent and (left_s := end - time.monotonic()) > 0:
            select.select([], [self._screen], [], left_s)
            self._flush()
        return not self._unsent

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self._on_change()
        self.wake()

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: restore the terminal for the shell, and continue when the
        shell resumes this process.
        """
        self._give()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)  # resumed by `fg`
        self._take()
        self._resized(number, frame)

    @staticmethod
    def _leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)


def _opened_anew(terminal: int) -> int:
    """Open the terminal for this process, without blocking, because the
    shell shares the descriptor.

    Returns the given descriptor if that fails, as for a terminal of another container.
    """
    try:
        name = os.ttyname(terminal)
        return os.open(name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return terminal
