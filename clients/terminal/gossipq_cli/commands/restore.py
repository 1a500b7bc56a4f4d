"""`gossipq store restore`."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gossipq.texts import many, size
from gossipq_cli import failures
from gossipq_cli.kinds import Moment
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, counter
from gossipq_cli.progress import Progress

if TYPE_CHECKING:
    from gossipq_node.backup.folder import BackupFolder


@click.command(cls=Verb)
@click.argument("place", metavar="BACKUP")
@click.option("--data", metavar="DIR", help="data directory to make: new or empty")
@click.option("--list", "lists", is_flag=True, help="list the restore points")
@click.option("--as-of", type=Moment(), help="the newest restore point of that time or before")
@click.option(
    "-t", "--topic", "topics", multiple=True, help="only these topics; * stands for any text (repeatable)"
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="worker processes that the node will have",
)
@pass_choices
def command(
    choices: Choices,
    /,
    place: str,
    data: str | None,
    lists: bool,
    as_of: datetime | None,
    topics: tuple[str, ...],
    workers: int,
) -> int:
    """Restore a backup into a new data directory.

    \b
    gossipq store restore backups --list
    gossipq store restore backups --data restored                        the newest point
    gossipq store restore backups --data restored --as-of 2026-11-21T09:00Z
    gossipq store restore s3://bucket/backups --data restored -t orders -t 'invoices.*'

    The directory appears whole or not at all; a restore that was killed continues when you run it again. The
    node that starts there is a cluster of its own, with records, groups, schedules, dead letters, ids and
    users as they were; others may join it.
    """
    import os

    from gossipq.config import find
    from gossipq.config import load as configured
    from gossipq_node.backup.folder import folder_at
    from gossipq_node.backup.restore import Restore

    output = Output(choices)
    if lists == (data is not None):
        raise click.UsageError("name a directory with --data, or ask for --list")
    with folder_at(place, writes=False) as folder:
        if data is None:
            _list(output, folder)
            return failures.DONE
        progress = Progress("bytes", choices.quiet)
        map_bytes = configured(find(None, os.environ), os.environ, {}).config.node.map_bytes
        restore = Restore(folder, data, workers, map_bytes, progress)
        done = restore.run(None if as_of is None else round(as_of.timestamp() * 1_000), topics)
        progress.close()
    row: dict[str, Any] = {
        "data": data,
        "node_id": done.manifest.node_id,
        "cluster": done.manifest.cluster_uuid,
    }
    row |= {"point": done.point.sequence, "batches": done.batches, "left_out": done.removed}
    # the batches are those of all topics
    what = many(done.topics, "topic") if done.removed else many(done.batches, "batch", "batches")
    text = (
        f"{data} has {what} of point {done.point.sequence} and is a new "
        f"cluster, {done.manifest.cluster_uuid[:8]}: gossipq node --data {data} starts there"
    )
    output.one(row, text, data)
    return failures.DONE


def _list(output: Output, folder: "BackupFolder") -> None:
    from gossipq_node.backup.backup import read_points

    rows = [
        {
            "point": point.sequence,
            "made_at": datetime.fromtimestamp(point.written_ms // 1_000).astimezone().isoformat(),
            "cluster": point.cluster,
            "bytes": sum(file.bytes for file in point.files),
        }
        for point in read_points(folder)
    ]
    columns = [counter("point"), Column("made_at"), Column("cluster"), Column("bytes", size, right=True)]
    output.rows(columns, rows)
    if not rows:
        output.say(f"{folder.name} has no point: gossipq backup --out makes one")
