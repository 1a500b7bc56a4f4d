"""Notifications to systemd: ready, alive, stopping. One datagram each; without systemd, none."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

SOCKET, PERIOD, PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
BEATS = 3  #: heartbeats within systemd's watchdog time


class Service:
    """The notify socket named by the environment."""

    def __init__(self, environment: Mapping[str, str], pid: int = 0) -> None:
        self._path = environment.get(SOCKET, "")
        mine = environment.get(PROCESS, "") in ("", str(pid or os.getpid()))
        period = environment.get(PERIOD, "") if self._path and mine else ""
        #: 0: systemd expects no heartbeats
        self.period_ms = int(period) // 1_000 if period.isdecimal() else 0
        self._beat_ms = 0

    @property
    def stuck_ms(self) -> int:
        """Silence after which a process counts as stuck: half of systemd's watchdog time."""
        return self.period_ms // 2

    def tell(self, *lines: str) -> None:
        if not self._path:
            return
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
            end.sendto("\n".join(lines).encode(), address)

    def ready(self, status: str) -> None:
        self.tell("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        self.tell("STOPPING=1", "STATUS=draining")

    def until_beat_ms(self, now_ms: int) -> int | None:
        """Return the time until the next heartbeat; None: none is needed."""
        return max(0, self._beat_ms - now_ms) if self.period_ms else None

    def beat(self, now_ms: int, well: bool) -> None:
        """Send a heartbeat if it is due and the node is well."""
        if self.period_ms and now_ms >= self._beat_ms:
            self._beat_ms = now_ms + self.period_ms // BEATS
            if well:
                self.tell("WATCHDOG=1")
