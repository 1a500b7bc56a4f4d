"""How clients in a child of multiprocessing are ended.

Such a child leaves by `os._exit`, which skips atexit: it runs the finalizers of `multiprocessing.util`. A
pool ends its children by SIGTERM, whose default action skips those as well, so that signal gets a handler.

Python runs a handler in the main thread, which may be about to wait for a lock when the signal comes, and
then waits for ever. A thread therefore repeats the signal until the process has ended.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

LAST = -1_000  #: priority of a finalizer of multiprocessing: others may still publish before it
REPEAT_SECONDS = 0.005  #: time between two signals; a step of a client is shorter
KILL_SECONDS = (
    #: a main thread that runs no handler for this long, as in a long C call, is not waited for
    10.0
)


class Ends:
    """The end of this process, if it is a child of multiprocessing that has a client."""

    def __init__(self, leave_all: Callable[[], None], is_busy: Callable[[], bool]) -> None:
        """`leave_all` closes all clients. `is_busy` returns True while a client is within a step; a
        signal handler that interrupts this step cannot close the client.
        """
        from multiprocessing.util import Finalize

        self._leave_all, self._is_busy = leave_all, is_busy
        self._leaving = False
        self._told: socket.socket | None = None
        Finalize(None, self.leave, exitpriority=LAST)

    def leave(self) -> None:
        self._leaving = True
        try:
            self._leave_all()
        finally:
            self._leaving = False

    def handle_signal(self) -> None:
        """Take SIGTERM, unless the program handles it already. Call in the main thread. Windows has
        no such signal: a child that is terminated there ends at once.
        """
        if os.name != "posix" or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        if self._told is None:
            heard, self._told = socket.socketpair()
            self._told.setblocking(False)
            threading.Thread(target=self._repeat, args=(heard,), name="gossipq-end", daemon=True).start()
        signal.signal(signal.SIGTERM, self._end)
        before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop has it, and it wakes the main thread
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def forget(self) -> None:
        """In a forked child: SIGTERM gets its default action again and does not wake the parent."""
        if is_ours(signal.getsignal(signal.SIGTERM)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._told is not None:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._told.fileno()):
                signal.set_wakeup_fd(before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Close all clients, then take the signal's default action."""
        if self._leaving:
            return
        if self._is_busy():
            assert self._told is not None, "made before the handler"
            with contextlib.suppress(BlockingIOError):  # full of signals, so the thread is awake
                self._told.send(bytes([number]))
            return
        try:
            self.leave()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _repeat(self, heard: socket.socket) -> None:
        """Repeat each SIGTERM whose handler belongs to this class. The number of
        every signal is written here.
        """
        since_s: float | None = None
        while True:
            if signal.SIGTERM not in heard.recv(64):
                continue
            if not is_ours(signal.getsignal(signal.SIGTERM)):
                since_s = None
                continue
            since_s = since_s or time.monotonic()
            time.sleep(REPEAT_SECONDS)
            is_late = time.monotonic() - since_s > KILL_SECONDS
            os.kill(os.getpid(), signal.SIGKILL if is_late else signal.SIGTERM)


def end_with_child(leave_all: Callable[[], None], is_busy: Callable[[], bool]) -> None:
    """In a child of multiprocessing, close all clients when the child returns or gets an
    unhandled SIGTERM; see `Ends`.
    """
    global _ends
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None:
        return
    _ends = _ends or Ends(leave_all, is_busy)
    if threading.current_thread() is threading.main_thread():
        _ends.handle_signal()


def is_ours(handler: object) -> bool:
    """True for the handler that closes all clients."""
    return isinstance(getattr(handler, "__self__", None), Ends)


def _in_child() -> None:
    """Discards, in a forked child, what belongs to its parent."""
    global _ends
    if _ends is not None:
        _ends.forget()
        _ends = None


_ends: Ends | None = None
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
