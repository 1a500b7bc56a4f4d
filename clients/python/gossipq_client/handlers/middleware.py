"""Middleware: layers around each publish and each handler, and methods that hear of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gossipq_client.handlers.departure import Outgoing
from gossipq_client.handlers.reports import broken
from gossipq_client.session import Record

CallNext = Callable[[Any], Any]


class Middleware:
    """Base class for `mq.add_middleware`. Each method does nothing until you override it.

    `publish` and `handle` are layers: they get the record and `call_next`, and return what `call_next`
    returns. The middleware that was added first is the outermost. A plain method that returns
    `call_next(...)` works in both clients. In the asyncio client they may be `async def`, and then they await
    `call_next(...)`. Methods that a class does not override cost nothing.

    The other methods are plain functions and run where the handler runs: in its thread or its task.
    """

    def publish(self, record: Outgoing, call_next: CallNext) -> Any:
        """Called around each record that is published, and each of a list, with its value in bytes.

        `call_next(record)` publishes the record, or `record.replace(value=..., headers=...)`. For `publish`
        it returns the receipt, once the record is stored; for `post`, lists and `ack_with` something that
        stands for the record on its way. The publish raises any exception of this method.
        """
        return call_next(record)

    def receive(self, message: Any) -> Any:
        """Called with each message before user code gets it: in handlers, loops and fetches.

        Return the message, or `message.replace(value=..., headers=...)`. The middleware that was added last
        is called first. In handlers and loops an exception fails the message as one of a handler does.
        """
        return message

    def handle(self, message: Any, call_next: CallNext) -> Any:
        """Called around each handler of single messages. `call_next(message)` runs the handler and returns
        its result. An exception counts as raised by the handler."""
        return call_next(message)

    def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
        """Called before a record, or a list of `count` records, is published. It may change
        `options`, the options of `publish`: `options["headers"]` is always a dict, the others are
        as the caller wrote them. `publish` raises any exception of this method.
        """

    def before(self, message: Record) -> None:
        """Called before a handler gets a message. An exception counts as raised by the handler."""

    def after(self, message: Record, result: Any) -> None:
        """Called after the handler returned `result`, before the ack. An exception counts
        as raised by the handler.
        """

    def expired(self, message: Record, error: BaseException) -> None:
        """Called when a handler in a thread exceeds its `time_limit`. Its message has failed, but
        the handler keeps running, since it cannot be stopped. This method runs in another thread;
        `error` runs in the handler's thread when the handler has ended.
        """

    def error(self, message: Record, error: BaseException) -> None:
        """Called after the handler or other middleware raised: the message has
        failed or is a dead letter.
        """


class Layers:
    """The middleware of a client, by the methods that it overrides."""

    def __init__(self, wares: Sequence[Middleware] = ()) -> None:
        self.all = list(wares)
        self.publishing = [ware for ware in wares if _overrides(ware, "publish")]
        self.receiving = [ware for ware in reversed(wares) if _overrides(ware, "receive")]
        self.handling = [ware for ware in wares if _overrides(ware, "handle")]

    def with_one(self, ware: Middleware) -> "Layers":
        """Return these and one that is the innermost."""
        return Layers([*self.all, ware])


#: makes the middleware that each new client has first; filled by `gossipq_client.instrumentation`
makers: list[Callable[[], Middleware]] = []


def _overrides(ware: Middleware, name: str) -> bool:
    return getattr(type(ware), name, None) is not getattr(Middleware, name)


class Around:
    """The middleware around one message. Each one whose `before` ran gets
    `after` or `error`, once.
    """

    def __init__(self, wares: Iterable[Middleware], message: Record) -> None:
        self._wares, self._message = wares, message
        self._entered: list[Middleware] = []

    def begin(self) -> None:
        for ware in self._wares:
            ware.before(self._message)
            self._entered.append(ware)

    def end(self, result: Any) -> None:
        while self._entered:
            self._entered[-1].after(self._message, result)
            self._entered.pop()

    def fail(self, error: BaseException) -> None:
        """Calls `error` of all entered middleware. Exceptions here are logged, since the
        message has failed already.
        """
        while self._entered:
            ware = self._entered.pop()
            try:
                ware.error(self._message, error)
            except Exception:
                broken(ware, self._message)
