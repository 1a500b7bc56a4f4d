"""Plans reads: from partitions and options to spans of offsets, parts of files, and tasks. Pure."""

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from gossipq.errors import BadRequest, DataLoss, ExportError, UnknownTopic
from gossipq.lakes import nearest
from gossipq.wire import export
from gossipq.wire.export import Export, File
from gossipq.wire.schemas import Shape
from pyspark_gossipq.asked import EARLIEST, Asked, Bound

TASK_RECORDS = 500_000
TASK_BYTES = 128 << 20
MARK = "#"  #: separates name and id of a topic in a stream's offsets, because names can be reused

CLUSTER = MARK  #: in a stream's offsets, beside topics: their cluster -> 0
Stamps = dict[str, dict[str, int]]  #: offsets of a stream: topic#id -> partition -> offset


class Known(NamedTuple):
    """A partition and its readable offsets."""

    topic: str
    topic_id: int
    partition: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.topic}{MARK}{self.topic_id}"

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition


class Span(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    topic_id: int
    partition: int
    start: int
    end: int

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition


class Part(NamedTuple):
    """Rows of one file: all of it, or offsets [start, end).

    Only messages have offsets. Of acks and deliveries whole files are read, and
    [start, end) counts rows.
    """

    path: str
    format: str
    topic_id: int
    partition: int
    start: int
    end: int
    whole: bool
    records: int
    bytes: int


def known(exported: Export, asked: Asked) -> list[Known]:
    """Return the wanted partitions of an export."""
    found = [
        Known(at.topic, at.topic_id, at.partition, at.start, at.end) for at in exported.positions.values()
    ]
    wanted = sorted(at for at in found if asked.wants(at.topic, at.partition))
    require_names(asked, {(at.topic, at.partition) for at in found})
    return wanted


def shape(exported: Export, asked: Asked) -> Shape | None:
    """Return the shape of the column `data` for an export."""
    return common_shape(map(exported.shape, asked.topics)) if may_be_typed(asked) else None


def may_be_typed(asked: Asked) -> bool:
    """True if the frame may have a column `data`: messages of topics given by name."""
    named = bool(asked.topics) and not any("*" in name for name in asked.topics)
    return named and asked.data_set == export.MESSAGES and not asked.kafka_schema


def common_shape(shapes: Iterable[Shape | None]) -> Shape | None:
    """Return the common shape; None if they differ, because a column has one type."""
    found = list(shapes)
    return found[0] if found and all(shape == found[0] for shape in found) else None


def require_names(asked: Asked, there: Set[tuple[str, int]]) -> None:
    """Check that topics and partitions given by name exist. Raises UnknownTopic, BadRequest.

    Otherwise a typing error would read no rows. `there` has all (topic, partition).
    """
    topics = {topic for topic, _ in there}
    for name in (*(name for name in asked.topics if "*" not in name), *(name for name, _ in asked.assign)):
        if name not in topics:
            raise UnknownTopic(f"topic {name!r} does not exist here", hint=nearest(name, topics))
    for name, numbers in asked.assign:
        for number in numbers:
            if (name, number) not in there:
                raise BadRequest(
                    f"assign: topic {name!r} has no partition {number}", hint="partitions count from 0"
                )


def require_offsets(asked: Asked, wanted: Iterable[Known]) -> None:
    """Check that offsets are given only for partitions that are read. Raises
    UnknownTopic, BadRequest.

    Otherwise all of the misspelt topic would be read.
    """
    chosen = {(at.topic, at.partition) for at in wanted}
    topics = {topic for topic, _ in chosen}
    given = (
        ("startingOffsets", asked.starting.offsets if asked.starting else ()),
        ("startingOffsetsByTimestamp", asked.starting_times),
        ("endingOffsets", asked.ending.offsets if asked.ending else ()),
    )
    for option, told in given:
        for name, number, _ in told:
            if name not in topics:
                raise UnknownTopic(
                    f"{option} names topic {name!r}, which is not read", hint=nearest(name, topics)
                )
            if (name, number) not in chosen:
                raise BadRequest(
                    f"{option} names {name}/{number}, which is not read", hint="partitions count from 0"
                )


def spans(partitions: Iterable[Known], asked: Asked) -> list[Span]:
    """Return the spans of a batch. Raises DataLoss, unless failOnDataLoss
    is off, and UnknownTopic.
    """
    partitions = list(partitions)
    require_offsets(asked, partitions)
    starting, ending = asked.starting or Bound(EARLIEST), asked.ending
    found = []
    for at in partitions:
        if asked.ranges:
            named = [each[2:] for each in asked.ranges if each[:2] == (at.topic_id, at.partition)]
            found += [
                span(at, start, min(end, at.end), asked.fail_on_data_loss) for start, end in _merged(named)
            ]
            continue
        start = starting.of(at.topic, at.partition, at.first, at.end)
        end = at.end if ending is None else ending.of(at.topic, at.partition, at.first, at.end)
        found.append(span(at, start, min(end, at.end), asked.fail_on_data_loss))
    return [each for each in found if each.start < each.end]


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort and join ranges."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def span(at: Known, start: int, end: int, fail: bool) -> Span:
    """Return the readable part of a range. Raises DataLoss."""
    if start < min(at.first, end) and fail:
        raise DataLoss(
            f"{at.topic}/{at.partition}: records {start} to {min(at.first, end) - 1} cannot be read any "
            "more, "
            f"the first that can is {at.first}",
            hint=(
                "go on without them: failOnDataLoss=false; export more often, or raise the topic's retention"
            ),
        )
    if end > max(start, at.end) and fail:
        raise DataLoss(
            f"{at.topic}/{at.partition}: records {max(start, at.end)} to {end - 1} were there, and it ends "
            f"at {at.end} now: it went back to an older copy",
            hint=(
                "an export that goes on comes as far again: try again then; a cluster has others in their "
                "place: go on with those by failOnDataLoss=false"
            ),
        )
    return Span(at.topic, at.topic_id, at.partition, max(start, at.first), min(end, at.end))


def require(exported: Export, wanted: Iterable[Span]) -> None:
    """Raise DataLoss if retention removed some of it before it was exported."""
    for each in wanted:
        export.check_loss(exported, each.topic_id, each.partition, each.start, each.end)


def parts(exported: Export, wanted: Iterable[Span], asked: Asked) -> list[Part]:
    """Return the files that overlap the spans and times."""
    assert exported.newest is not None, "a folder without manifests is refused before"
    by_place: dict[tuple[int, int], list[Span]] = {}
    for each in wanted:
        by_place.setdefault((each.topic_id, each.partition), []).append(each)
    found = []
    for file in exported.of(export.MESSAGES):
        for each in by_place.get((file.topic_id, file.partition), ()):
            start, end = max(file.start, each.start), min(file.end, each.end)
            if start < end and file.rows and not _out_of_time(file, asked):
                found.append(_part(file, format_of(file), start, end))
    return found


def states(exported: Export, asked: Asked) -> list[Part]:
    """Return the files of acks or deliveries of the wanted partitions."""
    wanted = {(at.topic_id, at.partition) for at in known(exported, asked)}
    files = [
        file
        for file in exported.of(asked.data_set)
        if file.rows and (file.topic_id, file.partition) in wanted
    ]
    return [
        Part(
            file.path,
            format_of(file),
            file.topic_id,
            file.partition,
            0,
            file.rows,
            True,
            file.rows,
            file.bytes,
        )
        for file in files
    ]


def format_of(file: File) -> str:
    return file.path.rpartition(".")[2]


def _part(file: File, format: str, start: int, end: int) -> Part:
    share = (end - start) / max(1, file.end - file.start)
    return Part(
        file.path,
        format,
        file.topic_id,
        file.partition,
        start,
        end,
        (start, end) == (file.start, file.end),
        round(file.rows * share),
        round(file.bytes * share),
    )


def _out_of_time(file: File, asked: Asked) -> bool:
    if file.publish_min_us is None or file.publish_max_us is None:
        return False
    return (asked.starting_us is not None and file.publish_max_us < asked.starting_us) or (
        asked.ending_us is not None and file.publish_min_us >= asked.ending_us
    )


def tasks(found: list[Part], asked: Asked) -> list[list[Part]]:
    """Join or cut parts, so that tasks have similar sizes. Acks and deliveries are never cut."""
    total = sum(part.end - part.start for part in found)
    limit = asked.records_per_task or TASK_RECORDS
    if asked.tasks_min:
        limit = max(1, min(limit, -(-total // asked.tasks_min)))
    made: list[list[Part]] = []
    records = size = 0
    cut = asked.data_set == export.MESSAGES
    for part in (piece for each in found for piece in (_cut(each, limit) if cut else [each])):
        if not made or records + part.end - part.start > limit or size + part.bytes > TASK_BYTES:
            made.append([])
            records = size = 0
        made[-1].append(part)
        records, size = records + part.end - part.start, size + part.bytes
    return made


def _cut(part: Part, limit: int) -> list[Part]:
    length = part.end - part.start
    if length <= limit:
        return [part]
    starts = range(part.start, part.end, limit)
    return [
        part._replace(
            start=start,
            end=min(part.end, start + limit),
            whole=False,
            records=part.records * limit // length,
            bytes=part.bytes * limit // length,
        )
        for start in starts
    ]


def cut_spans(wanted: Iterable[Span], asked: Asked) -> list[Span]:
    """Cut spans of a cluster into one task each."""
    wanted = list(wanted)
    total = sum(each.end - each.start for each in wanted)
    limit = asked.records_per_task or TASK_RECORDS
    if asked.tasks_min:
        limit = max(1, min(limit, -(-total // asked.tasks_min)))
    return [
        each._replace(start=start, end=min(each.end, start + limit))
        for each in wanted
        for start in range(each.start, each.end, limit)
    ]


# --- offsets of streams


def stamps(positions: Mapping[tuple[str, int], int], like: Stamps | None = None) -> Stamps:
    """Return {("orders#7", 0): 12} in Spark's form, with the cluster of `like`."""
    found: Stamps = {}
    for (name, partition), offset in sorted(positions.items()):
        found.setdefault(name, {})[str(partition)] = offset
    return found | {CLUSTER: like[CLUSTER]} if like and CLUSTER in like else found


def positions(told: Stamps) -> dict[tuple[str, int], int]:
    return {
        (name, int(number)): offset
        for name, numbers in told.items()
        for number, offset in numbers.items()
        if name != CLUSTER
    }


def of_cluster(told: Stamps, cluster: str) -> Stamps:
    """Add the name of the cluster to offsets, if it is known. Raises
    ExportError for another cluster.

    Its records have the same offsets, so those below would never be read.
    """
    if not cluster:
        return told
    if cluster not in told.get(CLUSTER, (cluster,)):
        raise ExportError(
            f"the checkpoint is of cluster {', '.join(told[CLUSTER])}, and the records are of {cluster}",
            hint="name another checkpointLocation: the query begins anew",
        )
    return told | {CLUSTER: {cluster: 0}}


def between(start: Stamps, end: Stamps) -> int:
    """Count the offsets between. New partitions are not counted."""
    begin = positions(start)
    return sum(offset - begin.get(place, offset) for place, offset in positions(end).items())


def advance(start: Stamps, partitions: Iterable[Known], most: int) -> Stamps:
    """Return the end of a batch that begins at `start`: all, or `most` offsets, shared by lag.

    A new partition begins at its first offset. A removed one keeps its position.
    """
    here, waiting = positions(start), {}
    for at in partitions:
        begin = here.setdefault((at.name, at.partition), at.first)
        if at.end > begin:
            waiting[at.name, at.partition] = at.end - max(begin, at.first), at
    total = sum(count for count, _ in waiting.values())
    for place, (count, at) in waiting.items():
        share = count if not most or total <= most else max(1, most * count // total)
        here[place] = max(here[place], at.first) + share
    return stamps(here, start)
