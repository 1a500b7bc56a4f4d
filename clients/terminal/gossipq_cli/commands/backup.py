"""`gossipq backup`."""

from typing import Any

import click

from gossipq.texts import many, size
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration, Size
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

PATIENCE_S = 60.0  #: for each part: a disk that is busy with a backup may stall for seconds


@click.command(cls=Verb)
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    help="folder of the backup, or s3://bucket/name; made if it is not there",
)
@click.option(
    "--rate",
    type=Size(),
    default="32MiB",
    show_default=True,
    help="bytes read per second at most; 0: no limit",
)
@click.option(
    "--keep",
    "keep_s",
    type=Duration(),
    help="then remove restore points that are older than this; the newest one stays",
)
@pass_choices
def command(choices: Choices, /, out: str, rate: int, keep_s: float | None) -> int:
    """Back up a running cluster, incrementally.

    \b
    gossipq backup --out backups                   all of it at first, later what came since
    gossipq backup --out s3://bucket/backups       credentials come from the environment
    gossipq backup --out backups --keep 30d        and forget what is older

    It may be interrupted at any time; the next run continues. gossipq store restore reads it. In
    a cluster with users it needs the permission "cluster". A backup contains all records, so protect it.
    """
    from gossipq_client.api.sync import Exports
    from gossipq_node.backup.backup import Backup, Pace
    from gossipq_node.backup.folder import folder_at

    output = Output(choices)
    told = lambda done: output.detail(f"{size(done)} read")  # noqa: E731
    with ask.connect(choices, PATIENCE_S) as mq, folder_at(out, writes=True) as folder:
        taken = Backup(Exports(mq), folder, Pace(rate), told).run(keep_s)
    point = taken.point
    row: dict[str, Any] = {"out": out, "point": point.sequence, "cluster": point.cluster}
    row |= {"bytes_new": taken.bytes_new, "files_new": taken.files_new, "removed": taken.files_removed}
    row |= {"bytes": sum(file.bytes for file in point.files), "seconds": _seconds(point)}
    text = (
        f"point {point.sequence}: {size(taken.bytes_new)} new in {many(taken.files_new, 'file')}, "
        f"{size(row['bytes'])} in all, {row['seconds']:.1f} s"
    )
    output.one(row, text, str(point.sequence))
    return failures.DONE


def _seconds(point: Any) -> float:
    return float((point.written_ms - point.begun_ms) / 1_000)
