"""Commits files of an export to Iceberg tables, by reference: every record
once, even after crashes.

    NAMESPACE.messages, NAMESPACE.acks       unpartitioned
    NAMESPACE.orders_7                       records of topic 7, orders, since it has a schema
    NAMESPACE.orders_7_v3                    the same since version 3, an incompatible schema

Each snapshot of a table has the positions that it reached as a property, so files and positions are
committed together. Before that, a manifest marks the files as final: they are not merged any more,
because tables may refer to them. After a crash in between, the next commit finds them final and
adds them. `deliveries` has no table, because its rows change.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from gossipq.errors import Busy, ExportError, missing_extra
from gossipq.wire import export
from gossipq.wire.export import File, Manifest, Position
from gossipq_client import columns
from gossipq_node.export import iceberg_columns
from gossipq_node.export.folder import Folder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

NAMESPACE = "gossipq"
DATA_SETS = (export.MESSAGES, export.ACKS)
POSITIONS, CLUSTER = "gossipq.positions", "gossipq.cluster"  #: properties of snapshots
SNAPSHOTS_KEPT_S = 7 * 86_400.0
MERGES = "commit.manifest-merge.enabled"  #: property of a table: small manifests are merged on the way
#: snapshots kept at any age: they contain the positions that the table has reached
SNAPSHOTS_MIN = 2


def catalog(place: str) -> "Catalog":
    """Open a catalog.

    https://... is a REST catalog, catalog:NAME one of pyiceberg's own configuration. Other names
    are a folder on this machine with an SQLite catalog and the files of its tables. Raises
    GossipqError without pyiceberg, ExportError if the catalog cannot be used.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import RESTError, ValidationError
    except ImportError as error:
        raise missing_extra(error.name, "lake") from None
    refusals: tuple[type[Exception], ...] = (OSError, ValueError, ValidationError, RESTError)
    try:
        if place.startswith(("http://", "https://")):
            return load_catalog("gossipq", type="rest", uri=place)
        if place.startswith("catalog:"):
            return load_catalog(place.removeprefix("catalog:"))
        root = _plain(os.path.abspath(place))
        os.makedirs(root, exist_ok=True)
        return load_catalog(
            "gossipq", type="sql", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}"
        )
    except refusals + _sql_errors() as error:
        raise ExportError(
            f"the catalog {place} cannot be used: {error}", hint="a folder, https://... or catalog:NAME"
        ) from None


def _plain(path: str) -> str:
    """Return a path that needs no escaping in a URI, because tables
    contain it. Raises ExportError.
    """
    if re.search(r"[#?%\x00-\x1f]", path):
        raise ExportError(
            f"{path!r} cannot be named in an Iceberg table",
            hint="use a folder without #, ? and % in its path",
        )
    return path


def _sql_errors() -> tuple[type[Exception], ...]:
    """Errors of an SQLite catalog that another program has locked, or whose disk is full."""
    try:
        from sqlalchemy.exc import OperationalError
    except ImportError:
        return ()
    return (OperationalError,)


class Committed(msgspec.Struct):
    """The result of one commit, by data set."""

    files: dict[str, int] = {}
    records: int = 0


class Iceberg:
    def __init__(
        self,
        folder: Folder,
        catalog: "Catalog",
        namespace: str = NAMESPACE,
        keep_s: float = SNAPSHOTS_KEPT_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`keep_s`: older snapshots are expired."""
        self._folder = folder
        self._catalog = catalog
        self._namespace = namespace
        self._keep_s = keep_s
        self._now = now

    def commit(self) -> Committed:
        """Commit everything that the export has and the tables lack.

        Raises ExportError, TornExport, Busy; the next commit continues.
        """
        done, found = Committed(), self._folder.read()
        if found.newest is None:
            return done
        _plain(self._folder.address(""))
        if found.newest.format != "parquet":
            raise ExportError(
                f"{self._folder.root} has {found.newest.format} files",
                hint="Iceberg takes Parquet: another --out",
            )
        cluster, found = found.newest.cluster, self._make_final(found)
        with _plainly():
            self._catalog.create_namespace_if_not_exists(self._namespace)
            for data_set in DATA_SETS:
                tables: dict[str, list[File]] = {}
                for file in filter(_has_rows, found.of(data_set)):
                    tables.setdefault(_table_of(file, found), []).append(file)
                for name, files in sorted(tables.items()):
                    newest = max(files, key=lambda file: file.schema)
                    self._add(name, columns.schema(data_set, found.shape_of(newest)), files, cluster, done)
        return done

    def _make_final(self, found: export.Export) -> export.Export:
        """Mark the files as final by a manifest, before a table refers to them."""
        ends: dict[tuple[str, int, int], int] = {}
        for file in found.files:
            ends[file.key] = max(file.end, ends.get(file.key, 0))
        changed: list[Position] = []
        for (topic_id, partition), at in found.positions.items():
            final, acks = (ends.get((data_set, topic_id, partition), 0) for data_set in DATA_SETS)
            if (at.final, at.acks_final) != (final, acks):
                changed.append(msgspec.structs.replace(at, final=final, acks_final=acks))
        if not changed or found.newest is None:
            return found
        newest = found.newest
        manifest = Manifest(
            version=export.VERSION,
            cluster=newest.cluster,
            sequence=newest.sequence + 1,
            previous=found.digest,
            written_us=round(self._now().timestamp() * 1e6),
            format=newest.format,
            positions=changed,
        )
        self._folder.publish(manifest)
        return self._folder.read()

    def _add(self, table_name: str, schema: Any, files: list[File], cluster: str, done: Committed) -> None:
        """Add files to a table. Columns of `schema` (of pyarrow) that it lacks are added to it."""
        name, data_set = f"{self._namespace}.{table_name}", files[0].data_set
        table = self._catalog.create_table_if_not_exists(name, schema=schema)
        reached = _reached(table, name, cluster)
        new = [file for file in files if file.end > reached.get(_key(file), 0)]
        for file in new:
            if file.start < reached.get(_key(file), 0):
                raise ExportError(
                    f"{name} has {file.topic}/{file.partition} up to {reached[_key(file)]}, and {file.path} "
                    "begins before",
                    hint=(
                        "another export feeds this table, or this one went back to an older copy: commit "
                        "each to a namespace of its own (--iceberg-namespace)"
                    ),
                )
            reached[_key(file)] = file.end
        if not new:
            return
        told = {POSITIONS: msgspec.json.encode(reached).decode(), CLUSTER: cluster}
        _append(table, name, schema, [self._folder.address(file.path) for file in new], told)
        done.files[data_set] = done.files.get(data_set, 0) + len(new)
        done.records += sum(file.rows for file in new) if data_set == export.MESSAGES else 0
        self._expire(table)

    def _expire(self, table: "Table") -> None:
        """Expire old snapshots without tag or branch.

        Their files stay in use, because later snapshots of a growing table refer to them.
        """
        before = self._now() - timedelta(seconds=self._keep_s)
        snapshots = sorted(table.snapshots(), key=_sequence)
        kept = {each.snapshot_id for each in table.refs().values()}
        old = [
            each.snapshot_id
            for each in snapshots[:-SNAPSHOTS_MIN]
            if each.timestamp_ms < before.timestamp() * 1000 and each.snapshot_id not in kept
        ]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()


def _append(table: "Table", name: str, schema: Any, paths: list[str], told: dict[str, str]) -> None:
    """Commit new columns, their ids and the files together. The positions in `told` name the files, so a
    retry adds none twice.
    """
    known = iceberg_columns.mapping_of(table)
    with table.transaction() as transaction:
        mapping = iceberg_columns.evolve(transaction, name, schema, known)
        files = [iceberg_columns.data_file(transaction, table.io, path, mapping) for path in paths]
        update = transaction.update_snapshot(snapshot_properties=told)
        merges = table.properties.get(MERGES) == "true"
        with update.merge_append() if merges else update.fast_append() as snapshot:
            for file in files:
                snapshot.append_data_file(file)


def _has_rows(file: File) -> bool:
    return file.rows > 0


def _table_of(file: File, found: export.Export) -> str:
    """Return the table of a file: files of a topic with a schema go to a table with its columns."""
    if not file.schema:
        return file.data_set
    beginning = found.beginning(file)
    since = f"_v{beginning}" if beginning else ""
    return f"{re.sub('[^A-Za-z0-9_]', '_', file.topic)}_{file.topic_id}{since}"


def _key(file: File) -> str:
    return f"{file.topic_id}-{file.partition}"


def _sequence(snapshot: Any) -> int:
    return snapshot.sequence_number or 0


def _reached(table: "Table", name: str, cluster: str) -> dict[str, int]:
    """Return the positions of a table, from its newest snapshot that has them.

    Others may have rewritten its files, or rolled it back.
    """
    for snapshot in _behind(table):
        told: dict[str, Any] = snapshot.summary.additional_properties if snapshot.summary else {}
        if POSITIONS in told:
            if told.get(CLUSTER) != cluster:
                raise ExportError(
                    f"{name} holds records of cluster {told.get(CLUSTER)}, the export those of {cluster}",
                    hint="commit each cluster to a namespace of its own: --iceberg-namespace NAME",
                )
            return msgspec.json.decode(told[POSITIONS], type=dict[str, int])
    if table.current_snapshot() is not None:
        raise ExportError(
            f"{name} has rows of others", hint="name another namespace: --iceberg-namespace NAME"
        )
    return {}


def _behind(table: "Table") -> "Iterator[Snapshot]":
    """Yield the known ancestors of the table's snapshot, newest first."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        before = snapshot.parent_snapshot_id
        snapshot = None if before is None else table.snapshot_by_id(before)


@contextmanager
def _plainly() -> Iterator[None]:
    """Convert temporary errors to Busy, which is retried, and refusals to ExportError."""
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        RESTError,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
    )

    passing: tuple[type[Exception], ...] = (
        CommitFailedException,
        CommitStateUnknownException,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
    )
    try:
        yield
    except passing + _sql_errors() as error:
        raise Busy(
            f"the catalog did not commit: {error}", hint="it is tried again with the next step"
        ) from error
    except RESTError as error:
        hint = "credentials of a catalog stand in pyiceberg's configuration: --iceberg catalog:NAME"
        raise ExportError(f"the catalog refused it: {error}", hint=hint) from None
