"""The file and frame formats of prettyQ, which has no server. Pure.

A position is an offset, and a sharding a partition: order holds within one.
"""

import struct
from typing import NamedTuple
from zlib import crc32

DATA_BYTES_MAX = (16 << 20) - 1
FILE_BYTES = 64 << 20  #: a larger file is followed by a new one
#: its index reader refuses files that start later: the last file takes all the rest
START_MAX = 65_535
INDEX_GAP = 30  #: positions between two lines of an index, at least

NO_MESSAGE = (100, "no message")
TOO_LARGE = (103, "message size too large")


def record(number: int, data: bytes) -> bytes:
    """Return a record of a file: number, size (data and CRC), data, CRC, size again."""
    size = struct.pack(">I", len(data) + 4)
    return struct.pack(">Q", number) + size + data + struct.pack(">I", crc32(data)) + size


def frame(number: int, data: bytes) -> bytes:
    """Return a frame for a consumer."""
    return struct.pack(">QI", number, len(data) + 4) + data + struct.pack(">I", crc32(data))


def stem(topic: str, start: int) -> str:
    """Return the name of a file without `.data` or `.idx`. `_` is
    replaced: the reader splits at it.
    """
    return f"{topic.replace('_', '-')}_{start:06d}"


class Piece(NamedTuple):
    """Bytes to append to `stem`.data and `stem`.idx."""

    stem: str
    data: bytes
    line: bytes  #: of the index


class Layout:
    """The files of one partition's records, which come in rising order."""

    def __init__(self, topic: str, file_bytes: int = FILE_BYTES) -> None:
        self._topic, self._file_bytes = topic, file_bytes
        self._stem, self._size = stem(topic, 0), 0
        self._last = self._indexed = -1
        self._place = 0  #: of the last record in its file

    def put(self, number: int, data: bytes) -> list[Piece]:
        """Return the bytes of a record, and the end of the last file if it begins a new one.

        Raises ValueError for a record that is too large.
        """
        if len(data) > DATA_BYTES_MAX:
            raise ValueError(f"record {number}: {TOO_LARGE[1]}")
        pieces = []
        if self._size >= self._file_bytes and self._last + 1 <= START_MAX:
            pieces += self.end()
            self._stem, self._size, self._indexed = stem(self._topic, self._last + 1), 0, -1
        raw, line = record(number, data), b""
        if self._indexed < 0 or number - self._indexed >= INDEX_GAP:
            line, self._indexed = b"%d:%d\n" % (number, self._size), number
        pieces.append(Piece(self._stem, raw, line))
        self._last, self._place, self._size = number, self._size, self._size + len(raw)
        return pieces

    def end(self) -> list[Piece]:
        """Return the line of the last record of a file."""
        if self._last < 0 or self._indexed == self._last:
            return []
        self._indexed = self._last
        return [Piece(self._stem, b"", b"%d:%d\n" % (self._last, self._place))]
