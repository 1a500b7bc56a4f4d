"""`gossipq export`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from gossipq.errors import Busy, NoReply, Unreachable
from gossipq.texts import many, size
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output
from gossipq_cli.progress import Progress

if TYPE_CHECKING:
    from gossipq_node.export.follower import Follower

#: errors that --follow waits for; OSError: a full disk may get space
PASSING = (Busy, Unreachable, NoReply, OSError)
PAUSE_MAX_S = 60.0  #: between two tries after failures


@click.command(cls=Verb)
@click.argument("topics", nargs=-1, metavar="[TOPIC ...]")
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    help="folder of the export, or s3://bucket/name; made if it is not there",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "lmdb", "prettyq"]),
    help="format of the files (default: parquet, or that of the export); prettyq: records only, once",
)
@click.option("--follow", is_flag=True, help="keep exporting new records until it is interrupted")
@click.option(
    "--every",
    "every_s",
    type=Duration(),
    default="10s",
    show_default=True,
    help="how often --follow looks for new records",
)
@click.option(
    "--roll",
    "roll_s",
    type=Duration(),
    default="5m",
    show_default=True,
    help="--follow writes records that have waited this long",
)
@click.option(
    "--keep",
    "keep_s",
    type=Duration(),
    default="1h",
    show_default=True,
    help="how long merged files stay for readers of earlier states (as_of)",
)
@click.option(
    "--base",
    "base_s",
    type=Duration(),
    default="1h",
    show_default=True,
    help="how often --follow merges files and commits",
)
@click.option(
    "--iceberg",
    metavar="CATALOG",
    help="commit to Iceberg: a folder, https://..., or catalog:NAME of pyiceberg",
)
@click.option(
    "--iceberg-namespace",
    "namespace",
    default="gossipq",
    show_default=True,
    metavar="NAME",
    help="namespace of the Iceberg tables",
)
@click.option(
    "--metrics", metavar="HOST:PORT", help="HOST:PORT where --follow serves /metrics for Prometheus"
)
@click.option(
    "--allow-gap", is_flag=True, help="continue where retention removed records before they were exported"
)
@click.option("--compact", is_flag=True, help="only merge the small files of an export; needs no node")
@pass_choices
def command(
    choices: Choices, /, topics: tuple[str, ...], out: str, compact: bool, keep_s: float, **options: Any
) -> int:
    """Write records, acks and states to Parquet or LMDB files.

    \b
    gossipq export --out lake                      all topics
    gossipq export orders "in*" --out lake         these
    gossipq export --out lake --follow             and what comes, for as long as it runs
    gossipq export --out lake --compact            few large files of many small ones

    Every run writes what is new since the last one; it may be interrupted at any time. Spark, polars and
    duckdb read the files.
    """
    if options["form"] == "prettyq":
        return _prettyq(choices, out, topics)
    from gossipq_client import columns

    columns.arrow("an export")
    return (
        _compact(choices, out, keep_s) if compact else _export(choices, out, topics, keep_s=keep_s, **options)
    )


def _prettyq(choices: Choices, out: str, topics: tuple[str, ...]) -> int:
    from gossipq_cli import prettyq

    with ask.connect(choices) as mq:
        names = [
            info.name
            for pattern in topics or ("*",)
            for info in mq.topics(pattern)
            if not info.config.virtual and (not info.name.startswith("_") or pattern == info.name)
        ]
        count = prettyq.export(mq, names, Path(out))
    Output(choices).one({"records": count, "topics": len(names)}, f"{out}: {many(count, 'record')}")
    return failures.DONE


def _compact(choices: Choices, out: str, keep_s: float) -> int:
    from gossipq_node.export.compaction import compact
    from gossipq_node.export.objects import folder_at

    progress = Progress("files", choices.quiet)
    with folder_at(out, make=False) as folder:
        merged = compact(folder, keep_s, progress)
    progress.close()
    Output(choices).one({"merged_files": merged}, f"{out}: {many(merged, 'file')} less")
    return failures.DONE


def _export(
    choices: Choices,
    out: str,
    topics: tuple[str, ...],
    form: str | None,
    follow: bool,
    allow_gap: bool,
    **options: Any,
) -> int:
    from gossipq_node.export import iceberg
    from gossipq_node.export.exporter import Exporter
    from gossipq_node.export.follower import Follower
    from gossipq_node.export.objects import folder_at

    place = _place(options["metrics"]) if options["metrics"] else None
    catalog = iceberg.catalog(options["iceberg"]) if options["iceberg"] else None
    output, progress = Output(choices), Progress("records", choices.quiet)
    with ask.connect(choices) as mq, folder_at(out) as folder:
        exporter = Exporter(mq, folder, topics, form or "", allow_gap, progress)
        commit = (
            iceberg.Iceberg(folder, catalog, options["namespace"]).commit if catalog is not None else None
        )
        if follow:
            follower = Follower(
                exporter,
                folder,
                time.monotonic,
                options["roll_s"],
                options["keep_s"],
                options["base_s"],
                commit,
            )
            _follow(output, progress, follower, options["every_s"], place)
        done = exporter.run()
        _tell_gone(output, done.gone)
        _tell(output, progress, done)
        if commit is not None:
            _tell_committed(output, commit())
    return failures.DONE


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise click.UsageError(f"--metrics {text!r}: write HOST:PORT, as 127.0.0.1:7783")
    return host, int(port)


def _follow(
    output: Output, progress: Progress, follower: "Follower", every_s: float, place: tuple[str, int] | None
) -> NoReturn:
    """Run until it is interrupted."""
    from gossipq_node.export.metrics import Metrics

    metrics, failed = Metrics(), 0
    gone, unopened = list[str](), list[str]()
    first = True
    if place is not None:
        try:
            metrics.serve(*place)
        except OSError as error:
            hint = "name another one: --metrics 127.0.0.1:7784"
            raise failures.Failure(
                "port_taken", f"{place[0]}:{place[1]} cannot be used: {error.strerror}", hint
            ) from None
    while True:
        try:
            look = follower.look()
        except PASSING as error:
            metrics.failed(error)
            failed += 1
            output.say(f"{error}; trying again")
        else:
            metrics.count(look)
            failed = failed + 1 if look.done.unopened else 0
            for told in [each for each in look.done.unopened if each not in unopened]:
                output.say(f"{told}. Until then their partition waits; all else is exported")
            unopened = look.done.unopened
            _tell_gone(output, [name for name in look.done.gone if name not in gone])
            gone = look.done.gone
            if look.done.manifests or first:
                _tell(output, progress, look.done)
            first = False
            if look.merged_files:
                output.say(f"merged {many(look.merged_files, 'file')}")
            if look.committed is not None:
                _tell_committed(output, look.committed)
        time.sleep(min(PAUSE_MAX_S, every_s * 2**failed) if failed else every_s)


def _tell_gone(output: Output, names: list[str]) -> None:
    for name in names:
        output.say(f"topic {name} is gone; what was exported of it stays")


def _tell_committed(output: Output, committed: Any) -> None:
    if committed.files:
        told = ", ".join(f"{many(count, 'file')} of {name}" for name, count in committed.files.items())
        output.say(f"committed {many(committed.records, 'record')} to Iceberg: {told}")


def _tell(output: Output, progress: Progress, done: Any) -> None:
    progress.close()
    rate = done.records / done.seconds if done.seconds else 0
    text = (
        f"{many(done.records, 'record')} in {many(done.files, 'file')}, {size(done.bytes)}, {rate:,.0f} "
        "records/s"
    )
    if done.misfits:
        told = f"{many(done.misfits, 'record')} did not fit the schema of their topic"
        output.say(f"{told}: they are in misfits, too")
    output.one(msgspec.to_builtins(done), text if done.manifests else "nothing new")
