"""A line between a client and a server that takes so many bytes a second each way, or none for a while."""

import socket
import threading
import time
from contextlib import suppress

PIECE_BYTES = 8_192
BUFFER_BYTES = 32_768  #: of its own sockets: what they hold counts as taken


class SlowLine:
    """Goes to `port` of this host, and is reached at `endpoint`. Use it in a `with`."""

    def __init__(self, port: int, bytes_s: int) -> None:
        self._port = port
        self.bytes_s, self.connections = bytes_s, 0
        self.open = threading.Event()  #: clear it, and it takes nothing
        self.open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "SlowLine":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                far = socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
                far.connect(("127.0.0.1", self._port))
                self._sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._carry, args=ends))
                    self._threads[-1].start()

    def _carry(self, of: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while piece := of.recv(PIECE_BYTES):
                self.open.wait()
                to.sendall(piece)
                time.sleep(PIECE_BYTES / self.bytes_s)
            to.shutdown(socket.SHUT_WR)
