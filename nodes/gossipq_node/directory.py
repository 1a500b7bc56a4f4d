"""The data directory of a node: who owns it, what made it, and where each worker's store lies in it."""

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

FORMAT = 3  #: 1 is that of gossipq 0.1; of 2, each record that failed had a row of its own
MANIFEST = "manifest.json"
NEW_MANIFEST = "manifest.json.new"
STORES = "stores"
ROSTER = "roster.json"
NEW_ROSTER = "roster.json.new"
ACCESS = "access.json"
NEW_ACCESS = "access.json.new"
GOSSIP = "gossip"  #: what the membership keeps
NEW_SECRET = f"{SECRET}.new"
NODE_KEYS, NEW_NODE_KEYS = "node.keys", "node.keys.new"
OURS = frozenset(
    (
        *(LOCK_FILE, MANIFEST, NEW_MANIFEST, STORES, ROSTER, NEW_ROSTER, ACCESS, NEW_ACCESS, GOSSIP, SECRET),
        *(NEW_SECRET, NODE_KEYS, NEW_NODE_KEYS),
    )
)
VOLUME = frozenset(("lost+found",))  #: what a new ext4 volume has in it


class DirectoryManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json. A change of any value here is a change of what the directory is."""

    format: int
    engine: str
    cluster_name: str
    cluster_uuid: str  #: "" while it belongs to no cluster
    node_id: str
    dir_uuid: str  #: names this copy of the data; a new one for each directory
    workers: int
    shards: int  #: 0 while it belongs to no cluster and takes what that has
    generation: int  #: raised by each reshard; names the directory of the current stores
    created: str
    machine: str  #: with the inode: a copied directory is noticed
    inode: int
    predecessors: list[str] = []  #: names of the copies that `gossipq store adopt` let this one replace
    joined: bool = False  #: the cluster was there before
    witness: bool = False  #: it votes, and keeps no records
    options: dict[str, str] = {}  #: what [cluster] said when this node joined: dotted key -> JSON text
    said: dict[str, str] = {}  #: options of [cluster] that the node's own file had, when the cluster agreed
    former: list[str] = []  #: uuids of clusters that this one went on from, by a recover; the newest last
    #: without a cluster: what it has said yes to, the uuid of a cluster or the copy that is to found one
    pledge: str = ""

    @property
    def voter(self) -> str:
        """Name of this copy of the data in the logs: a directory that was lost is another voter."""
        return f"{self.node_id}.{self.dir_uuid}"


def examined(path: Path) -> DirectoryManifest | None:
    """That of a directory which a node could be started with, and may run with now: nothing is locked or
    changed. None: it is made by the first start. Raises StoreError as a start does."""
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
    """Raises StoreError where something else than a node's lies, OSError."""
    strangers = [] if (path / MANIFEST).exists() else sorted(set(os.listdir(path)) - OURS - VOLUME)
    if strangers:
        raise StoreError(
            f"{path} is not a gossipq directory: it has {', '.join(strangers[:3])} and no {MANIFEST}",
            "give an empty or a new directory with --data",
        )


def read_manifest(path: Path) -> DirectoryManifest | None:
    """None when there is none yet. Raises StoreError when it cannot be read."""
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


def check_made_by(path: Path, manifest: DirectoryManifest, older: bool = False) -> None:
    """Raises StoreError for another engine, and, unless that is good enough, an `older` format."""
    if manifest.format < FORMAT and not older:
        raise StoreError(
            f"{path} was made by an older gossipq (format {manifest.format}; this one uses {FORMAT})",
            f"convert it: gossipq store dump --data {path} old.gq; gossipq store load old.gq --data NEW",
        )
    if manifest.engine != ENGINE_NAME:
        raise StoreError(
            f"{path} was made with {manifest.engine}; this gossipq uses {ENGINE_NAME}",
            "start the gossipq that made it",
        )


def is_original(manifest: DirectoryManifest, inode: int) -> bool:
    """Tell whether the directory is on the machine and disk that wrote its manifest; `inode` is that of its
    lock. On machines without an id, a clone of a whole disk looks like its original."""
    return (manifest.machine, manifest.inode) == (machine.machine_id(), inode)


def check_original(path: Path, manifest: DirectoryManifest, inode: int) -> None:
    """Raises StoreError for a copy; `inode` is that of the directory's lock."""
    if not is_original(manifest, inode):
        raise StoreError(
            f"{path} is a copy of another node's directory, and two nodes must never be one",
            f"gossipq store verify --data {path} looks at it; if the original is gone for good: "
            f"gossipq store adopt --data {path}",
        )


def workers_of_new(config: Config) -> int:
    """Worker processes of a new directory."""
    return config.node.workers or min(machine.worker_count(), limits.WORKERS_MAX, config.cluster.shards)


def check_workers(manifest: DirectoryManifest, node: Node, where: str) -> None:
    """Raises ConfigError when others are asked for, `where`, than there are."""
    if not manifest.witness and node.workers not in (0, manifest.workers):
        raise ConfigError(
            f"{where} = {node.workers}, but {node.data} holds {manifest.workers}",
            f"start with --workers {manifest.workers}, or first: gossipq store reshard --data {node.data} "
            f"--workers {node.workers}",
        )


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be used: {error.strerror}", "give another directory with --data")


class DataDirectory:
    """An opened, locked data directory. `close` lets go of it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Locks the directory, making it when absent. Raises StoreError: in use, not writable, no space."""
        self.path = Path(path)
        try:
            make_directory(self.path)
            check_ours(self.path)
            with suppress(PermissionError):  # a volume may be somebody else's
                os.chmod(self.path, 0o700)  # nobody else reads the records
        except OSError as error:
            raise _unusable(self.path, error) from None
        self.lock = DirectoryLock(self.path)

    def found(self, cluster_name: str, workers: int, shards: int) -> DirectoryManifest:
        """The manifest of this directory; when it belongs to no cluster yet, it founds one. Raises
        StoreError, see `check`."""
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
        """From here on the directory belongs to the cluster of `manifest`, and has its stores: one that is
        gone later is never made anew. Raises StoreError."""
        self.make_stores(manifest)
        self.write(manifest)

    def make_stores(self, manifest: DirectoryManifest) -> None:
        """Those of all workers, empty where they are not there yet. Raises StoreError."""
        stores = [self.store(manifest, worker) for worker in range(manifest.workers)]
        for store in stores:
            make_store(store)
        try:
            for path in (*stores, stores[0].parent, self.path / STORES, self.path):
                sync_directory(path)
            with suppress(PermissionError):  # the parent may be somebody else's
                sync_directory(self.path.absolute().parent)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}", "free some space or give another --data"
            ) from None

    def prepare(
        self, cluster_name: str, workers: int, shards: int, witness: bool = False
    ) -> DirectoryManifest:
        """The manifest of this directory, made now when it is new: without a cluster. Raises StoreError, see
        `check`.

        Until it has a cluster it is what it is asked to be now; its identities and its pledge stay."""
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
        """None when there is no manifest yet. Raises StoreError when it cannot be read."""
        return read_manifest(self.path)

    def check(self, manifest: DirectoryManifest, older: bool = False, copied: bool = False) -> None:
        """Raises StoreError when the stores cannot be used as they are: another engine, and, unless that is
        good enough, an `older` format, or a directory that was `copied` from another one."""
        check_made_by(self.path, manifest, older)
        if not copied:
            check_original(self.path, manifest, self.lock.inode)

    def moved(self) -> DirectoryManifest | None:
        """Return the manifest of a directory that came from another machine or disk, and whose cluster has
        other nodes: these know whether the node that it was is still there. Raises StoreError."""
        manifest = self.read()
        if manifest is None or not manifest.cluster_uuid or is_original(manifest, self.lock.inode):
            return None
        check_made_by(self.path, manifest)
        return manifest if self.others(manifest) else None

    def others(self, manifest: DirectoryManifest) -> list[str]:
        """Return the addresses of the other nodes, as they were last heard of."""
        return [row.endpoint for row in self.roster().members if row.copy != manifest.voter]

    def renewed(self, manifest: DirectoryManifest) -> DirectoryManifest:
        """Return the manifest of the same records as another copy: the old one may have promised what these
        records lack."""
        return msgspec.structs.replace(
            manifest, dir_uuid=uuid.uuid4().hex, machine=machine.machine_id(), inode=self.lock.inode
        )

    def write(self, manifest: DirectoryManifest) -> None:
        """Replaces the manifest in one step. Raises StoreError when it cannot be stored."""
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
        """As it was last heard of; empty when that is not known."""
        return read_roster(self.roster_file)

    @property
    def access_file(self) -> Path:
        return self.path / ACCESS

    def store(self, manifest: DirectoryManifest, worker: int) -> Path:
        """Where a worker's store lies."""
        return self.path / STORES / str(manifest.generation) / f"worker-{worker}"

    def other_generations(self, manifest: DirectoryManifest) -> list[Path]:
        """What a reshard left that was cut short: stores that are not in force. What has another name is
        somebody's own, as a copy that was made before."""
        names = (path for path in (self.path / STORES).glob("*") if path.name.isdecimal())
        return [path for path in names if path.name != str(manifest.generation) and not path.is_symlink()]

    def close(self) -> None:
        self.lock.release()
