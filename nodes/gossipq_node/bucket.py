"""An object store (s3://bucket/name) for exports and backups, laid out like a folder.

Objects appear completely or not at all. `create` writes an object only if its name is free.
Credentials come from the usual environment variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
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
#: without locks, unnamed objects are deleted only when they are this old
UNNAMED_S = 24 * 3_600.0
CHUNK_BYTES = 1 << 20


class Bucket:
    def __init__(self, uri: str, prefix: str, refusal: type[GossipqError]) -> None:
        """Lists `prefix` to check access. Raises `refusal` without access,
        GossipqError without obstore.
        """
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise missing_extra(error.name, "lake") from None
        if re.search("[#?]", uri):
            raise refusal(f"invalid bucket URI {uri}: # and ? are not allowed", hint="pass s3://bucket/name")
        self.obstore: Any = obstore
        self.uri, self._count = re.sub("^s3a:", "s3:", uri.rstrip("/")), 0
        # objects are written to a file here first: an upload that breaks off leaves no object
        self._here = Path(tempfile.mkdtemp(prefix="gossipq-"))
        try:
            self._store: Any = from_url(self.uri, client_options={"allow_http": True})
            self.listed(prefix)  # wrong credentials fail now, and not after an hour of work
        except (obstore.exceptions.BaseError, Unreachable, ValueError) as error:
            self.close()
            raise refusal(f"{uri} cannot be used: {_first_line(error)}", hint=HOW) from None

    def close(self) -> None:
        """Delete the local copies."""
        shutil.rmtree(self._here, ignore_errors=True)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Convert errors of the store to Unreachable, which can be retried."""
        errors = self.obstore.exceptions
        try:
            yield
        except (errors.AlreadyExistsError, errors.NotFoundError, FileNotFoundError):
            raise  # no trouble of the store: `create` and `fetched` decide about these
        except errors.BaseError as error:
            hint = "it may pass: run it again"
            raise Unreachable(f"{self.uri}/{what}: {_first_line(error)}", hint=hint) from error

    def listed(self, prefix: str) -> list[tuple[str, float]]:
        """Return names with their times of upload, in seconds since 1970. Raises Unreachable."""
        with self._asking(prefix):
            pages = list(self.obstore.list(self._store, prefix=prefix))
        return [(each["path"], each["last_modified"].timestamp()) for page in pages for each in page]

    def forgotten(self, prefix: str) -> list[str]:
        """Return objects so old that no writer can still be about to name
        them. Raises Unreachable.
        """
        oldest_s = time.time() - UNNAMED_S
        return [name for name, put_s in self.listed(prefix) if put_s < oldest_s]

    def content(self, name: str) -> bytes:
        """Raises Unreachable."""
        with self._asking(name):
            return bytes(self.obstore.get(self._store, name).bytes())

    def fetched(self, name: str) -> Path | None:
        """Download an object. Returns None if it does not exist. Raises Unreachable.

        The file of the previous call is overwritten.
        """
        here = self._here / "read"
        try:
            with self._asking(name), here.open("wb") as opened:
                for chunk in self.obstore.get(self._store, name).stream(min_chunk_size=CHUNK_BYTES):
                    opened.write(chunk)
        except (FileNotFoundError, self.obstore.exceptions.NotFoundError):
            return None
        return here

    def new(self) -> Path:
        """Return a path at which to write a file for `put`."""
        self._count += 1
        return self._here / str(self._count)

    def put(self, written: Path, name: str) -> None:
        """Upload a file, and delete the local one. Raises Unreachable."""
        with self._asking(name):
            self.obstore.put(self._store, name, written)
        written.unlink()

    def create(self, name: str, raw: bytes) -> bool:
        """Write an object if its name is free. False: another object has it. Raises Unreachable."""
        try:
            with self._asking(name):
                self.obstore.put(self._store, name, raw, mode="create")
        except self.obstore.exceptions.AlreadyExistsError:
            # equal content: an earlier attempt succeeded, but its answer was lost
            return self.content(name) == raw
        return True

    def remove(self, name: str) -> None:
        """Raises Unreachable."""
        with self._asking(name):
            self.obstore.delete(self._store, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
