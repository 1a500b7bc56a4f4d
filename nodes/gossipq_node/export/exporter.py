"""One export run after the other: writes new records into files, then a manifest.

The exporter is an ordinary client: it asks each partition's leader for ranges of records, for acks
and for states. The manifests are its only state.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from gossipq.errors import BadBatch, Busy, DataLoss, ExportError, OffsetOutOfRange, UnknownTopic
from gossipq.permissions import Rights
from gossipq.texts import many
from gossipq.types import Offset, PartitionKey, partition_key
from gossipq.values import GroupStats, TopicInfo
from gossipq.wire import export
from gossipq.wire.export import NOTHING, Export, File, Gap, Manifest, Newest, Position
from gossipq.wire.schemas import Declaration, Schema
from gossipq_client import Client, columns
from gossipq_client.answers import Span
from gossipq_client.session import Stretch
from gossipq_node.export import states
from gossipq_node.export.extract import Extract, Hole, newest_of
from gossipq_node.export.folder import Folder
from gossipq_node.export.segments import PartitionFiles

if TYPE_CHECKING:
    from pyarrow import Table

#: a manifest is published after this much, so that little is repeated after a crash
CHECKPOINT_ROWS, CHECKPOINT_BYTES = (1 << 22, 512 << 20)
ASKED_PARTITIONS = 1_000  #: partitions in one request
LEADERS_TRIES, LEADERS_PAUSE_S = 50, 0.2  #: how long partitions may lack a leader
OnProgress = Callable[[int, int], None]  #: records done, records to do


class RunTotals(msgspec.Struct):
    """The result of a run."""

    records: int = 0
    files: int = 0
    bytes: int = 0
    manifests: int = 0
    seconds: float = 0.0
    waiting: dict[str, int] = {}  #: by topic: records left for a later run
    #: requested topics that were removed; their records stay in the export
    gone: list[str] = []
    #: records missing in the export for good, first listed by this run's manifests
    gaps: list[Gap] = []
    misfits: int = 0  #: records whose value does not fit their topic's schema
    #: why partitions are exported only up to records that cannot be opened
    unopened: list[str] = []


class ExportedPartition(msgspec.Struct):
    """A partition to export."""

    info: TopicInfo
    number: int
    first: Offset
    end: Offset
    voided: int  #: records that operators have voided until now
    groups: list[GroupStats]
    position: Position

    @property
    def key(self) -> PartitionKey:
        return partition_key(self.info.id, self.number)

    @property
    def name(self) -> str:
        return f"{self.info.name}/{self.number}"

    @property
    def waiting(self) -> int:
        """Number of records that are not exported."""
        return self.end - self.position.end


def _portions(infos: list[TopicInfo]) -> Iterator[list[TopicInfo]]:
    """Yield the topics in portions, to keep requests small."""
    some, count = list[TopicInfo](), 0
    for info in infos:
        some.append(info)
        count += len(info.shards)
        if count >= ASKED_PARTITIONS:
            yield some
            some, count = [], 0
    if some:
        yield some


class Exporter:
    def __init__(
        self,
        mq: Client,
        folder: Folder,
        topics: Iterable[str] = (),
        format: str = "",
        allow_gap: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        """No `topics` means all topics of the cluster except system topics.

        Raises ExportError, TornExport, ExportVersion.
        """
        columns.arrow("an export")
        self._raw = mq.admin.raw
        self._mq = mq
        self._folder = folder
        self._topics = list(topics)
        self._allow_gap = allow_gap
        self._progress = progress or (lambda done, total: None)
        self._export = NOTHING
        self.reload()
        self._cluster = self._raw.status().cluster.hex()
        newest = self._export.newest
        if newest and newest.cluster != self._cluster:
            raise ExportError(
                f"{folder.root} is the export of another cluster ({newest.cluster})",
                hint="export each cluster to its own folder",
            )
        if newest and format and newest.format != format:
            raise ExportError(
                f"{folder.root} has {newest.format} files",
                hint=f"leave --format {format} out, or another --out",
            )
        self._format = format or (newest.format if newest else export.FORMATS[0])
        self._overtaken: list[Gap] = []  #: gaps that retention made during a run, not reported yet
        self._files: list[File] = []
        self._unsure: Manifest | None = None  #: a manifest whose publication is uncertain
        #: voided records and groups of a partition at the last export of its states
        self._seen: dict[int, tuple[int, list[GroupStats]]] = {}
        self._done = RunTotals()
        self._total = 0
        #: the first run has compared partitions without new records with the cluster
        self._compared = False
        self._schemas: dict[int, Schema] = {}  #: of topics, as they are in this run
        #: by topic id and version, also of files that an earlier run left to be published
        self._declarations: dict[tuple[int, int], Declaration] = {}

    def reload(self) -> None:
        """Continue from the folder's present state. Raises TornExport, ExportVersion."""
        self._export = self._folder.read()
        self._positions, self._gaps = dict(self._export.positions), list(self._export.gaps)

    def run(self, with_states: bool = True, records_min: int = 0, patient: bool = False) -> RunTotals:
        """Export everything new in partitions with at least `records_min` waiting records.

        Raises DataLoss if retention was faster. Raises BadBatch for records that cannot be
        opened, after exporting the rest; with `patient` they are only reported, because they
        may be readable next time.
        """
        began_s, self._done = time.monotonic(), RunTotals()
        self._settle()
        self._schemas = self._mq.admin.schemas().schemas
        self._know(self._schemas.values())
        parts = self._parts()
        self._check_gaps(parts)
        due = [part for part in parts if part.waiting >= records_min]
        self._total = sum(part.waiting for part in due)
        unopened: list[BadBatch] = []
        for part in due:
            try:
                with self._there(part):
                    self._messages(part)
            except BadBatch as error:
                unopened.append(error)
        self._compared = True
        if with_states:
            for part in parts:
                with self._there(part):
                    self._states(part)
        self._publish()
        for part in parts:
            self._done.waiting[part.info.name] = self._done.waiting.get(part.info.name, 0) + part.waiting
        self._done.seconds = time.monotonic() - began_s
        overtaken, self._overtaken = self._overtaken, []
        if overtaken and not self._allow_gap:
            raise self._loss(overtaken)
        if unopened and not patient:
            raise unopened[0]
        self._done.unopened = [f"{error}; {error.hint}" for error in unopened]
        return self._done

    # --- inventory

    def _know(self, declared: Iterable[Schema]) -> None:
        """Raise ExportError if a version has another schema than the one used in the files here.

        Then `_schemas` was created anew, or the cluster was rolled back.
        """
        for each in declared:
            told = Declaration(each.topic, each.topic_id, each.version, each.document)
            before = self._export.schemas.get((each.topic_id, each.version), told)
            if before.document != told.document:
                raise ExportError(
                    f"schema version {each.version} of {each.topic} is another one than in the export",
                    hint="gossipq topic schema rm, then declare it once more: it gets another version",
                )
            self._declarations[each.topic_id, each.version] = told

    def _infos(self) -> list[TopicInfo]:
        """Return the topics to export, and note which exported topics the cluster has removed."""
        there = self._raw.topics()
        ids = {info.id for info in there}
        changed = {
            key: position
            for key, position in self._positions.items()
            if position.removed != (position.topic_id not in ids)
        }
        rights = self._rights() if changed else None
        for key, position in changed.items():
            if position.removed or rights is None or rights.sees(position.topic):
                self._positions[key] = msgspec.structs.replace(position, removed=not position.removed)
        real = [info for info in there if not info.config.virtual]
        if not self._topics:
            return [info for info in real if not info.name.startswith("_")]
        found = [info for name in self._topics for info in self._named(name, real)]
        return list({info.id: info for info in found}.values())

    def _rights(self) -> Rights | None:
        """Return the rights of this client; None: everything. Hidden
        topics are not removed topics.
        """
        me = self._raw.whoami()
        return Rights(me.user, me.rules) if me.closed else None

    def _named(self, name: str, real: list[TopicInfo]) -> list[TopicInfo]:
        """Raise UnknownTopic for a name unknown to cluster and export,
        Forbidden for a hidden topic.
        """
        system = name.startswith("_")  # as in permissions, a leading * does not match system topics
        infos = [
            info
            for info in real
            if fnmatchcase(info.name, name) and (system or not info.name.startswith("_"))
        ]
        if not infos and "*" not in name:
            if not any(position.topic == name for position in self._positions.values()):
                raise UnknownTopic(f"topic {name!r} does not exist, or is virtual", hint="gossipq topic ls")
            self._mq.topics(name)
            if name not in self._done.gone:
                self._done.gone.append(name)
        return infos

    def _parts(self) -> list[ExportedPartition]:
        """Return all partitions in order, with the positions of leader and export."""
        for _ in range(LEADERS_TRIES):
            infos = sorted(self._infos(), key=lambda info: info.id)
            voided, groups = self._stats(infos)
            wanted = [
                (info, number, partition_key(info.id, number))
                for info in infos
                for number in range(len(info.shards))
            ]
            missing = [f"{info.name}/{number}" for info, number, key in wanted if key not in voided]
            if not missing:
                spans = self._spans(infos)
                return [
                    self._part(info, number, spans[key], voided[key], groups.get(key, []))
                    for info, number, key in wanted
                ]
            time.sleep(LEADERS_PAUSE_S)
        raise Busy(f"no leader for {', '.join(missing[:8])}", hint="gossipq status")

    def _stats(
        self, infos: list[TopicInfo]
    ) -> tuple[dict[PartitionKey, int], dict[PartitionKey, list[GroupStats]]]:
        """Return voided records and groups of partitions that have a leader."""
        voided: dict[PartitionKey, int] = {}
        groups: dict[PartitionKey, list[GroupStats]] = {}
        for some in _portions(infos):
            reply = self._raw.stats([info.name for info in some])
            voided |= {row.partition: row.voided for row in reply.partitions}
            for group in reply.groups:
                groups.setdefault(group.partition, []).append(group)
        return voided, groups

    def _spans(self, infos: list[TopicInfo]) -> dict[PartitionKey, Span]:
        """Return the bounds of the partitions. Raises Busy.

        STATS is not used, because a leader that has just begun, or that is no longer leader,
        answers it too, and may lack the newest records.
        """
        try:
            return {key: span for some in _portions(infos) for key, span in self._raw.spans(some).items()}
        except UnknownTopic as error:
            raise Busy(f"removed during its export: {error.message}", hint="run it again") from error

    def _part(
        self, info: TopicInfo, number: int, span: Span, voided: int, groups: list[GroupStats]
    ) -> ExportedPartition:
        first, end = span
        position = self._positions.get((info.id, number))
        if position is None:
            position = Position(
                topic=info.name, topic_id=info.id, partition=number, start=first, end=first, retained=first
            )
        if position.topic != info.name:
            raise self._went_back(f"topic {info.id} is {info.name!r}, and was {position.topic!r} before")
        if end < position.end:
            raise self._went_back(
                f"{info.name}/{number} ends at {end}, and {many(position.end, 'record')} came before"
            )
        return ExportedPartition(
            info=info,
            number=number,
            first=first,
            end=end,
            voided=voided,
            groups=groups,
            position=msgspec.structs.replace(position, retained=first),
        )

    @staticmethod
    def _went_back(what: str) -> ExportError:
        return ExportError(
            what,
            hint=(
                "the cluster lost records that it had confirmed: export to a new folder, and from it to new "
                "tables"
            ),
        )

    def _check_gaps(self, parts: list[ExportedPartition]) -> None:
        """Raise DataLoss for records that retention removed first; with
        `allow_gap`, note the gap.
        """
        lost = [part for part in parts if part.position.end < part.first]
        if lost and not self._allow_gap:
            raise self._loss([self._gap(part, part.position.end, part.first) for part in lost])
        for part in lost:
            self._gaps.append(self._gap(part, part.position.end, part.first))
            self._reached(part, end=part.first)  # so a run that fails reports it once, too

    @staticmethod
    def _gap(part: ExportedPartition, start: Offset, end: Offset) -> Gap:
        return Gap(part.info.name, part.info.id, part.number, start, end)

    @staticmethod
    def _loss(gaps: list[Gap]) -> DataLoss:
        gap, more = gaps[0], f"; {len(gaps) - 1} more gaps" if len(gaps) > 1 else ""
        span = f"{gap.start} to {gap.end - 1}"
        return DataLoss(
            f"{gap.topic}/{gap.partition}: records {span} left by retention before they were exported{more}",
            hint=(
                "--allow-gap goes on behind them and notes the gap; export more often, or raise the topic's "
                "retention"
            ),
        )

    # --- messages

    def _messages(self, part: ExportedPartition) -> None:
        start, end = part.position.end, part.end
        if start < end:
            place = self._place(part, export.MESSAGES)
            stretches, before = self._stretches(part, start, end), self._done.records
            extract = Extract(stretches, start, end, self._schemas.get(part.info.id))
            batches = extract.batches(lambda done: self._progress(before + done, self._total))
            for file in place.split(batches, start, end):
                beside = self._misfits(part, file, extract.take_misfits(file.end))
                # when nothing before `_reached` can fail
                self._look_at(part, extract.take_holes(file.end))
                self._reached(part, end=file.end, newest=extract.newest(file.end))
                self._add([file, *beside], file.rows)
            self._look_at(part, extract.take_holes(end))
        elif not self._compared:
            for _ in self._stretches(part, end, end):
                pass
        self._reached(part, end=end)

    def _stretches(self, part: ExportedPartition, start: Offset, end: Offset) -> Iterator[Stretch]:
        """Yield the records of a range that follow the exported ones. Raises ExportError.

        The newest exported record is read once more: if the cluster was rolled back, it
        is another one, or missing.
        """
        newest = part.position.newest
        first = start if newest is None or newest.offset < part.first else newest.offset
        for stretch in self._mq.read(part.info.name, start=first, end=end).batches(part.number):
            self._check_topic(part, stretch)
            if stretch.first == first < start and newest_of(stretch.within(first, first + 1)) != newest:
                raise self._went_back(f"{part.name} has another record {first} than the export")
            if stretch.end > start:
                yield stretch.within(start, end)

    def _misfits(self, part: ExportedPartition, file: File, rows: "Table | None") -> list[File]:
        """Return a file of those records of a file that do not fit the schema."""
        if rows is None:
            return []
        self._done.misfits += rows.num_rows
        return [self._place(part, export.MISFITS).whole(rows, file.start, file.end)]

    @staticmethod
    @contextmanager
    def _there(part: ExportedPartition) -> Iterator[None]:
        """Convert removal during the export to Busy: the next run sees that it is gone."""
        try:
            yield
        except OffsetOutOfRange as error:
            raise Busy(f"retention overtook the export of {part.name}", hint="run it again") from error
        except UnknownTopic as error:
            text = f"topic {part.info.name!r} was removed during its export"
            raise Busy(text, hint="run it again") from error

    @staticmethod
    def _check_topic(part: ExportedPartition, stretch: Stretch) -> None:
        if stretch.topic_id != part.info.id:
            raise Busy(f"topic {part.info.name!r} was made anew during its export", hint="run it again")

    def _look_at(self, part: ExportedPartition, holes: list[Hole]) -> None:
        """Examine holes: records that an operator voided, or that retention removed while we read.

        The latter is a gap, which is reported after the rest is exported.
        """
        if not holes:
            return
        first = self._spans([part.info])[part.key].first
        for start, end in holes:
            if start < min(end, first):
                self._overtaken.append(self._gap(part, start, min(end, first)))
                self._gaps.append(self._overtaken[-1])

    # --- acks and deliveries

    def _states(self, part: ExportedPartition) -> None:
        key, never, now = part.key, part.position.deliveries_end == 0, (part.voided, part.groups)
        if self._seen.get(key, (0, []) if never else None) == now:
            return  # unchanged, or without groups and voided records from the start
        since = part.position.acks_end
        index, runs = self._raw.ack_runs(part.info, part.number, since)
        acks = (
            self._place(part, export.ACKS).whole(states.acks(part.info, part.number, runs), since, index + 1)
            if runs
            else None
        )
        self._reached(part, acks_end=max(index + 1, since))  # not before they are on the disk
        if acks is not None:
            self._add([acks])
        pages = self._raw.state_pages(part.info, part.number)
        end = pages[0].index + 1
        if end > part.position.deliveries_end:
            rows = states.deliveries(part.info, part.number, pages)
            file = self._place(part, export.DELIVERIES).whole(rows, 0, end)
            self._reached(part, deliveries_end=end)
            self._add([file])
        self._seen[key] = now

    # --- publishing

    def _place(self, part: ExportedPartition, data_set: str) -> PartitionFiles:
        schema = self._schemas.get(part.info.id) if data_set == export.MESSAGES else None
        return PartitionFiles(
            self._folder,
            self._format,
            data_set=data_set,
            topic=part.info.name,
            topic_id=part.info.id,
            partition=part.number,
            schema=schema.version if schema is not None else 0,
            shape=schema.shape if schema is not None else None,
        )

    def _reached(self, part: ExportedPartition, **ends: int | Newest) -> None:
        part.position = msgspec.structs.replace(part.position, **ends)
        key = part.info.id, part.number
        known = self._positions.get(key)
        if known is None or msgspec.structs.replace(known, retained=part.position.retained) != part.position:
            # progress of retention alone is not worth a manifest
            self._positions[key] = part.position

    def _add(self, files: list[File], records: int = 0) -> None:
        """Add files that must be in one manifest."""
        self._files += files
        self._done.records += records
        self._done.files += len(files)
        self._done.bytes += sum(file.bytes for file in files)
        self._progress(self._done.records, self._total)
        if sum(each.rows for each in self._files) >= CHECKPOINT_ROWS or (
            sum(each.bytes for each in self._files) >= CHECKPOINT_BYTES
        ):
            self._publish()

    def _publish(self) -> None:
        """Publish a manifest of the changes, if any."""
        before, files = self._export, self._files
        positions = [at for key, at in sorted(self._positions.items()) if before.positions.get(key) != at]
        gaps = self._gaps[len(before.gaps) :]
        if before.newest and not files and not positions and not gaps:
            return
        self._unsure = Manifest(
            version=export.VERSION,
            cluster=self._cluster,
            sequence=before.newest.sequence + 1 if before.newest else 1,
            previous=before.digest,
            written_us=time.time_ns() // 1000,
            format=self._format,
            files=files,
            positions=positions,
            gaps=gaps,
            schemas=self._declared(files),
        )
        self._settle()

    def _settle(self) -> None:
        """After a run failed while publishing: publish the same manifest
        again, which has one effect.

        Nothing else is published before.
        """
        manifest = self._unsure
        if manifest is None:
            return
        digest = self._folder.publish(manifest)
        told = {**self._export.schemas, **{(each.topic_id, each.version): each for each in manifest.schemas}}
        self._export = Export(
            newest=manifest,
            digest=digest,
            files=[],
            positions=dict(self._positions),
            gaps=list(self._gaps),
            schemas=told,
        )
        self._files, self._unsure = [], None
        self._done.manifests += 1
        self._done.gaps += manifest.gaps

    def _declared(self, files: list[File]) -> list[Declaration]:
        """Return schemas of these files that no manifest contains."""
        typed = {(file.topic_id, file.schema) for file in files if file.schema}
        return [self._declarations[key] for key in sorted(typed - set(self._export.schemas))]
