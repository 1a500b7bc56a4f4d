"""An export in an object store (s3://bucket/lake), with conditional puts
instead of links and locks.

A manifest is put only if its number is free, so of two exporters one fails. Files that no manifest
names are deleted only when they are old, because another exporter may be about to name them.
Credentials come from the usual environment variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, AWS_ENDPOINT_URL.
"""

from hashlib import file_digest, sha256
from pathlib import Path

from gossipq.errors import ExportError, TornExport
from gossipq.wire import export
from gossipq.wire.export import File, Manifest
from gossipq_node.bucket import SCHEMES, Bucket
from gossipq_node.export.folder import Folder


def folder_at(place: str, make: bool = True) -> Folder:
    """Open the export at a path or URI. Raises ExportError if it cannot be used."""
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
        """Raises ExportError if the store cannot be used, GossipqError without obstore."""
        self.bucket = Bucket(uri, export.MANIFESTS, ExportError)
        self.root = Path(self.bucket.uri)  # for people only
        if not make and not self.sequences():
            self.close()
            raise ExportError(f"{uri} has no export", hint="gossipq export --out URI makes one")

    def close(self) -> None:
        self.bucket.close()

    # --- reading

    def sequences(self) -> list[int]:
        names = [name.rpartition("/")[2] for name, _ in self.bucket.listed(export.MANIFESTS)]
        return sorted(number for name in names if (number := export.sequence_of(name)) is not None)

    def manifest(self, sequence: int) -> bytes:
        return self.bucket.content(export.manifest_path(sequence))

    def check(self, file: File) -> Path:
        """Download a file and check it. Raises TornExport, Unreachable.

        The file of the previous call is overwritten.
        """
        here = self.bucket.fetched(file.path)
        export.check_file(file, None if here is None else here.stat().st_size)
        assert here is not None  # otherwise an error was raised
        with here.open("rb") as opened:
            export.check_file(file, here.stat().st_size, file_digest(opened, "sha256").hexdigest())
        return here

    def address(self, path: str) -> str:
        return f"{self.bucket.uri}/{path}"

    # --- writing

    def new(self) -> Path:
        return self.bucket.new()

    def keep(self, written: Path, path: str) -> None:
        self.bucket.put(written, path)  # named by its content, so putting it twice is harmless

    def publish(self, manifest: Manifest) -> str:
        raw, name = export.encode(manifest), export.manifest_path(manifest.sequence)
        if not self.bucket.create(name, raw):
            raise TornExport(
                f"{name} already exists", hint="two exporters write to this folder: stop one of them"
            )
        return sha256(raw).hexdigest()

    # --- deletion

    def _delete(self, name: str) -> None:
        self.bucket.remove(name)

    def _names(self) -> list[str]:
        return [name for data_set in export.SCHEMAS for name in self.bucket.forgotten(f"{data_set}/")]
