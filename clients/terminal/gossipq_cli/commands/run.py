"""`gossipq run`."""

import os
import sys

import click

from gossipq_cli.failures import STUCK, Failure
from gossipq_cli.kinds import Size
from gossipq_cli.options import Choices, Verb, pass_choices


@click.command(cls=Verb)
@click.argument("application", metavar="MODULE:NAME")
@click.option(
    "--processes",
    type=click.IntRange(min=1, max=1_000),
    default=1,
    metavar="N",
    help="number of processes (1)",
)
@click.option("--reload", is_flag=True, help="start again when a .py file of the application has changed")
@click.option(
    "--max-records",
    type=click.IntRange(min=1),
    metavar="N",
    help="start a new process after N records (none)",
)
@click.option("--max-memory", type=Size(), help="start a new process above this memory: 500MiB (none)")
@click.option("--guarded", is_flag=True, hidden=True)
@pass_choices
def command(
    choices: Choices,
    application: str,
    processes: int,
    reload: bool,
    max_records: int | None,
    max_memory: int | None,
    guarded: bool,
) -> int:
    """Run the handlers of an application.

    \b
    gossipq run app:mq
    gossipq run app:mq --processes 4
    gossipq run app:mq --max-records 100000 --max-memory 500MiB
    gossipq run app:mq --reload

    app.py has `mq = connect()` and functions with `@mq.consumer(...)`. SIGTERM or Ctrl-C: handlers that run
    finish, other records are redelivered; a second one stops at once. A process that dies is started again.
    One that reaches --max-records or --max-memory finishes its running handlers, and a new one starts.
    """
    from gossipq_client import TimeLimitExceeded, app
    from gossipq_client.app import fleet

    if choices.servers:
        os.environ["GOSSIPQ_SERVER"] = ",".join(choices.servers)
    recycles = max_records is not None or max_memory is not None
    if guarded or not (processes > 1 or reload or recycles):
        try:
            ended = app.run(application, guarded, max_records, max_memory)
        except TimeLimitExceeded as error:
            hint = "the log says where they hang: give that call a timeout"
            raise Failure("stuck", str(error), hint, STUCK) from None
        return fleet.RECYCLED if ended in ("max_records", "max_memory") else 0
    again = [
        sys.executable,
        "-m",
        "gossipq_cli",
        "run",
        "--guarded",
        application,
        *([f"--max-records={max_records}"] if max_records is not None else []),
        *([f"--max-memory={max_memory}"] if max_memory is not None else []),
        *(["--debug"] if choices.debug else []),
    ]
    return fleet.Fleet(again, processes, fleet.source_directory(application) if reload else None).run()
