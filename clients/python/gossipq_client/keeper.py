"""The thread that keeps a sync client's promises while the user's code runs: pings, leases, lingering acks, confirms.

It waits on the sockets only while no caller uses them, and stands back as soon as one does: as long as callers come by, it only
looks at the timers now and then.
"""

import os
import threading
import time
from typing import TYPE_CHECKING

from gossipq_client.engine import PAUSE_SECONDS, log
from gossipq_client.transport import wait

if TYPE_CHECKING:
    from gossipq_client.driver import Driver

REST_MS = 20  #: between two looks while callers do the work themselves


class Keeper:
    def __init__(self, client: "Driver") -> None:
        self.parked = False  #: waits for long: who makes something urgent wakes it
        self._client = client
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="gossipq-keeper", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self.parked = False
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Call without the lock, after the client is marked closed."""
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        seen: int | None = -1
        while seen is not None:
            try:
                seen = self._round(seen)
            except Exception:
                log.exception("keeping the promises of a client: it goes on in %s s", PAUSE_SECONDS)
                time.sleep(PAUSE_SECONDS)

    def _round(self, seen: int) -> int | None:
        """One wait and what it brings. `seen`, in and out: how often callers have done I/O; None: the client is closed."""
        client = self._client
        with client.lock:
            if client.engine.closed:
                return None
            busy, seen = client.exchanges != seen, client.exchanges
            timeout_ms = client.engine.timeout_ms()
            self.parked = not busy
            fds = [] if busy else client.engine.transport.fds()
        wait([*fds, self._wake], min(timeout_ms, REST_MS) if busy else timeout_ms)
        with client.lock:
            self.parked = False
            if client.engine.closed:
                return None
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass
            if client.exchanges == seen or client.engine.timeout_ms() == 0:
                client.turn()
        return seen
