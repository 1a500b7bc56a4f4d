"""The terminal: taken over for the time of the dashboard and given back as it was, however that ends."""

import fcntl
import logging
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from gossipq_cli.dashboard.figures import speaks_unicode
from gossipq_cli.dashboard.painter import in_ascii

#: other screen, no cursor, pastes marked; the mouse stays the terminal's, so that copying works
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[2J"
LEAVE = "\x1b[?2026l\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
READ_BYTES = 4_096


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
        self._unicode = speaks_unicode(os.environ)
        self._unheard = logging.NullHandler()  # of all that is logged: else stderr is
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
            fcntl.fcntl(end, fcntl.F_SETFD, fcntl.FD_CLOEXEC)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
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

    # --- what the loop uses

    @staticmethod
    def size() -> tuple[int, int]:
        """Columns, lines."""
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def wake(self) -> None:
        """From any thread or signal handler: `wait` returns."""
        try:
            os.write(self._wake_write, b".")
        except OSError:
            pass  # it is awake already, or over

    def wait(self, seconds: float) -> bytes:
        """What was typed; empty when something woke it, or the time is over. Raises EOFError when the
        terminal is gone."""
        readable, _, _ = select.select([self._in, self._wake_read], [], [], max(0.0, seconds))
        if self._wake_read in readable:
            os.read(self._wake_read, READ_BYTES)
        if self._in not in readable:
            return b""
        try:
            typed = os.read(self._in, READ_BYTES)
        except OSError:
            typed = b""
        if not typed:
            raise EOFError("the terminal is gone")
        return typed

    def write(self, text: str) -> None:
        """Nothing, while the terminal is somebody else's."""
        if self._taken:
            self._send(text)

    def _send(self, text: str) -> None:
        shown = text if self._unicode else in_ascii(text)
        data = memoryview(shown.encode(errors="backslashreplace"))
        while data:
            data = data[os.write(self._out, data) :]

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
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before or [])
        except (OSError, termios.error):
            pass  # the terminal is gone; there is nothing to give back

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
