"""The folder of an export, on this machine or on a filesystem of pyarrow (s3://, gs://, hdfs://).

Importing this module imports pyarrow.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from hashlib import sha256
from pathlib import PurePosixPath
from string import punctuation
from urllib.parse import quote

from pyarrow import ArrowException, fs

from gossipq.errors import ExportError, TornExport
from gossipq.wire import export
from gossipq.wire.export import Export, File

#: the SHA-256 of files is checked by default if the export is not larger than this
VERIFY_BYTES_MAX = 256 << 20
_CHUNK = 1 << 20


class ExportReader:
    def __init__(self, path: str) -> None:
        """Open a path or URI. s3a://, as Spark writes it, means s3://.

        Raises ExportError for a URI of an unknown kind.
        """
        self.path = path.rstrip("/")
        if "://" in path:
            uri = quote(re.sub("^s3[an]:", "s3:", self.path), safe=punctuation)
            try:
                self.system, self.root = fs.FileSystem.from_uri(uri)
            except ArrowException as error:
                raise ExportError(f"{path} cannot be used: {error}", hint="a path, or s3://...") from None
        else:
            self.system, self.root = fs.LocalFileSystem(), self.path.removeprefix("file:")

    def read(self, until_us: int | None = None) -> Export:
        """Return the export as it is now, or as it was at `until_us` (microseconds since 1970).

        Raises TornExport (also for a folder without manifests), ExportVersion, and ExportError if
        the export does not reach back to that time.
        """
        where = fs.FileSelector(f"{self.root}/{export.MANIFESTS}", allow_not_found=True)
        there = {export.sequence_of(info.base_name): info.path for info in self.system.get_file_info(where)}
        there.pop(None, None)
        if not there:
            raise TornExport(
                f"{self.path} has no manifest: nothing was exported there", hint="gossipq export --out DIR"
            )
        numbers = [number for number in there if number is not None]
        return export.load(numbers, lambda number: self.content(there[number]), until_us)

    def content(self, path: str) -> bytes:
        with self.system.open_input_stream(path) as stream:
            return bytes(stream.read())

    def check(self, files: Iterable[File], verify: bool | None) -> None:
        """Check that the files exist with the right size, and with `verify` the right SHA-256.

        Raises TornExport.
        """
        files = list(files)
        if verify is None:
            verify = sum(file.bytes for file in files) <= VERIFY_BYTES_MAX
        infos = self.system.get_file_info([self.locate(file.path) for file in files])
        for file, info in zip(files, infos, strict=True):
            there = info.size if info.type == fs.FileType.File else None
            export.check_file(file, there, self._digest(file.path) if verify and there is not None else None)

    def _digest(self, path: str) -> str:
        digest = sha256()
        with self.system.open_input_stream(self.locate(path)) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def locate(self, path: str) -> str:
        """Return the path of a file as the filesystem of this folder names it."""
        return str(PurePosixPath(self.root) / path)


def nearest(name: str, names: Iterable[str]) -> str:
    """Hint for a topic name that does not exist: the nearest name, or some of the existing
    names.
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=1)
    more = ", ..." if len(names) > 8 else ""
    return (
        f"did you mean {close[0]}?"
        if close
        else f"there are {', '.join(names[:8])}{more}"
        if names
        else "there is none"
    )
