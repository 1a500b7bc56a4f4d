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

    if hasattr(time, "clock_gettime_ns"):
        _boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

        def now(self) -> Now:
            return Now(time.clock_gettime_ns(self._boot) // 1_000_000, time.time_ns() // 1_000_000)

    else:  # Windows

        def now(self) -> Now:
            return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)

    def ticks_us(self) -> int:
        return time.perf_counter_ns() // 1_000
