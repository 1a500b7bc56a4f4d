"""Middleware that comes with the client, and the base of one's own.

log = MessageLog()
mq.add_middleware(log)
handler.addFilter(log)  # of logging: each line that a handler writes has topic and ref of its message
"""

import logging
from contextvars import ContextVar
from typing import Any

from gossipq_client.handlers import Middleware
from gossipq_client.session import Record

__all__ = ["MessageLog", "Middleware"]


class MessageLog(Middleware, logging.Filter):
    """Gives lines of the log the fields `topic`, `ref` and `attempt` of the message that is worked on, for
    formats such as "%(message)s %(ref)s"; "", "" and 0 elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: ContextVar[tuple[Record, ...]] = ContextVar("messages", default=())

    def before(self, message: Record) -> None:
        """Lines are about this message now."""
        self._messages.set((*self._messages.get(), message))

    def after(self, message: Record, result: Any) -> None:
        """Not any more."""
        self._messages.set(self._messages.get()[:-1])

    def error(self, message: Record, error: BaseException) -> None:
        """Not any more."""
        self._messages.set(self._messages.get()[:-1])

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every line pass, with its fields; what the line brings itself stays."""
        messages = self._messages.get()
        if messages and not hasattr(record, "ref"):
            record.topic, record.ref = messages[-1].topic, messages[-1].ref
            record.attempt = messages[-1].attempt
        for name, value in (("topic", ""), ("ref", ""), ("attempt", 0)):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
