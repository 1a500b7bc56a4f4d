"""One run of handlers: what becomes of a record and of the run, however the workers wait."""

from typing import TYPE_CHECKING, Any

from gossipq.errors import GossipqError
from gossipq_client.handlers import (
    Around,
    Crew,
    Handler,
    Item,
    answer,
    failure,
    overdue,
    returned,
    tell,
    untold,
    whole,
)
from gossipq_client.values import TimeLimitExceeded, outcomes

if TYPE_CHECKING:
    from gossipq_client.api.aio.consumer import Message
    from gossipq_client.api.aio.workers import Workers


class Run:
    """The part of a run that knows nothing of threads and tasks."""

    def __init__(self, client: "Workers", handlers: list[Handler], stop_at_end: bool) -> None:
        self._client, self._handlers, self._stop_at_end = client, handlers, stop_at_end
        self._crews: list[Any] = []  #: each a `Crew` that can be roused
        self._stopping = False
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """What runs is finished, nothing new begins. From any thread, also from a signal handler: it takes no
        lock."""
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

    async def _handle(self, crew: Crew, item: Item) -> None:
        client, handler = self._client, crew.handler
        message = client._message(*item)
        around = Around(client._wares, message)
        try:
            around.begin()
            result = whole(await self._limited(crew, message))
            around.end(result)
            if (reply := answer(message, result)) is not None:
                await client.publish_and_wait(reply.topic, reply.value, **reply.options)
            await message.ack()
        except BaseException as error:
            message.settle(outcomes.of(error))
            around.fail(error)
            if not isinstance(error, Exception):
                raise
            if not (isinstance(error, TimeLimitExceeded) and error.told):
                tell(handler, message, error)
                await self._tell_asker(handler, message, error)
        finally:
            self._done(crew, item)

    async def _limited(self, crew: Crew, message: "Message") -> Any:
        """What the handler returns. Raises TimeLimitExceeded, and what the handler raises."""
        raise NotImplementedError

    def _done(self, crew: Crew, item: Item) -> None:
        """A record is settled."""
        crew.lanes.done(*item)

    async def _expire(self, crew: Crew, message: "Message", exceeded: TimeLimitExceeded) -> None:
        """A handler in a thread cannot be stopped: its message ends without it."""
        exceeded.told = True
        crew.overdue.append(message)
        try:
            message._expire(outcomes.of(exceeded))
        except GossipqError as gone:
            untold(crew.handler, message, gone)
        overdue(crew, message, exceeded, self._client._wares)
        await self._tell_asker(crew.handler, message, exceeded)

    def _returned(
        self, crew: Crew, message: "Message", exceeded: TimeLimitExceeded, error: BaseException | None
    ) -> None:
        """It is through at last. Raises TimeLimitExceeded, and what is no Exception."""
        crew.overdue.remove(message)
        returned(crew, message, error)
        if error is None or isinstance(error, Exception):
            raise exceeded from error
        raise error

    async def _tell_asker(self, handler: Handler, message: "Message", error: Exception) -> None:
        """Who asked hears at once that it failed."""
        if (reply := failure(message, error)) is not None:
            try:
                await self._client.publish(reply.topic, reply.value, **reply.options)
            except Exception as lost:  # middleware hears of it, and may raise what it likes
                untold(handler, message, lost)
