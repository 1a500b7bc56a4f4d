"""Streams that take the available rows, on a machine that may be busy."""

from collections.abc import Callable
from typing import Any

STARTS_MAX = 10
#: Spark's error when a source's Python process did not start within ten seconds,
#: which cannot be changed
STARVED = "Python worker failed to connect back"


def run_out(start: Callable[[], Any], patience_s: float) -> list[int]:
    """Runs a query (`trigger(availableNow=True)`) to its end and returns the row counts of
    non-empty batches. If Spark gave up because the machine was too busy to start a process, the
    query starts again from its checkpoint, as after any failure.
    """
    batches: list[int] = []
    for attempt in range(STARTS_MAX):
        query, ended = start(), False
        try:
            ended = query.awaitTermination(patience_s)
            assert ended, "it does not end"
        except Exception as error:
            if STARVED not in str(error) or attempt == STARTS_MAX - 1:
                raise
        finally:
            query.stop()
            batches += [int(each["numInputRows"]) for each in query.recentProgress if each["numInputRows"]]
        if ended:
            return batches
    raise AssertionError("its last attempt returns or raises")
