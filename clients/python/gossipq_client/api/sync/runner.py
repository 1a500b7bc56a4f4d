"""Handlers of a sync client at work: each thread takes a record, runs the handler, and settles the record by
how it ended."""

import threading
import time
from typing import TYPE_CHECKING, Any

from gossipq_client.handlers import Crew, Handler, Hook, Item, called, goes_on, stack_of
from gossipq_client.values import TimeLimitExceeded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gossipq_client.api.sync.consumer import Message
    from gossipq_client.api.sync.driver import Driver
    from gossipq_client.api.sync.loop_thread import LoopThread
    from gossipq_client.api.sync.runs import Run


JOIN_S = 0.1  #: how often the end of a run looks whether a handler has exceeded its time limit


class WorkerCrew(Crew):
    """Its workers are threads. Everything here is touched with the client's lock."""

    def __init__(self, driver: "Driver", handler: Handler, stop_at_end: bool) -> None:
        super().__init__(driver.engine, handler, stop_at_end)
        self.idle, self.work = 0, threading.Condition(driver.lock)
        self.gathering = 0  #: workers that have a part of a batch and wait for more
        self.threads: list[threading.Thread] = []
        #: workers that wait for the coroutine of a handler: its message, and its task on the loop thread
        self.running: dict[threading.Thread, tuple[Message, asyncio.Task[Any]]] = {}

    def rouse(self) -> None:
        waiting = self.idle + self.gathering
        if waiting and self.lanes.more:
            self.work.notify(waiting)

    @property
    def finished(self) -> bool:
        return self.idle == self.handler.workers and self.lanes.empty and self.lanes.subscription.finished


class Workers:
    """The workers of a run. Those that find nothing sleep until the run, whose thread does the I/O, rouses
    them."""

    def __init__(self, run: "Run") -> None:
        self._run, self._driver = run, run.driver
        self._loop: LoopThread | None = None

    def crew(self, handler: Handler, stop_at_end: bool) -> WorkerCrew:
        """Subscribe for a handler."""
        return WorkerCrew(self._driver, handler, stop_at_end)

    def call_hook(self, hook: Hook) -> None:
        result = hook()
        if goes_on(result):
            self._awaited(result, None)

    def start(self, crew: WorkerCrew) -> None:
        name = f"{crew.handler.name}-{len(crew.threads)}"
        thread = threading.Thread(target=self._work, args=(crew,), name=name, daemon=True)
        thread.start()
        crew.threads.append(thread)

    def close(self) -> None:
        """End the loop of coroutine functions, behind the hooks."""
        if self._loop is not None:
            self._loop.close()

    def end(self, stuck_end_s: float) -> None:
        """Wait for all workers, and for stuck ones this many seconds."""
        with self._driver.lock:
            for crew in self._run.crews:
                crew.work.notify_all()
        for crew in self._run.crews:
            for thread in crew.threads:
                while thread.is_alive() and thread not in crew.stuck:
                    thread.join(None if crew.handler.time_limit_s is None else JOIN_S)
        end_s = time.monotonic() + stuck_end_s
        for crew in self._run.crews:
            for thread in list(crew.stuck):
                thread.join(max(0.0, end_s - time.monotonic()))

    # --- workers

    def _work(self, crew: WorkerCrew) -> None:
        try:
            while (item := self._next(crew)) is not None:
                if crew.handler.batch_size:
                    self._run.handle_batch(crew, self._gather(crew, item))
                else:
                    self._run.handle(crew, item)
        except BaseException as error:  # it ends the run
            if self._run.is_left:
                return
            with self._driver.lock:
                self._run.failure = self._run.failure or error
                self._driver.wake()

    def _next(self, crew: WorkerCrew) -> Item | None:
        """The record to work on; None when there shall be no more."""
        driver = self._driver
        session = driver.engine.session
        with driver.lock:
            while not self._run.stopping and driver.engine.usable and self._run.left and not crew.leave():
                item = driver.engine.step(crew.lanes.take)
                if session.links.out or session.consuming.credit_due:
                    driver.exchange()
                if item is not None:
                    self._run.left -= 1
                    crew.rouse()
                    driver.mind_hands()
                    return item
                crew.idle += 1
                driver.wake()
                crew.work.wait()
                crew.idle -= 1
        return None

    def _gather(self, crew: WorkerCrew, first: Item) -> list[Item]:
        """The records of a batch: as many as fit, or those that come within its wait."""
        driver, items = self._driver, [first]
        session = driver.engine.session
        end_s = time.monotonic() + crew.handler.batch_wait_s
        with driver.lock:
            while len(items) < crew.handler.batch_size and self._run.left and not self._run.stopping:
                if not driver.engine.usable:
                    break
                item = driver.engine.step(crew.lanes.take)
                if session.links.out or session.consuming.credit_due:
                    driver.exchange()
                if item is not None:
                    self._run.left -= 1
                    items.append(item)
                    continue
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                crew.gathering += 1
                driver.wake()
                crew.work.wait(left_s)
                crew.gathering -= 1
        return items

    def stop_cancelled(self, crew: WorkerCrew) -> None:
        for message, task in list(crew.running.values()):
            if message.cancelled:
                task.get_loop().call_soon_threadsafe(task.cancel)

    def call(self, crew: WorkerCrew, message: "Message", arguments: list[Any]) -> Any:
        """As in the asyncio twin."""
        handler = crew.handler
        seconds = handler.time_limit_s
        if seconds is None or handler.is_async:
            return self._called(crew, message, arguments)
        exceeded = TimeLimitExceeded(f"{message!r} took longer than {seconds:g} s")
        first = threading.Lock()  # who has it decides: the handler, or its time limit
        worker = threading.current_thread()

        def expire() -> None:
            if first.acquire(blocking=False):
                self._run.expire(crew, message, exceeded, worker, stack_of(worker.ident))

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        error: BaseException | None = None
        try:
            return self._called(crew, message, arguments)
        except BaseException as raised:
            error = raised
            raise
        finally:
            timer.cancel()
            if not first.acquire(blocking=False):
                timer.join()  # what it tells comes first
                with self._driver.lock:
                    self._run.returned(crew, message, exceeded, error, worker)

    def _called(self, crew: WorkerCrew, message: "Message", arguments: list[Any]) -> Any:
        result = called(crew.handler, arguments)
        return self._stoppable(crew, message, result) if goes_on(result) else result

    def _stoppable(self, crew: WorkerCrew, message: "Message", result: Any) -> Any:
        """Wait for the coroutine of a handler, which is cancelled when the job of its only record is."""
        seconds, thread = crew.handler.time_limit_s, threading.current_thread()
        if crew.handler.batch_size:
            return self._awaited(result, seconds)

        def begins(task: "asyncio.Task[Any]") -> None:
            crew.running[thread] = message, task
            if message.cancelled:
                task.cancel()

        try:
            return self._awaited(result, seconds, begins)
        finally:
            crew.running.pop(thread, None)

    def _awaited(
        self, result: Any, seconds: float | None, begins: "Callable[[asyncio.Task[Any]], None] | None" = None
    ) -> Any:
        from gossipq_client.api.sync.loop_thread import (
            LoopThread,  # who has no async handlers does without asyncio
        )

        with self._driver.lock:
            if self._loop is None:
                self._loop = LoopThread()
        return self._loop.wait(result, seconds, begins)
