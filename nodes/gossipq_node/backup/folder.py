"""Where a backup lies: a folder, or an object store (s3://bucket/name). Files appear whole or not at all."""

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
        self.name, self._root = root, Path(root)
        self._disk: Disk | None = None  # of one that is only read
        if writes:
            busy = StoreError(f"another backup writes to {root}", "wait for it, or end it")
            self._disk = Disk(self._root, StoreError, busy, mode=0o700)  # nobody else reads the records
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
        return self._writer.new()

    def keep(self, written: Path, name: str) -> None:
        """A whole file gets its name, on the disk. Raises StoreError."""
        with self._writing(name) as disk:
            disk.put(written, name)

    def create(self, name: str, raw: bytes) -> None:
        """A file that was not there. Raises StoreError when it is."""
        with self._writing(name) as disk:
            created = disk.create(name, raw)
        if not created:
            raise StoreError(f"{name} is there already", "two backups write here; let one of them")

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
        """Files that may go when no point names them."""
        return self.names(folder)


class BackupBucket(BackupFolder):
    """The same in an object store."""

    def __init__(self, uri: str) -> None:
        self._bucket = Bucket(uri, "points/", StoreError)
        self.name = self._bucket.uri

    def close(self) -> None:
        self._bucket.close()

    def names(self, folder: str) -> list[str]:
        return sorted(name for name, _ in self._bucket.listed(f"{folder}/"))

    def fetched(self, name: str) -> Path:
        """The one before is gone then."""
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
            raise StoreError(f"{name} is there already", "two backups write here; let one of them")

    def remove(self, name: str) -> None:
        self._bucket.remove(name)

    def forgotten(self, folder: str) -> list[str]:
        return self._bucket.forgotten(f"{folder}/")


def digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()
