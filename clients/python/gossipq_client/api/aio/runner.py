"""Handlers of an asyncio client at work: tasks that each take a record and settle it; sync handlers run in
threads."""

import asyncio
from collections import deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from gossipq_client.api.aio.threads import HandlerThreads
from gossipq_client.handlers import (
    CANCELLED,
    Crew,
    Handler,
    Hook,
    Item,
    awaited,
    called,
    stack_of,
)
from gossipq_client.io import Engine
from gossipq_client.values import TimeLimitExceeded

if TYPE_CHECKING:
    from gossipq_client.api.aio.consumer import Message
    from gossipq_client.api.aio.runs import Run


class WorkerCrew(Crew):
    """Its workers are tasks."""

    def __init__(self, engine: Engine, handler: Handler, stop_at_end: bool) -> None:
        super().__init__(engine, handler, stop_at_end)
        self.sleeping: deque[asyncio.Future[None]] = deque()
        self.gathering = 0  #: those of `sleeping` that have a part of a batch
        #: workers that wait for the coroutine of a handler, each with its message
        self.running: dict[asyncio.Task[Any], Message] = {}
        self.cancelled: set[asyncio.Task[Any]] = set()  #: those whose coroutines were cancelled

    def rouse(self, all_of_them: bool = False) -> None:
        while self.sleeping and (all_of_them or self.lanes.more):
            sleeper = self.sleeping.popleft()
            if not sleeper.done():
                sleeper.set_result(None)

    @property
    def finished(self) -> bool:
        idle = len(self.sleeping) == self.handler.workers and not self.gathering
        return idle and self.lanes.empty and self.lanes.subscription.finished


class Workers:
    """The workers of a run. Those that find nothing sleep until the run rouses them."""

    def __init__(self, run: "Run") -> None:
        self._run, self._driver = run, run.driver
        self._threads = HandlerThreads()
        self._tasks: list[asyncio.Task[None]] = []
        self._given_up = asyncio.get_running_loop().create_future()  #: done: stuck handlers are left

    def crew(self, handler: Handler, stop_at_end: bool) -> WorkerCrew:
        """Subscribe for a handler."""
        return WorkerCrew(self._driver.engine, handler, stop_at_end)

    async def call_hook(self, hook: Hook) -> None:
        await awaited(hook())

    def start(self, crew: WorkerCrew) -> None:
        self._tasks.append(asyncio.create_task(self._work(crew)))

    async def end(self, stuck_end_s: float) -> None:
        """Wait for all workers, and for stuck ones this many seconds."""
        for crew in self._run.crews:
            crew.rouse(all_of_them=True)
        giving_up = asyncio.get_running_loop().call_later(stuck_end_s, self._give_up)
        try:
            await asyncio.gather(*self._tasks)
        finally:
            giving_up.cancel()
            self._threads.close()

    def close(self) -> None:
        """Nothing is left to do behind the hooks."""

    def _give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    # --- workers

    async def _work(self, crew: WorkerCrew) -> None:
        try:
            while (item := await self._next(crew)) is not None:
                if crew.handler.batch_size:
                    await self._run.handle_batch(crew, await self._gather(crew, item))
                else:
                    await self._run.handle(crew, item)
                await self._driver.breathe()
        except BaseException as error:  # it ends the run
            self._run.failure = self._run.failure or error
            self._driver.turn()

    async def _next(self, crew: WorkerCrew) -> Item | None:
        """The record to work on; None when there shall be no more."""
        driver = self._driver
        session = driver.engine.session
        while not self._run.stopping and driver.engine.usable and self._run.left and not crew.leave():
            item = driver.step(crew.lanes.take)
            if session.links.out or session.consuming.credit_due:
                driver.turn()
            if item is not None:
                self._run.left -= 1
                driver.mind_hands()
                return item
            sleeper = asyncio.get_running_loop().create_future()
            crew.sleeping.append(sleeper)
            driver.turn()
            await sleeper
        return None

    async def _gather(self, crew: WorkerCrew, first: Item) -> list[Item]:
        """The records of a batch: as many as fit, or those that come within its wait."""
        driver, items, loop = self._driver, [first], asyncio.get_running_loop()
        end_s = loop.time() + crew.handler.batch_wait_s
        while len(items) < crew.handler.batch_size and self._run.left and not self._run.stopping:
            if not driver.engine.usable:
                break
            item = driver.step(crew.lanes.take)
            if item is not None:
                self._run.left -= 1
                items.append(item)
                continue
            left_s = end_s - loop.time()
            if left_s <= 0:
                break
            sleeper = loop.create_future()
            crew.sleeping.append(sleeper)
            crew.gathering += 1
            driver.turn()
            await asyncio.wait([sleeper], timeout=left_s)
            crew.gathering -= 1
            if not sleeper.done():
                crew.sleeping.remove(sleeper)
        driver.turn()
        return items

    def stop_cancelled(self, crew: WorkerCrew) -> None:
        loop = asyncio.get_running_loop()
        for task, message in crew.running.items():
            if message.cancelled:
                # not at once: this may run within that task, between two of its awaits
                loop.call_soon(self._cancel, crew, task, message)

    @staticmethod
    def _cancel(crew: WorkerCrew, task: "asyncio.Task[Any]", message: "Message") -> None:
        if crew.running.get(task) is message and task not in crew.cancelled:
            crew.cancelled.add(task)
            task.cancel()

    async def call(self, crew: WorkerCrew, message: "Message", arguments: list[Any]) -> Any:
        """Call the handler and return its result. `message`: the only one, or the first of a batch.

        Raises TimeLimitExceeded, and the errors of the handler.
        """
        handler, is_async = crew.handler, crew.handler.is_async
        thread: asyncio.Future[Any] | None = None
        task = asyncio.current_task()
        assert task is not None, "workers are tasks"
        if is_async and not handler.batch_size:
            if message._held.lost:  # while middleware had it
                message._require_lease()
            crew.running[task] = message
        try:
            async with asyncio.timeout(handler.time_limit_s) as limit:
                if is_async:
                    return await self._awaited(called(handler, arguments))
                call = partial(copy_context().run, called, handler, arguments)
                thread, ident = self._threads.call(call)
                return await self._awaited(await asyncio.shield(thread))
        except TimeoutError:
            if not limit.expired():
                raise
        except asyncio.CancelledError:
            if task not in crew.cancelled or task.cancelling() > 1:
                raise
            message._require_lease()
        finally:
            crew.running.pop(task, None)
            if task in crew.cancelled:
                crew.cancelled.remove(task)
                task.uncancel()
        exceeded = TimeLimitExceeded(f"{message!r} took longer than {handler.time_limit_s:g} s")
        if thread is not None and not thread.done():
            await self._run.expire(crew, message, exceeded, task, stack_of(ident()))
            await asyncio.wait([thread, self._given_up], return_when=asyncio.FIRST_COMPLETED)
            if thread.done():
                self._run.returned(crew, message, exceeded, thread.exception(), task)
        raise exceeded

    async def _awaited(self, result: Any) -> Any:
        try:
            return await awaited(result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError(CANCELLED) from error
