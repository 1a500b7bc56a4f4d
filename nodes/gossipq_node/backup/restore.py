"""Restores a point of a backup into a data directory, as a cluster of its own without other nodes.

It is built beside its place, shard by shard, and renamed when complete. A killed restore continues
with the first incomplete shard. Topics that the register lacks, or that were not requested, are
removed by the code that removes topics on a node.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gossipq import limits
from gossipq.core.ledger import DeadRow, ExceptionRow, Meta, records
from gossipq.core.storage import INDEX_KEY, Table
from gossipq.errors import StoreError, UnknownTopic
from gossipq.types import META_SHARD, Index
from gossipq_node.adapters.lmdb_store import LmdbStore, LmdbTable, LmdbTables
from gossipq_node.backup import points
from gossipq_node.backup.backup import read_points
from gossipq_node.backup.folder import BackupFolder, digest_of
from gossipq_node.backup.points import Point, ShardPoint, StoredFile
from gossipq_node.backup.removal import TopicRemoval
from gossipq_node.directory import FORMAT, DataDirectory, DirectoryManifest
from gossipq_node.files import building_at, check_free, clear, replace_file, sync_directory, take_place
from gossipq_node.recovery import known_access, stand_alone
from gossipq_node.store_tool import COPY_BYTES, needed_batches

BUILDING = ".restoring"  #: the directory that is being built
PROGRESS = ".restored"  #: beside it: the progress
NAMES_SHOWN = 10
RESTORE_AGAIN = "restore an older point: --as-of"
DAMAGED = (
    f"{RESTORE_AGAIN}; later points need that file, too: while the cluster is there, remove %s/%s, and "
    "gossipq backup brings it again"
)

_decode_dead = msgspec.msgpack.Decoder(DeadRow).decode
_decode_exception = msgspec.msgpack.Decoder(ExceptionRow).decode


def beside(target: Path, ending: str) -> Path:
    """Return a name beside a directory that is to be created. Raises StoreError."""
    if not target.name:  # . and /
        raise StoreError(f"{target} cannot be made: it is there", "name a new directory with --data")
    return target.with_name(target.name + ending)


class Restored(NamedTuple):
    manifest: DirectoryManifest
    point: Point
    batches: int
    removed: list[str]  #: topics that were not requested
    topics: int  #: remaining topics of users


class _Done(msgspec.Struct):
    """The shards of a point that are complete in the directory being built, and its parameters."""

    #: SHA-256 of the point: two folders can have different points with the same cluster and number
    point: str
    workers: int
    topics: list[str]
    shards: list[int]
    batches: int = 0

    def is_of(self, other: "_Done") -> bool:
        return (self.point, self.workers, self.topics) == (other.point, other.workers, other.topics)


class Restore:
    def __init__(
        self,
        folder: BackupFolder,
        target: str | os.PathLike[str],
        workers: int,
        map_bytes: int = limits.MAP_BYTES,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`progress` is called with bytes done and bytes in total. Raises StoreError."""
        self._folder = folder
        self._target = Path(target)
        self._workers = workers
        self._map_bytes = map_bytes
        self._building, self._notes = beside(self._target, BUILDING), beside(self._target, PROGRESS)
        self._progress = progress
        self._bytes = 0
        self._total = 0

    def run(self, as_of_ms: int | None = None, topics: Sequence[str] = ()) -> Restored:
        """Restore the newest point, or the newest one made by `as_of_ms` (unix).

        `topics` are names and patterns with *; empty: all. Raises StoreError, UnknownTopic.
        """
        target = self._target
        check_free(target)
        point = self._chosen(as_of_ms)
        self._check_topics(point, topics)
        if not 1 <= self._workers <= min(len(point.shards), limits.WORKERS_MAX):
            raise StoreError(f"{self._workers} workers", f"1 to {min(len(point.shards), limits.WORKERS_MAX)}")
        try:
            with building_at(self._building):
                digest = sha256(points.encode(point)).hexdigest()
                done = self._begun(_Done(digest, self._workers, list(topics), []))
                manifest, removed, kept = self._build(point, done, topics)
                take_place(self._building, target)
            self._notes.unlink(missing_ok=True)
            sync_directory(target.absolute().parent)
        except OSError as error:
            raise StoreError(
                f"{target} cannot be made: {error.strerror}",
                "free some space, and run it again: it goes on; or give another --data",
            ) from None
        return Restored(manifest, point, done.batches, removed, kept)

    def _chosen(self, as_of_ms: int | None) -> Point:
        there = list(read_points(self._folder))
        if not there:
            raise StoreError(f"{self._folder.name} has no point", "gossipq backup --out makes one")
        fit = [point for point in there if as_of_ms is None or point.written_ms <= as_of_ms]
        if not fit:
            oldest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(there[0].written_ms / 1_000))
            raise StoreError(
                f"{self._folder.name} does not go back so far", f"its oldest point is of {oldest}"
            )
        if fit[-1].format != FORMAT:
            raise StoreError(
                f"the point is of store format {fit[-1].format}, and this version has {FORMAT}",
                f"restore it with gossipq {fit[-1].gossipq}",
            )
        return fit[-1]

    def _check_topics(self, point: Point, topics: Sequence[str]) -> None:
        """Check before anything is written. Raises UnknownTopic, StoreError."""
        register = next(shard for shard in point.shards if shard.shard == META_SHARD)
        names = [
            key[1:].decode()
            for kind, found in (self._pieces(register.state) if topics else ())
            for key, _ in (found if kind == points.STATE_PIECE else ())
            if key.startswith(b"N")
        ]
        for wanted in topics:
            if not any(fnmatchcase(name, wanted) for name in names):
                raise UnknownTopic(f"no topic {wanted} is in the point", f"it has {_some(names)}")

    def _begun(self, fresh: _Done) -> _Done:
        """Return the progress of a killed restore with the same parameters."""
        try:
            done = msgspec.json.decode(self._notes.read_bytes(), type=_Done)
        except (FileNotFoundError, msgspec.MsgspecError):
            done = fresh
        if not done.is_of(fresh) or not any(self._building.iterdir()):
            self._notes.unlink(missing_ok=True)  # before the files that it describes
            sync_directory(self._notes.absolute().parent)
            clear(self._building)
            return fresh
        return done

    # --- building

    def _build(
        self, point: Point, done: _Done, topics: Sequence[str]
    ) -> tuple[DirectoryManifest, list[str], int]:
        self._total = sum(file.bytes for file in point.files)
        with closing(DataDirectory(self._building)) as directory:
            manifest = directory.found(point.cluster_name, self._workers, len(point.shards))
            for shard in point.shards:
                if shard.shard in done.shards:
                    self._bytes += shard.state.bytes + sum(each.file.bytes for each in shard.batches)
                    continue
                with closing(self._store(directory, manifest, shard.shard)) as store:
                    done.batches += self._shard(shard, store)
                done.shards.append(shard.shard)
                replace_file(self._notes, done)
            stand_alone(directory, manifest)
            removed, kept = self._settle(directory, manifest, topics)
            replace_file(directory.access_file, known_access(directory, manifest))
            return manifest, removed, kept

    def _store(self, directory: DataDirectory, manifest: DirectoryManifest, shard: int) -> LmdbStore:
        return LmdbStore(
            directory.store(manifest, shard % manifest.workers), self._map_bytes, manifest.shards
        )

    def _shard(self, told: ShardPoint, store: LmdbStore) -> int:
        """Store a shard. Returns its batches. Repeating it after an
        interruption changes nothing.
        """
        tables, kept = store.tables(told.shard), set[int]()
        rows = _Rows(store)
        for kind, found in self._pieces(told.state):
            if kind == points.KEPT_PIECE:
                kept.update(found)
            elif kind == points.STATE_PIECE:
                rows.put(tables.state, found)
        self._have(told.state)
        absent = set(kept)
        for file in told.batches:
            for _, batches in self._pieces(file.file):
                mine = [(index, batch) for index, batch in batches if index in kept]
                absent.difference_update(index for index, _ in mine)
                rows.put(tables.body, ((INDEX_KEY.pack(index), batch) for index, batch in mine))
            self._have(file.file)
        # kept batches without any reference were about to be deleted when the point was made
        there = kept - absent
        missing = absent.intersection(_named(tables.state)) if absent else set[int]()
        missing.update(index for index in needed_batches(tables.state) if index not in there)
        if missing:
            raise StoreError(f"shard {told.shard} lacks {len(missing)} batches", RESTORE_AGAIN)
        _place(told, tables)
        store.commit()
        return len(there)

    def _pieces(self, file: StoredFile) -> Iterable[tuple[bytes, list[Any]]]:
        """Yield the pieces of a file after checking its digest. Raises StoreError."""
        path = self._folder.fetched(file.path)
        if path.stat().st_size != file.bytes or digest_of(path) != file.sha256:
            raise StoreError(f"{file.path} is not what was written", DAMAGED % (self._folder.name, file.path))
        with path.open("rb") as stream:
            yield from points.pieces(stream, file.path)

    def _have(self, file: StoredFile) -> None:
        self._bytes += file.bytes
        self._progress(self._bytes, self._total)

    # --- topics

    def _settle(
        self, directory: DataDirectory, manifest: DirectoryManifest, topics: Sequence[str]
    ) -> tuple[list[str], int]:
        """Remove unwanted topics. Returns their names, and how many topics of users remain."""
        with ExitStack() as stack:
            stores = [
                stack.enter_context(closing(self._store(directory, manifest, worker)))
                for worker in range(manifest.workers)
            ]
            removal = TopicRemoval(stores, manifest)
            names = removal.names
            gone = [
                name
                for name in names
                if topics and not name.startswith("_") and not any(fnmatchcase(name, each) for each in topics)
            ]
            removal.remove(gone)
            return gone, sum(not name.startswith("_") for name in names) - len(gone)


def _some(names: Iterable[str]) -> str:
    """Return the topics of users in one line."""
    own = sorted(name for name in names if not name.startswith("_"))
    more = f" and {len(own) - NAMES_SHOWN} more" if len(own) > NAMES_SHOWN else ""
    return ", ".join(own[:NAMES_SHOWN]) + more if own else "no topics of users"


def _named(state: Table) -> Iterator[Index]:
    """Yield entries whose batches dead letters, waiting records, or counts of them refer to."""
    for prefix, decode in ((b"L", _decode_dead), (b"V", _decode_exception)):
        for _, row in state.scan(prefix, records.after(prefix)):
            yield decode(row).index
    for key, _ in state.scan(b"B", records.after(b"B")):
        yield records.U64.unpack_from(key, 1)[0]


class _Rows:
    """Writes rows, with a commit from time to time."""

    def __init__(self, store: LmdbStore) -> None:
        self._store, self._pending = store, 0

    def put(self, table: LmdbTable, rows: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            table.put(key, value)
            self._pending += len(key) + len(value)
            if self._pending >= COPY_BYTES:
                self._store.commit()
                self._pending = 0


def _place(told: ShardPoint, tables: LmdbTables) -> None:
    """Continue the log behind the point, as after a snapshot."""
    meta = Meta(
        told.index, told.time_ms, told.index + 1, [(told.term, told.index)], bytes.fromhex(told.chain)
    )
    tables.state.put(records.META, records.encode(meta))
