"""How a node reads stored batches: fixed columns, cuts and headers.

Batches were verified before they were stored.
"""

from array import array

import msgspec

from gossipq.types import BatchInfo
from gossipq.wire import batch as batches
from gossipq.wire import plain
from gossipq.wire.batch import Batch


class Opener:
    """Implements `gossipq.core.storage.columns.Columns`."""

    def fixed(self, body: bytes, bit: int) -> "array[int] | None":
        return Batch(body, batches.peek(body)).fixed(bit)

    def cut(self, body: bytes, first: int, count: int) -> bytes:
        info = batches.peek(body)
        return body if count == info.count else bytes(Batch(body, info).cut(first, count))

    def named(self, body: bytes, record_id: bytes) -> bytes:
        return bytes(Batch(body).named(record_id))

    def joined(self, body: bytes, record_id: bytes, name: str, text: str) -> bytes:
        opened = Batch(body)
        known = (opened.column(batches.IDS) or [b""])[0]
        headers = plain.headers_of((opened.column(batches.HEADERS) or [b""])[0]) | {name: text}
        return bytes(opened.named(known or record_id, msgspec.msgpack.encode(headers)))

    def text(self, body: bytes, bit: int, record: int) -> bytes:
        column = Batch(body, batches.peek(body)).column(bit)
        return column[record] if column is not None else b""

    def peek(self, body: bytes) -> BatchInfo:
        return batches.peek(body)

    def crc(self, body: bytes) -> int:
        return batches.crc_of(body)

    def check(self, body: bytes) -> int:
        return batches.check(body).crc
