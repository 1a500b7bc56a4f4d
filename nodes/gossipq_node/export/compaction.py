"""Making few files of many: what `--follow` wrote in small steps is merged, and a base says what counts
now."""

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from gossipq.errors import DataLoss, ExportError
from gossipq.wire import export
from gossipq.wire.export import Export, File, Manifest
from gossipq_client import columns
from gossipq_node.export import files
from gossipq_node.export.folder import Folder
from gossipq_node.export.segments import FILE_BYTES, FILE_ROWS, PartitionFiles, Segment

if TYPE_CHECKING:
    from pyarrow import RecordBatch

KEEP_S = 3600.0  #: what was replaced stays so long, for readers that are at it


def compact(
    folder: Folder,
    keep_s: float = KEEP_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
    tiered: bool = False,
) -> int:
    """Merges neighbouring files; then removes what was replaced more than `keep_s` ago. Returns how many
    files there are less.

    `tiered`: as a follower does it again and again: no large file is written anew for a small one, and a base
    is published in any case. Raises TornExport when a file is not what its manifest says: nothing is changed
    then."""
    columns.arrow("an export")
    found = folder.read()
    if found.newest is None:
        raise ExportError(f"{folder.root} has no export", hint="gossipq export --out DIR makes one")
    kept: list[File] = []
    for run in _tiered(found) if tiered else _runs(found):
        kept += run if len(run) == 1 else [_merge(folder, found, found.newest.format, run)]
        progress(len(kept), len(found.files))
    if tiered or len(kept) < len(found.files):
        _publish(folder, found, kept)
    folder.forget(keep_s)
    return len(found.files) - len(kept)


def _runs(found: Export) -> Iterator[list[File]]:
    """Files that may be one: of one partition, without a gap between, and together not too large."""
    for _, placed in groupby(found.files, key=lambda file: file.key):
        run: list[File] = []
        for file in placed:
            if run and not (_fit([*run, file]) and _touch(found, run[-1], file)):
                yield run
                run = []
            run.append(file)
        yield run


def _tiered(found: Export) -> Iterator[list[File]]:
    """The same, but a file that is twice as large as all that follows it in its run stays as it is: sizes
    double from file to file, so there are few of them."""
    for _, placed in groupby(found.files, key=lambda file: file.key):
        runs: list[list[File]] = []
        for file in reversed(list(placed)):
            run = runs[-1] if runs else []
            if (
                run
                and file.rows <= 2 * sum(each.rows for each in run)
                and _fit([file, *run])
                and _touch(found, file, run[0])
            ):
                run.insert(0, file)
            else:
                runs.append([file])
        yield from reversed(runs)


def _fit(run: list[File]) -> bool:
    size = sum(max(file.bytes, file.column_bytes) for file in run)  # who merges or reads it has all in memory
    return sum(file.rows for file in run) <= FILE_ROWS and size <= FILE_BYTES


def _touch(found: Export, before: File, file: File) -> bool:
    """Whether two files may be one: no table refers to them, and nothing is known to be lost between them:
    what has no record there has none."""
    if found.is_final(before) or found.is_final(file) or before.schema != file.schema:
        return False
    if file.data_set != export.MESSAGES:
        return True
    try:
        export.check_loss(found, file.topic_id, file.partition, before.end, file.start)
    except DataLoss:
        return False
    return True


def _merge(folder: Folder, found: Export, format: str, run: list[File]) -> File:
    first, shape = run[0], found.shape_of(run[0])
    place = first.data_set, first.topic, first.topic_id, first.partition
    segment = Segment(PartitionFiles(folder, format, *place, first.schema, shape))
    for batch in _gathered(
        batch for file in run for batch in files.read(format, folder.check(file), file.data_set, shape)
    ):
        segment.add(batch)
    return segment.keep(first.start, run[-1].end)


def _gathered(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
    """The same rows in batches of a good size, as row groups should be."""
    waiting: list[RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if (
            sum(each.num_rows for each in waiting) >= columns.GROUP_ROWS
            or sum(each.nbytes for each in waiting) >= FILE_BYTES
        ):
            yield columns.arrow().concat_batches(waiting)
            waiting = []
    if waiting:
        yield columns.arrow().concat_batches(waiting)


def _publish(folder: Folder, found: Export, kept: list[File]) -> None:
    newest = found.newest
    assert newest is not None, "there is something to compact"
    folder.publish(
        Manifest(
            export.VERSION,
            newest.cluster,
            newest.sequence + 1,
            found.digest,
            time.time_ns() // 1000,
            newest.format,
            base=True,
            files=kept,
            positions=list(found.positions.values()),
            gaps=found.gaps,
            schemas=list(found.schemas.values()),
        )
    )
