"""An event loop on a thread of its own, where the async handlers of a sync client run."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from gossipq_client.handlers import CANCELLED, awaited
from gossipq_client.values import TimeLimitExceeded

Begins = Callable[["asyncio.Task[Any]"], None]


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gossipq-handlers", daemon=True)
        self._thread.start()

    def wait(self, result: Any, seconds: float | None = None, begins: Begins | None = None) -> Any:
        """The outcome of what `goes_on`. Raises what that raises, and TimeLimitExceeded when it takes longer
        than `seconds`; one that was cancelled has failed. `begins` is called on the loop with the task,
        before it begins."""
        work = _outcome(result, seconds, begins)
        outcome, error = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        if isinstance(error, asyncio.CancelledError):
            raise RuntimeError(CANCELLED) from error
        if error is not None:
            raise error
        return outcome

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _outcome(
    result: Any, seconds: float | None, begins: Begins | None
) -> tuple[Any, BaseException | None]:
    """Nothing is raised on the loop: what is no Exception would end it."""
    limit = asyncio.timeout(seconds)
    task = asyncio.current_task()
    if begins is not None and task is not None:
        begins(task)
    try:
        async with limit:
            return await awaited(result), None
    except BaseException as error:
        if limit.expired() and isinstance(error, TimeoutError):
            return None, TimeLimitExceeded(f"took longer than {seconds:g} s")
        return None, error
