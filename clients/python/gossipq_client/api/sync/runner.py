"""Handlers of a sync client at work: each thread takes a record, runs the handler, and settles the record by
how it ended."""

import inspect
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from gossipq_client.handlers import Handler, Item, Lanes, reply_to, tell
from gossipq_client.io import CLOSE_SECONDS
from gossipq_client.values import outcomes, payloads

if TYPE_CHECKING:
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
        try:
            result = handler.function(*handler.arguments(message))
            if inspect.isawaitable(result):
                result = self._awaited(result)
            if result is not None and (reply := reply_to(message)) is not None:
                pending = client.publish(
                    reply.topic,
                    payloads.encoded(result),
                    route=reply.route,
                    headers=reply.headers,
                    level="stored",
                )
                pending.result(client._timeout)
            message.ack()
        except BaseException as error:
            message.settle(outcomes.of(error))
            if not isinstance(error, Exception):
                raise
            tell(handler, message, error)
        finally:
            with client._lock:
                crew.lanes.done(*item)

    def _awaited(self, awaitable: Awaitable[Any]) -> Any:
        from gossipq_client.api.sync.loop_thread import (
            LoopThread,  # who has no async handlers does without asyncio
        )

        with self._client._lock:
            if self._loop is None:
                self._loop = LoopThread()
        return self._loop.wait(awaitable)
