"""The folder of an export: complete files only, manifests last and never changed, one exporter.

A file is valid only if a manifest names it, so an export is readable after a crash at any point.
"""

import os
import time
from hashlib import file_digest, sha256
from pathlib import Path
from types import TracebackType
from typing import Self

from gossipq.errors import ExportError, TornExport
from gossipq.wire import export
from gossipq.wire.export import Export, File, Manifest
from gossipq_node.disk import Disk


class Folder:
    def __init__(self, root: str | Path, make: bool = True) -> None:
        """Lock the folder, and create it if needed.

        Raises ExportError if it cannot be used or is in use.
        """
        self.root = Path(root)
        if not make and not (self.root / export.MANIFESTS).is_dir():
            raise ExportError(f"{self.root} has no export", hint="gossipq export --out DIR makes one")
        busy = ExportError(
            f"{self.root} is being exported to already",
            hint="wait for that export, or end it; with --follow it merges by itself",
        )
        self._disk = Disk(self.root, ExportError, busy, folders=(export.MANIFESTS,))

    def close(self) -> None:
        self._disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- reading

    def sequences(self) -> list[int]:
        """Return the numbers of existing manifests, rising."""
        names = os.listdir(self.root / export.MANIFESTS)
        return sorted(number for name in names if (number := export.sequence_of(name)) is not None)

    def manifest(self, sequence: int) -> bytes:
        return (self.root / export.manifest_path(sequence)).read_bytes()

    def read(self) -> Export:
        """Return the export. Raises TornExport, ExportVersion."""
        return export.load(self.sequences(), self.manifest)

    def check(self, file: File) -> Path:
        """Return the path of a file after comparing it with its manifest. Raises TornExport."""
        path = self.root / file.path
        size = path.stat().st_size if path.is_file() else None
        export.check_file(file, size)
        with path.open("rb") as opened:
            export.check_file(file, size, file_digest(opened, "sha256").hexdigest())
        return path

    def address(self, path: str) -> str:
        """Return the name of a file for other programs."""
        return f"file://{os.path.abspath(self.root / path)}"

    # --- writing

    def new(self) -> Path:
        """Return a path at which to write a file for `keep`."""
        return self._disk.new()

    def keep(self, written: Path, path: str) -> None:
        """Sync a file and move it to its place. It becomes valid when a manifest names it."""
        self._disk.put(written, path)

    def publish(self, manifest: Manifest) -> str:
        """Publish a manifest. Returns its SHA-256. Raises TornExport if
        another one has its number.
        """
        raw, name = export.encode(manifest), export.manifest_path(manifest.sequence)
        if not self._disk.create(name, raw):
            raise TornExport(
                f"{name} already exists", hint="two exporters write to this folder: stop one of them"
            )
        return sha256(raw).hexdigest()

    # --- deletion

    def forget(self, older_than_s: float) -> int:
        """Delete manifests before the newest base, if that is older than
        `older_than_s`, and unnamed files.

        Returns how many files were deleted.
        """
        manifests = {sequence: export.decode(self.manifest(sequence)) for sequence in self.sequences()}
        bases = [
            each
            for each in manifests.values()
            if each.base and each.written_us < (time.time() - older_than_s) * 1e6
        ]
        for sequence in [sequence for sequence in manifests if bases and sequence < bases[-1].sequence]:
            self._delete(export.manifest_path(sequence))
            del manifests[sequence]
        named = {file.path for manifest in manifests.values() for file in manifest.files}
        gone = [name for name in self._names() if name not in named]
        for name in gone:
            self._delete(name)
        return len(gone)

    def _delete(self, name: str) -> None:
        (self.root / name).unlink()

    def _names(self) -> list[str]:
        """Return files that can be deleted if no manifest names them."""
        found = (
            path
            for data_set in export.SCHEMAS
            for path in (self.root / data_set).glob("*/*")
            if path.is_file()
        )
        return [str(path.relative_to(self.root)) for path in found]
