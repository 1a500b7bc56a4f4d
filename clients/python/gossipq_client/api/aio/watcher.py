"""Watches descriptors for event loops that cannot: `add_reader` is missing in the default loop of Windows."""

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from typing import Any


class Watcher:
    """`add_reader` and `remove_reader` of an event loop, or of a thread where the loop has neither."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._wake: socket.socket | None = None  #: of the thread; None: the loop watches

    def add(self, fd: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the event loop whenever the descriptor can be read."""
        if self._wake is None:
            try:
                self._loop.add_reader(fd, call, *arguments)
                return
            except NotImplementedError:
                self._start()
        self._calls[fd] = call, arguments
        self._ring()

    def remove(self, fd: int) -> None:
        """Do not watch the descriptor any more."""
        if self._wake is None:
            self._loop.remove_reader(fd)
        elif self._calls.pop(fd, None) is not None:
            self._ring()

    def close(self) -> None:
        """End the thread."""
        if self._wake is not None:
            self._wake.close()
            self._wake = None

    def _start(self) -> None:
        self._wake, heard = socket.socketpair()
        self._wake.setblocking(False)
        heard.setblocking(False)
        threading.Thread(target=self._watch, args=(heard,), name="gossipq-watcher", daemon=True).start()

    def _ring(self) -> None:
        assert self._wake is not None, "the thread runs"
        try:
            self._wake.send(b"x")
        except BlockingIOError:  # it has been rung often enough
            pass

    def _watch(self, heard: socket.socket) -> None:
        """Wait for descriptors, and let the loop call their functions before waiting again."""
        with heard:
            while True:
                watched: list[Any] = [heard, *self._calls]
                try:
                    ready, _, _ = select.select(watched, [], [])
                except (OSError, ValueError, RuntimeError):  # one was closed, or they changed meanwhile
                    ready = watched
                if heard in ready:
                    try:
                        if not heard.recv(4_096):
                            return
                    except BlockingIOError:
                        pass
                fds = [fd for fd in ready if fd is not heard]
                if fds and not self._hand_over(fds):
                    return

    def _hand_over(self, fds: list[Any]) -> bool:
        """Call the functions of descriptors on the loop, and wait for that. False: the loop is closed."""
        done = threading.Event()

        def call() -> None:
            try:
                for fd in fds:
                    function, arguments = self._calls.get(fd, (_nothing, ()))
                    function(*arguments)
            finally:
                done.set()

        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        while not done.wait(1.0):
            if self._loop.is_closed():
                return False
        return True


def _nothing() -> None:
    pass
