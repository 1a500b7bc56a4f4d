"""One run of handlers: what becomes of a record and of the run, however its workers wait."""

from typing import TYPE_CHECKING, Any

from gossipq.errors import GossipqError
from gossipq_client.api.aio.runner import WorkerCrew, Workers
from gossipq_client.api.aio.schedules import Schedules
from gossipq_client.handlers import (
    LOOK_MS,
    STUCK_END_S,
    Around,
    Handler,
    Handlers,
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
from gossipq_client.io import CLOSE_SECONDS, log, resident_bytes
from gossipq_client.values import TimeLimitExceeded, outcomes

if TYPE_CHECKING:
    from gossipq_client.api.aio.consumer import Consumer, Message


class Run:
    """One `run`. It knows nothing of the threads or tasks that its workers are."""

    def __init__(
        self, consumer: "Consumer", schedules: Schedules, handlers: Handlers, limits: Limits
    ) -> None:
        """Raises BadRequest without a handler."""
        self._consumer, self._publisher, self.driver = consumer, consumer.publisher, consumer.driver
        self._schedules, self._hooks, self._limits = schedules, handlers, limits
        self.engine = consumer.driver.engine  #: of the session that it consumes by
        self._handlers = handlers.some(self._publisher.codec)
        self._end_reason: RunEnd = "stopped"
        self.left = limits.max_records  #: records that workers may still take
        self._through = 0  #: records whose handlers have ended
        self._looked_ms = 0  #: when the memory of the process was measured last
        self.crews: list[WorkerCrew] = []
        self.stopping = False
        self.failure: BaseException | None = None
        self._stuck_end_s = STUCK_END_S
        self.is_left = False  #: the run is over, and stuck handlers may still run
        self._workers = Workers(self)
        self._cancels = self.engine.session.consuming.cancels  #: as many as were looked at

    async def run(self) -> RunEnd:
        """Consume until the end. Raises the error of a refused subscription, an error of a handler that is no
        Exception, and RuntimeError if the system cannot start a thread."""
        self.driver.engine.check()
        try:
            await self._start_up()
            for handler in self._handlers:
                crew = self.driver.step(self._workers.crew, handler, self._limits.stop_at_end)
                self.crews.append(crew)
            for crew in self.crews:
                for _ in range(crew.handler.workers):
                    self._workers.start(crew)
            await self.driver.until(self._over, None)
        finally:
            await self._end()
        if self.failure is not None:
            raise self.failure
        return self._end_reason

    async def _end(self) -> None:
        """Let running handlers end, for a few seconds if they are stuck, and give the other records back."""
        self.stopping = True
        try:
            await self._workers.end(self._stuck_end_s)
        finally:  # also when it is interrupted once more: nothing stays with a run that is over
            self.is_left = True
            for crew in self.crews:
                left(crew)
            if self.driver.engine.usable:
                for crew in self.crews:
                    self.driver.step(crew.lanes.give_back)
                    self._consumer.end(crew.lanes.subscription)
            await self._shut_down()
        self._workers.close()
        if self.driver.engine.usable:
            await self.driver.until(self.driver.step(self.driver.engine.session.mark), CLOSE_SECONDS)

    def stop(self) -> None:
        """What runs is finished, nothing new begins. From any thread, also from a signal handler: it takes no
        lock."""
        self.stopping = True
        self.driver.wake()

    def _over(self) -> bool:
        """Looked at after each exchange with the sockets."""
        for crew in self.crews:
            self.failure = self.failure or crew.lanes.subscription.error
            crew.rouse()
        if self._cancels != (cancels := self.driver.engine.session.consuming.cancels):
            self._cancels = cancels
            for crew in self.crews:
                self._workers.stop_cancelled(crew)
        if (
            self._limits.stop_at_end
            and not len(self.driver.engine.session.calls)
            and all(crew.finished for crew in self.crews)
        ):
            self._end_reason = "at_end"
            return True
        if self._limits.max_memory_bytes is not None:
            self._look_at_memory(self._limits.max_memory_bytes)
        return self.stopping or self.failure is not None

    def _look_at_memory(self, max_bytes: int) -> None:
        """Stop if the process has more memory than it may have."""
        now_ms = self.driver.engine.now_ms()
        if self.stopping or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms, found = now_ms, resident_bytes()
        if found is not None and found > max_bytes:
            self._stop_for("max_memory", f"memory={found} max_memory={max_bytes}")

    def _stop_for(self, reason: RunEnd, told: str) -> None:
        """End the run because of a limit."""
        if not self.stopping:
            self._end_reason = reason
            log.info("the run ends after %d records: %s", self._through, told)
            self.stop()

    async def _start_up(self) -> None:
        """Call the hooks of the start, then set the schedules of handlers. Raises the first error."""
        for hook in self._hooks.startup():
            await self._workers.call_hook(hook)
        for plan in [handler.plan for handler in self._handlers if handler.plan is not None]:
            await self._schedules.declare(plan.topic, plan.value, name=plan.name, **plan.options)

    async def _shut_down(self) -> None:
        """Call all hooks of the end. The first error becomes that of the run."""
        for hook in self._hooks.shutdown():
            try:
                await self._workers.call_hook(hook)
            except BaseException as error:
                log.exception("%s failed at the end of a run", getattr(hook, "__qualname__", repr(hook)))
                self.failure = self.failure or error

    async def handle(self, crew: WorkerCrew, item: Item) -> None:
        """Call a handler with a record, and settle the record by how the handler ended."""
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
                result = whole(await self._workers.call(crew, message, handler.arguments(message)))
            around.end(result)
            if (reply := answer(message, result, self._publisher.codec)) is not None:
                await self._publisher.publish(reply.topic, reply.value, reply.options)
            message.ack_soon(result)
        except BaseException as error:
            await self._failed(handler, message, around, error)
        finally:
            self._done(crew, item)

    async def _layered(self, crew: WorkerCrew, message: "Message", at: int = 0) -> Any:
        """Call the layers of middleware around the handler from `at` on, and the handler within them."""
        layers = self._publisher.layers.handling
        if at == len(layers):
            return await self._workers.call(crew, message, crew.handler.arguments(message))

        async def call_next(changed: "Message") -> Any:
            return await self._layered(crew, changed, at + 1)

        return await self.driver.result_of(layers[at], layers[at].handle(message, call_next))

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

    async def handle_batch(self, crew: WorkerCrew, items: list[Item]) -> None:
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

    async def _called_with(self, crew: WorkerCrew, values: "dict[Message, Any]") -> BaseException | None:
        """Call the handler with lists of values and messages. Return what it raised."""
        messages, arguments = list(values), [list(values.values()), list(values)]
        try:
            lists = [arguments[0] if is_value else arguments[1] for is_value in crew.handler.order]
            whole(await self._workers.call(crew, messages[0], lists))
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

    def _done(self, crew: WorkerCrew, item: Item) -> None:
        """A record is settled."""
        with self.driver.lock:
            crew.settled(item)
            self._through += 1
            if self._through == self._limits.max_records:
                self._stop_for("max_records", f"max_records={self._through}")

    async def expire(
        self, crew: WorkerCrew, message: "Message", exceeded: TimeLimitExceeded, worker: Any, stack: str
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
        if not (is_replaced or self.stopping):
            text = f"{len(crew.stuck)} handlers of {crew.handler.name} do not end: too many to replace them"
            self.failure, self._stuck_end_s = self.failure or TimeLimitExceeded(text), 0.0
            self.driver.wake()
        await self._tell_asker(crew.handler, message, exceeded)

    def _replace(self, crew: WorkerCrew, item: Item) -> bool:
        """Start another worker, which may take the next record of the same key.

        Returns False if none can start.
        """
        with self.driver.lock:
            crew.expired(item)
            if self.stopping or not crew.can_replace:
                return False
            try:
                self._workers.start(crew)
            except RuntimeError:  # the system cannot start a thread
                return False
            return True

    def returned(
        self,
        crew: WorkerCrew,
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

    async def _tell_asker(self, handler: Handler, message: "Message", error: Exception) -> None:
        """Tell the requester at once that the handler failed."""
        if (reply := failure(message, error)) is not None:
            try:
                self._publisher.post(reply.topic, reply.value, reply.options)
            except Exception as lost:  # middleware hears of it, and may raise what it likes
                untold(handler, message, lost)
