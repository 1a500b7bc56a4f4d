"""Merges the small files that `--follow` writes, and publishes a base."""

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

KEEP_S = 3600.0  #: replaced files stay this long, for programs that are reading them


def compact(
    folder: Folder,
    keep_s: float = KEEP_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
    tiered: bool = False,
) -> int:
    """Merge neighbouring files, and delete those replaced more than `keep_s` ago.

    Returns by how many files the export shrank. `tiered`: for repeated calls of a follower; large
    files are not rewritten for small ones, and a base is always published. Raises TornExport if a
    file differs from its manifest; then nothing is changed.
    """
    columns.arrow("an export")
    found = folder.read()
    if found.newest is None:
        raise ExportError(f"{folder.root} has no export", hint="gossipq export --out DIR makes one")
    kept: list[File] = []
    # merged files get new names, so readers of the old manifest still find the old files
    for run in _tiered(found) if tiered else _runs(found):
        kept += run if len(run) == 1 else [_merge(folder, found, found.newest.format, run)]
        progress(len(kept), len(found.files))
    if tiered or len(kept) < len(found.files):
        _publish(folder, found, kept)
    folder.forget(keep_s)
    return len(found.files) - len(kept)


def _runs(found: Export) -> Iterator[list[File]]:
    """Yield files of one partition that can become one: without a gap,
    and not too large together.
    """
    for _, placed in groupby(found.files, key=lambda file: file.key):
        run: list[File] = []
        for file in placed:
            if run and not (_fit([*run, file]) and _touch(found, run[-1], file)):
                yield run
                run = []
            run.append(file)
        yield run


def _tiered(found: Export) -> Iterator[list[File]]:
    """Like `_runs`, but keep a file that is twice as large as all later files of its run.

    Sizes then double from file to file, so there are few files.
    """
    for _, placed in groupby(found.files, key=lambda file: file.key):
        runs: list[list[File]] = []
        # from the newest file back, because a file is compared with the sum of all later ones
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
    # merging or reading a file needs all of it in memory
    size = sum(max(file.bytes, file.column_bytes) for file in run)
    return sum(file.rows for file in run) <= FILE_ROWS and size <= FILE_BYTES


def _touch(found: Export, before: File, file: File) -> bool:
    """True if two files can be merged.

    Tables must not refer to them, and no records may have been lost between them. A range
    without records does not matter.
    """
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
    place = PartitionFiles(
        folder,
        format,
        data_set=first.data_set,
        topic=first.topic,
        topic_id=first.topic_id,
        partition=first.partition,
        schema=first.schema,
        shape=shape,
    )
    segment = Segment(place)
    for batch in _gathered(
        batch for file in run for batch in files.read(format, folder.check(file), file.data_set, shape)
    ):
        segment.add(batch)
    return segment.keep(first.start, run[-1].end)


def _gathered(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
    """Yield the same rows in larger batches, which become row groups."""
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
    # a base has all files and positions, so that readers need no manifest before it
    newest = found.newest
    assert newest is not None, "there is something to compact"
    folder.publish(
        Manifest(
            version=export.VERSION,
            cluster=newest.cluster,
            sequence=newest.sequence + 1,
            previous=found.digest,
            written_us=time.time_ns() // 1000,
            format=newest.format,
            base=True,
            files=kept,
            positions=list(found.positions.values()),
            gaps=found.gaps,
            schemas=list(found.schemas.values()),
        )
    )
