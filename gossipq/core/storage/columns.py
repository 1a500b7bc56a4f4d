"""The parts of a sealed batch that the core reads: fixed-width columns and cuts.

The node passes an implementation in (`gossipq.wire.opener`).
"""

from array import array
from collections import OrderedDict
from typing import Protocol

from gossipq.types import BatchInfo, Index


class Columns(Protocol):
    """Reads batches that were verified before they were stored."""

    def fixed(self, body: bytes, bit: int) -> "array[int] | None":
        """Return a fixed-width column, one number per record; None if the batch lacks it."""

    def cut(self, body: bytes, first: int, count: int) -> bytes:
        """Return records first .. first + count - 1 as a batch of their own."""

    def named(self, body: bytes, record_id: bytes) -> bytes:
        """Return a batch of one record with another id, and without a producer."""

    def joined(self, body: bytes, record_id: bytes, name: str, text: str) -> bytes:
        """Return a batch of one record with one more header. Without an id, it gets this one."""

    def text(self, body: bytes, bit: int, record: int) -> bytes:
        """Return the entry of one record in a variable column; b"" if the batch lacks it."""

    def peek(self, body: bytes) -> BatchInfo:
        """Return the header of a batch."""

    def crc(self, body: bytes) -> int:
        """Return the CRC-32 in a batch's header."""

    def check(self, body: bytes) -> int:
        """Return the CRC-32 of a batch from a stranger. Raises BadBatch if it does not match."""


class Opened:
    """Columns and headers of stored batches by log index, with a cache of the most recent ones."""

    __slots__ = ("_columns", "_headers", "_kept", "_kept_max", "_read")

    def __init__(self, columns: Columns, read: "ReadsBody", kept_max: int = 64) -> None:
        self._columns = columns
        self._read = read
        self._kept_max = kept_max
        self._kept: OrderedDict[tuple[Index, int], array[int] | None] = OrderedDict()
        self._headers: OrderedDict[Index, BatchInfo] = OrderedDict()

    def header(self, index: Index) -> BatchInfo:
        """Return the header of the batch that entry `index` stored."""
        if index not in self._headers:
            if len(self._headers) >= self._kept_max:
                self._headers.popitem(last=False)
            self._headers[index] = self._columns.peek(self._read(index))
        return self._headers[index]

    def column(self, index: Index, bit: int) -> "array[int] | None":
        """Return column `bit` of the batch that entry `index` stored; None if the batch lacks
        it.
        """
        name = index, bit
        if name not in self._kept:
            if len(self._kept) >= self._kept_max:
                self._kept.popitem(last=False)
            self._kept[name] = self._columns.fixed(self._read(index), bit)
        return self._kept[name]

    def text(self, index: Index, bit: int, record: int) -> bytes:
        """Return the entry of one record in a variable column of a stored batch."""
        return self._columns.text(self._read(index), bit, record)

    def cut(self, index: Index, first: int, count: int) -> bytes:
        """Return some records of a stored batch as a batch of their own."""
        return self._columns.cut(self._read(index), first, count)


class ReadsBody(Protocol):
    def __call__(self, index: Index) -> bytes:
        """Return the stored batch of an entry. Raises CorruptLog if it is missing."""
