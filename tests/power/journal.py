"""The journal of what a process wrote: how the shim is built and put under a process, and how what it noted
is read.

An entry: u32 kind, u32 bytes of the path, u64 file number, u64 offset, u64 bytes of the data, then path and
data.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("journal.c")
HEAD = struct.Struct("<IIQQQ")
NUMBER = struct.Struct("<Q")


class Kind(IntEnum):
    CREATE = 1  #: `path` is the new file `file`
    MKDIR = 2  #: `path` is the new directory `file`
    RENAME = 3  #: of `path` to the path in `data`
    REMOVE = 4  #: of `path`
    WRITE = 5  #: of `data` at `offset` of `file` began
    WROTE = 6  #: that write is over and lasts, since the file was opened so; `data` is its size
    TRUNCATE = 7  #: of `file` to the size in `data`
    SYNC = 8  #: of `file` is over: what was written before lasts
    MARK = 9  #: `data` is what a client knew by then
    #: a write to `file` at `offset` failed, its size is in `data`; 0: a sync of all of it. The
    #: written data may be there, and no later sync brings it
    LOST = 10


class Entry(NamedTuple):
    kind: Kind
    file: int = 0
    offset: int = 0
    path: str = ""
    data: bytes = b""

    @property
    def number(self) -> int:
        return int(NUMBER.unpack(self.data)[0])


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(directory: Path) -> Path:
    """The shim, compiled into `directory`."""
    shim = directory / "journal.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(shim), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return shim


class Journal:
    """The file at `path`; it is made anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o644)

    def environment(self, shim: Path, root: Path, sync_us: int) -> dict[str, str]:
        """Of a process whose writes below `root` are to be noted; each sync takes `sync_us` longer."""
        places = {"LD_PRELOAD": shim, "POWER_JOURNAL": self.path, "POWER_ROOT": root}
        return {name: str(place) for name, place in places.items()} | {"POWER_SYNC_US": str(sync_us)}

    def mark(self, data: bytes) -> None:
        """Stands behind everything that was written before."""
        os.write(self._fd, HEAD.pack(Kind.MARK, 0, 0, 0, len(data)) + data)

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> list[Entry]:
        return list(self._entries(self.path.read_bytes()))

    def _entries(self, raw: bytes) -> Iterator[Entry]:
        at = 0
        while at < len(raw):
            kind, path_bytes, file, offset, size = HEAD.unpack_from(raw, at)
            middle = at + HEAD.size + path_bytes
            path = raw[at + HEAD.size : middle].decode()
            at = middle + size
            yield Entry(Kind(kind), file, offset, path, raw[middle:at])
