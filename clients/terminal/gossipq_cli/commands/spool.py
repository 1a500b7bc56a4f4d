"""`gossipq spool`."""

import click

from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter, moment


@click.group(cls=Noun)
def command() -> None:
    """Inspect the spool of a client, where records wait until they are confirmed."""


@command.command("show")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@pass_choices
def show(choices: Choices, directory: str) -> None:
    """Show what waits in a spool, oldest first; its client may be at work.

    \b
    gossipq spool show spool
    """
    from gossipq_client.io import spool

    rows = [
        {
            "number": number,
            "topic": row.topic,
            "id": row.id.decode(errors="backslashreplace"),
            "spooled": row.spooled_ms,
            "bytes": len(row.value),
        }
        for number, row in spool.show(directory)
    ]
    columns = [counter("number"), Column("topic"), Column("id"), Column("spooled", moment), counter("bytes")]
    Output(choices).rows(columns, rows)
