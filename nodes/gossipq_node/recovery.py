"""`gossipq cluster recover`: makes a stopped survivor a cluster of its own
after losing the majority.

The new cluster has a new identity, so returning nodes of the old one are refused: their logs may
differ. The survivor is the only voter of every shard, and only what is in its log remains.
"""

import os
import uuid

import msgspec

from gossipq.core.ledger import Meta, records
from gossipq.core.storage import LogState, Tables
from gossipq.errors import CorruptLog, StoreError
from gossipq.types import META_SHARD, ShardId
from gossipq.values import AccessTable, Member
from gossipq_node.directory import DataDirectory, DirectoryManifest
from gossipq_node.files import SavedRoster, replace_file
from gossipq_node.store_tool import open_store, opened

VOTER, STANDBY, OLD, BROKEN, NONE = "voter", "standby", "old", "incomplete", "none"
DAMAGED = "damaged"
MEANING = {
    VOTER: "voted: it has what was confirmed, unless a majority without it was faster",
    STANDBY: "stood by: it may lack the newest records",
    OLD: "was taken off the shard: it lacks what came after",
    BROKEN: "is not whole, being rebuilt or let go: it stays closed",
    DAMAGED: "is not what was written: it stays closed",
    NONE: "had no copy: the shard begins empty",
}

MEMBERS = b"m", records.after(b"m")  #: rows of the roster, in the state of the meta shard

_decode_meta = msgspec.msgpack.Decoder(Meta).decode
_decode_member = msgspec.msgpack.Decoder(Member).decode


class ShardOutlook(msgspec.Struct, frozen=True):
    shard: ShardId
    role: str  #: a role in MEANING
    last: int  #: index of the last log entry
    time_ms: int  #: leader time of that entry, in unix milliseconds; 0: the log is empty
    voters: int  #: number of voting copies


def outlook(path: str | os.PathLike[str]) -> list[ShardOutlook]:
    """Return the state of each shard in this directory. Raises StoreError,
    also while a node uses it.
    """
    rows = []
    with opened(path) as (directory, manifest):
        check_full(directory, manifest)
        for worker in range(manifest.workers):
            with open_store(directory.store(manifest, worker), manifest.shards) as store:
                shards = _shards(worker, manifest)
                rows += [outlook_of(shard, store.tables(shard), manifest) for shard in shards]
    return sorted(rows, key=lambda row: row.shard)


def recover(path: str | os.PathLike[str]) -> DirectoryManifest:
    """Make the copy in this directory the only one of every shard, in a new cluster.

    The manifest is written before the stores. Otherwise a copy that is alone but still of the old
    cluster would lead beside the others if they came back. After a crash in between, no copy in
    the directory leads, and recover can be run again. Raises StoreError.
    """
    with opened(path) as (directory, manifest):
        check_full(directory, manifest)
        with open_store(directory.store(manifest, META_SHARD % manifest.workers), manifest.shards) as store:
            _check_register(store.tables(META_SHARD))
        former = [*manifest.former, manifest.cluster_uuid]
        alone = msgspec.structs.replace(manifest, cluster_uuid=uuid.uuid4().hex, joined=False, former=former)
        directory.write(alone)
        roster = directory.roster()
        mine = [member for member in roster.members if member.copy == manifest.voter]
        replace_file(directory.roster_file, SavedRoster(roster.version if mine else 0, mine))
        replace_file(directory.access_file, known_access(directory, manifest))
        stand_alone(directory, manifest)
        return alone


def stand_alone(directory: DataDirectory, manifest: DirectoryManifest) -> None:
    """Make the copy in the stores the only one of every shard. Raises StoreError."""
    for worker in range(manifest.workers):
        with open_store(directory.store(manifest, worker), manifest.shards) as store:
            for shard in _shards(worker, manifest):
                _stand_alone(shard, store.tables(shard), manifest.voter)
            store.commit()


def known_members(directory: DataDirectory, manifest: DirectoryManifest) -> list[Member]:
    """Return the known members of the cluster: from the roster, else from the meta shard.

    Raises StoreError.
    """
    roster = directory.roster()
    if roster.version or not manifest.cluster_uuid:
        return roster.members
    with open_store(directory.store(manifest, META_SHARD % manifest.workers), manifest.shards) as store:
        rows = store.tables(META_SHARD).state.scan(*MEMBERS)
        return [_decode_member(row) for _, row in rows]


def known_access(directory: DataDirectory, manifest: DirectoryManifest) -> AccessTable:
    """Return users and roles in the copy of the meta shard. Raises StoreError."""
    with open_store(directory.store(manifest, META_SHARD % manifest.workers), manifest.shards) as store:
        row = store.tables(META_SHARD).state.get(records.ACCESS)
    return msgspec.msgpack.decode(row, type=AccessTable) if row is not None else AccessTable()


def check_full(directory: DataDirectory, manifest: DirectoryManifest) -> None:
    """Raise StoreError for the directory of a witness."""
    if manifest.witness:
        raise StoreError(
            f"{directory.path} is that of a witness: it has no records", "use the directory of a full node"
        )


def _shards(worker: int, manifest: DirectoryManifest) -> range:
    return range(worker, manifest.shards, manifest.workers)


def meta_of(tables: Tables) -> Meta | None:
    """Return the index that a copy has applied and facts about its log. None: it had none."""
    row = tables.state.get(records.META)
    return _decode_meta(row) if row is not None else None


def _loaded(tables: Tables) -> tuple[Meta, LogState] | None:
    """Return None if the rows are damaged."""
    try:
        meta = meta_of(tables) or Meta()
        return meta, LogState.load(tables.log, meta.log_first, meta.chain, meta.epochs)
    except (CorruptLog, msgspec.DecodeError):
        return None


def outlook_of(shard: ShardId, tables: Tables, manifest: DirectoryManifest) -> ShardOutlook:
    """Return the state of a shard in the directory with this manifest."""
    loaded = _loaded(tables)
    if loaded is None:
        return ShardOutlook(shard, DAMAGED, 0, 0, 0)
    meta, state = loaded
    time_ms = max(state.time_ms, meta.time_ms)
    if tables.state.get(records.INSTALLING) is not None:
        role = BROKEN
    elif not state.last:
        role = NONE
    elif manifest.voter in meta.voters or (not meta.voters and not manifest.joined):
        role = VOTER
    elif manifest.voter in meta.learners:
        role = STANDBY
    else:
        role = OLD
    return ShardOutlook(shard, role, state.last, time_ms, len(meta.voters))


def _check_register(tables: Tables) -> None:
    if tables.state.get(records.INSTALLING) is not None or _loaded(tables) is None:
        raise StoreError(
            "the register of topics is not whole in this directory", "use that of another survivor"
        )


def _stand_alone(shard: ShardId, tables: Tables, me: str) -> None:
    """Remove the voters in the tables: a copy without voters that does not join is the only one."""
    if shard == META_SHARD:
        _check_register(tables)
    if tables.state.get(records.INSTALLING) is not None or _loaded(tables) is None:
        return
    meta = meta_of(tables)
    if meta is not None:
        tables.state.put(
            records.META, records.encode(msgspec.structs.replace(meta, voters=[], witnesses=[], learners=[]))
        )
    if shard == META_SHARD:
        for key, row in list(tables.state.scan(*MEMBERS)):
            if _decode_member(row).copy != me:
                tables.state.delete(key)
