"""The terminal: taken over for the time of the dashboard and given back as it was, however that ends."""

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

from gossipq_cli.dashboard.figures import speaks_unicode
from gossipq_cli.dashboard.painter import in_ascii

#: other screen, no cursor, pastes marked; the mouse stays the terminal's, so that copying works
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[2J"
LEAVE = "\x1b[?2026l\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
READ_BYTES = WRITE_BYTES = 4_096
GIVE_S = 0.5  #: for a terminal that takes nothing, before what it was to show is discarded
SIZE = (80, 24)  #: of a terminal that does not say


class Terminal:
    """`with Terminal(...)`: raw keys in, whole screens out. Ctrl-C stays KeyboardInterrupt; Ctrl-Z gives the
    terminal back and takes it again; SIGTERM and SIGHUP leave through every `finally`. What is logged
    meanwhile is not written: it would stand across the screen, and the screen says what is wrong."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called, in a signal handler, when the screen has to be drawn anew."""
        self._on_change = on_change
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._taken = False
        self._unsent = b""  # of the last screen
        self._unicode = speaks_unicode(os.environ)
        self._unheard = logging.NullHandler()  # of all that is logged: else stderr is
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

    # --- what the loop uses

    def size(self) -> tuple[int, int]:
        """Columns, lines: of the terminal itself, since $COLUMNS and $LINES do not follow it."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:  # it is gone
            return SIZE
        return columns or SIZE[0], lines or SIZE[1]

    def wake(self) -> None:
        """From any thread or signal handler: `wait` returns."""
        try:
            os.write(self._wake_write, b".")
        except OSError:
            pass  # it is awake already, or over

    def wait(self, seconds: float) -> bytes:
        """What was typed; empty when something woke it, or the time is over. Raises EOFError when the
        terminal is gone."""
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
        except BlockingIOError:  # somebody else took it from a non-blocking input
            return b""
        except OSError:
            typed = b""
        if not typed:
            raise EOFError("the terminal is gone")
        return typed

    @property
    def behind(self) -> bool:
        """Whether the terminal has yet to take what was written last: a slow one gets fewer screens, and keys
        are heard meanwhile."""
        return bool(self._unsent)

    def write(self, text: str) -> None:
        """Nothing, while the terminal is somebody else's."""
        if self._taken:
            self._send(text)

    def _send(self, text: str) -> None:
        shown = text if self._unicode else in_ascii(text)
        self._unsent += shown.encode(errors="backslashreplace")
        self._flush()

    def _flush(self) -> None:
        """As much as the terminal takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._screen, self._unsent[:WRITE_BYTES]) :]
        except BlockingIOError:
            pass

    # --- taking and giving back

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
            if not self._flushed(GIVE_S):  # as after Ctrl-S: it would keep the process from ending
                termios.tcflush(self._out, termios.TCOFLUSH)
                self._unsent = LEAVE.encode()
                self._flush()
                self._unsent = b""
            termios.tcsetattr(self._in, termios.TCSANOW, self._before or [])
        except (OSError, termios.error):
            pass  # the terminal is gone; there is nothing to give back

    def _flushed(self, seconds: float) -> bool:
        """Whether the terminal takes all within that time."""
        end = time.monotonic() + seconds
        while self._unsent and (left_s := end - time.monotonic()) > 0:
            select.select([], [self._screen], [], left_s)
            self._flush()
        return not self._unsent

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self._on_change()
        self.wake()

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal as it was; this goes on when the shell says so."""
        self._give()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)  # here again: somebody said `fg`
        self._take()
        self._resized(number, frame)

    @staticmethod
    def _leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)


def _opened_anew(terminal: int) -> int:
    """Open the terminal for this process alone, without blocking: the given descriptor is shared with the
    shell. Return the given one where that fails, as for a terminal of another container."""
    try:
        name = os.ttyname(terminal)
        return os.open(name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return terminal
