"""The only module that reads clocks. All others get a `Now` as an argument."""

import time
from typing import Protocol

from gossipq.types import Now


class Clock(Protocol):
    def now(self) -> Now: ...

    def ticks_us(self) -> int:
        """Return a counter of microseconds, to measure how long something took."""


class SystemClock:
    """The clocks of the system. Where the system offers it, boot time counts while the machine
    sleeps.
    """

    _boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> Now:
        boot_ns, wall_ns = time.clock_gettime_ns(self._boot), time.time_ns()
        # `Now(...)` would go through a Python function, several times for each message
        return tuple.__new__(Now, (boot_ns // 1_000_000, wall_ns // 1_000_000))

    def ticks_us(self) -> int:
        return time.perf_counter_ns() // 1_000
