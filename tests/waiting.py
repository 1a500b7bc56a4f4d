"""Waiting for what another process or thread does in its own time."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
PAUSE_S = 0.02


def until(done: Callable[[], Any], patience_s: float = PATIENCE_S, what: str | Callable[[], str] = "") -> Any:
    """Asks again and again, and returns what `done` returned once that is true. `what`: for the error."""
    end_s = time.monotonic() + patience_s
    while not (found := done()):
        if time.monotonic() >= end_s:
            raise AssertionError((what() if callable(what) else what) or "it did not happen in time")
        time.sleep(PAUSE_S)
    return found


def quickest(measure: Callable[[], float], limit_s: float, tries: int = 5) -> None:
    """Check that one of several tries takes less than `limit_s`, as `measure` tells. Other work on the
    machine slows some of them, a fault slows all of them.
    """
    took_s = list[float]()
    while not took_s or min(took_s) >= limit_s:
        assert len(took_s) < tries, f"seconds that it took: {took_s}, and not {limit_s}"
        took_s.append(measure())
