"""`gossipq backup`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gossipq.texts import many, size
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration, Size
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

if TYPE_CHECKING:
    from gossipq_node.backup.backup import BackupSource

PATIENCE_S = 60.0  #: for each part: a disk that is busy with a backup may stall for seconds


@click.command(cls=Verb)
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    help="folder of the backup, or s3://bucket/name; made if it is not there",
)
@click.option("--data", metavar="DIR", help="data directory of a stopped node, in place of a running cluster")
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
def command(choices: Choices, /, out: str, data: str | None, rate: int, keep_s: float | None) -> int:
    """Back up a running cluster, or a stopped node, incrementally.

    \b
    gossipq backup --out backups                   all of it at first, later what came since
    gossipq backup --out s3://bucket/backups       credentials come from the environment
    gossipq backup --out backups --keep 30d        and forget what is older
    gossipq backup --out backups --data DIR        of a stopped node that has a copy of each shard

    It may be interrupted at any time; the next run continues. gossipq store restore reads it. In
    a cluster with users it needs the permission "cluster". A backup contains all records, so protect it.
    """
    from gossipq_node.backup.backup import Backup, Pace
    from gossipq_node.backup.folder import folder_at

    output = Output(choices)
    told = lambda done: output.detail(f"{size(done)} read")  # noqa: E731
    with _source(choices, data) as source, folder_at(out, writes=True) as folder:
        taken = Backup(source, folder, Pace(rate), told).run(keep_s)
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


@contextmanager
def _source(choices: Choices, data: str | None) -> Iterator["BackupSource"]:
    """Open the stopped node in `data`, or connect to the running cluster."""
    if data is not None:
        from gossipq_node.backup.stopped import stopped_node

        with stopped_node(data) as node:
            if node.standby:
                shards = ", ".join(map(str, node.standby))
                Output(choices).say(f"this copy stood by: it may lack the newest records of shards {shards}")
            yield node
    else:
        with ask.connect(choices, PATIENCE_S) as mq:
            yield mq.admin.raw


def _seconds(point: Any) -> float:
    return float((point.written_ms - point.begun_ms) / 1_000)
