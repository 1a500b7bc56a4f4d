"""How a run learns that it must end: SIGTERM and Ctrl-C, in the main thread."""

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
    """The first SIGTERM or Ctrl-C calls `stop`; a second one takes its default action. Only the
    main thread gets them, and only if `wanted`.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) or signal.SIG_DFL for number in STOP_SIGNALS}

    def first(number: int, frame: FrameType | None) -> None:
        restore()
        # our own handler would close clients of handlers that still run
        if children.is_ours(before[number]):
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
