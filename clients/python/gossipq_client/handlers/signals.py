"""How a run hears that it shall end: SIGTERM and Ctrl-C, in the main thread."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gossipq_client.io import children

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def until_signal(stop: Callable[[], object], wanted: bool = True) -> Iterator[None]:
    """The first SIGTERM or Ctrl-C calls `stop`, a second one does what it always does. Only the main thread
    hears them, and not even that one unless it is `wanted`."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) or signal.SIG_DFL for number in STOP_SIGNALS}

    def first(number: int, frame: FrameType | None) -> None:
        restore()
        if children.is_ours(before[number]):  # it would close the clients of handlers that still run
            signal.signal(number, signal.SIG_DFL)
        stop()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in STOP_SIGNALS:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
