"""Wakes a thread that waits for descriptors; works wherever sockets do."""

import select
import socket
from collections.abc import Collection

from gossipq_client.io.transport import wait


class Bell:
    """Its descriptor is readable from `ring` until `clear`. Any thread may ring it."""

    def __init__(self) -> None:
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)
        self.rung = False
        self.fd = self._heard.fileno()
        self._poll: select.poll | None = None  #: of this bell and `_fds`; None: not made yet
        self._fds: list[int] = []

    def wait(self, fds: list[int], timeout_ms: float) -> Collection[int]:
        """Wait until this bell rings, one of the descriptors is readable, or the time is over. Return the
        readable ones. The next wait for the same list uses the same poll object."""
        if not hasattr(select, "poll"):
            return wait([*fds, self.fd], timeout_ms)
        poll = self._poll
        if poll is None or fds is not self._fds:
            poll = select.poll()
            for fd in (*fds, self.fd):
                poll.register(fd, select.POLLIN)
            self._poll, self._fds = poll, fds
        return dict(poll.poll(timeout_ms))

    def ring(self) -> None:
        if not self.rung:
            self.rung = True
            try:
                self._told.send(b"!")
            except OSError:  # full of signals that nobody took yet, or closed
                pass

    def clear(self) -> None:
        """Call it before looking for what was rung for."""
        try:
            while self._heard.recv(64):
                pass
        except OSError:  # nothing is left
            pass
        self.rung = False  # last: else a ring that came meanwhile, and was taken, would silence all after it

    def close(self) -> None:
        self._heard.close()
        self._told.close()

    def __del__(self) -> None:
        if hasattr(self, "_told"):
            self.close()
