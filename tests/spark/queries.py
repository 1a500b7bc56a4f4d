"""Streams that take what is there, on a machine that may be busy."""

from collections.abc import Callable
from typing import Any

STARTS_MAX = 10
#: what Spark says when a Python process of a source was not up within ten seconds, which nothing can change
STARVED = "Python worker failed to connect back"


def run_out(start: Callable[[], Any], patience_s: float) -> None:
    """Runs a query (`trigger(availableNow=True)`) to its end. One that Spark gave up because the machine was
    too busy to start a process is started again, and goes on from its checkpoint, as after any failure."""
    for attempt in range(STARTS_MAX):
        query = start()
        try:
            assert query.awaitTermination(patience_s), "it does not end"
        except Exception as error:
            if STARVED not in str(error) or attempt == STARTS_MAX - 1:
                raise
        else:
            return
        finally:
            query.stop()
