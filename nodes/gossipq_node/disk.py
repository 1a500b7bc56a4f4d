"""A folder on this machine for exports and backups, with the same methods
as a bucket (`bucket.py`).

Files appear completely or not at all, and a lock admits one writer. Files are written in `.writing`
and moved when they are complete and synced. After a crash the next writer deletes that directory.
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
UNLINKED = (errno.EPERM, errno.ENOTSUP)  #: errors of disks without hard links


class Disk:
    def __init__(
        self,
        root: Path,
        refusal: type[GossipqError],
        busy: GossipqError,
        folders: Sequence[str] = (),
        mode: int = 0o777,
    ) -> None:
        """Lock `root`. Missing folders are created with `mode`.

        Raises `busy` while another process has the lock, `refusal` if the folder cannot be used.
        """
        self.root = root
        self._count = 0
        self._lock = -1
        what = "used"
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
                shutil.rmtree(root / WRITING)  # of an interrupted run
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
        """Release the lock. Safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def new(self) -> Path:
        """Return a path at which to write a file for `put`."""
        self._count += 1
        return self.root / WRITING / str(self._count)

    def put(self, written: Path, name: str) -> None:
        """Sync a file and move it to its name. Raises OSError."""
        with written.open("rb") as opened:
            os.fsync(opened.fileno())
        path = self.root / name
        make_directory(path.parent)
        written.rename(path)
        sync_directory(path.parent)

    def create(self, name: str, raw: bytes) -> bool:
        """Write a synced file if its name is free. False: another file has it. Raises OSError."""
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
            # equal content: an earlier attempt failed after this step
            ours = path.read_bytes() == raw
        except OSError as error:
            if error.errno not in UNLINKED:
                raise
            if path.exists():  # only the lock protects against other writers
                ours = path.read_bytes() == raw
            else:
                written.rename(path)
        sync_directory(path.parent)
        return ours
