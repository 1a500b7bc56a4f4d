"""`gossipq store`: inspect, verify, reshard or adopt the data directory of a stopped node."""

import os
import shutil
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gossipq import limits
from gossipq.core.ledger import DeadRow, ExceptionRow, PartitionState
from gossipq.core.ledger import records as ledger_records
from gossipq.core.shard import Shard
from gossipq.core.storage import Bodies, ShardSettings, Table
from gossipq.errors import BadBatch, GossipqError, StoreError
from gossipq.types import META_SHARD, Index, PartitionKey, ShardId
from gossipq.wire.batch import check
from gossipq.wire.opener import Opener
from gossipq_node.adapters.lmdb_store import AS_STORED, DATA_FILE, TABLES, LmdbStore, LmdbTable, LmdbTables
from gossipq_node.directory import DataDirectory, DirectoryManifest
from gossipq_node.files import SavedRoster, hand_over, replace_file

COPY_BYTES = 16 * limits.MIB  #: between two commits of a copy
COPY_MAP_BYTES = limits.GIB  #: map of a copy, beyond the size of the source
KEY_END = b"\xff" * 512  #: above all keys

_decode_partition = msgspec.msgpack.Decoder(PartitionState).decode
_decode_dead = msgspec.msgpack.Decoder(DeadRow).decode
_decode_exception = msgspec.msgpack.Decoder(ExceptionRow).decode


class WorkerInfo(msgspec.Struct, frozen=True):
    worker: int
    path: str
    file_bytes: int
    used_bytes: int
    rows: dict[str, int]  #: by table, over all shards


class Info(msgspec.Struct, frozen=True):
    manifest: DirectoryManifest  #: with the cluster's present options
    workers: list[WorkerInfo]
    disk_free_bytes: int


class Damage(msgspec.Struct, frozen=True):
    """A stored batch that is not what was written, or a shard that no node would open."""

    shard: int
    index: int  #: 0: the shard itself
    reason: str


class Verified(msgspec.Struct, frozen=True):
    batches: int
    records: int
    bytes: int
    damaged: list[Damage]


@contextmanager
def opened(
    path: str | os.PathLike[str], adopting: bool = False, copied: bool = False
) -> Iterator[tuple[DataDirectory, DirectoryManifest]]:
    """Open and lock the directory of a founded node. Raises StoreError.

    `copied` also admits a copied directory.
    """
    if not Path(path).is_dir():
        raise StoreError(f"{path} is not a directory", "give the node's data directory with --data")
    directory = DataDirectory(path)
    try:
        manifest = directory.read()
        if manifest is None or not manifest.cluster_uuid:
            raise StoreError(
                f"{path} is empty: no node has run there", "give the node's data directory with --data"
            )
        if not adopting:
            directory.check(manifest, copied)
        yield directory, manifest
    finally:
        directory.close()
        with suppress(OSError):
            hand_over(directory.path)


@contextmanager
def open_store(path: Path, shards: int, map_bytes: int = AS_STORED) -> Iterator[LmdbStore]:
    store = LmdbStore(path, map_bytes, shards)
    try:
        yield store
    finally:
        store.close()


def known_options(directory: DataDirectory, manifest: DirectoryManifest) -> dict[str, str]:
    """Return the options of [cluster]: from the meta shard, else as when the node joined.

    Raises StoreError.
    """
    with open_store(directory.store(manifest, META_SHARD % manifest.workers), manifest.shards) as store:
        row = store.tables(META_SHARD).state.get(ledger_records.OPTIONS)
    return msgspec.msgpack.decode(row, type=dict[str, str]) if row is not None else manifest.options


def info(path: str | os.PathLike[str]) -> Info:
    """Return the content of the directory. Raises StoreError, also while a node uses it."""
    with opened(path, copied=True) as (directory, manifest):
        workers = []
        for worker in range(manifest.workers):
            place = directory.store(manifest, worker)
            with open_store(place, manifest.shards) as store:
                rows = dict.fromkeys(TABLES, 0)
                for shard in store.shards():
                    for name, table in zip(TABLES, store.tables(shard), strict=True):
                        rows[name] += table.rows()
                usage = store.usage()
            workers.append(WorkerInfo(worker, str(place), usage.file_bytes, usage.used_bytes, rows))
        current = msgspec.structs.replace(manifest, options=known_options(directory, manifest))
        return Info(current, workers, _disk_free_bytes(directory.path))


def verify(path: str | os.PathLike[str], progress: Callable[[int], None] = lambda batches: None) -> Verified:
    """Read every stored batch and check CRC, size and bounds; open each shard as a node does.

    Also checks that the batches of all records exist. `progress` is called
    with the number of batches.
    """
    batches = records = size = 0
    damaged: list[Damage] = []
    with opened(path, copied=True) as (directory, manifest):
        for worker in range(manifest.workers):
            with open_store(directory.store(manifest, worker), manifest.shards) as store:
                for shard in store.shards():
                    tables, there = store.tables(shard), array("Q")
                    for key, batch in tables.body.scan(b"", KEY_END):
                        index = int.from_bytes(key, "big")
                        there.append(index)
                        batches += 1
                        size += len(batch)
                        try:
                            records += check(batch).count
                        except BadBatch as error:
                            damaged.append(Damage(shard, index, error.message))
                        if batches % 1_000 == 0:
                            progress(batches)
                    damaged += _damage_of(shard, tables, there, manifest)
    return Verified(batches, records, size, damaged)


def _damage_of(
    shard: ShardId, tables: LmdbTables, there: Sequence[Index], manifest: DirectoryManifest
) -> list[Damage]:
    """Return damage that prevents serving the shard. `there` are its
    entries with batches, rising.
    """
    settings = ShardSettings(
        manifest.voter,
        tuple(manifest.predecessors),
        manifest.shards,
        joins=manifest.joined,
        witness=manifest.witness,
    )
    try:
        Shard(shard, settings, tables, Bodies(0), Opener())
        if tables.state.get(ledger_records.INSTALLING) is not None:  # of a copy that is being built
            return []
        lacking = sorted({index for index in needed_batches(tables.state) if not _has(there, index)})
    except StoreError:
        raise
    except Exception as error:
        return [Damage(shard, 0, error.message if isinstance(error, GossipqError) else repr(error))]
    return [Damage(shard, index, "the batch is missing, and records are in it") for index in lacking]


def _has(rising: Sequence[Index], index: Index) -> bool:
    at = bisect_left(rising, index)
    return at < len(rising) and rising[at] == index


def needed_batches(state: Table) -> Iterator[Index]:
    """Yield the entries whose batches contain records or dead letters of a shard.

    Batches below the first record of a partition, and those of removed topics and groups, wait to
    be swept. A copy that caught up by a snapshot never got them.
    """
    for key, row in state.scan(b"P", ledger_records.after(b"P")):
        (partition,) = ledger_records.U64.unpack_from(key, 1)
        first = ledger_records.slice_key(partition, _decode_partition(row).first)
        end = ledger_records.key(b"O", partition)
        for slice_key, part in state.scan(first, ledger_records.after(end)):
            yield ledger_records.decode_slice(slice_key, part).index
        low = ledger_records.key(b"W", partition)
        for scheduled, _ in state.scan(low, ledger_records.after(low)):
            yield ledger_records.U64X2.unpack_from(scheduled, 1)[1]
        low = ledger_records.key(b"C", partition)
        for cursor, _ in state.scan(low, ledger_records.after(low)):
            yield from _batches_of_letters(state, *ledger_records.U64X2.unpack_from(cursor, 1))


def _batches_of_letters(state: Table, partition: PartitionKey, group_id: int) -> Iterator[Index]:
    """Yield batches of dead letters, also replayed ones, which have batches of their own."""
    low = ledger_records.row_key(b"L", partition, group_id)
    for _, row in state.scan(low, ledger_records.after(low)):
        yield _decode_dead(row).index
    low = ledger_records.row_key(b"V", partition, group_id)
    for _, row in state.scan(low, ledger_records.after(low)):
        exception = _decode_exception(row)
        if exception.own_body:
            yield exception.index


def reshard(
    path: str | os.PathLike[str], workers: int, progress: Callable[[int], None] = lambda shard: None
) -> DirectoryManifest:
    """Move the shards to another number of workers: copy into a new generation, then switch.

    After a crash the old generation is valid, and the next run deletes the
    incomplete one. Raises StoreError.
    """
    with opened(path) as (directory, manifest):
        if not 1 <= workers <= min(manifest.shards, limits.WORKERS_MAX):
            raise StoreError(
                f"{workers} workers cannot share {manifest.shards} shards",
                f"choose 1 to {min(manifest.shards, limits.WORKERS_MAX)}",
            )
        # otherwise the generation to be deleted may be the only one
        for worker in range(manifest.workers):
            with open_store(directory.store(manifest, worker), manifest.shards):
                pass
        _clear_other_generations(directory, manifest)
        needed, free = _used_bytes(directory, manifest), _disk_free_bytes(directory.path)
        if needed > free:
            raise StoreError(
                f"the copy needs {needed} bytes and the disk has {free}", "free some space first"
            )
        target = msgspec.structs.replace(manifest, workers=workers, generation=manifest.generation + 1)
        try:
            _copy_stores(directory, manifest, target, 2 * needed + COPY_MAP_BYTES, progress)
        except BaseException:  # the incomplete copy may have filled the disk
            _clear_other_generations(directory, manifest)
            raise
        directory.write(target)
        _clear_other_generations(directory, target)
        return target


def _copy_stores(
    directory: DataDirectory,
    manifest: DirectoryManifest,
    target: DirectoryManifest,
    map_bytes: int,
    progress: Callable[[int], None],
) -> None:
    directory.make_stores(target)
    for worker in range(target.workers):
        with open_store(directory.store(target, worker), manifest.shards, map_bytes) as copy:
            for shard in range(worker, manifest.shards, target.workers):
                with open_store(directory.store(manifest, shard % manifest.workers), manifest.shards) as each:
                    if shard in each.shards():
                        _copy_shard(each, copy, shard)
                progress(shard)


def compact(
    path: str | os.PathLike[str], progress: Callable[[int], None] = lambda shard: None
) -> tuple[int, int]:
    """Copy the stores into new files without free pages. Returns bytes before and after.

    After a crash the old files are valid. Raises StoreError.
    """
    before = info(path)
    reshard(path, before.manifest.workers, progress)
    return tuple(sum(worker.file_bytes for worker in each.workers) for each in (before, info(path)))  # type: ignore[return-value]


def original_address(path: str | os.PathLike[str]) -> str:
    """Return the address of the node whose directory was copied; "" =
    unknown. Raises StoreError.
    """
    with opened(path, adopting=True) as (directory, manifest):
        rows = [member for member in directory.roster().members if member.copy == manifest.voter]
        return rows[0].endpoint if rows else ""


def adopt(path: str | os.PathLike[str]) -> DirectoryManifest:
    """Make a copied directory a node's own, for a backup whose original is gone. Raises StoreError.

    The node keeps its id. The copy of the data gets a new one, so that others do not
    take it for the old disk.
    """
    with opened(path, adopting=True) as (directory, manifest):
        mine = msgspec.structs.replace(
            directory.renewed(manifest), predecessors=[*manifest.predecessors, manifest.voter]
        )
        others = [member for member in directory.roster().members if member.copy != manifest.voter]
        # the addresses are good, but this new copy is not in the roster and
        # would believe it was removed
        try:
            replace_file(directory.roster_file, SavedRoster(0, others))
        except OSError as error:
            raise StoreError(
                f"{directory.roster_file} cannot be written: {error.strerror}", "free some space first"
            ) from None
        directory.write(mine)
        directory.check(mine)
        return mine


def _copy_shard(source: LmdbStore, copy: LmdbStore, shard: int) -> None:
    for old, new in zip(source.tables(shard), copy.tables(shard), strict=True):
        _copy_table(old, new, copy)
    copy.commit()


def _copy_table(old: LmdbTable, new: LmdbTable, store: LmdbStore) -> None:
    rows, pending = list[tuple[bytes, bytes]](), 0
    for row in old.scan(b"", KEY_END):
        rows.append(row)
        pending += len(row[1])
        if pending >= COPY_BYTES:
            new.append_many(rows)
            store.commit()
            rows, pending = [], 0
    new.append_many(rows)


def _clear_other_generations(directory: DataDirectory, manifest: DirectoryManifest) -> None:
    for stale in directory.other_generations(manifest):
        shutil.rmtree(stale)


def _used_bytes(directory: DataDirectory, manifest: DirectoryManifest) -> int:
    return sum(
        os.stat(directory.store(manifest, worker) / DATA_FILE).st_blocks * 512
        for worker in range(manifest.workers)
        if (directory.store(manifest, worker) / DATA_FILE).exists()
    )


def _disk_free_bytes(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize
