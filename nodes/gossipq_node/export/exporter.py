"""One export run after the other: what is new since the newest manifest goes into files, then a manifest says so.

The exporter is an ordinary client: it asks each partition's leader for ranges of records, for acks and for states. Where it
goes on is told by the manifests alone, so there is nothing else to lose.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from gossipq.errors import Busy, DataLoss, ExportError, OffsetOutOfRange, UnknownTopic
from gossipq.texts import many
from gossipq.types import Offset, partition_key
from gossipq.values import GroupStats, PartitionStats, TopicInfo
from gossipq.wire import export
from gossipq.wire.export import Export, File, Gap, Manifest, Position
from gossipq_client import Client, columns
from gossipq_client.reading import Stretch
from gossipq_node.export import states
from gossipq_node.export.folder import Folder
from gossipq_node.export.segments import Place

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CHECKPOINT_ROWS, CHECKPOINT_BYTES = 1 << 22, 512 << 20  #: a manifest after so much, so that little is done again after a crash
STATS_PARTITIONS = 1_000  #: asked for at once
LEADERS_TRIES, LEADERS_PAUSE_S = 50, 0.2  #: how long partitions may be without a leader
Progress = Callable[[int, int], None]  #: records done, records to do


class Done(msgspec.Struct):
    """What a run has added."""

    records: int = 0
    files: int = 0
    bytes: int = 0
    manifests: int = 0
    seconds: float = 0.0


class Part(msgspec.Struct):
    """A partition to be exported."""

    info: TopicInfo
    number: int
    stats: PartitionStats
    groups: list[GroupStats]
    position: Position

    @property
    def name(self) -> str:
        return f"{self.info.name}/{self.number}"


class Exporter:
    def __init__(
        self,
        mq: Client,
        folder: Folder,
        topics: Iterable[str] = (),
        format: str = "",
        allow_gap: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """No topics: all of the cluster but those whose name begins with "_". Raises ExportError, TornExport, ExportVersion."""
        columns.arrow("an export")
        self._mq, self._folder, self._topics, self._allow_gap = mq, folder, list(topics), allow_gap
        self._progress = progress or (lambda done, total: None)
        self._export: Export = folder.read()
        self._cluster = mq.status().cluster.hex()
        newest = self._export.newest
        if newest and newest.cluster != self._cluster:
            raise ExportError(
                f"{folder.root} is the export of another cluster ({newest.cluster})",
                hint="export each cluster to its own folder",
            )
        if newest and format and newest.format != format:
            raise ExportError(f"{folder.root} has {newest.format} files", hint=f"leave --format {format} out, or another --out")
        self._format = format or (newest.format if newest else export.FORMATS[0])
        self._positions = dict(self._export.positions)
        self._gaps = list(newest.gaps) if newest else []
        self._overtaken: list[Gap] = []  #: that retention made during this run
        self._files: list[File] = []
        self._seen: dict[int, list[GroupStats]] = {}  #: groups of a partition when its states were exported last
        self._done = Done()
        self._total = 0

    def run(self, with_states: bool = True) -> Done:
        """Everything that is there now. Raises DataLoss when retention was faster."""
        began_s, self._done, self._overtaken = time.monotonic(), Done(), []
        parts = self._parts()
        self._check_gaps(parts)
        self._total = sum(part.stats.next - part.position.end for part in parts)
        for part in parts:
            self._messages(part)
        if with_states:
            for part in parts:
                self._states(part)
        self._publish()
        self._done.seconds = time.monotonic() - began_s
        if self._overtaken and not self._allow_gap:
            raise self._loss(self._overtaken)
        return self._done

    # --- what there is

    def _infos(self) -> list[TopicInfo]:
        if not self._topics:
            return [info for info in self._mq.topics() if not info.config.virtual and not info.name.startswith("_")]
        found = [info for name in self._topics for info in self._named(name)]
        return list({info.id: info for info in found}.values())

    def _named(self, name: str) -> list[TopicInfo]:
        infos = [info for info in self._mq.topics(name) if not info.config.virtual]
        if not infos and "*" not in name:
            raise UnknownTopic(f"topic {name!r} does not exist, or is virtual", hint="gossipq topic ls")
        return infos

    def _parts(self) -> list[Part]:
        """All partitions, in order, with where their leader and the export stand."""
        for _ in range(LEADERS_TRIES):
            infos = sorted(self._infos(), key=lambda info: info.id)
            rows, groups = self._stats(infos)
            wanted = [(info, number, partition_key(info.id, number)) for info in infos for number in range(len(info.shards))]
            missing = [f"{info.name}/{number}" for info, number, key in wanted if key not in rows]
            if not missing:
                return [self._part(info, number, rows[key], groups.get(key, [])) for info, number, key in wanted]
            time.sleep(LEADERS_PAUSE_S)
        raise Busy(f"nobody leads {', '.join(missing[:8])}", hint="gossipq status")

    def _stats(self, infos: list[TopicInfo]) -> tuple[dict[int, PartitionStats], dict[int, list[GroupStats]]]:
        """By partition; asked for some topics at a time, so that no answer is too large."""
        rows: dict[int, PartitionStats] = {}
        groups: dict[int, list[GroupStats]] = {}
        names: list[str] = []
        count = 0
        for info in infos:
            names.append(info.name)
            count += len(info.shards)
            if count >= STATS_PARTITIONS or info is infos[-1]:
                reply = self._mq.stats(names)
                rows |= {row.partition: row for row in reply.partitions}
                for group in reply.groups:
                    groups.setdefault(group.partition, []).append(group)
                names, count = [], 0
        return rows, groups

    def _part(self, info: TopicInfo, number: int, stats: PartitionStats, groups: list[GroupStats]) -> Part:
        position = self._positions.get((info.id, number))
        if position is None:
            position = Position(info.name, info.id, number, stats.first, stats.first, stats.first)
        if stats.next < position.end:
            raise ExportError(
                f"{info.name}/{number} ends at {stats.next}, and {many(position.end, 'record')} came before",
                hint="the cluster lost records that it had confirmed: export to a new folder",
            )
        return Part(info, number, stats, groups, msgspec.structs.replace(position, retained=stats.first))

    def _check_gaps(self, parts: list[Part]) -> None:
        """What retention removed before it was exported is an error; with `allow_gap` it is noted, and the export goes on."""
        lost = [part for part in parts if part.position.end < part.stats.first]
        if lost and not self._allow_gap:
            raise self._loss([self._gap(part, part.position.end, part.stats.first) for part in lost])
        for part in lost:
            self._gaps.append(self._gap(part, part.position.end, part.stats.first))
            part.position = msgspec.structs.replace(part.position, end=part.stats.first)

    @staticmethod
    def _gap(part: Part, start: Offset, end: Offset) -> Gap:
        return Gap(part.info.name, part.info.id, part.number, start, end)

    @staticmethod
    def _loss(gaps: list[Gap]) -> DataLoss:
        gap, more = gaps[0], f"; {len(gaps) - 1} more gaps" if len(gaps) > 1 else ""
        span = f"{gap.start} to {gap.end - 1}"
        return DataLoss(
            f"{gap.topic}/{gap.partition}: records {span} left by retention before they were exported{more}",
            hint="--allow-gap goes on behind them and notes the gap; export more often, or raise the topic's retention",
        )

    # --- messages

    def _messages(self, part: Part) -> None:
        start, end = part.position.end, part.stats.next
        if start < end:
            place = self._place(part, export.MESSAGES)
            holes: list[tuple[Offset, Offset]] = []
            try:
                for file in place.split(self._batches(part, start, end, holes), start, end):
                    self._look_at(part, holes)
                    self._reached(part, end=file.end)
                    self._add(file, file.rows)
            except OffsetOutOfRange as error:
                raise Busy(f"retention overtook the export of {part.name}", hint="run it again") from error
            self._look_at(part, holes)
        self._reached(part, end=end)

    def _batches(
        self, part: Part, start: Offset, end: Offset, holes: list[tuple[Offset, Offset]]
    ) -> "Iterator[tuple[Offset, RecordBatch]]":
        """Record batches with the offset they reach. `holes` gets what has no record any more."""
        gathering, at, before = columns.Gathering(), start, self._done.records
        for stretch in self._mq.batches(part.info.name, start=start, stop=end, partition=part.number):
            self._check_topic(part, stretch)
            if stretch.first > at:
                holes.append((at, stretch.first))
            at = stretch.end
            for batch in gathering.add(stretch):
                yield at, batch
                self._progress(before + at - start, self._total)
        for batch in gathering.rest():
            yield at, batch
        if at < end:
            holes.append((at, end))

    @staticmethod
    def _check_topic(part: Part, stretch: Stretch) -> None:
        if stretch.topic.id != part.info.id:
            raise Busy(f"topic {part.info.name!r} was made anew during its export", hint="run it again")

    def _look_at(self, part: Part, holes: list[tuple[Offset, Offset]]) -> None:
        """Holes are records that an operator took away; or retention went past us while we read, which is a gap, and is told
        when the rest is exported."""
        if not holes:
            return
        row = self._stats([part.info])[0].get(part.stats.partition)
        first = row.first if row is not None else part.stats.next
        for start, end in holes:
            if start < min(end, first):
                self._overtaken.append(self._gap(part, start, min(end, first)))
                self._gaps.append(self._overtaken[-1])
        holes.clear()

    # --- acks and deliveries

    def _states(self, part: Part) -> None:
        if not part.groups or self._seen.get(part.stats.partition) == part.groups:
            return
        since = part.position.acks_end
        index, runs = self._mq.ack_runs(part.info, part.number, since)
        acks = (
            self._place(part, export.ACKS).whole(states.acks(part.info, part.number, runs), since, index + 1) if runs else None
        )
        self._reached(part, acks_end=max(index + 1, since))  # not before they are on the disk
        if acks is not None:
            self._add(acks)
        pages = self._mq.state_pages(part.info, part.number)
        end = pages[0].index + 1
        if end > part.position.deliveries_end:
            rows = states.deliveries(part.info, part.number, pages)
            file = self._place(part, export.DELIVERIES).whole(rows, 0, end)
            self._reached(part, deliveries_end=end)
            self._add(file)
        self._seen[part.stats.partition] = part.groups

    # --- what counts

    def _place(self, part: Part, data_set: str) -> Place:
        return Place(self._folder, self._format, data_set, part.info.name, part.info.id, part.number)

    def _reached(self, part: Part, **ends: int) -> None:
        part.position = msgspec.structs.replace(part.position, **ends)
        self._positions[part.info.id, part.number] = part.position

    def _add(self, file: File, records: int = 0) -> None:
        self._files.append(file)
        self._done.records += records
        self._done.files += 1
        self._done.bytes += file.bytes
        self._progress(self._done.records, self._total)
        if sum(each.rows for each in self._files) >= CHECKPOINT_ROWS or (
            sum(each.bytes for each in self._files) >= CHECKPOINT_BYTES
        ):
            self._publish()

    def _publish(self) -> None:
        """A manifest, if there is something to say."""
        newest, files = self._export.newest, self._files
        positions = [self._positions[key] for key in sorted(self._positions)]
        if newest and not files and (newest.positions, newest.gaps) == (positions, self._gaps):
            return
        sequence = newest.sequence + 1 if newest else 1
        manifest = Manifest(
            export.VERSION,
            self._cluster,
            sequence,
            self._export.digest,
            time.time_ns() // 1000,
            self._format,
            files=files,
            positions=positions,
            gaps=self._gaps,
        )
        self._export, self._files = Export(manifest, self._folder.publish(manifest), []), []
        self._done.manifests += 1
