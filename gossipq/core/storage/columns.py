"""What the core asks of a sealed batch: fixed-width columns, and a part of it. The wire knows how; a node
hands that in."""

from array import array
from collections import OrderedDict
from typing import Protocol

from gossipq.types import BatchInfo, Index


class Columns(Protocol):
    """Over batches that were verified before they were stored."""

    def fixed(self, body: bytes, bit: int) -> "array[int] | None":
        """A fixed-width column, one number for each record; None when the batch has none."""

    def cut(self, body: bytes, first: int, count: int) -> bytes:
        """Records first .. first + count - 1 as a batch of their own."""

    def peek(self, body: bytes) -> BatchInfo:
        """Its header."""

    def crc(self, body: bytes) -> int:
        """The CRC-32 that a batch carries."""

    def check(self, body: bytes) -> int:
        """The same of bytes that a stranger sent. Raises BadBatch when they are not what it says."""


class Opened:
    """Columns and headers of stored batches by log index; the last ones asked for stay."""

    __slots__ = ("_columns", "_headers", "_kept", "_kept_max", "_read")

    def __init__(self, columns: Columns, read: "ReadsBody", kept_max: int = 64) -> None:
        self._columns, self._read, self._kept_max = columns, read, kept_max
        self._kept: OrderedDict[tuple[Index, int], array[int] | None] = OrderedDict()
        self._headers: OrderedDict[Index, BatchInfo] = OrderedDict()

    def header(self, index: Index) -> BatchInfo:
        """Of the batch that entry `index` brought."""
        if index not in self._headers:
            if len(self._headers) >= self._kept_max:
                self._headers.popitem(last=False)
            self._headers[index] = self._columns.peek(self._read(index))
        return self._headers[index]

    def column(self, index: Index, bit: int) -> "array[int] | None":
        """Column `bit` of the batch that entry `index` brought; None when it has none."""
        name = index, bit
        if name not in self._kept:
            if len(self._kept) >= self._kept_max:
                self._kept.popitem(last=False)
            self._kept[name] = self._columns.fixed(self._read(index), bit)
        return self._kept[name]

    def cut(self, index: Index, first: int, count: int) -> bytes:
        """Some records of a stored batch, as a batch of their own."""
        return self._columns.cut(self._read(index), first, count)


class ReadsBody(Protocol):
    def __call__(self, index: Index) -> bytes:
        """The stored batch of an entry. Raises CorruptLog when it is not there."""
