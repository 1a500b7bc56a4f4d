"""Where a backup lies: a folder, or an object store (s3://bucket/name). Files appear whole or not at all."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gossipq.errors import GossipqError, StoreError, Unreachable
from gossipq_node.files import sync_directory

WRITING, LOCK = ".writing", ".lock"
UNNAMED_S = 24 * 3_600.0  #: in an object store, where nobody locks: what is as old and not named may go
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def folder_at(place: str, writes: bool) -> "BackupFolder":
    """Raises StoreError when it cannot be used, GossipqError when a library is missing."""
    scheme, colon, rest = place.partition("://")
    if not colon or scheme == "file":
        return BackupFolder(rest if colon else place, writes)
    if scheme in SCHEMES:
        return BackupBucket(place)
    raise StoreError(f"{place}: nothing is known of {scheme}://", f"a path, or {', '.join(SCHEMES)}")


class BackupFolder:
    """A folder. One backup at a time writes to it."""

    def __init__(self, root: str, writes: bool) -> None:
        self.name, self._root, self._count, self._lock = root, Path(root), 0, -1
        if not writes:
            if not self._root.is_dir():
                raise StoreError(f"{root} is no folder", "gossipq backup --out DIR makes one")
            return
        try:
            self._root.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self._root.mkdir(mode=0o700)  # nobody else reads the records
            (self._root / WRITING).mkdir(exist_ok=True)
            self._lock = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreError(f"another backup writes to {root}", "wait for it, or end it") from None
        except OSError as error:
            self.close()
            raise StoreError(f"{root} cannot be used: {error.strerror}", "choose another --out") from None
        shutil.rmtree(self._root / WRITING, ignore_errors=True)  # of one that was interrupted
        (self._root / WRITING).mkdir(exist_ok=True)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def names(self, folder: str) -> list[str]:
        """Of the files in it, with the folder."""
        found = (path for path in (self._root / folder).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._root)) for path in found)

    def fetched(self, name: str) -> Path:
        """A file as one on this machine. Raises StoreError."""
        path = self._root / name
        if not path.is_file():
            raise StoreError(f"{self.name} lacks {name}", "restore an older point: --as-of")
        return path

    def new(self) -> Path:
        """Where a file may be written."""
        self._count += 1
        return self._root / WRITING / str(self._count)

    def keep(self, written: Path, name: str) -> None:
        """A whole file gets its name, on the disk. Raises StoreError."""
        path = self._root / name
        try:
            with written.open("rb") as opened:
                os.fsync(opened.fileno())
            for parent in (path.parent, *path.parent.parents):
                if parent.is_dir():
                    break
            path.parent.mkdir(parents=True, exist_ok=True)
            written.rename(path)
            for each in (path.parent, *path.parent.parents):
                sync_directory(each)
                if each in (parent, self._root):
                    break
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}", "free some space") from None

    def create(self, name: str, raw: bytes) -> None:
        """A file that was not there. Raises StoreError when it is."""
        written = self.new()
        written.write_bytes(raw)
        if (self._root / name).exists():
            raise StoreError(f"{name} is there already", "two backups write here; let one of them")
        self.keep(written, name)

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def forgotten(self, folder: str) -> list[str]:
        """Files that may go when no point names them."""
        return self.names(folder)


class BackupBucket(BackupFolder):
    """Credentials and the rest come from the usual environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_REGION, AWS_ENDPOINT_URL."""

    def __init__(self, uri: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise GossipqError(f"{error.name} is not installed", hint='pip install "gossipq[lake]"') from None
        self.name, self._count, self._lock = uri.replace("s3a:", "s3:").rstrip("/"), 0, -1
        self._obstore: Any = obstore
        self._here = Path(tempfile.mkdtemp(prefix="gossipq-backup-"))
        try:
            self._store: Any = from_url(self.name, client_options={"allow_http": True})
            self.names("points")
        except (obstore.exceptions.BaseError, Unreachable, ValueError) as error:
            self.close()
            hint = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL say how"
            raise StoreError(f"{uri} cannot be used: {_first_line(error)}", hint) from None

    def close(self) -> None:
        shutil.rmtree(self._here, ignore_errors=True)

    def _listed(self, folder: str) -> list[tuple[str, float]]:
        try:
            pages = list(self._obstore.list(self._store, prefix=f"{folder}/"))
        except self._obstore.exceptions.BaseError as error:
            raise Unreachable(f"{self.name}: {_first_line(error)}", hint="run it again") from None
        return [(each["path"], each["last_modified"].timestamp()) for page in pages for each in page]

    def names(self, folder: str) -> list[str]:
        return sorted(name for name, _ in self._listed(folder))

    def fetched(self, name: str) -> Path:
        """The one before is gone then."""
        here, errors = self._here / "read", self._obstore.exceptions
        try:
            with here.open("wb") as opened:
                for chunk in self._obstore.get(self._store, name).stream(min_chunk_size=1 << 20):
                    opened.write(chunk)
        except (FileNotFoundError, errors.NotFoundError):
            raise StoreError(f"{self.name} lacks {name}", "restore an older point: --as-of") from None
        except errors.BaseError as error:
            raise Unreachable(f"{self.name}/{name}: {_first_line(error)}", hint="run it again") from None
        return here

    def new(self) -> Path:
        self._count += 1
        return self._here / str(self._count)

    def keep(self, written: Path, name: str) -> None:
        try:
            self._obstore.put(self._store, name, written)
        except self._obstore.exceptions.BaseError as error:
            raise Unreachable(f"{self.name}/{name}: {_first_line(error)}", hint="run it again") from None
        written.unlink()

    def create(self, name: str, raw: bytes) -> None:
        errors = self._obstore.exceptions
        try:
            self._obstore.put(self._store, name, raw, mode="create")
        except errors.AlreadyExistsError:
            if self.fetched(name).read_bytes() != raw:  # else its answer was lost, and it was put again
                hint = "two backups write here; let one of them"
                raise StoreError(f"{name} is there already", hint) from None
        except errors.BaseError as error:
            raise Unreachable(f"{self.name}/{name}: {_first_line(error)}", hint="run it again") from None

    def remove(self, name: str) -> None:
        self._obstore.delete(self._store, name)

    def forgotten(self, folder: str) -> list[str]:
        oldest_s = time.time() - UNNAMED_S
        return [name for name, put_s in self._listed(folder) if put_s < oldest_s]


def digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
