"""An object store (s3://bucket/name), where exports and backups lie as they do in a folder: objects appear
whole or not at all, and one that must be new is put only where none is.

Credentials and the rest come from the usual environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, AWS_ENDPOINT_URL.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossipq.errors import GossipqError, Unreachable, missing_extra

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
HOW = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL say how to get there"
UNNAMED_S = 24 * 3_600.0  #: nobody locks: what is as old and not named may go
CHUNK_BYTES = 1 << 20


class Bucket:
    def __init__(self, uri: str, prefix: str, refusal: type[GossipqError]) -> None:
        """Lists `prefix` to see whether it can be used. Raises `refusal` when not, GossipqError when obstore
        is not installed."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise missing_extra(error.name, "lake") from None
        if re.search("[#?]", uri):
            raise refusal(f"{uri} is no name of a place: it has # or ?", hint="s3://bucket/name")
        self.obstore: Any = obstore
        self.uri, self._count = re.sub("^s3a:", "s3:", uri.rstrip("/")), 0
        self._here = Path(tempfile.mkdtemp(prefix="gossipq-"))
        try:
            self._store: Any = from_url(self.uri, client_options={"allow_http": True})
            self.listed(prefix)
        except (obstore.exceptions.BaseError, Unreachable, ValueError) as error:
            self.close()
            raise refusal(f"{uri} cannot be used: {_first_line(error)}", hint=HOW) from None

    def close(self) -> None:
        """Removes what was brought here."""
        shutil.rmtree(self._here, ignore_errors=True)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """What fails in the store is Unreachable: it may pass."""
        errors = self.obstore.exceptions
        try:
            yield
        except (errors.AlreadyExistsError, errors.NotFoundError, FileNotFoundError):
            raise
        except errors.BaseError as error:
            hint = "it may pass: run it again"
            raise Unreachable(f"{self.uri}/{what}: {_first_line(error)}", hint=hint) from error

    def listed(self, prefix: str) -> list[tuple[str, float]]:
        """Names, and when they were put there, in seconds since 1970. Raises Unreachable."""
        with self._asking(prefix):
            pages = list(self.obstore.list(self._store, prefix=prefix))
        return [(each["path"], each["last_modified"].timestamp()) for page in pages for each in page]

    def forgotten(self, prefix: str) -> list[str]:
        """What is so old that nobody can be about to name it. Raises Unreachable."""
        oldest_s = time.time() - UNNAMED_S
        return [name for name, put_s in self.listed(prefix) if put_s < oldest_s]

    def content(self, name: str) -> bytes:
        """Raises Unreachable."""
        with self._asking(name):
            return bytes(self.obstore.get(self._store, name).bytes())

    def fetched(self, name: str) -> Path | None:
        """A file with the content, None when there is no such object; the one before is gone then. Raises
        Unreachable."""
        here = self._here / "read"
        try:
            with self._asking(name), here.open("wb") as opened:
                for chunk in self.obstore.get(self._store, name).stream(min_chunk_size=CHUNK_BYTES):
                    opened.write(chunk)
        except (FileNotFoundError, self.obstore.exceptions.NotFoundError):
            return None
        return here

    def new(self) -> Path:
        """Where a file may be written that is to be put."""
        self._count += 1
        return self._here / str(self._count)

    def put(self, written: Path, name: str) -> None:
        """The file is gone then. Raises Unreachable."""
        with self._asking(name):
            self.obstore.put(self._store, name, written)
        written.unlink()

    def create(self, name: str, raw: bytes) -> bool:
        """Whether it is there with that content now; False: another one is. Raises Unreachable."""
        try:
            with self._asking(name):
                self.obstore.put(self._store, name, raw, mode="create")
        except self.obstore.exceptions.AlreadyExistsError:
            return self.content(name) == raw  # then its answer was lost, and it was put again
        return True

    def remove(self, name: str) -> None:
        """Raises Unreachable."""
        with self._asking(name):
            self.obstore.delete(self._store, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
