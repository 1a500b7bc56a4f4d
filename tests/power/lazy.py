"""A file system that loses what was not synced, as a disk does when its power is cut.

    python -m power.lazy DISK LIVE MOUNT SEED [lie]

It follows the rules of LazyFS (https://github.com/dsrhaslab/lazyfs): a write is on the disk when its file was
synced; a cut loses the others, tears them, or keeps some of them in any order. Names and permissions
are on the disk at once, as in LazyFS. It works below the process: whatever a node does with its
files (pwrite, mmap, O_DSYNC, rename) reaches it through the kernel.

LIVE has all writes, and DISK only those that a cut would leave. A new mount begins with DISK. Reading /.cut
cuts the power: from then on nothing reaches DISK, and pieces of the unsynced writes are put there. With `lie`
a sync does nothing, so that a test can show that it notices what such a disk loses.
"""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import mfusepy

SECTOR = 512
CUT = "/.cut"
KEEP_SHARES = (0.0, 0.0, 0.5, 0.9, 1.0)  #: of the sectors of unsynced writes, by file and cut
Change = tuple[int, bytes | None]  #: (offset, bytes written there), or (size, None) for a truncation


class Lazy(mfusepy.Operations):
    use_ns = True

    def __init__(self, disk: Path, live: Path, random: Random, lies: bool) -> None:
        self._disk, self._live, self._random, self._lies = disk, live, random, lies
        self._pending: dict[int, list[Change]] = {}  # inode in LIVE -> changes since its last sync
        self._files: dict[int, int] = {}  # inode in LIVE -> descriptor of the same file on DISK
        self._is_cut = False

    def _both(self, path: str) -> tuple[str, str]:
        return f"{self._live}{path}", f"{self._disk}{path}"

    # --- names: on the disk at once

    def _on_both(self, call: Any, path: str, *more: Any) -> None:
        for each in self._both(path) if not self._is_cut else self._both(path)[:1]:
            call(each, *more)

    def mkdir(self, path: str, mode: int) -> None:
        self._on_both(os.mkdir, path, mode)

    def rmdir(self, path: str) -> None:
        self._on_both(os.rmdir, path)

    def unlink(self, path: str) -> None:
        self._on_both(os.unlink, path)

    def mknod(self, path: str, mode: int, dev: int) -> None:
        self._on_both(os.mknod, path, mode, dev)

    def chmod(self, path: str, mode: int) -> None:
        self._on_both(os.chmod, path, mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._on_both(os.chown, path, uid, gid)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._both(path)[0], ns=times)

    def rename(self, old: str, new: str) -> None:
        pairs = list(zip(self._both(old), self._both(new), strict=True))
        for source, target in pairs[:1] if self._is_cut else pairs:
            os.rename(source, target)

    def link(self, target: str, source: str) -> None:
        pairs = list(zip(self._both(source), self._both(target), strict=True))
        for old, new in pairs[:1] if self._is_cut else pairs:
            os.link(old, new)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        live, disk = self._both(path)
        if not self._is_cut:
            os.close(os.open(disk, os.O_CREAT | os.O_WRONLY, mode))
        return os.open(live, os.O_CREAT | os.O_RDWR, mode)

    # --- what is read

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == CUT:
            return {"st_mode": stat.S_IFREG | 0o400, "st_nlink": 1, "st_size": 1}
        live, disk = self._both(path)
        found = os.lstat(live)
        names = ("mode", "nlink", "uid", "gid", "size", "blocks")
        told: dict[str, Any] = {f"st_{name}": getattr(found, f"st_{name}") for name in names}
        # a node knows its directory by its inode, which must outlive a mount
        told["st_ino"] = (found if self._is_cut else os.lstat(disk)).st_ino
        return told | {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        yield from (".", "..", *os.listdir(self._both(path)[0]))

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._live)
        return {
            name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"
        }

    def access(self, path: str, amode: int) -> int:
        return 0

    def open(self, path: str, flags: int) -> int:
        if path == CUT:
            self._cut()
            return os.open(os.devnull, os.O_RDONLY)
        mode = os.O_RDONLY if flags & os.O_ACCMODE == os.O_RDONLY else os.O_RDWR
        return os.open(self._both(path)[0], mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    # --- what a cut may lose

    def _change(self, path: str, inode: int, change: Change) -> None:
        if self._is_cut:
            return
        if inode not in self._files:
            self._files[inode] = os.open(self._both(path)[1], os.O_RDWR)
        self._pending.setdefault(inode, []).append(change)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._change(path, os.fstat(fh).st_ino, (offset, bytes(data)))
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        live = self._both(path)[0]
        self._change(path, os.stat(live).st_ino, (length, None))
        os.truncate(live, length)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        if self._is_cut:
            raise OSError(errno.EIO, "the power is cut")
        inode = os.fstat(fh).st_ino
        for change in () if self._lies else self._pending.pop(inode, ()):
            _apply(self._files[inode], change)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        return

    def flush(self, path: str, fh: int) -> None:
        return

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def _cut(self) -> None:
        """Put pieces of the unsynced writes on the disk, in any order."""
        self._is_cut = True
        for inode, changes in sorted(self._pending.items()):
            share, pieces = self._random.choice(KEEP_SHARES), list[Change]()
            for offset, data in changes:
                if data is None:
                    pieces.append((offset, None))
                    continue
                # torn at multiples of a sector of the disk, which is written whole or not at all
                at = 0
                while at < len(data):
                    end = min(len(data), at + SECTOR - (offset + at) % SECTOR)
                    pieces.append((offset + at, data[at:end]))
                    at = end
            if share < 1.0:
                self._random.shuffle(pieces)
                pieces = [piece for piece in pieces if self._random.random() < share]
            for piece in pieces:
                _apply(self._files[inode], piece)
        self._pending.clear()


def _apply(file: int, change: Change) -> None:
    offset, data = change
    if data is None:
        os.ftruncate(file, offset)
    else:
        os.pwrite(file, data, offset)


def main() -> int:
    disk, live, mount = map(Path, sys.argv[1:4])
    shutil.rmtree(live, ignore_errors=True)
    shutil.copytree(disk, live, ignore=_special)
    mfusepy.FUSE(
        Lazy(disk, live, Random(sys.argv[4]), lies="lie" in sys.argv[5:]),
        str(mount),
        foreground=True,
        nothreads=True,
        default_permissions=False,
        attr_timeout=0,
        entry_timeout=0,
        use_ino=True,
    )
    return 0


def _special(folder: str, names: list[str]) -> list[str]:
    """Sockets and pipes: they do not outlive a machine, so they are removed from the disk, too."""
    found = [name for name in names if not (path := Path(folder, name)).is_dir() and not path.is_file()]
    for name in found:
        Path(folder, name).unlink()
    return found


if __name__ == "__main__":
    sys.exit(main())
