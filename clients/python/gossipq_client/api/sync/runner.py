"""Handlers of a sync client at work: each thread takes a record, runs the handler, and settles the record by
how it ended."""

import inspect
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from gossipq.errors import GossipqError
from gossipq_client.handlers import Around, Handler, Item, Lanes, answer, failure, tell
from gossipq_client.io import CLOSE_SECONDS
from gossipq_client.values import TimeLimitExceeded, outcomes

if TYPE_CHECKING:
    from gossipq_client.api.sync.consumer import Message
    from gossipq_client.api.sync.loop_thread import LoopThread
    from gossipq_client.api.sync.workers import Workers


class Crew:
    """The workers of one handler. Everything here is touched with the client's lock."""

    def __init__(self, client: "Workers", handler: Handler, stop_at_end: bool) -> None:
        self.handler, self.idle = handler, 0
        self.lanes = Lanes(
            client._engine.session.consuming, client._engine.subscribe(handler.asked, stop_at_end)
        )
        self.work = threading.Condition(client._lock)

    def rouse(self) -> None:
        if self.idle and self.lanes.more:
            self.work.notify(self.idle)

    @property
    def finished(self) -> bool:
        return self.idle == self.handler.workers and self.lanes.empty and self.lanes.subscription.finished


class Runner:
    """One `run`. The calling thread does the I/O; workers that find nothing sleep until it rouses them."""

    def __init__(self, client: "Workers", handlers: list[Handler], stop_at_end: bool) -> None:
        self._client, self._handlers, self._stop_at_end = client, handlers, stop_at_end
        self._crews: list[Crew] = []
        self._stopping = False
        self._failure: BaseException | None = None
        self._loop: LoopThread | None = None

    def run(self) -> None:
        """Raises what a subscription was refused with, and what is no Exception and came out of a handler."""
        client = self._client
        self._crews = client._do(
            lambda: [Crew(client, handler, self._stop_at_end) for handler in self._handlers]
        )
        threads = [
            threading.Thread(
                target=self._work, args=(crew,), name=f"{crew.handler.name}-{number}", daemon=True
            )
            for crew in self._crews
            for number in range(crew.handler.workers)
        ]
        for thread in threads:
            thread.start()
        try:
            client._until(self._over)
        finally:
            self._end(threads)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """What runs is finished, nothing new begins. Takes no lock: it may be called where one is held."""
        self._stopping = True
        self._client._wake()

    def _over(self) -> bool:
        """Looked at after each exchange with the sockets, with the lock."""
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

    def _end(self, threads: list[threading.Thread]) -> None:
        client = self._client
        with client._lock:
            self._stopping = True
            for crew in self._crews:
                crew.work.notify_all()
        for thread in threads:
            thread.join()
        if self._loop is not None:
            self._loop.close()
        if client._engine.usable:
            for crew in self._crews:
                client._do(crew.lanes.give_back)
            for crew in self._crews:
                client._end(crew.lanes.subscription)
            client._until(lambda: client._engine.session.settled, CLOSE_SECONDS)

    # --- workers

    def _work(self, crew: Crew) -> None:
        try:
            while (item := self._next(crew)) is not None:
                self._handle(crew, item)
        except BaseException as error:  # it ends the run
            with self._client._lock:
                self._failure = self._failure or error
                self._client._wake()

    def _next(self, crew: Crew) -> Item | None:
        """The record to work on; None when there shall be no more."""
        client = self._client
        session = client._engine.session
        with client._lock:
            while not self._stopping and client._engine.usable:
                client._engine.enter()
                item = client._engine.step(crew.lanes.take)
                if session.links.out or session.consuming.credit_due:
                    client._exchange()
                if item is not None:
                    crew.rouse()
                    return item
                crew.idle += 1
                client._wake()
                crew.work.wait()
                crew.idle -= 1
        return None

    def _handle(self, crew: Crew, item: Item) -> None:
        client, handler = self._client, crew.handler
        message = client._message(*item)
        around = Around(client._wares, message)
        try:
            around.begin()
            result = self._limited(handler, message)
            around.end(result)
            if (reply := answer(message, result)) is not None:
                client.publish_and_wait(reply.topic, reply.value, **reply.options)
            message.ack()
        except BaseException as error:
            message.settle(outcomes.of(error))
            around.fail(error)
            if not isinstance(error, Exception):
                raise
            tell(handler, message, error)
            self._tell_asker(handler, message, error)
        finally:
            with client._lock:
                crew.lanes.done(*item)

    def _tell_asker(self, handler: Handler, message: "Message", error: Exception) -> None:
        """Who asked hears at once that it failed."""
        if (reply := failure(message, error)) is not None:
            try:
                self._client.publish(reply.topic, reply.value, **reply.options)
            except GossipqError as lost:
                tell(handler, message, lost)

    def _limited(self, handler: Handler, message: "Message") -> Any:
        """Raises TimeLimitExceeded, and what the handler raises."""
        arguments, seconds = handler.arguments(message), handler.time_limit_s
        if seconds is None or handler.is_async:
            return self._called(handler, arguments)
        exceeded = TimeLimitExceeded(f"{message!r} took longer than {seconds:g} s")
        over = threading.Event()

        def expire() -> None:
            """A thread cannot be stopped: its message is given back without it."""
            over.set()
            message.settle(outcomes.of(exceeded))
            tell(handler, message, exceeded)

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            result = self._called(handler, arguments)
        finally:
            timer.cancel()
        if over.is_set():
            raise exceeded
        return result

    def _called(self, handler: Handler, arguments: list[Any]) -> Any:
        result = handler.function(*arguments)
        return self._awaited(result, handler.time_limit_s) if inspect.isawaitable(result) else result

    def _awaited(self, awaitable: Awaitable[Any], seconds: float | None) -> Any:
        from gossipq_client.api.sync.loop_thread import (
            LoopThread,  # who has no async handlers does without asyncio
        )

        with self._client._lock:
            if self._loop is None:
                self._loop = LoopThread()
        return self._loop.wait(awaitable, seconds)
