"""The place of a backup: a folder or an object store (s3://bucket/name).

Files appear completely or not at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from types import TracebackType
from typing import Self

from gossipq.errors import StoreError
from gossipq_node.bucket import SCHEMES, Bucket
from gossipq_node.disk import Disk


def folder_at(place: str, writes: bool) -> "BackupFolder":
    """Open the place. Raises StoreError if it cannot be used,
    GossipqError if a library is missing.
    """
    scheme, colon, rest = place.partition("://")
    if not colon or scheme == "file":
        return BackupFolder(rest if colon else place, writes)
    if scheme in SCHEMES:
        return BackupBucket(place)
    raise StoreError(f"{place}: nothing is known of {scheme}://", f"a path, or {', '.join(SCHEMES)}")


class BackupFolder:
    """A folder. One backup at a time can write to it."""

    def __init__(self, root: str, writes: bool) -> None:
        self.name, self._root = root, Path(root)
        self._disk: Disk | None = None  # None if opened for reading
        if writes:
            busy = StoreError(f"another backup writes to {root}", "wait for it, or end it")
            # other users must not read the records
            self._disk = Disk(self._root, StoreError, busy, mode=0o700)
        elif not self._root.is_dir():
            raise StoreError(f"{root} is no folder", "gossipq backup --out DIR makes one")

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def names(self, folder: str) -> list[str]:
        """Return the names of files in a folder, with the folder."""
        found = (path for path in (self._root / folder).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._root)) for path in found)

    def fetched(self, name: str) -> Path:
        """Return a local path of a file. Raises StoreError."""
        path = self._root / name
        if not path.is_file():
            raise StoreError(f"{self.name} lacks {name}", "restore an older point: --as-of")
        return path

    def new(self) -> Path:
        """Return a path at which to write a file for `keep`."""
        return self._writer.new()

    def keep(self, written: Path, name: str) -> None:
        """Sync a file and move it to its name. Raises StoreError."""
        with self._writing(name) as disk:
            disk.put(written, name)

    def create(self, name: str, raw: bytes) -> None:
        """Create a file. Raises StoreError if it exists."""
        with self._writing(name) as disk:
            created = disk.create(name, raw)
        if not created:
            raise StoreError(f"{name} already exists", "two backups write to this folder: stop one of them")

    @contextmanager
    def _writing(self, name: str) -> Iterator[Disk]:
        try:
            yield self._writer
        except OSError as error:
            told = f"{self._root / name} cannot be written: {error.strerror}"
            raise StoreError(told, "free some space") from None

    @property
    def _writer(self) -> Disk:
        assert self._disk is not None, "it was opened to be read"
        return self._disk

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def forgotten(self, folder: str) -> list[str]:
        """Return files that can be deleted if no point names them."""
        return self.names(folder)


class BackupBucket(BackupFolder):
    """A backup in an object store."""

    def __init__(self, uri: str) -> None:
        self._bucket = Bucket(uri, "points/", StoreError)
        self.name = self._bucket.uri

    def close(self) -> None:
        self._bucket.close()

    def names(self, folder: str) -> list[str]:
        return sorted(name for name, _ in self._bucket.listed(f"{folder}/"))

    def fetched(self, name: str) -> Path:
        """Download a file. The file of the previous call is overwritten."""
        here = self._bucket.fetched(name)
        if here is None:
            raise StoreError(f"{self.name} lacks {name}", "restore an older point: --as-of")
        return here

    def new(self) -> Path:
        return self._bucket.new()

    def keep(self, written: Path, name: str) -> None:
        self._bucket.put(written, name)

    def create(self, name: str, raw: bytes) -> None:
        if not self._bucket.create(name, raw):
            raise StoreError(f"{name} already exists", "two backups write to this folder: stop one of them")

    def remove(self, name: str) -> None:
        self._bucket.remove(name)

    def forgotten(self, folder: str) -> list[str]:
        return self._bucket.forgotten(f"{folder}/")


def digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()
