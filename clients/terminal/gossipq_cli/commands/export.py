"""`gossipq export`."""

import time
from typing import Any

import click
import msgspec

from gossipq.errors import Busy, NoReply, Unreachable
from gossipq.texts import many, size
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output
from gossipq_cli.progress import Progress

STATES_EVERY_S = 60.0  #: while it follows, acks and deliveries are exported so often
PASSING = (Busy, Unreachable, NoReply)  #: what --follow waits out


@click.command(cls=Verb)
@click.argument("topics", nargs=-1, metavar="[TOPIC ...]")
@click.option("--out", required=True, metavar="DIR", help="folder of the export; made if it is not there")
@click.option("--format", "form", type=click.Choice(["parquet", "lmdb"]), help="of the files (default: parquet, or as it was)")
@click.option("--follow", is_flag=True, help="go on with what comes, until it is interrupted")
@click.option(
    "--every", "every_s", type=Duration(), default="10s", show_default=True, help="pause between two steps of --follow"
)
@click.option("--allow-gap", is_flag=True, help="go on where retention removed records before they were exported")
@click.option("--compact", is_flag=True, help="only merge the small files of an export; no node is asked")
@pass_choices
def command(choices: Choices, /, topics: tuple[str, ...], out: str, compact: bool, **options: Any) -> int:
    """Write records, acks and states to Parquet or LMDB files.

    \b
    gossipq export --out lake                      all topics
    gossipq export orders "in*" --out lake         these
    gossipq export --out lake --follow             and what comes
    gossipq export --out lake --compact            few large files of many small ones

    Every run writes what is new since the last one; it may be interrupted at any time. Spark, polars and duckdb read the files.
    """
    from gossipq_client import columns

    columns.arrow("an export")
    return _compact(choices, out) if compact else _export(choices, out, topics, **options)


def _compact(choices: Choices, out: str) -> int:
    from gossipq_node.export.compacting import compact
    from gossipq_node.export.folder import Folder

    progress = Progress("files", choices.quiet)
    with Folder(out, make=False) as folder:
        merged = compact(folder, progress=progress)
    progress.close()
    Output(choices).one({"merged_files": merged}, f"{out}: {many(merged, 'file')} less")
    return failures.DONE


def _export(
    choices: Choices, out: str, topics: tuple[str, ...], form: str | None, follow: bool, every_s: float, allow_gap: bool
) -> int:
    from gossipq_node.export.exporter import Exporter
    from gossipq_node.export.folder import Folder

    output, progress = Output(choices), Progress("records", choices.quiet)
    with ask.connect(choices) as mq, Folder(out) as folder:
        exporter = Exporter(mq, folder, topics, form or "", allow_gap, progress)
        _tell(output, progress, exporter.run())
        states_s = time.monotonic()
        while follow:
            time.sleep(every_s)
            due = time.monotonic() >= states_s + STATES_EVERY_S
            try:
                done = exporter.run(with_states=due)
            except PASSING as error:
                output.say(f"{error}; trying again")
                continue
            states_s = time.monotonic() if due else states_s
            if done.manifests:
                _tell(output, progress, done)
    return failures.DONE


def _tell(output: Output, progress: Progress, done: Any) -> None:
    progress.close()
    rate = done.records / done.seconds if done.seconds else 0
    text = f"{many(done.records, 'record')} in {many(done.files, 'file')}, {size(done.bytes)}, {rate:,.0f} records/s"
    output.one(msgspec.to_builtins(done), text if done.manifests else "nothing new")
