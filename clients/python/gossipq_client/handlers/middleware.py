"""Middleware: methods that run before and after each record of an
application, and when one fails.
"""

from collections.abc import Iterable
from typing import Any

from gossipq_client.handlers.reports import broken
from gossipq_client.session import Record


class Middleware:
    """Base class for `mq.add_middleware`. Each method does nothing until you override it.

    The methods are plain functions and run where the handler runs: in its thread or its
    task. The middleware that was added first is the outermost: its `before` runs first, its
    `after` and `error` last.
    """

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
