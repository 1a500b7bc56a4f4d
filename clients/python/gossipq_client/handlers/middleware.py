"""What stands between an application and its records: told before and after each one, and when one failed."""

from collections.abc import Iterable
from typing import Any

from gossipq_client.handlers.reports import broken
from gossipq_client.session import Record


class Middleware:
    """Base of what `mq.add_middleware` takes: each method does nothing until it is written anew.

    The methods are plain functions, called where the handler is: in its thread, or in its task. What was
    added first is the outermost: its `before` is the first, its `after` and `error` the last.
    """

    def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
        """Called before a record, or a list of `count` records, is published. It may change `options`, those
        of `publish`: `options["headers"]` is always a dict, the others are as the caller wrote them. What it
        raises is raised by `publish`."""

    def before(self, message: Record) -> None:
        """Before a handler gets a message. What it raises counts as raised by the handler."""

    def after(self, message: Record, result: Any) -> None:
        """After the handler returned `result`, before the ack. What it raises counts as raised by the
        handler."""

    def expired(self, message: Record, error: BaseException) -> None:
        """When a handler in a thread took longer than its `time_limit`: its message has failed, and the
        handler goes on, as it cannot be stopped. Called outside of its thread; `error` follows there, once it
        is through."""

    def error(self, message: Record, error: BaseException) -> None:
        """After the handler, or other middleware, raised: the message has failed, or is a dead letter."""


class Around:
    """The middleware around one message: who has heard `before` hears `after` or `error`, once."""

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
        """What goes wrong here is logged: the message has failed already."""
        while self._entered:
            ware = self._entered.pop()
            try:
                ware.error(self._message, error)
            except Exception:
                broken(ware, self._message)
