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
        #: poll object for this bell and `_fds`; None until the first wait
        self._poll: select.poll | None = None
        self._fds: list[int] = []

    def wait(self, fds: list[int], timeout_ms: float) -> Collection[int]:
        """Wait until this bell rings, a descriptor is readable, or the time is over. Return the
        readable descriptors. The next wait for the same list uses the same poll object.
        """
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
            except OSError:  # full of signals that are not read yet, or closed
                pass

    def clear(self) -> None:
        """Call it before looking for the work that the bell announced."""
        try:
            while self._heard.recv(64):
                pass
        except OSError:  # all signals are read
            pass
        # must be last: a ring between the read and this line would otherwise be
        # lost, and later ones blocked
        self.rung = False

    def close(self) -> None:
        self._heard.close()
        self._told.close()

    def __del__(self) -> None:
        if hasattr(self, "_told"):
            self.close()
