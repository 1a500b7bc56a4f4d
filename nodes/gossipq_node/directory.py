"""The data directory of a node: its lock, its manifest, and the paths of its stores."""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec

from gossipq import limits
from gossipq.config import SECRET_FILE as SECRET
from gossipq.config import Config, Node
from gossipq.errors import ConfigError, StoreError
from gossipq_node import machine
from gossipq_node.adapters.lmdb_store import ENGINE_NAME, LOCK_FILE, DirectoryLock, make_store
from gossipq_node.files import SavedRoster, make_directory, read_roster, replace_file, sync_directory

FORMAT = 3  #: no release wrote 1 or 2
MANIFEST = "manifest.json"
NEW_MANIFEST = "manifest.json.new"
STORES = "stores"
ROSTER = "roster.json"
NEW_ROSTER = "roster.json.new"
ACCESS = "access.json"
NEW_ACCESS = "access.json.new"
GOSSIP = "gossip"  #: files of the membership
NEW_SECRET = f"{SECRET}.new"
NODE_KEYS, NEW_NODE_KEYS = "node.keys", "node.keys.new"
OURS = frozenset(
    (
        *(LOCK_FILE, MANIFEST, NEW_MANIFEST, STORES, ROSTER, NEW_ROSTER, ACCESS, NEW_ACCESS, GOSSIP, SECRET),
        *(NEW_SECRET, NODE_KEYS, NEW_NODE_KEYS),
    )
)
VOLUME = frozenset(("lost+found",))  #: names in a new ext4 volume


class DirectoryManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json. A change of any value changes the identity or layout of the directory."""

    format: int
    engine: str
    cluster_name: str
    cluster_uuid: str  #: "" before it belongs to a cluster
    node_id: str
    dir_uuid: str  #: names this copy of the data; each directory has its own
    workers: int
    shards: int  #: 0 before it belongs to a cluster and takes the cluster's number
    generation: int  #: raised by each reshard; names the directory of the current stores
    created: str
    machine: str  #: together with the inode it reveals a copied directory
    inode: int
    #: copies that this one may replace, allowed by `gossipq store adopt`
    predecessors: list[str] = []
    joined: bool = False  #: True if the cluster existed before
    witness: bool = False  #: votes, but stores no records
    #: options of [cluster] when this node joined: dotted key -> JSON text
    options: dict[str, str] = {}
    #: options of [cluster] in the node's own file, as the cluster agreed to them
    said: dict[str, str] = {}
    #: uuids of clusters that this one replaced in a `recover`; the newest last
    former: list[str] = []
    #: without a cluster: the uuid of the cluster, or the founding copy, that it has agreed to
    pledge: str = ""

    @property
    def voter(self) -> str:
        """Name of this copy of the data in the logs. A lost directory is another voter."""
        return f"{self.node_id}.{self.dir_uuid}"


def examined(path: Path) -> DirectoryManifest | None:
    """Return the manifest of a directory with which a node could start, or runs already.

    Nothing is locked or changed. None: the first start will create it. Raises
    StoreError as a start does.
    """
    try:
        check_ours(path)
        manifest = read_manifest(path)
        if manifest is not None:
            check_made_by(path, manifest)
            check_original(path, manifest, (path / LOCK_FILE).stat().st_ino)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from None
    return manifest


def check_ours(path: Path) -> None:
    """Raise StoreError if the directory has files of another program, or OSError."""
    strangers = [] if (path / MANIFEST).exists() else sorted(set(os.listdir(path)) - OURS - VOLUME)
    if strangers:
        raise StoreError(
            f"{path} is not a gossipq directory: it has {', '.join(strangers[:3])} and no {MANIFEST}",
            "give an empty or a new directory with --data",
        )


def read_manifest(path: Path) -> DirectoryManifest | None:
    """Return the manifest, or None if it does not exist. Raises StoreError if it cannot be read."""
    try:
        raw = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path / MANIFEST} cannot be read: {error.strerror}") from None
    try:
        version = msgspec.json.decode(raw, type=dict[str, object]).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise StoreError(
                f"{path} has format {version}; this version of gossipq reads up to {FORMAT}",
                "start the newer gossipq that made it",
            )
        return msgspec.json.decode(raw, type=DirectoryManifest)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path / MANIFEST} is damaged: {error}", "restore it from a copy") from None


def check_made_by(path: Path, manifest: DirectoryManifest) -> None:
    """Raise StoreError for another engine, and for an older format."""
    if manifest.format < FORMAT:
        raise StoreError(
            f"{path} was made by an older gossipq (format {manifest.format}; this one uses {FORMAT})",
            "start the gossipq that made it",
        )
    if manifest.engine != ENGINE_NAME:
        raise StoreError(
            f"{path} was made with {manifest.engine}; this gossipq uses {ENGINE_NAME}",
            "start the gossipq that made it",
        )


def is_original(manifest: DirectoryManifest, inode: int) -> bool:
    """True if the directory is on the machine and disk that wrote its manifest.

    `inode` is that of its lock. On machines without an id, a clone of a
    disk looks like the original.
    """
    return (manifest.machine, manifest.inode) == (machine.machine_id(), inode)


def check_original(path: Path, manifest: DirectoryManifest, inode: int) -> None:
    """Raise StoreError for a copied directory. `inode` is that of its lock."""
    if not is_original(manifest, inode):
        raise StoreError(
            f"{path} is a copy of another node's directory, and two nodes must never be one",
            f"gossipq store verify --data {path} looks at it; if the original is gone for good: "
            f"gossipq store adopt --data {path}",
        )


def workers_of_new(config: Config) -> int:
    """Return the number of workers for a new directory."""
    return config.node.workers or min(machine.worker_count(), limits.WORKERS_MAX, config.cluster.shards)


def check_workers(manifest: DirectoryManifest, node: Node, where: str) -> None:
    """Raise ConfigError if `where` asks for another number of workers than the directory has."""
    if not manifest.witness and node.workers not in (0, manifest.workers):
        raise ConfigError(
            f"{where} = {node.workers}, but {node.data} holds {manifest.workers}",
            f"start with --workers {manifest.workers}, or first: gossipq store reshard --data {node.data} "
            f"--workers {node.workers}",
        )


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be used: {error.strerror}", "give another directory with --data")


class DataDirectory:
    """An opened and locked data directory, until `close`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Lock the directory, and create it if needed.

        Raises StoreError: in use, not writable, no space.
        """
        self.path = Path(path)
        try:
            make_directory(self.path)
            check_ours(self.path)
            with suppress(PermissionError):  # the volume may belong to another user
                os.chmod(self.path, 0o700)  # other users must not read the records
        except OSError as error:
            raise _unusable(self.path, error) from None
        self.lock = DirectoryLock(self.path)

    def found(self, cluster_name: str, workers: int, shards: int) -> DirectoryManifest:
        """Return the manifest. Found a cluster if the directory is new.
        Raises StoreError, see `check`.
        """
        manifest = self.prepare(cluster_name, workers, shards)
        if not manifest.cluster_uuid:
            shards = manifest.shards or shards
            manifest = msgspec.structs.replace(
                manifest,
                cluster_uuid=uuid.uuid4().hex,
                shards=shards,
                workers=min(manifest.workers, shards),
                pledge="",
            )
            self.belong(manifest)
        return manifest

    def belong(self, manifest: DirectoryManifest) -> None:
        """Write the manifest with its cluster, after creating the stores. Raises StoreError.

        A store that is missing later is never created again.
        """
        self.make_stores(manifest)
        self.write(manifest)

    def make_stores(self, manifest: DirectoryManifest) -> None:
        """Create missing stores of all workers, empty. Raises StoreError."""
        stores = [self.store(manifest, worker) for worker in range(manifest.workers)]
        for store in stores:
            make_store(store)
        try:
            for path in (*stores, stores[0].parent, self.path / STORES, self.path):
                sync_directory(path)
            with suppress(PermissionError):  # the parent may belong to another user
                sync_directory(self.path.absolute().parent)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}", "free some space or give another --data"
            ) from None

    def prepare(
        self, cluster_name: str, workers: int, shards: int, witness: bool = False
    ) -> DirectoryManifest:
        """Return the manifest; create it, without a cluster, if it is new.
        Raises StoreError, see `check`.

        Before it has a cluster, workers, shards and role follow the arguments; identities stay.
        """
        manifest = self.read()
        if manifest is not None and not manifest.cluster_uuid:
            asked = {"cluster_name": cluster_name, "workers": workers, "shards": shards, "witness": witness}
            manifest = msgspec.structs.replace(manifest, **asked)
            self.write(manifest)
        elif manifest is None:
            manifest = DirectoryManifest(
                format=FORMAT,
                engine=ENGINE_NAME,
                cluster_name=cluster_name,
                cluster_uuid="",
                witness=witness,
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

    def read(self) -> DirectoryManifest | None:
        """Return the manifest, or None if it does not exist. Raises
        StoreError if it cannot be read.
        """
        return read_manifest(self.path)

    def check(self, manifest: DirectoryManifest, copied: bool = False) -> None:
        """Raise StoreError if the stores cannot be used.

        They are of another engine, of an older format, or copied from another directory (unless
        `copied`).
        """
        check_made_by(self.path, manifest)
        if not copied:
            check_original(self.path, manifest, self.lock.inode)

    def moved(self) -> DirectoryManifest | None:
        """Return the manifest of a directory from another machine or disk, if
        its cluster has other nodes.

        These know whether the original node still exists. Raises StoreError.
        """
        manifest = self.read()
        if manifest is None or not manifest.cluster_uuid or is_original(manifest, self.lock.inode):
            return None
        check_made_by(self.path, manifest)
        return manifest if self.others(manifest) else None

    def others(self, manifest: DirectoryManifest) -> list[str]:
        """Return the last known addresses of the other nodes."""
        return [row.endpoint for row in self.roster().members if row.copy != manifest.voter]

    def renewed(self, manifest: DirectoryManifest) -> DirectoryManifest:
        """Return the manifest of the same records as another copy.

        The old copy may have promised something that these records lack.
        """
        return msgspec.structs.replace(
            manifest, dir_uuid=uuid.uuid4().hex, machine=machine.machine_id(), inode=self.lock.inode
        )

    def write(self, manifest: DirectoryManifest) -> None:
        """Replace the manifest atomically. Raises StoreError if it cannot be stored."""
        try:
            replace_file(self.path / MANIFEST, manifest)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}", "free some space or give another --data"
            ) from None

    @property
    def roster_file(self) -> Path:
        return self.path / ROSTER

    def roster(self) -> SavedRoster:
        """Return the last known roster; empty if unknown."""
        return read_roster(self.roster_file)

    @property
    def access_file(self) -> Path:
        return self.path / ACCESS

    def store(self, manifest: DirectoryManifest, worker: int) -> Path:
        """Return the path of a worker's store."""
        return self.path / STORES / str(manifest.generation) / f"worker-{worker}"

    def other_generations(self, manifest: DirectoryManifest) -> list[Path]:
        """Return stores that an interrupted reshard left unused.

        Other names are ignored: they belong to the user, for example copies.
        """
        names = (path for path in (self.path / STORES).glob("*") if path.name.isdecimal())
        return [path for path in names if path.name != str(manifest.generation) and not path.is_symlink()]

    def close(self) -> None:
        self.lock.release()
