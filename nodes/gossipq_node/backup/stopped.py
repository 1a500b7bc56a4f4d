"""A stopped node as the source of a backup: its data directory answers in place of the leaders.

The rest of each log is applied first, because a node applies an entry after it has stored it, and may
have stopped in between. That happens in a transaction that is never committed: the entries may not be
confirmed, and this copy has to follow its leader when it starts again.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from gossipq.core.copies import OpenPoint, open_ledger
from gossipq.core.raft import LogPoint
from gossipq.core.storage import INDEX_KEY, log
from gossipq.errors import StoreError
from gossipq.export_messages import BackedUp, BackUp
from gossipq.types import Index, ShardId
from gossipq.wire.opener import Opener
from gossipq_node.adapters.lmdb_store import LmdbStore, LmdbTable, LmdbTables
from gossipq_node.directory import DirectoryManifest
from gossipq_node.recovery import MEANING, OLD, STANDBY, VOTER, check_full, meta_of, outlook_of
from gossipq_node.store_tool import KEY_END, open_store, opened


class StoppedCluster(NamedTuple):
    cluster: bytes  #: uuid
    cluster_name: str
    shards: int


@contextmanager
def stopped_node(path: str | os.PathLike[str]) -> Iterator["StoppedNode"]:
    """Open a data directory. Raises StoreError, also if it has no whole copy of a shard."""
    with opened(path) as (directory, manifest), ExitStack() as stack:
        check_full(directory, manifest)
        places = [directory.store(manifest, worker) for worker in range(manifest.workers)]
        stores = [stack.enter_context(open_store(place, manifest.shards)) for place in places]
        yield StoppedNode(stores, manifest)


class StoppedNode:
    def __init__(self, stores: list[LmdbStore], manifest: DirectoryManifest) -> None:
        self._stores, self._manifest = stores, manifest
        self.standby: list[ShardId] = []  #: shards that may lack the newest records
        self._applied = [self._apply_rest(shard) for shard in range(manifest.shards)]
        self._point: OpenPoint | None = None

    def status(self) -> StoppedCluster:
        manifest = self._manifest
        return StoppedCluster(bytes.fromhex(manifest.cluster_uuid), manifest.cluster_name, manifest.shards)

    def backup_part(self, shard: int, request: BackUp) -> tuple[BackedUp, bytes]:
        """Answer as the leader of the shard does."""
        if self._point is None or not request.index:
            self._point = self._opened(shard)
            return self._point.told(), b""
        return self._point.part(request)

    def _tables(self, shard: ShardId) -> LmdbTables:
        return self._stores[shard % self._manifest.workers].tables(shard)

    def _apply_rest(self, shard: ShardId) -> Index:
        """Apply all entries of a log. Returns the last one. Raises StoreError, CorruptLog."""
        tables, last = self._tables(shard), 0
        role = outlook_of(shard, tables, self._manifest).role
        if role in (VOTER, STANDBY, OLD):
            ledger = open_ledger(shard, tables, Opener())
            for key, row in list(tables.log.scan(INDEX_KEY.pack(ledger.applied + 1), KEY_END)):
                (index,) = INDEX_KEY.unpack(key)
                ledger.apply(log.decode_row(index, row, tables.body.get(key) or b""))
            ledger.flush()
            last = ledger.applied
            role = outlook_of(shard, tables, self._manifest).role  # an entry may have changed it
        if role == STANDBY:
            self.standby.append(shard)
        elif role != VOTER:
            raise StoreError(
                f"shard {shard} is not whole in this directory: this copy {MEANING[role]}",
                "back up the running cluster: gossipq backup --out DIR",
            )
        return last

    def _opened(self, shard: ShardId) -> OpenPoint:
        tables, index = self._tables(shard), self._applied[shard]
        row, meta = tables.log.get(INDEX_KEY.pack(index)), meta_of(tables)
        assert meta is not None, "a copy that votes has applied an entry"
        if row is not None:
            entry = log.decode_row(index, row)
            term, place = entry.term, LogPoint(entry.chain, entry.time_ms)
        else:  # no node has run on this directory since it was restored
            term, place = meta.epochs[-1][0], LogPoint(meta.chain, meta.time_ms)
        return OpenPoint(index, term, place, WrittenRows(tables.state), tables.body, now_ms=0)


class WrittenRows:
    """The rows of a table with the changes of the open transaction."""

    def __init__(self, table: LmdbTable) -> None:
        self._table = table

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._table.scan(first, end))

    def close(self) -> None:
        """Nothing is held: the transaction ends with the store."""
