"""Streams that take what is there, on a machine that may be busy."""

from collections.abc import Callable
from typing import Any

STARTS_MAX = 10
#: what Spark says when a Python process of a source was not up within ten seconds, which nothing can change
STARVED = "Python worker failed to connect back"


def run_out(start: Callable[[], Any], patience_s: float) -> list[int]:
    """Runs a query (`trigger(availableNow=True)`) to its end: the rows of each batch that had some. One that
    Spark gave up because the machine was too busy to start a process is started again, and goes on from its
    checkpoint, as after any failure."""
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
