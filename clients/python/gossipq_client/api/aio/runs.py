"""One run of handlers: what becomes of a record and of the run, however the workers wait."""

from typing import TYPE_CHECKING, Any

from gossipq.errors import GossipqError
from gossipq_client.api.aio.schedules import Schedules
from gossipq_client.handlers import (
    LOOK_MS,
    STUCK_END_S,
    Around,
    Crew,
    Handler,
    Handlers,
    Hook,
    Item,
    Limits,
    RunEnd,
    answer,
    failure,
    left,
    overdue,
    returned,
    tell,
    tell_cancelled,
    untold,
    whole,
)
from gossipq_client.io import log, resident_bytes
from gossipq_client.values import TimeLimitExceeded, outcomes

if TYPE_CHECKING:
    from gossipq_client.api.aio.consumer import Consumer, Message


class Run:
    """The part of a run that knows nothing of threads and tasks."""

    def __init__(
        self, consumer: "Consumer", schedules: Schedules, handlers: Handlers, limits: Limits
    ) -> None:
        """Raises BadRequest without a handler."""
        self._consumer, self._publisher, self._driver = consumer, consumer.publisher, consumer.driver
        self._schedules, self._hooks, self._limits = schedules, handlers, limits
        self.engine = consumer.driver.engine  #: of the session that it consumes by
        self._handlers = handlers.some(self._publisher.codec)
        self._end_reason: RunEnd = "stopped"
        self._left = limits.max_records  #: records that workers may still take
        self._through = 0  #: records whose handlers have ended
        self._looked_ms = 0  #: when the memory of the process was measured last
        self._crews: list[Any] = []  #: each a `Crew` that can be roused
        self._stopping = False
        self._failure: BaseException | None = None
        self._stuck_end_s = STUCK_END_S
        self._is_left = False  #: the run is over, and stuck handlers may still run
        self._cancels = self.engine.session.consuming.cancels  #: as many as were looked at

    def stop(self) -> None:
        """What runs is finished, nothing new begins. From any thread, also from a signal handler: it takes no
        lock."""
        self._stopping = True
        self._driver.wake()

    def _over(self) -> bool:
        """Looked at after each exchange with the sockets."""
        for crew in self._crews:
            self._failure = self._failure or crew.lanes.subscription.error
            crew.rouse()
        if self._cancels != (cancels := self._driver.engine.session.consuming.cancels):
            self._cancels = cancels
            for crew in self._crews:
                self._stop_cancelled(crew)
        if (
            self._limits.stop_at_end
            and not len(self._driver.engine.session.calls)
            and all(crew.finished for crew in self._crews)
        ):
            self._end_reason = "at_end"
            return True
        if self._limits.max_memory_bytes is not None:
            self._look_at_memory(self._limits.max_memory_bytes)
        return self._stopping or self._failure is not None

    def _stop_cancelled(self, crew: Any) -> None:
        """Cancel the coroutines of handlers whose jobs were cancelled."""
        raise NotImplementedError

    def _look_at_memory(self, max_bytes: int) -> None:
        """Stop if the process has more memory than it may have."""
        now_ms = self._driver.engine.now_ms()
        if self._stopping or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms, found = now_ms, resident_bytes()
        if found is not None and found > max_bytes:
            self._stop_for("max_memory", f"memory={found} max_memory={max_bytes}")

    def _stop_for(self, reason: RunEnd, told: str) -> None:
        """End the run because of a limit."""
        if not self._stopping:
            self._end_reason = reason
            log.info("the run ends after %d records: %s", self._through, told)
            self.stop()

    async def _start_up(self) -> None:
        """Call the hooks of the start, then set the schedules of handlers. Raises the first error."""
        for hook in self._hooks.startup():
            await self._call_hook(hook)
        for plan in [handler.plan for handler in self._handlers if handler.plan is not None]:
            await self._schedules.declare(plan.topic, plan.value, name=plan.name, **plan.options)

    async def _shut_down(self) -> None:
        """Call all hooks of the end. The first error becomes that of the run."""
        for hook in self._hooks.shutdown():
            try:
                await self._call_hook(hook)
            except BaseException as error:
                log.exception("%s failed at the end of a run", getattr(hook, "__qualname__", repr(hook)))
                self._failure = self._failure or error

    async def _call_hook(self, hook: Hook) -> None:
        raise NotImplementedError

    async def _handle(self, crew: Crew, item: Item) -> None:
        handler, layers = crew.handler, self._publisher.layers
        message = self._consumer.message(*item)
        around = Around(layers.all, message)
        try:
            around.begin()
            if layers.receiving:
                message = self._consumer.received(message)
            if layers.handling:
                result = whole(await self._layered(crew, message))
            else:
                result = whole(await self._limited(crew, message, handler.arguments(message)))
            around.end(result)
            if (reply := answer(message, result, self._publisher.codec)) is not None:
                await self._publisher.publish(reply.topic, reply.value, reply.options)
            message.ack_soon(result)
        except BaseException as error:
            await self._failed(handler, message, around, error)
        finally:
            self._done(crew, item)

    async def _layered(self, crew: Crew, message: "Message", at: int = 0) -> Any:
        """Call the layers of middleware around the handler from `at` on, and the handler within them."""
        layers = self._publisher.layers.handling
        if at == len(layers):
            return await self._limited(crew, message, crew.handler.arguments(message))

        async def call_next(changed: "Message") -> Any:
            return await self._layered(crew, changed, at + 1)

        return await self._driver.result_of(layers[at], layers[at].handle(message, call_next))

    async def _failed(
        self, handler: Handler, message: "Message", around: Around, error: BaseException
    ) -> None:
        """Settle a message whose handler raised. Raises the error again if it ends the run."""
        message.settle(message._outcome(error))
        around.fail(error)
        if not isinstance(error, Exception):
            raise error
        if message.cancelled:
            tell_cancelled(handler, message)
        elif not (isinstance(error, TimeLimitExceeded) and error.told):
            tell(handler, message, error)
            await self._tell_asker(handler, message, error)

    async def _handle_batch(self, crew: Crew, items: list[Item]) -> None:
        """Call a handler of batches. Messages that it does not settle share its end: an ack, or its error."""
        messages = [self._consumer.message(*item) for item in items]
        arounds = {message: Around(self._publisher.layers.all, message) for message in messages}
        try:
            values = await self._values(crew.handler, arounds)
            error = await self._called_with(crew, values) if values else None
            for message in values:
                await self._end_one(crew.handler, message, arounds[message], error)
        finally:
            for item in items:
                self._done(crew, item)

    async def _values(self, handler: Handler, arounds: "dict[Message, Around]") -> "dict[Message, Any]":
        """Decode the values of a batch. A message that cannot be decoded fails alone and is left out."""
        values: dict[Message, Any] = {}
        for message, around in list(arounds.items()):
            try:
                around.begin()
                received = self._consumer.received(message)
                arounds[received] = around
                values[received] = handler.value(received)
            except BaseException as error:
                await self._failed(handler, message, around, error)
        return values

    async def _called_with(self, crew: Crew, values: "dict[Message, Any]") -> BaseException | None:
        """Call the handler with lists of values and messages. Return what it raised."""
        messages, arguments = list(values), [list(values.values()), list(values)]
        try:
            lists = [arguments[0] if is_value else arguments[1] for is_value in crew.handler.order]
            whole(await self._limited(crew, messages[0], lists))
        except BaseException as error:
            return error
        return None

    async def _end_one(
        self, handler: Handler, message: "Message", around: Around, error: BaseException | None
    ) -> None:
        """Settle a message of a batch by how the handler ended, unless the handler has settled it."""
        try:
            if error is not None and not message._settled:
                raise error
            around.end(None)
            if (reply := answer(message, None, self._publisher.codec)) is not None:
                await self._publisher.publish(reply.topic, reply.value, reply.options)
            message.ack_soon()
        except BaseException as failed:
            await self._failed(handler, message, around, failed)

    async def _limited(self, crew: Any, message: "Message", arguments: list[Any]) -> Any:
        """Call the handler and return its result. `message`: the only one, or the first of a batch.

        Raises TimeLimitExceeded, and the errors of the handler.
        """
        raise NotImplementedError

    def _done(self, crew: Crew, item: Item) -> None:
        """A record is settled."""
        crew.settled(item)
        self._through += 1
        if self._through == self._limits.max_records:
            self._stop_for("max_records", f"max_records={self._through}")

    async def _expire(
        self, crew: Crew, message: "Message", exceeded: TimeLimitExceeded, worker: Any, stack: str
    ) -> None:
        """End a message without its handler, which is in a thread and cannot be stopped.

        Another worker takes the place of this one. If too many are stuck, or a thread cannot
        start, the run ends with TimeLimitExceeded.
        """
        exceeded.told = True
        crew.stuck[worker] = message
        try:
            message._expire(outcomes.of(exceeded))
        except GossipqError as gone:
            untold(crew.handler, message, gone)
        is_replaced = self._replace(crew, (message._held, message.offset))
        overdue(crew, message, exceeded, self._publisher.layers.all, stack, is_replaced)
        if not (is_replaced or self._stopping):
            text = f"{len(crew.stuck)} handlers of {crew.handler.name} do not end: too many to replace them"
            self._failure, self._stuck_end_s = self._failure or TimeLimitExceeded(text), 0.0
            self._driver.wake()
        await self._tell_asker(crew.handler, message, exceeded)

    def _replace(self, crew: Crew, item: Item) -> bool:
        """Start another worker, which may take the next record of the same key.

        Returns False if none can start.
        """
        crew.expired(item)
        if self._stopping or not crew.can_replace:
            return False
        try:
            self._start_worker(crew)
        except RuntimeError:  # the system cannot start a thread
            return False
        return True

    def _start_worker(self, crew: Any) -> None:
        """Raises RuntimeError if the system cannot start a thread."""
        raise NotImplementedError

    def _returned(
        self,
        crew: Crew,
        message: "Message",
        exceeded: TimeLimitExceeded,
        error: BaseException | None,
        worker: Any,
    ) -> None:
        """Note that an overdue handler has ended. Raises TimeLimitExceeded, or the handler's
        BaseException."""
        crew.stuck.pop(worker)
        crew.surplus += 1
        returned(crew, message, error)
        if error is None or isinstance(error, Exception):
            raise exceeded from error
        raise error

    def _leave(self) -> None:
        """The run is over: log which handlers still run."""
        self._is_left = True
        for crew in self._crews:
            left(crew)

    async def _tell_asker(self, handler: Handler, message: "Message", error: Exception) -> None:
        """Tell the requester at once that the handler failed."""
        if (reply := failure(message, error)) is not None:
            try:
                self._publisher.post(reply.topic, reply.value, reply.options)
            except Exception as lost:  # middleware hears of it, and may raise what it likes
                untold(handler, message, lost)
