"""Wakes a thread that waits for descriptors; works wherever sockets do."""

import socket


class Bell:
    """Its descriptor is readable from `ring` until `clear`. Any thread may ring it."""

    def __init__(self) -> None:
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)
        self.rung = False

    @property
    def fd(self) -> int:
        return self._heard.fileno()

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
