"""Threads for the sync handlers of an asyncio client. Those of `concurrent.futures` do not fit: Python waits
for them when it ends, so one handler that never returns would keep the process for ever.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = Callable[[], None]


class HandlerThreads:
    """Daemon threads, as many as calls run at the same time. For one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: list[SimpleQueue[Job | None]] = []
        self._is_closed = False
        self._started = 0

    def call(self, function: Callable[[], Any]) -> "tuple[asyncio.Future[Any], Callable[[], int | None]]":
        """Call a function in a thread. Returns its future, and what tells the identity of the thread.

        Raises RuntimeError if the system cannot start a thread.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        idents: list[int] = []
        jobs = self._idle.pop() if self._idle else self._start()

        def job() -> None:
            idents.append(threading.get_ident())
            try:
                result, error = function(), None
            except BaseException as raised:
                result, error = None, raised
            self._loop.call_soon_threadsafe(self._done, jobs, future, result, error)

        jobs.put(job)
        return future, lambda: idents[0] if idents else None

    def close(self) -> None:
        """Ends idle threads now, and others when their calls end."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> "SimpleQueue[Job | None]":
        jobs: SimpleQueue[Job | None] = SimpleQueue()
        name = f"gossipq-handler-{self._started}"
        threading.Thread(target=_serve, args=(jobs,), name=name, daemon=True).start()
        self._started += 1
        return jobs

    def _done(
        self,
        jobs: "SimpleQueue[Job | None]",
        future: "asyncio.Future[Any]",
        result: Any,
        error: BaseException | None,
    ) -> None:
        if self._is_closed:
            jobs.put(None)
        else:
            self._idle.append(jobs)
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _serve(jobs: "SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except RuntimeError:  # the event loop is closed: nobody waits for the result
            return
