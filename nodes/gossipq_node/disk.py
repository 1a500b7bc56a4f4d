"""A folder of this machine, where exports and backups lie as they do in a bucket (`bucket.py`): files appear
whole or not at all, and one writer at a time has the lock.

What is being written lies in `.writing` until it is whole and on the disk. A crash leaves it there, and
the next writer removes it.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gossipq.errors import GossipqError
from gossipq_node.directory import MANIFEST, STORES
from gossipq_node.files import make_directory, sync_directory

WRITING, LOCK = ".writing", ".lock"
UNLINKED = (errno.EPERM, errno.ENOTSUP)  #: what disks without hard links say


class Disk:
    def __init__(
        self,
        root: Path,
        refusal: type[GossipqError],
        busy: GossipqError,
        folders: Sequence[str] = (),
        mode: int = 0o777,
    ) -> None:
        """Locks `root`, which is made with that mode if need be, as are the folders in it. Raises `busy`
        while another one has the lock, `refusal` when it cannot be used."""
        self.root, self._count, self._lock, what = root, 0, -1, "used"
        if (root / MANIFEST).is_file() and (root / STORES).is_dir():
            raise refusal(f"{root} is the data directory of a node", "choose another --out")
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                root.mkdir(mode=mode)
            for name in folders:
                (root / name).mkdir(exist_ok=True)
            self._lock, what = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "locked"
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            what = "used"
            with suppress(FileNotFoundError):
                shutil.rmtree(root / WRITING)  # of a run that was interrupted
            (root / WRITING).mkdir()
        except BlockingIOError:
            self.close()
            raise busy from None
        except OSError as error:
            self.close()
            hint = "choose another --out" if what == "used" else "choose an --out whose disk can"
            raise refusal(f"{root} cannot be {what}: {error.strerror}", hint) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the lock. Once more is nothing."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def new(self) -> Path:
        """Where a file may be written that is to be put."""
        self._count += 1
        return self.root / WRITING / str(self._count)

    def put(self, written: Path, name: str) -> None:
        """A whole file gets its name, on the disk. Raises OSError."""
        with written.open("rb") as opened:
            os.fsync(opened.fileno())
        path = self.root / name
        make_directory(path.parent)
        written.rename(path)
        sync_directory(path.parent)

    def create(self, name: str, raw: bytes) -> bool:
        """Whether it is there with that content now, on the disk; False: another one is. Raises OSError."""
        written, path = self.new(), self.root / name
        try:
            return self._create(written, path, raw)
        finally:
            written.unlink(missing_ok=True)

    def _create(self, written: Path, path: Path, raw: bytes) -> bool:
        with written.open("wb") as opened:
            opened.write(raw)
            opened.flush()
            os.fsync(opened.fileno())
        make_directory(path.parent)
        ours = True
        try:
            os.link(written, path)
        except FileExistsError:
            ours = path.read_bytes() == raw  # then something failed behind it, and it is made again
        except OSError as error:
            if error.errno not in UNLINKED:
                raise
            if path.exists():  # the lock alone keeps others away
                ours = path.read_bytes() == raw
            else:
                written.rename(path)
        sync_directory(path.parent)
        return ours
