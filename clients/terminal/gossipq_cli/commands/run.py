"""`gossipq run`."""

import os
import sys

import click

from gossipq_cli.failures import STUCK, Failure
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
@click.option("--guarded", is_flag=True, hidden=True)
@pass_choices
def command(choices: Choices, application: str, processes: int, reload: bool, guarded: bool) -> int:
    """Run the handlers of an application.

    \b
    gossipq run app:mq
    gossipq run app:mq --processes 4
    gossipq run app:mq --reload

    app.py has `mq = connect()` and functions with `@mq.consumer(...)`. SIGTERM or Ctrl-C: handlers that run
    finish, other records are redelivered; a second one stops at once. A process that dies is started again.
    """
    from gossipq_client import TimeLimitExceeded, app
    from gossipq_client.app import fleet

    if choices.servers:
        os.environ["GOSSIPQ_SERVER"] = ",".join(choices.servers)
    if processes == 1 and not reload:
        try:
            app.run(application, guarded)
        except TimeLimitExceeded as error:
            hint = "the log says where they hang: give that call a timeout"
            raise Failure("stuck", str(error), hint, STUCK) from None
        return 0
    again = [
        sys.executable,
        "-m",
        "gossipq_cli",
        "run",
        "--guarded",
        application,
        *(["--debug"] if choices.debug else []),
    ]
    return fleet.Fleet(again, processes, fleet.source_directory(application) if reload else None).run()
