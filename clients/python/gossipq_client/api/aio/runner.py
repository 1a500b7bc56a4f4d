"""Handlers of an asyncio client at work: tasks that each take a record and settle it; sync handlers run in
threads."""

import asyncio
import inspect
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from gossipq.errors import GossipqError
from gossipq_client.handlers import Around, Handler, Item, Lanes, answer, failure, tell
from gossipq_client.io import CLOSE_SECONDS
from gossipq_client.values import TimeLimitExceeded, outcomes

if TYPE_CHECKING:
    from gossipq_client.api.aio.consumer import Message
    from gossipq_client.api.aio.workers import Workers


class Crew:
    """The workers of one handler."""

    def __init__(self, client: "Workers", handler: Handler, stop_at_end: bool) -> None:
        self.handler = handler
        self.lanes = Lanes(
            client._engine.session.consuming, client._engine.subscribe(handler.asked, stop_at_end)
        )
        self.sleeping: deque[asyncio.Future[None]] = deque()

    def rouse(self, all_of_them: bool = False) -> None:
        while self.sleeping and (all_of_them or self.lanes.more):
            sleeper = self.sleeping.popleft()
            if not sleeper.done():
                sleeper.set_result(None)

    @property
    def finished(self) -> bool:
        return (
            len(self.sleeping) == self.handler.workers
            and self.lanes.empty
            and self.lanes.subscription.finished
        )


class Runner:
    """One `run`. Workers that find nothing sleep until it rouses them."""

    def __init__(self, client: "Workers", handlers: list[Handler], stop_at_end: bool) -> None:
        self._client, self._handlers, self._stop_at_end = client, handlers, stop_at_end
        self._crews: list[Crew] = []
        self._stopping = False
        self._failure: BaseException | None = None
        threads = sum(handler.workers for handler in handlers if not handler.is_async)
        self._threads = ThreadPoolExecutor(threads, "gossipq-handler") if threads else None

    async def run(self) -> None:
        """As the sync one."""
        client = self._client
        client._engine.check()
        self._crews = client._do(
            lambda: [Crew(client, handler, self._stop_at_end) for handler in self._handlers]
        )
        tasks = [
            asyncio.create_task(self._work(crew)) for crew in self._crews for _ in range(crew.handler.workers)
        ]
        try:
            await client._until(self._over, None)
        finally:
            await self._end(tasks)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """What runs is finished, nothing new begins. From any thread, also from a signal handler."""
        self._stopping = True
        self._client._wake()

    def _over(self) -> bool:
        """Looked at after each exchange with the sockets."""
        for crew in self._crews:
            self._failure = self._failure or crew.lanes.subscription.error
            crew.rouse()
        if (
            self._stop_at_end
            and not len(self._client._engine.session.calls)
            and all(crew.finished for crew in self._crews)
        ):
            return True
        return self._stopping or self._failure is not None

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        client = self._client
        self._stopping = True
        for crew in self._crews:
            crew.rouse(all_of_them=True)
        await asyncio.gather(*tasks)
        if self._threads is not None:
            self._threads.shutdown()
        if client._engine.usable:
            for crew in self._crews:
                client._do(crew.lanes.give_back)
                client._end(crew.lanes.subscription)
            await client._until(lambda: client._engine.session.settled, CLOSE_SECONDS)

    # --- workers

    async def _work(self, crew: Crew) -> None:
        try:
            while (item := await self._next(crew)) is not None:
                await self._handle(crew, item)
        except BaseException as error:  # it ends the run
            self._failure = self._failure or error
            self._client._turn()

    async def _next(self, crew: Crew) -> Item | None:
        """The record to work on; None when there shall be no more."""
        client = self._client
        session = client._engine.session
        while not self._stopping and client._engine.usable:
            item = client._do(crew.lanes.take)
            if session.links.out or session.consuming.credit_due:
                client._turn()
            if item is not None:
                return item
            sleeper = asyncio.get_running_loop().create_future()
            crew.sleeping.append(sleeper)
            client._turn()
            await sleeper
        return None

    async def _handle(self, crew: Crew, item: Item) -> None:
        client, handler = self._client, crew.handler
        message = client._message(*item)
        around = Around(client._wares, message)
        try:
            around.begin()
            result = await self._limited(handler, handler.arguments(message))
            around.end(result)
            if (reply := answer(message, result)) is not None:
                await client.publish_and_wait(reply.topic, reply.value, **reply.options)
            await message.ack()
        except BaseException as error:
            message.settle(outcomes.of(error))
            around.fail(error)
            if not isinstance(error, Exception):
                raise
            tell(handler, message, error)
            await self._tell_asker(handler, message, error)
        finally:
            crew.lanes.done(*item)

    async def _tell_asker(self, handler: Handler, message: "Message", error: Exception) -> None:
        """Who asked hears at once that it failed."""
        if (reply := failure(message, error)) is not None:
            try:
                await self._client.publish(reply.topic, reply.value, **reply.options)
            except GossipqError as lost:
                tell(handler, message, lost)

    async def _limited(self, handler: Handler, arguments: list[Any]) -> Any:
        """Raises TimeLimitExceeded, and what the handler raises."""
        try:
            async with asyncio.timeout(handler.time_limit_s) as limit:
                return await self._called(handler, arguments)
        except TimeoutError:
            if limit.expired():
                raise TimeLimitExceeded(f"took longer than {handler.time_limit_s:g} s") from None
            raise

    async def _called(self, handler: Handler, arguments: list[Any]) -> Any:
        if self._threads is None or handler.is_async:
            result = handler.function(*arguments)
        else:
            loop, context = asyncio.get_running_loop(), copy_context()
            result = await loop.run_in_executor(self._threads, context.run, handler.function, *arguments)
        if not inspect.isawaitable(result):
            return result
        try:
            return await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError("the handler was cancelled") from error
