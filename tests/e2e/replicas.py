"""The contents of each replica's disk, read while its node is stopped."""

from pathlib import Path

from gossipq.core.copies.snapshot import open_ledger
from gossipq.types import partition_of, topic_id_of
from gossipq.wire.batch import Batch, check
from gossipq.wire.opener import Opener
from gossipq_node import store_tool
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.directory import DataDirectory


def records(data: Path, topic: str) -> dict[int, list[bytes]]:
    """Partition -> values from offset 0 on, as this replica has them. Every batch that it has is checked."""
    damaged = store_tool.verify(data).damaged
    assert not damaged, damaged
    found: dict[int, list[bytes]] = {}
    directory = DataDirectory(data)
    try:
        manifest = directory.read()
        assert manifest is not None
        for worker in range(manifest.workers):
            store = LmdbStore(directory.store(manifest, worker), shards=manifest.shards)
            try:
                for shard in store.shards():
                    found |= _partitions(store, shard, topic)
            finally:
                store.close()
    finally:
        directory.close()
    return found


def _partitions(store: LmdbStore, shard: int, topic: str) -> dict[int, list[bytes]]:
    tables = store.tables(shard)
    ledger = open_ledger(shard, tables, Opener())
    found: dict[int, list[bytes]] = {}
    for key, state in ledger.partitions.items():
        if ledger.topics[topic_id_of(key)].name != topic:
            continue
        values = found[partition_of(key)] = []
        for first, end, part in ledger.slices.between(key, 0, state.next):
            assert first == len(values), f"offsets of partition {partition_of(key)} have a gap at {first}"
            body = tables.body.get(part.index.to_bytes(8, "big"))
            assert body is not None, f"the batch of entry {part.index} is missing"
            check(body)
            values += Batch(body).values()[part.first : part.first + end - first]
        assert len(values) == state.next
    return found
