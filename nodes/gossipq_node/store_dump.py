"""`gossipq store dump` and `load`: a stopped node's data as one stream, independent of the engine.

    magic       "GQDUMP1" and a line feed
    manifest    u32 size, then the manifest as JSON
    rows        u8 table (0 log, 1 body, 2 state), u16 shard, u16 key bytes, u32 value bytes, key,
                value; by shard, table, key
    end         u8 255, u64 rows, BLAKE2b-256 of everything before it

Numbers are little endian. A stream without its end, or with another digest, is refused,
and leaves no files behind.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple, NoReturn

import msgspec

from gossipq import limits
from gossipq.errors import StoreError
from gossipq_node import machine
from gossipq_node.adapters.lmdb_store import ENGINE_NAME, TABLES, LmdbStore
from gossipq_node.directory import FORMAT, DataDirectory, DirectoryManifest
from gossipq_node.files import building_at, check_free, clear, replace_file, sync_directory, take_place
from gossipq_node.recovery import ShardOutlook, known_access, stand_alone, surveyed
from gossipq_node.store_tool import COPY_BYTES, KEY_END, open_store, opened

MAGIC = b"GQDUMP1\n"
SIZE, ROW, COUNT = Struct("<I"), Struct("<BHHI"), Struct("<Q")
END = 255
DIGEST_BYTES = 32
LOADING = ".loading"
STATE = "state"
DROPPED_SINCE_1 = (b"X",)  #: unused rows of format 1, whose keys have another meaning since
VALUE_BYTES_MAX = limits.FRAME_BYTES_MAX

Progress = Callable[[int], None]


class Dumped(NamedTuple):
    manifest: DirectoryManifest
    rows: int
    bytes: int
    #: for a load that detaches: the state of each shard in the dump
    shards: tuple[ShardOutlook, ...] = ()


class _Digesting:
    """A stream, and the digest of the bytes read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest, self.bytes = stream, blake2b(digest_size=DIGEST_BYTES), 0

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.digest.update(data)
        self.bytes += len(data)

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises StoreError at the end of the stream."""
        data = self._stream.read(size)
        if len(data) < size:
            _damaged("it ends early")
        self.digest.update(data)
        self.bytes += size
        return data


def _damaged(why: str) -> NoReturn:
    raise StoreError(f"the dump is damaged: {why}", "make it again: gossipq store dump --data DIR")


def dump(path: str | os.PathLike[str], stream: BinaryIO, progress: Progress = lambda rows: None) -> Dumped:
    """Write all data of a stopped node, also of an older gossipq. Raises StoreError."""
    with opened(path, older=True) as (directory, manifest):
        out, rows = _Digesting(stream), 0
        head = msgspec.json.encode(manifest)
        out.write(MAGIC + SIZE.pack(len(head)) + head)
        for shard in range(manifest.shards):
            with open_store(directory.store(manifest, shard % manifest.workers), manifest.shards) as source:
                if shard not in source.shards():
                    continue
                for number, table in enumerate(source.tables(shard)):
                    for key, value in table.scan(b"", KEY_END):
                        out.write(ROW.pack(number, shard, len(key), len(value)) + key + value)
                        rows += 1
                        if rows % 10_000 == 0:
                            progress(rows)
        out.write(bytes([END]) + COUNT.pack(rows))
        stream.write(out.digest.digest())
        stream.flush()
        return Dumped(manifest, rows, out.bytes + DIGEST_BYTES)


def beside(target: Path, ending: str) -> Path:
    """Return a name beside a directory that is to be created. Raises StoreError."""
    if not target.name:  # . and /
        raise StoreError(f"{target} cannot be made: it is there", "name a new directory with --data")
    return target.with_name(target.name + ending)


def load(
    path: str | os.PathLike[str],
    stream: BinaryIO,
    progress: Progress = lambda rows: None,
    map_bytes: int = limits.MAP_BYTES,
    adopt: bool = False,
) -> Dumped:
    """Create a data directory from a dump. It appears completely or not at all. Raises StoreError.

    A dump of an older format is converted. The result is a cluster of its own, without other nodes.
    With `adopt` it takes the place of the dumped directory in its cluster, if that is gone for
    good. `map_bytes`: the map size that the node will use.
    """
    target = Path(path)
    check_free(target)
    building = beside(target, LOADING)
    try:
        with building_at(building):
            try:
                clear(building)  # of a killed load
                loaded = _build(building, _Digesting(stream), stream, progress, map_bytes, adopt)
                take_place(building, target)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
        sync_directory(target.absolute().parent)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be made: {error.strerror}", "free some space or give another --data"
        ) from None
    return loaded


def _build(
    building: Path, source: _Digesting, stream: BinaryIO, progress: Progress, map_bytes: int, adopt: bool
) -> Dumped:
    manifest = _manifest(source)
    if manifest.witness and not adopt:
        raise StoreError("the dump is that of a witness: it has no records", "load that of a full node")
    with closing(DataDirectory(building)) as directory:
        place = {
            "format": FORMAT,
            "engine": ENGINE_NAME,
            "machine": machine.machine_id(),
            "inode": directory.lock.inode,
        }
        mine = msgspec.structs.replace(manifest, dir_uuid=uuid.uuid4().hex, **place)
        if adopt:
            mine = msgspec.structs.replace(mine, predecessors=[*manifest.predecessors, manifest.voter])
        else:
            alone = {
                "node_id": uuid.uuid4().hex,
                "cluster_uuid": uuid.uuid4().hex,
                "joined": False,
                "former": [],
            }
            mine = msgspec.structs.replace(mine, predecessors=[], **alone)
        rows = _rows(directory, mine, manifest.format, source, progress, map_bytes)
        expected = source.digest.digest()
        if stream.read(DIGEST_BYTES + 1) != expected:
            _damaged("its digest differs")
        shards: tuple[ShardOutlook, ...] = ()
        if not adopt:
            shards = tuple(surveyed(directory, mine, manifest))
            stand_alone(directory, mine)
        # the cluster is closed from its first moment, if it was
        replace_file(directory.access_file, known_access(directory, mine))
        directory.write(mine)
        return Dumped(mine, rows, source.bytes + DIGEST_BYTES, shards)


def _manifest(source: _Digesting) -> DirectoryManifest:
    if source.read(len(MAGIC)) != MAGIC:
        _damaged("it does not begin like one")
    (size,) = SIZE.unpack(source.read(SIZE.size))
    if size > limits.MIB:
        _damaged("its manifest is too large")
    try:
        manifest = msgspec.json.decode(source.read(size), type=DirectoryManifest)
    except msgspec.DecodeError as error:
        _damaged(f"its manifest cannot be read: {error}")
    if not 1 <= manifest.workers <= manifest.shards <= 1_024:
        _damaged(f"{manifest.workers} workers and {manifest.shards} shards")
    return manifest


def _rows(
    directory: DataDirectory,
    manifest: DirectoryManifest,
    was: int,
    source: _Digesting,
    progress: Progress,
    map_bytes: int,
) -> int:
    """Store the rows of a dump of format `was`. Returns how many."""
    stores: dict[int, LmdbStore] = {}
    rows = pending = 0
    try:
        directory.make_stores(manifest)
        for worker in range(manifest.workers):
            stores[worker] = LmdbStore(directory.store(manifest, worker), map_bytes, manifest.shards)
        for shard, table, key, value in _read(source, manifest.shards):
            rows += 1
            if was < 2 and TABLES[table] == STATE and key[:1] in DROPPED_SINCE_1:
                continue
            home = stores[shard % manifest.workers]
            home.tables(shard)[table].put(key, value)
            pending += len(key) + len(value)
            if pending >= COPY_BYTES:
                pending = 0
                for each in stores.values():
                    each.commit()
            if rows % 10_000 == 0:
                progress(rows)
        (counted,) = COUNT.unpack(source.read(COUNT.size))
        if counted != rows:
            _damaged(f"it has {rows} rows and says {counted}")
        for each in stores.values():
            each.commit()
    finally:
        for each in stores.values():
            each.close()
    return rows


def _read(source: _Digesting, shards: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    while True:
        head = source.read(1)
        if head[0] == END:
            return
        number, shard, key_bytes, value_bytes = ROW.unpack(head + source.read(ROW.size - 1))
        if number >= len(TABLES) or shard >= shards or value_bytes > VALUE_BYTES_MAX:
            _damaged("a row makes no sense")
        yield shard, number, source.read(key_bytes), source.read(value_bytes)
