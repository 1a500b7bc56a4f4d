"""The data directory of a node: who owns it, what made it, and where each worker's store lies in it."""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec

from gossipq.errors import StoreError
from gossipq_node import machine
from gossipq_node.adapters.lmdb_store import ENGINE_NAME, LOCK_FILE, DirectoryLock

FORMAT = 1
MANIFEST = "manifest.json"
NEW_MANIFEST = "manifest.json.new"
STORES = "stores"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json. A change of any value here is a change of what the directory is."""

    format: int
    engine: str
    cluster_name: str
    cluster_uuid: str
    node_id: str
    dir_uuid: str  #: names this copy of the data; a new one for each directory
    workers: int
    shards: int
    generation: int  #: raised by each reshard; names the directory of the current stores
    created: str
    machine: str  #: with the inode: a copied directory is noticed
    inode: int
    predecessors: list[str] = []  #: names of the copies that `gossipq store adopt` let this one replace

    @property
    def voter(self) -> str:
        """Name of this copy of the data in the logs: a directory that was lost is another voter."""
        return f"{self.node_id}.{self.dir_uuid}"


class DataDirectory:
    """An opened, locked data directory. `close` lets go of it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Locks the directory, making it when absent. Raises StoreError: in use, not writable, no space."""
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            strangers = sorted(set(os.listdir(self.path)) - {LOCK_FILE, MANIFEST, NEW_MANIFEST, STORES})
        except OSError as error:
            raise StoreError(f"{self.path} cannot be used: {error.strerror}", "give another directory with --data") from None
        if strangers and not (self.path / MANIFEST).exists():
            raise StoreError(
                f"{self.path} is not a gossipq directory: it has {', '.join(strangers[:3])} and no {MANIFEST}",
                "give an empty or a new directory with --data",
            )
        self.lock = DirectoryLock(self.path)

    def found(self, cluster_name: str, workers: int, shards: int) -> Manifest:
        """The manifest of this directory, made now when it is new. Raises StoreError, see `check`."""
        manifest = self.read()
        if manifest is None:
            manifest = Manifest(
                format=FORMAT,
                engine=ENGINE_NAME,
                cluster_name=cluster_name,
                cluster_uuid=uuid.uuid4().hex,
                node_id=uuid.uuid4().hex,
                dir_uuid=uuid.uuid4().hex,
                workers=workers,
                shards=shards,
                generation=0,
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                machine=machine.machine_id(),
                inode=self.lock.inode,
            )
            self.write(manifest)
        self.check(manifest)
        return manifest

    def read(self) -> Manifest | None:
        """None when there is no manifest yet. Raises StoreError when it cannot be read."""
        try:
            raw = (self.path / MANIFEST).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path / MANIFEST} cannot be read: {error.strerror}") from None
        try:
            version = msgspec.json.decode(raw, type=dict[str, object]).get("format")
            if isinstance(version, int) and version > FORMAT:
                raise StoreError(
                    f"{self.path} has format {version}; this version of gossipq reads up to {FORMAT}",
                    "start the newer gossipq that made it",
                )
            return msgspec.json.decode(raw, type=Manifest)
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.path / MANIFEST} is damaged: {error}", "restore it from a copy") from None

    def check(self, manifest: Manifest) -> None:
        """Raises StoreError when the stores cannot be used as they are: another engine, or a copy of another directory."""
        if manifest.engine != ENGINE_NAME:
            raise StoreError(
                f"{self.path} was made with {manifest.engine}; this gossipq uses {ENGINE_NAME}",
                "start the gossipq that made it",
            )
        if (manifest.machine, manifest.inode) != (machine.machine_id(), self.lock.inode):
            raise StoreError(
                f"{self.path} is a copy of another node's directory, and two nodes must never be one",
                f"if the original is gone for good: gossipq store adopt --data {self.path}",
            )

    def write(self, manifest: Manifest) -> None:
        """Replaces the manifest in one step. Raises StoreError when it cannot be stored."""
        new = self.path / NEW_MANIFEST
        try:
            with open(new, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, self.path / MANIFEST)
            sync_directory(self.path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}", "free some space or give another --data"
            ) from None

    def store(self, manifest: Manifest, worker: int) -> Path:
        """Where a worker's store lies."""
        return self.path / STORES / str(manifest.generation) / f"worker-{worker}"

    def close(self) -> None:
        self.lock.release()


def sync_directory(path: Path) -> None:
    """Makes new and renamed entries of a directory last. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
