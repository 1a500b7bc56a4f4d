"""Middleware that comes with the client, and the base of one's own.

log = MessageLog()
mq.add_middleware(log)
handler.addFilter(log)  # of logging: each line that a handler writes has topic and ref of its message

mq.add_middleware(Compression())  # of publishers and of consumers
"""

import gzip
import logging
import zlib
from contextvars import ContextVar
from typing import Any

from gossipq.limits import MIB
from gossipq_client.handlers import CallNext, Middleware, Outgoing
from gossipq_client.session import Record
from gossipq_client.values import Undecodable

__all__ = ["Compression", "MessageLog", "Middleware", "Outgoing"]

ENCODING, GZIP = "content-encoding", "gzip"
GZIP_BITS = 16 + zlib.MAX_WBITS


class Compression(Middleware):
    """Compress values by gzip when they are published, and decompress them for handlers, loops and fetches.

    The header `content-encoding: gzip` marks a compressed record. A topic can hold records with and without
    it, and clients in other languages can read both.

    min_bytes: shorter values are sent as they are, and so are those that would not become shorter
    level: 1 (fast) to 9 (small)
    max_bytes: a value that is larger once it is decompressed is undecodable
    """

    def __init__(self, min_bytes: int = 1_024, level: int = 6, max_bytes: int = 64 * MIB) -> None:
        self._min_bytes, self._level, self._max_bytes = min_bytes, level, max_bytes

    def publish(self, record: Outgoing, call_next: CallNext) -> Any:
        """Compress a value that becomes shorter by it."""
        if len(record.value) < self._min_bytes or ENCODING in record.headers:
            return call_next(record)
        packed = gzip.compress(record.value, self._level, mtime=0)
        if len(packed) >= len(record.value):
            return call_next(record)
        return call_next(record.replace(value=packed, headers={**record.headers, ENCODING: GZIP}))

    def receive(self, message: Any) -> Any:
        """Decompress a value that is marked. Raises Undecodable for one that is damaged or too large."""
        headers = message.headers_shown if message.header_bytes else {}
        if headers.get(ENCODING) != GZIP:
            return message
        unpacker = zlib.decompressobj(GZIP_BITS)
        try:
            value = unpacker.decompress(message.value, self._max_bytes)
        except zlib.error as error:
            raise Undecodable(f"not gzip, as its header says: {error}") from None
        if not unpacker.eof:
            raise Undecodable(f"cut off, or larger than {self._max_bytes} bytes")
        del headers[ENCODING]
        return message.replace(value=value, headers=headers)


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
