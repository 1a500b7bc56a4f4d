"""`gossipq client spool`."""

import click

from gossipq.texts import moment
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, counter


@click.command(cls=Verb)
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@pass_choices
def command(choices: Choices, directory: str) -> None:
    """Show the records that wait in the spool of a client, oldest first. The client may be running.

    \b
    gossipq client spool DIRECTORY
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
