"""An export in an object store (s3://bucket/lake): what links and locks do on a disk, conditional puts do
here.

A manifest is put only where none is, so of two exporters one goes on and the other is told. Nothing else is
agreed on, so files that no manifest names are removed only when they are old: another exporter may be about
to name them. Credentials and the rest come from the usual environment: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from gossipq.errors import ExportError, GossipqError, TornExport, Unreachable
from gossipq.wire import export
from gossipq.wire.export import File, Manifest
from gossipq_node.export.folder import Folder

UNNAMED_S = 24 * 3_600.0  #: so old must a file be that no manifest names
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def folder_at(place: str, make: bool = True) -> Folder:
    """The export at a path or URI. Raises ExportError when it cannot be used."""
    scheme, colon, rest = place.partition("://")
    if not colon:
        return Folder(place, make)
    if scheme == "file":
        return Folder(rest, make)
    if scheme in SCHEMES:
        return ObjectFolder(place, make)
    hint = f"a path, or one of {', '.join(f'{name}://' for name in SCHEMES)}"
    raise ExportError(f"{place}: nothing is known of {scheme}://", hint=hint)


class ObjectFolder(Folder):
    def __init__(self, uri: str, make: bool = True) -> None:
        """Raises ExportError when the store cannot be used, GossipqError when obstore is not installed."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise GossipqError(f"{error.name} is not installed", hint='pip install "gossipq[lake]"') from None
        self._obstore: Any = obstore
        self.uri = re.sub("^s3a:", "s3:", uri.rstrip("/"))
        self.root = Path(self.uri)  # for people; nothing is looked for there
        self._count, self._here = 0, Path(tempfile.mkdtemp(prefix="gossipq-export-"))
        try:
            self._store: Any = from_url(self.uri, client_options={"allow_http": True})
            there = self.sequences()
        except (self._obstore.exceptions.BaseError, Unreachable, ValueError) as error:
            self.close()
            hint = (
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL say how to get "
                "there"
            )
            raise ExportError(f"{uri} cannot be used: {_first_line(error)}", hint=hint) from None
        if not make and not there:
            self.close()
            raise ExportError(f"{uri} has no export", hint="gossipq export --out URI makes one")

    def close(self) -> None:
        shutil.rmtree(self._here, ignore_errors=True)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """What fails in the store is Unreachable: it may pass."""
        errors = self._obstore.exceptions
        try:
            yield
        except (errors.AlreadyExistsError, errors.NotFoundError, FileNotFoundError):
            raise
        except errors.BaseError as error:
            raise Unreachable(f"{self.uri}/{what}: {_first_line(error)}", hint="it is tried again") from error

    # --- reading

    def sequences(self) -> list[int]:
        with self._asking(export.MANIFESTS):
            names = [name.rpartition("/")[2] for name, _ in self._list(export.MANIFESTS)]
        return sorted(number for name in names if (number := export.sequence_of(name)) is not None)

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Names, and when they were put there, in seconds since 1970."""
        for page in self._obstore.list(self._store, prefix=prefix):
            yield from ((each["path"], each["last_modified"].timestamp()) for each in page)

    def _content(self, name: str) -> bytes:
        with self._asking(name):
            return bytes(self._obstore.get(self._store, name).bytes())

    def manifest(self, sequence: int) -> bytes:
        return self._content(export.manifest_path(sequence))

    def check(self, file: File) -> Path:
        """The file, brought here; the one before is gone then. Raises TornExport, Unreachable."""
        here = self._here / "read"
        try:
            with self._asking(file.path), here.open("wb") as opened:
                for chunk in self._obstore.get(self._store, file.path).stream(min_chunk_size=1 << 20):
                    opened.write(chunk)
        except (FileNotFoundError, self._obstore.exceptions.NotFoundError):
            export.check_file(file, None)
        with here.open("rb") as opened:
            export.check_file(file, here.stat().st_size, file_digest(opened, "sha256").hexdigest())
        return here

    def address(self, path: str) -> str:
        return f"{self.uri}/{path}"

    # --- writing

    def new(self) -> Path:
        self._count += 1
        return self._here / str(self._count)

    def keep(
        self,
        written: Path,
        data_set: str,
        topic: str,
        topic_id: int,
        partition: int,
        start: int,
        end: int,
        format: str,
    ) -> tuple[str, int, str]:
        with written.open("rb") as opened:
            digest = file_digest(opened, "sha256").hexdigest()
        name = export.file_path(data_set, topic, topic_id, partition, start, end, digest, format)
        size = written.stat().st_size
        with self._asking(name):
            # named by its content: putting it twice harms nobody
            self._obstore.put(self._store, name, written)
        written.unlink()
        return name, size, digest

    def publish(self, manifest: Manifest) -> str:
        raw, name = export.encode(manifest), export.manifest_path(manifest.sequence)
        try:
            with self._asking(name):
                self._obstore.put(self._store, name, raw, mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            if self._content(name) != raw:  # otherwise ours: its confirm was lost, and it was put again
                hint = "two exporters write here; let one of them"
                raise TornExport(f"{name} is there already", hint=hint) from None
        return sha256(raw).hexdigest()

    # --- what does not count any more

    def _delete(self, name: str) -> None:
        with self._asking(name):
            self._obstore.delete(self._store, name)

    def _names(self) -> list[str]:
        oldest_s = time.time() - UNNAMED_S
        with self._asking("files"):
            return [
                name
                for data_set in export.SCHEMAS
                for name, put_s in self._list(f"{data_set}/")
                if put_s < oldest_s
            ]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
