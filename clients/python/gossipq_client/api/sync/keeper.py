"""The thread that keeps a sync client's promises while the user's code runs: pings, leases, lingering acks,
confirms.

It waits on the sockets only while no caller uses them, and stands back as soon as one does: as long as
callers come by, it only looks at the timers now and then. While a caller waits, who minds sockets and timers
all that time, it stands aside, until that one leaves.
"""

import threading
import time
from typing import TYPE_CHECKING

from gossipq_client.io import PAUSE_SECONDS, Bell, Engine, log, wait
from gossipq_client.session import ACK_LINGER_MS

if TYPE_CHECKING:
    from gossipq_client.api.sync.driver import Driver

REST_MS = 20  #: between two looks while callers do the work themselves
ASIDE_MS = 2_000  #: between two looks while somebody waits: an interrupt may have ended that
JOIN_SECONDS = (
    1.0  #: how long its end is waited for: a signal handler that closes a client may hold what it needs
)


class Keeper:
    def __init__(self, client: "Driver", engine: Engine) -> None:
        """Of one engine: a client that could not connect makes another one."""
        self.parked = False  #: waits for long: who makes something urgent wakes it
        self.aside = False  #: leaves everything to a caller who waits: who stops waiting wakes it
        self._stood = False  #: it stood aside until that was over by itself
        self._client, self.engine = client, engine
        self._bell = Bell()
        self._thread = threading.Thread(target=self._run, name="gossipq-keeper", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # as in an atexit function of Python 3.12: callers do all the I/O
            if "shutdown" not in str(error):
                raise
            self._bell.close()

    def wake(self) -> None:
        self.parked = self.aside = False
        self._bell.ring()

    def stop(self) -> None:
        """Call after the client is marked closed."""
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        seen: int | None = -1
        while seen is not None:
            try:
                seen = self._round(seen)
            except Exception:
                log.exception("keeping the promises of a client: it goes on in %s s", PAUSE_SECONDS)
                time.sleep(PAUSE_SECONDS)
        self._bell.close()

    def _round(self, seen: int) -> int | None:
        """One wait and what it brings. `seen`, in and out: how often callers have done I/O; None: the client
        is closed."""
        client, engine = self._client, self.engine
        client.close_as_told()
        engine.tell()
        with client.lock:
            if engine.closed:
                return None
            waits = bool(client.waiting)
            timeout_ms = 0 if engine.torn else engine.timeout_ms()
            busy = client.exchanges != seen and not (self._stood and waits)
            seen = client.exchanges
            self.aside = waits and not busy and timeout_ms > 0
            self.parked = self.aside or (not busy and timeout_ms > ACK_LINGER_MS)
            fds = [] if busy or self.aside or engine.torn else engine.transport.fds
            timeout_ms = ASIDE_MS if self.aside else min(timeout_ms, REST_MS) if busy else timeout_ms
            if engine.noted:  # since: who noted it may not have seen that this is parked
                timeout_ms = min(timeout_ms, ACK_LINGER_MS)
            rest_ms = engine.session.rest_ms() if fds else 0
        if rest_ms:
            wait([self._bell.fd], min(rest_ms, timeout_ms))
        wait([*fds, self._bell.fd], timeout_ms)
        with client.lock:
            self._stood = self.aside
            self.parked = self.aside = False
            if engine.closed:
                return None
            self._bell.clear()
            if client.exchanges == seen or engine.torn or engine.timeout_ms() == 0:
                engine.step(client.keep)
        return seen
