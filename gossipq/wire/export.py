"""The layout of an export: files of rows, and manifests that list the valid files.

docs/how-to/export.md describes the layout.

    DIR/manifests/0000000007.json              one increment, published last and never changed
    DIR/messages/orders/40-0-00000000000000000000-00000000000000065536-1f3a5c7e9b2d.parquet
    DIR/acks/orders/... DIR/deliveries/orders/...      data set, topic, file name of `file_path`

An export is the chain of its manifests. Each names the SHA-256 of the one before and lists its
additions. A *base* repeats all valid files, so a reader starts at the newest base. Ranges of
offsets and indices are half-open. Times are UTC microseconds.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import NamedTuple

import msgspec

from gossipq.errors import DataLoss, ExportError, ExportVersion, TornExport
from gossipq.types import Offset
from gossipq.wire import schemas
from gossipq.wire.schemas import Declaration, Shape

VERSION = 2  #: of the layout; readers accept this version and all earlier ones
MESSAGES, ACKS, DELIVERIES, MISFITS = "messages", "acks", "deliveries", "misfits"
DATA = "data"  #: column of `messages` with the value, typed by the topic's schema
FORMATS = ("parquet", "lmdb")
MANIFESTS = "manifests"
_NAME = re.compile(r"(\d{10})\.json")


class Column(NamedTuple):
    """One column of a data set.

    Types: string, binary, int32, int64, timestamp (UTC microseconds), and headers, a list of
    structs with a string `key` and a binary `value`, both never null.
    """

    name: str
    type: str
    nullable: bool = False


_PLACE = (Column("topic", "string"), Column("topic_id", "int64"), Column("partition", "int32"))
SCHEMAS: dict[str, tuple[Column, ...]] = {
    #: one row per record, in offset order within a file; never changes
    MESSAGES: (
        *_PLACE,
        Column("offset", "int64"),
        Column("publish_time", "timestamp"),  #: by the producer's clock
        Column("key", "binary", True),
        Column("headers", "headers", True),
        Column("value", "binary"),
        Column("route", "string", True),
        Column("id", "binary", True),
        Column("deliver_at", "timestamp", True),  #: of a record published with a delay
    ),
    #: one row per coalesced ack: records [start_offset, end_offset) of a group
    ACKS: (
        *_PLACE,
        Column("group_name", "string"),
        Column("start_offset", "int64"),
        Column("end_offset", "int64"),
        Column("acked_at", "timestamp"),  #: by the leader's clock
        Column("consumer", "string", True),
        Column(
            "change_seq", "int64"
        ),  #: log index of the shard: the newer of two acks of a record has the higher one
    ),
    #: ranges of records in one state; the rows of a group cover [its start, end of the partition)
    #: once
    #: Records that an operator voided also have a row of group "".
    DELIVERIES: (
        *_PLACE,
        Column("group_name", "string"),
        Column("state", "string"),  #: one of STATES
        Column("start_offset", "int64"),
        Column("end_offset", "int64"),
        Column("attempts", "int32"),
        Column("failures", "int32"),
        #: next attempt if retrying, end of the lease if in_flight
        Column("due_at", "timestamp", True),
        Column("changed_at", "timestamp", True),  #: of the death, or of the last failure
        Column(
            "reason",
            "string",
            True,
            #: of a dead letter: failures, rejected, expired or undecodable; while retrying: the last
            #: failure
        ),
        Column("error", "string", True),
        Column("consumer", "string", True),
        Column("change_seq", "int64"),  #: log index up to which this row is valid
    ),
    #: records whose value did not fit the schema of their topic when they were exported
    MISFITS: (
        *_PLACE,
        Column("offset", "int64"),
        Column("publish_time", "timestamp"),
        Column("schema_version", "int32"),
        Column("error", "string"),  #: the mismatch, and its place in the value
        Column("value", "binary"),
    ),
}
#: states of a row of `deliveries`

#: "done" is acked, dropped, purged, voided, or removed by retention; `acks` lists the acked ones.
#: "voided" is by an operator (`consumer`), with group "" because it holds for all groups.
STATES = ("ready", "in_flight", "retrying", "parked", "dead", "done", "voided")


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of rows of one partition.

    In `messages` and `misfits` [start, end) are offsets, in `acks` log indices. In `deliveries`
    start is 0, and the rows are the state at log index end - 1; a newer file of a partition
    replaces it.
    """

    path: str  #: relative to the folder of the export, with slashes
    data_set: str
    topic: str
    topic_id: int
    partition: int
    start: int
    end: int
    rows: int  #: fewer than end - start if records were removed before their export
    bytes: int
    sha256: str
    publish_min_us: int | None = None  #: messages only
    publish_max_us: int | None = None
    #: messages only: version of the schema of its column `data`; 0: without this column
    schema: int = 0
    column_bytes: int = 0  #: of its rows in memory, uncompressed; 0: written by an older version

    @property
    def key(self) -> "DataSetKey":
        return DataSetKey(self.data_set, self.topic_id, self.partition)


class DataSetKey(NamedTuple):
    data_set: str
    topic_id: int
    partition: int


class Newest(msgspec.Struct, frozen=True):
    """The newest exported record of a partition."""

    offset: Offset
    #: of its publish time and value; if the cluster has another record there, it was rolled back
    digest: str

    @classmethod
    def of(cls, offset: Offset, publish_us: int, value: bytes) -> "Newest":
        """`publish_us`: as in `messages`."""
        told = (publish_us // 1_000).to_bytes(8, "little", signed=True)
        return cls(offset, blake2b(told + value, digest_size=16).hexdigest())


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of the export in one partition."""

    topic: str
    topic_id: int
    partition: int
    start: Offset  #: first exported offset
    end: Offset  #: all readable records below this are exported
    retained: Offset  #: lowest offset that the cluster still had
    acks_end: int = 0  #: log index below which all acks are exported
    deliveries_end: int = 0  #: log index up to which `deliveries` is valid
    final: int = 0  #: `messages` files below this offset never change: a table can refer to them
    acks_final: int = 0  #: the same for `acks`, by log index
    #: the cluster removed the topic: its records stay, its `deliveries` are invalid
    removed: bool = False
    newest: Newest | None = None  #: None: without records, or written by an older version


class Gap(msgspec.Struct, frozen=True):
    """Records that retention removed before they were exported."""

    topic: str
    topic_id: int
    partition: int
    start: Offset
    end: Offset


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One increment: new files, changed positions, new gaps. A `base` lists all of the export's."""

    version: int
    cluster: str  #: 32 hex digits
    sequence: int  #: from 1
    previous: str  #: SHA-256 in hex of the bytes of the manifest before; "" for the first
    written_us: int
    format: str
    base: bool = False
    files: list[File] = []
    positions: list[Position] = []
    gaps: list[Gap] = []
    schemas: list[Declaration] = []  #: of the files with a column `data`


class _Versioned(msgspec.Struct):
    version: int


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode(raw: bytes, name: str = "manifest") -> Manifest:
    """Decode a manifest. Raises TornExport, ExportVersion.

    Unknown fields are ignored, missing ones get their default.
    """
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
        if version > VERSION:
            raise ExportVersion(
                f"{name} has version {version}; this gossipq reads versions up to {VERSION}",
                hint="pip install -U gossipq",
            )
        return msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TornExport(
            f"{name} is not a whole manifest: {error}", hint="restore it from a copy of the export"
        ) from None


def manifest_path(sequence: int) -> str:
    return f"{MANIFESTS}/{sequence:010d}.json"


def sequence_of(name: str) -> int | None:
    """Return the number of a manifest from its file name; None for other files."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def file_path(
    data_set: str, topic: str, topic_id: int, partition: int, start: int, end: int, digest: str, format: str
) -> str:
    """Return the path of a file. It contains the digest, so writing the file twice is harmless."""
    return f"{data_set}/{topic}/{topic_id}-{partition}-{start:020d}-{end:020d}-{digest[:12]}.{format}"


class Export(NamedTuple):
    """The valid files, ordered by (data set, topic id, partition, start), and the positions."""

    newest: Manifest | None
    digest: str  #: of the newest manifest: `previous` of the next one
    files: list[File]
    positions: dict[tuple[int, int], Position]  #: by (topic id, partition)
    gaps: list[Gap]
    schemas: Mapping[tuple[int, int], Declaration] = {}  #: by (topic id, version)

    def shape_of(self, file: File) -> Shape | None:
        """Return the shape of the file's column `data`, or None."""
        told = self.schemas.get((file.topic_id, file.schema))
        return None if told is None or told.document is None else schemas.parse(told.document)

    def shape(self, topic: str) -> Shape | None:
        """Return the shape of the column `data` over all files of a topic.

        That is the newest one; None if an older one differs from it.
        """
        versions = sorted(key for key, told in self.schemas.items() if told.topic == topic)
        shapes = [schemas.parse(self.schemas[key].document or {}) for key in versions]
        if not shapes or any(schemas.changes(each, shapes[-1]) for each in shapes[:-1]):
            return None
        return shapes[-1]

    def beginning(self, file: File) -> int:
        """Return the schema version at which the current shape of the file's column `data` began.

        Each later version follows its predecessor. Returns 0 for the topic's first shape, and
        without a schema.
        """
        begun: list[int] = []
        before: Shape | None = None
        for topic_id, version in sorted(self.schemas):
            document = self.schemas[topic_id, version].document
            if topic_id == file.topic_id and version <= file.schema and document is not None:
                shape = schemas.parse(document)
                if before is None or schemas.changes(before, shape):
                    begun.append(version)
                before = shape
        return begun[-1] if len(begun) > 1 else 0

    def is_final(self, file: File) -> bool:
        """True if the file must not be merged any more."""
        at = self.positions.get((file.topic_id, file.partition))
        return at is not None and file.end <= {MESSAGES: at.final, ACKS: at.acks_final}.get(file.data_set, 0)

    def of(self, data_set: str) -> list[File]:
        return [file for file in self.files if file.data_set == data_set]


NOTHING = Export(None, "", [], {}, [])


def fold(manifests: Mapping[int, bytes]) -> Export:
    """Return the export of these manifests, by number. Raises like `load`.

    They must reach back to the newest base.
    """
    return load(manifests, manifests.__getitem__)


def load(sequences: Iterable[int], read: Callable[[int], bytes], until_us: int | None = None) -> Export:
    """Return the export that manifests with these numbers describe.

    `read` returns the bytes of one manifest; none before the newest base is read. With `until_us`
    (microseconds since 1970) the export is returned as it was then.

    Raises TornExport (a manifest is missing, changed or incomplete; two files have the same range;
    another cluster), ExportVersion, and ExportError if all manifests are newer than `until_us`.
    """
    chain: list[Manifest] = []
    digest, number, since_us = "", 0, None
    for number in sorted(sequences, reverse=True):
        raw = read(number)
        manifest = decode(raw, manifest_path(number))
        if until_us is not None and not chain and manifest.written_us > until_us:
            since_us = manifest.written_us
            continue
        _check_link(number, manifest, chain[-1] if chain else None, raw)
        chain.append(manifest)
        digest = digest or sha256(raw).hexdigest()
        if manifest.base:
            break
    if since_us is not None and not chain:
        first = datetime.fromtimestamp(since_us / 1_000_000, UTC).isoformat(timespec="seconds")
        raise ExportError(
            f"the export does not go back so far: what it still knows begins at {first}",
            hint="name a later time; --keep of gossipq export says how long it knows what it was",
        )
    if not chain:
        return NOTHING
    if not chain[-1].base and number != 1:
        raise TornExport(
            f"{manifest_path(number - 1)} is missing", hint="restore it from a copy of the export"
        )
    found = accumulated(chain[0], digest, reversed(chain))
    check_ranges(found.files)
    return found


def accumulated(newest: Manifest, digest: str, manifests: Iterable[Manifest]) -> Export:
    """Add up manifests in order, from a base on.

    Version 1 repeats all positions and gaps in each manifest.
    """
    files: list[File] = []
    positions: dict[tuple[int, int], Position] = {}
    gaps: dict[Gap, None] = {}
    declared: dict[tuple[int, int], Declaration] = {}
    for manifest in manifests:
        files += manifest.files
        positions |= {(at.topic_id, at.partition): at for at in manifest.positions}
        gaps |= dict.fromkeys(manifest.gaps)
        declared |= {(told.topic_id, told.version): told for told in manifest.schemas}
    return Export(
        newest=newest,
        digest=digest,
        files=_counting(files, positions),
        positions=positions,
        gaps=list(gaps),
        schemas=declared,
    )


def _check_link(sequence: int, manifest: Manifest, later: Manifest | None, raw: bytes) -> None:
    name, restore = manifest_path(sequence), "restore it from a copy of the export"
    if manifest.sequence != sequence:
        raise TornExport(f"{name} says that it is number {manifest.sequence}", hint=restore)
    if later is None:
        return
    if later.sequence != sequence + 1:
        raise TornExport(f"{manifest_path(later.sequence - 1)} is missing", hint=restore)
    if later.previous != sha256(raw).hexdigest():
        raise TornExport(
            f"{name} was changed after {manifest_path(later.sequence)} was written", hint=restore
        )
    if later.cluster != manifest.cluster:
        raise TornExport(
            f"{manifest_path(later.sequence)} is of another cluster",
            hint="export each cluster to its own folder",
        )


def _counting(files: Iterable[File], positions: Mapping[tuple[int, int], Position]) -> list[File]:
    """Return the valid files in order: without replaced states, and states of removed topics."""
    kept, newest = [], {}
    for file in files:
        at = positions.get((file.topic_id, file.partition))
        if file.data_set != DELIVERIES:
            kept.append(file)
        elif at is None or not at.removed:
            newest[file.key] = file
    return sorted([*kept, *newest.values()], key=lambda file: (*file.key, file.start))


def check_ranges(files: Iterable[File]) -> None:
    """Raise TornExport if two files contain the same offsets. Files are in order of (place,
    start).
    """
    before: File | None = None
    for file in files:
        if before is not None and before.key == file.key and file.start < before.end:
            raise TornExport(
                f"{file.path} and {before.path} overlap: [{file.start}, {before.end}) is in both",
                hint="two exporters wrote here; export again to a new folder",
            )
        before = file


def check_file(file: File, bytes_found: int | None, digest: str | None = None) -> None:
    """Raise TornExport if a file differs from its manifest. `bytes_found` None: it does not
    exist.
    """
    if bytes_found is None:
        raise TornExport(
            f"{file.path} is missing",
            hint=(
                "open the export once more, in which it may have been merged by now; else restore it from a "
                "copy, or export again to a new folder"
            ),
        )
    if bytes_found != file.bytes or digest not in (None, file.sha256):
        raise TornExport(
            f"{file.path} is not as it was written ({bytes_found} bytes, {file.bytes} expected"
            + (", another SHA-256)" if bytes_found == file.bytes else ")"),
            hint="restore it from a copy, or export again to a new folder",
        )


def check_loss(export: Export, topic_id: int, partition: int, start: Offset, end: Offset) -> None:
    """Raise DataLoss if retention removed records of [start, end) before they were exported."""
    for gap in export.gaps:
        if (gap.topic_id, gap.partition) == (topic_id, partition) and max(gap.start, start) < min(
            gap.end, end
        ):
            raise DataLoss(
                f"{gap.topic}/{partition}: records {max(gap.start, start)} to {min(gap.end, end) - 1} left "
                "by retention "
                "before they were exported",
                hint="go on without them: failOnDataLoss=false, or --allow-gap of a job; export more often",
            )
