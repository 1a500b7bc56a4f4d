"""`gossipq witness`."""

from typing import Any

import click

from gossipq_cli.commands.node import common, start
from gossipq_cli.options import Verb


@click.command(cls=Verb)
@common
def command(config: str | None, **given: Any) -> int:
    """Run a witness, which votes so that two nodes can take over from each other.

    \b
    gossipq witness --join ada
    gossipq witness --data w --bind tcp://127.0.0.1:8100 --peer tcp://127.0.0.1:7700

    It votes in elections of leaders and keeps no records. Any third host will do; a cluster of three full
    nodes needs none.
    """
    return start(config, given, witness=True)
