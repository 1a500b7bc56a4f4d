"""The folder of an export: whole files only, manifests last and never changed, one exporter at a time.

A crash leaves a readable export at any point: a file counts only from the moment its manifest is there.
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
        """Locks the folder, which is made if need be. Raises ExportError when it cannot be used or is being
        written."""
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
        """Numbers of the manifests that are there, rising."""
        names = os.listdir(self.root / export.MANIFESTS)
        return sorted(number for name in names if (number := export.sequence_of(name)) is not None)

    def manifest(self, sequence: int) -> bytes:
        return (self.root / export.manifest_path(sequence)).read_bytes()

    def read(self) -> Export:
        """What counts. Raises TornExport, ExportVersion."""
        return export.load(self.sequences(), self.manifest)

    def check(self, file: File) -> Path:
        """The path of a file that is as its manifest says, byte by byte. Raises TornExport."""
        path = self.root / file.path
        size = path.stat().st_size if path.is_file() else None
        export.check_file(file, size)
        with path.open("rb") as opened:
            export.check_file(file, size, file_digest(opened, "sha256").hexdigest())
        return path

    def address(self, path: str) -> str:
        """A file as others name it."""
        return f"file://{os.path.abspath(self.root / path)}"

    # --- writing

    def new(self) -> Path:
        """Where a file may be written."""
        return self._disk.new()

    def keep(self, written: Path, path: str) -> None:
        """Puts a whole file in its place, on the disk; it counts when a manifest names it."""
        self._disk.put(written, path)

    def publish(self, manifest: Manifest) -> str:
        """Makes an increment count; returns its SHA-256. Raises TornExport when another one took its
        number."""
        raw, name = export.encode(manifest), export.manifest_path(manifest.sequence)
        if not self._disk.create(name, raw):
            raise TornExport(f"{name} is there already", hint="two exporters write here; let one of them")
        return sha256(raw).hexdigest()

    # --- what does not count any more

    def forget(self, older_than_s: float) -> int:
        """Removes manifests before the newest base, when that one is older than so many seconds, and files
        that no manifest names. Returns how many files went."""
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
        """Of files that may go when no manifest names them."""
        found = (
            path
            for data_set in export.SCHEMAS
            for path in (self.root / data_set).glob("*/*")
            if path.is_file()
        )
        return [str(path.relative_to(self.root)) for path in found]
