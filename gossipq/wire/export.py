"""What an export is: files of rows, and the manifests that say which files count. docs/EXPORT.md has the
layout.

    DIR/manifests/0000000007.json              one increment, published last and never changed
    DIR/messages/orders/40-0-00000000000000000000-00000000000000065536-1f3a5c7e9b2d.parquet
    DIR/acks/orders/... DIR/deliveries/orders/...      data set, topic, then names as `file_path` makes them

An export is the chain of its manifests: each names the SHA-256 of the one before and says what it adds. A
*base* restates all that counts, so a reader begins at the newest base. Offsets and indices are half-open
ranges, times are UTC microseconds.
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

VERSION = 2  #: of the layout; readers take this and all before it
MESSAGES, ACKS, DELIVERIES, MISFITS = "messages", "acks", "deliveries", "misfits"
DATA = "data"  #: the column of `messages` that has the value as its topic's schema types it
FORMATS = ("parquet", "lmdb")
MANIFESTS = "manifests"
_NAME = re.compile(r"(\d{10})\.json")


class Column(NamedTuple):
    """One column of a data set. Types: string, binary, int32, int64, timestamp (UTC microseconds), headers (a
    list of structs key: string, value: binary; both never null)."""

    name: str
    type: str
    nullable: bool = False


_PLACE = (Column("topic", "string"), Column("topic_id", "int64"), Column("partition", "int32"))
SCHEMAS: dict[str, tuple[Column, ...]] = {
    #: one row per record, in offset order within a file; never changes
    MESSAGES: (
        *_PLACE,
        Column("offset", "int64"),
        Column("publish_time", "timestamp"),  #: by the clock of the producer
        Column("key", "binary", True),
        Column("headers", "headers", True),
        Column("value", "binary"),
        Column("route", "string", True),
        Column("id", "binary", True),
        Column("deliver_at", "timestamp", True),  #: of a record that was published with a delay
    ),
    #: one row per coalesced ack: records [start_offset, end_offset) of a group
    ACKS: (
        *_PLACE,
        Column("group_name", "string"),
        Column("start_offset", "int64"),
        Column("end_offset", "int64"),
        Column("acked_at", "timestamp"),  #: by the clock of the leader
        Column("consumer", "string", True),
        Column(
            "change_seq", "int64"
        ),  #: log index of the shard: of two acks of a record the higher one is the newer
    ),
    #: where every record stands, as ranges: the rows of a group tile [its start, end of the partition), once
    #: each; what an operator took away has a row of group "" besides
    DELIVERIES: (
        *_PLACE,
        Column("group_name", "string"),
        Column("state", "string"),  #: one of STATES
        Column("start_offset", "int64"),
        Column("end_offset", "int64"),
        Column("attempts", "int32"),
        Column("failures", "int32"),
        Column("due_at", "timestamp", True),  #: retrying: of the next attempt; in_flight: when the lease ends
        Column("changed_at", "timestamp", True),  #: of the death, or of the last failure
        Column(
            "reason", "string", True
        ),  #: dead: failures, rejected, expired or undecodable; retrying: the last failure
        Column("error", "string", True),
        Column("consumer", "string", True),
        Column("change_seq", "int64"),  #: log index up to which this row is so
    ),
    #: records of topics with a schema whose value did not fit it when they were exported
    MISFITS: (
        *_PLACE,
        Column("offset", "int64"),
        Column("publish_time", "timestamp"),
        Column("schema_version", "int32"),
        Column("error", "string"),  #: what is wrong, and where in the value
        Column("value", "binary"),
    ),
}
#: of a row of `deliveries`. done: acked, or dropped, purged, voided or left by retention; `acks` tells which
#: were acked. voided: by an operator (`consumer`), with group "" since it is so for all
STATES = ("ready", "in_flight", "retrying", "parked", "dead", "done", "voided")


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of rows of one partition.

    messages, misfits: offsets [start, end). acks: those of log indices [start, end). deliveries: the state
    at log index end - 1, start is 0; the newest one of a partition replaces the others."""

    path: str  #: below the folder of the export, with slashes
    data_set: str
    topic: str
    topic_id: int
    partition: int
    start: int
    end: int
    rows: int  #: fewer than end - start where records left before their export
    bytes: int
    sha256: str
    publish_min_us: int | None = None  #: messages only
    publish_max_us: int | None = None
    schema: int = (
        0  #: messages only: version of the topic's schema that its column `data` is of; 0: it has none
    )
    column_bytes: int = 0  #: of its rows in memory, before they are compressed; 0: an older version wrote it

    @property
    def key(self) -> "DataSetKey":
        return DataSetKey(self.data_set, self.topic_id, self.partition)


class DataSetKey(NamedTuple):
    data_set: str
    topic_id: int
    partition: int


class Newest(msgspec.Struct, frozen=True):
    """The newest record that the export has of a partition."""

    offset: Offset
    digest: str  #: of its publish time and value; a cluster that has another record there went back

    @classmethod
    def of(cls, offset: Offset, publish_us: int, value: bytes) -> "Newest":
        """publish_us: as `messages` has it."""
        told = (publish_us // 1_000).to_bytes(8, "little", signed=True)
        return cls(offset, blake2b(told + value, digest_size=16).hexdigest())


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the export has come in one partition."""

    topic: str
    topic_id: int
    partition: int
    start: Offset  #: the export begins here
    end: Offset  #: and has all that could be read below this
    retained: Offset  #: the lowest offset that the cluster could still give
    acks_end: int = 0  #: log index below which all acks are here
    deliveries_end: int = 0  #: log index below which `deliveries` is right
    final: int = 0  #: files of `messages` below this offset stay as they are: a table may refer to them
    acks_final: int = 0  #: the same for `acks`, by log index
    removed: bool = (
        False  #: the cluster has the topic no more: its records stay, its `deliveries` do not count
    )
    newest: Newest | None = None  #: None: no record is here, or an older version wrote them


class Gap(msgspec.Struct, frozen=True):
    """Records that retention removed before they were exported."""

    topic: str
    topic_id: int
    partition: int
    start: Offset
    end: Offset


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One increment: the files that it adds, positions that changed, gaps that are new; all of the export's
    when `base`."""

    version: int
    cluster: str  #: 32 hex digits
    sequence: int  #: from 1
    previous: str  #: SHA-256 of the manifest before as it lies there, in hex; "" for the first
    written_us: int
    format: str
    base: bool = False
    files: list[File] = []
    positions: list[Position] = []
    gaps: list[Gap] = []
    schemas: list[Declaration] = []  #: those of files with a column `data`


class _Versioned(msgspec.Struct):
    version: int


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode(raw: bytes, name: str = "manifest") -> Manifest:
    """Unknown fields are ignored, missing ones have their default. Raises TornExport, ExportVersion."""
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
        if version > VERSION:
            raise ExportVersion(
                f"{name} has version {version}; this gossipq reads versions up to {VERSION}",
                hint="pip install -U gossipq",
            )
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise TornExport(
            f"{name} is not a whole manifest: {error}", hint="restore it from a copy of the export"
        ) from None


def manifest_path(sequence: int) -> str:
    return f"{MANIFESTS}/{sequence:010d}.json"


def sequence_of(name: str) -> int | None:
    """Number of a manifest by its file name; None for anything else, as a hidden file that was not
    published."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def file_path(
    data_set: str, topic: str, topic_id: int, partition: int, start: int, end: int, digest: str, format: str
) -> str:
    """Named by its content, so that writing it twice harms nobody."""
    return f"{data_set}/{topic}/{topic_id}-{partition}-{start:020d}-{end:020d}-{digest[:12]}.{format}"


class Export(NamedTuple):
    """The files that count, in order of (data set, topic id, partition, start), and where the export ends."""

    newest: Manifest | None
    digest: str  #: of the newest manifest: what the next one names as its previous
    files: list[File]
    positions: dict[tuple[int, int], Position]  #: by (topic id, partition)
    gaps: list[Gap]
    schemas: Mapping[tuple[int, int], Declaration] = {}  #: by (topic id, version)

    def shape_of(self, file: File) -> Shape | None:
        """Of its column `data`, if it has one."""
        told = self.schemas.get((file.topic_id, file.schema))
        return None if told is None or told.document is None else schemas.parse(told.document)

    def shape(self, topic: str) -> Shape | None:
        """Of the column `data` over all files of a topic: the newest one, unless an older one differs
        from it."""
        versions = sorted(key for key, told in self.schemas.items() if told.topic == topic)
        shapes = [schemas.parse(self.schemas[key].document or {}) for key in versions]
        if not shapes or any(schemas.changes(each, shapes[-1]) for each in shapes[:-1]):
            return None
        return shapes[-1]

    def beginning(self, file: File) -> int:
        """The version with which the shape of a file's column `data` began: each one from there on follows
        the one before. 0 for the first beginning of its topic, and without a schema."""
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
        """No merging may touch it."""
        at = self.positions.get((file.topic_id, file.partition))
        return at is not None and file.end <= {MESSAGES: at.final, ACKS: at.acks_final}.get(file.data_set, 0)

    def of(self, data_set: str) -> list[File]:
        return [file for file in self.files if file.data_set == data_set]


NOTHING = Export(None, "", [], {}, [])


def fold(manifests: Mapping[int, bytes]) -> Export:
    """What counts, of manifests by their number as they lie there; from the newest base on is enough. Raises
    as `load`."""
    return load(manifests, manifests.__getitem__)


def load(sequences: Iterable[int], read: Callable[[int], bytes], until_us: int | None = None) -> Export:
    """What counts, of the manifests with these numbers. `read` gives one as it lies there, and is asked for
    none before the newest base. `until_us`: as it was then, in microseconds since 1970.

    Raises TornExport (one is missing, changed or not whole; two files hold the same range; another cluster),
    ExportVersion, and ExportError when no manifest is as old as that."""
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
    """What manifests add up to, from a base on, in order. Version 1 repeats all positions and gaps in
    each."""
    files: list[File] = []
    positions: dict[tuple[int, int], Position] = {}
    gaps: dict[Gap, None] = {}
    declared: dict[tuple[int, int], Declaration] = {}
    for manifest in manifests:
        files += manifest.files
        positions |= {(at.topic_id, at.partition): at for at in manifest.positions}
        gaps |= dict.fromkeys(manifest.gaps)
        declared |= {(told.topic_id, told.version): told for told in manifest.schemas}
    return Export(newest, digest, _counting(files, positions), positions, list(gaps), declared)


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
    """In order, without states that newer ones replaced, and those of topics that are gone."""
    kept, newest = [], {}
    for file in files:
        at = positions.get((file.topic_id, file.partition))
        if file.data_set != DELIVERIES:
            kept.append(file)
        elif at is None or not at.removed:
            newest[file.key] = file
    return sorted([*kept, *newest.values()], key=lambda file: (*file.key, file.start))


def check_ranges(files: Iterable[File]) -> None:
    """Files are in order of (place, start). Raises TornExport when two hold the same offsets."""
    before: File | None = None
    for file in files:
        if before is not None and before.key == file.key and file.start < before.end:
            raise TornExport(
                f"{file.path} and {before.path} overlap: [{file.start}, {before.end}) is in both",
                hint="two exporters wrote here; export again to a new folder",
            )
        before = file


def check_file(file: File, bytes_found: int | None, digest: str | None = None) -> None:
    """What lies there is what the manifest says. `bytes_found` None: nothing does. Raises TornExport."""
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
    """Nothing of [start, end) was lost to retention before it was exported. Raises DataLoss."""
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
