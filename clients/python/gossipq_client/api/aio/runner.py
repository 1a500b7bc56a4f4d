"""Handlers of an asyncio client at work: tasks that each take a record and settle it; sync handlers run in
threads."""

import asyncio
from collections import deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from gossipq_client.api.aio.runs import Run
from gossipq_client.api.aio.schedules import Schedules
from gossipq_client.api.aio.threads import HandlerThreads
from gossipq_client.handlers import (
    CANCELLED,
    Crew,
    Handler,
    Handlers,
    Hook,
    Item,
    Limits,
    RunEnd,
    awaited,
    called,
    stack_of,
)
from gossipq_client.io import CLOSE_SECONDS, Engine
from gossipq_client.values import TimeLimitExceeded

if TYPE_CHECKING:
    from gossipq_client.api.aio.consumer import Consumer, Message


class TaskCrew(Crew):
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


class Runner(Run):
    """One `run`. Workers that find nothing sleep until it rouses them."""

    def __init__(
        self, consumer: "Consumer", schedules: Schedules, handlers: Handlers, limits: Limits
    ) -> None:
        super().__init__(consumer, schedules, handlers, limits)
        self._threads = HandlerThreads()
        self._tasks: list[asyncio.Task[None]] = []
        self._given_up = asyncio.get_running_loop().create_future()  #: done: stuck handlers are left

    async def run(self) -> RunEnd:
        """As the sync one."""
        driver = self._driver
        driver.engine.check()
        try:
            await self._start_up()
            for handler in self._handlers:
                self._crews.append(driver.step(TaskCrew, self.engine, handler, self._limits.stop_at_end))
            for crew in self._crews:
                for _ in range(crew.handler.workers):
                    self._start_worker(crew)
            await driver.until(self._over, None)
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure
        return self._end_reason

    async def _call_hook(self, hook: Hook) -> None:
        await awaited(hook())

    def _start_worker(self, crew: TaskCrew) -> None:
        self._tasks.append(asyncio.create_task(self._work(crew)))

    async def _end(self) -> None:
        driver = self._driver
        self._stopping = True
        for crew in self._crews:
            crew.rouse(all_of_them=True)
        giving_up = asyncio.get_running_loop().call_later(self._stuck_end_s, self._give_up)
        try:
            await asyncio.gather(*self._tasks)
        finally:  # also when it is cancelled once more: nothing stays with a run that is over
            giving_up.cancel()
            self._threads.close()
            self._leave()
            if driver.engine.usable:
                for crew in self._crews:
                    driver.step(crew.lanes.give_back)
                    self._consumer.end(crew.lanes.subscription)
            await self._shut_down()
        if driver.engine.usable:
            await driver.until(driver.step(driver.engine.session.mark), CLOSE_SECONDS)

    def _give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    # --- workers

    async def _work(self, crew: TaskCrew) -> None:
        try:
            while (item := await self._next(crew)) is not None:
                if crew.handler.batch_size:
                    await self._handle_batch(crew, await self._gather(crew, item))
                else:
                    await self._handle(crew, item)
                await self._driver.breathe()
        except BaseException as error:  # it ends the run
            self._failure = self._failure or error
            self._driver.turn()

    async def _next(self, crew: TaskCrew) -> Item | None:
        """The record to work on; None when there shall be no more."""
        driver = self._driver
        session = driver.engine.session
        while not self._stopping and driver.engine.usable and self._left and not crew.leave():
            item = driver.step(crew.lanes.take)
            if session.links.out or session.consuming.credit_due:
                driver.turn()
            if item is not None:
                self._left -= 1
                driver.mind_hands()
                return item
            sleeper = asyncio.get_running_loop().create_future()
            crew.sleeping.append(sleeper)
            driver.turn()
            await sleeper
        return None

    async def _gather(self, crew: TaskCrew, first: Item) -> list[Item]:
        """The records of a batch: as many as fit, or those that come within its wait."""
        driver, items, loop = self._driver, [first], asyncio.get_running_loop()
        end_s = loop.time() + crew.handler.batch_wait_s
        while len(items) < crew.handler.batch_size and self._left and not self._stopping:
            if not driver.engine.usable:
                break
            item = driver.step(crew.lanes.take)
            if item is not None:
                self._left -= 1
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

    def _stop_cancelled(self, crew: TaskCrew) -> None:
        loop = asyncio.get_running_loop()
        for task, message in crew.running.items():
            if message.cancelled:
                # not at once: this may run within that task, between two of its awaits
                loop.call_soon(self._cancel, crew, task, message)

    @staticmethod
    def _cancel(crew: TaskCrew, task: "asyncio.Task[Any]", message: "Message") -> None:
        if crew.running.get(task) is message and task not in crew.cancelled:
            crew.cancelled.add(task)
            task.cancel()

    async def _limited(self, crew: TaskCrew, message: "Message", arguments: list[Any]) -> Any:
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
            await self._expire(crew, message, exceeded, task, stack_of(ident()))
            await asyncio.wait([thread, self._given_up], return_when=asyncio.FIRST_COMPLETED)
            if thread.done():
                self._returned(crew, message, exceeded, thread.exception(), task)
        raise exceeded

    async def _awaited(self, result: Any) -> Any:
        try:
            return await awaited(result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError(CANCELLED) from error
