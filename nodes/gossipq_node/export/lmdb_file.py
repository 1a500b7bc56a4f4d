"""An LMDB environment in one file.

Keys are running numbers from 0, 8 bytes, big endian. Values are Arrow IPC streams with zstd.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import lmdb

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

ROWS_MAX = 16_384  #: in one value
FULL_BYTES = 1 << 20  #: a failed write on a disk with less free space means that the disk is full
MAP_BYTES = 1 << 36  #: a bound, not a size: the file grows with its rows
KEY = Struct(">Q")


class LmdbWriter:
    def __init__(self, path: Path, schema: "Schema") -> None:
        """Raises OSError."""
        self._path = path
        self._schema = schema
        self._count = 0
        with _as_os_errors(path):  # synced as a whole by `keep`
            self._environment = lmdb.open(str(path), subdir=False, lock=False, map_size=MAP_BYTES, sync=False)

    def write(self, rows: "RecordBatch") -> None:
        """Raises OSError, as for a full disk."""
        with _as_os_errors(self._path), self._environment.begin(write=True) as transaction:
            for first in range(0, rows.num_rows, ROWS_MAX):
                transaction.put(KEY.pack(self._count), self._stream(rows.slice(first, ROWS_MAX)), append=True)
                self._count += 1

    def _stream(self, rows: "RecordBatch") -> memoryview:
        from pyarrow import BufferOutputStream, ipc

        sink = BufferOutputStream()
        with ipc.new_stream(sink, self._schema, options=ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(rows)
        return memoryview(sink.getvalue())

    def close(self) -> None:
        self._environment.close()


@contextmanager
def _as_os_errors(path: Path) -> Iterator[None]:
    """Convert errors. LMDB reports a full disk as input/output error: the free space decides."""
    try:
        yield
    except lmdb.Error as error:
        disk = os.statvfs(path.parent)
        if isinstance(error, lmdb.DiskError) or disk.f_bavail * disk.f_frsize < FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise OSError(str(error)) from error


def read(path: Path) -> "Iterator[RecordBatch]":
    from pyarrow import ipc

    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False) as environment,
        environment.begin() as read,
    ):
        for _, value in read.cursor():
            yield from ipc.open_stream(value)
