"""The only reader of time. Everyone else is handed a `Now`."""

import time
from typing import Protocol

from gossipq.types import Now


class Clock(Protocol):
    def now(self) -> Now: ...

    def ticks_us(self) -> int:
        """A counter for measuring how long something took."""


class SystemClock:
    """Boot time counts also while the machine sleeps, where the system offers it."""

    _boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> Now:
        return Now(time.clock_gettime_ns(self._boot) // 1_000_000, time.time_ns() // 1_000_000)

    def ticks_us(self) -> int:
        return time.perf_counter_ns() // 1_000
