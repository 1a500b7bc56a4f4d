"""`gossipq init`."""

import os
import time

import click

from gossipq import permissions
from gossipq_cli import access, contexts, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

INVITED_S = 86_400.0  #: default lifetime of an invitation


@click.command(cls=Verb)
@click.option("--bind", metavar="URL", default="", help="tcp://HOST:7700, as other hosts reach this one")
@click.option("--data", metavar="DIR", default="gossipq-data", show_default=True, help="data directory")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    help="number of nodes; prints an invitation for each further one",
)
@click.option(
    "--expires",
    "expires_s",
    type=Duration(lasting=True),
    default=INVITED_S,
    help="how long invitations are valid (1d)",
)
@click.option(
    "--name",
    default="gossipq",
    show_default=True,
    help="name of the context that your commands use from now on",
)
@pass_choices
def command(choices: Choices, bind: str, data: str, nodes: int, expires_s: float, name: str) -> None:
    """Make keys, an admin and a context for a closed, encrypted cluster.

    \b
    gossipq init --nodes 3
    gossipq init --bind tcp://10.0.0.7:7700 --data /var/lib/gossipq --nodes 3

    Writes ./cluster.toml, the data directory, your token, and a context. Prints one command for each further
    node, which works once: run it there.
    """
    from gossipq_client import io
    from gossipq_node import inception

    kept = contexts.load()
    if name in kept.servers:
        raise failures.Failure(
            "context_exists",
            f"a context named {name} already exists",
            "choose another --name",
            failures.CONFLICT,
        )
    bind = inception.bind_of(bind)
    admin, invites = os.urandom(permissions.TOKEN_BYTES), _tokens(nodes - 1)
    expires_ms = int((time.time() + expires_s) * 1000)
    file = io.contexts.place().with_name(f"{name}.credentials")
    kept.servers[name], kept.current, kept.credentials[name] = [bind], name, str(file)
    with (
        inception.begin(data, bind, admin, invites, expires_ms) as begun,
        access.saving(file, admin, begun.door),
    ):
        kept.save()
    out = Output(choices)
    row = {"bind": bind, "data": data, "context": name, "credentials": str(file)}
    if out.for_machines:
        out.one(row | {"invitations": [each.text for each in begun.invitations]}, "", name)
        return
    out.say(f"keys are in {data}, options in cluster.toml; you are the user admin by {file}")
    out.say("start this node here: gossipq node" + ("; then on each further host one of:" if invites else ""))
    for each in begun.invitations:
        out.write(each.command)


def _tokens(count: int) -> list[bytes]:
    return [os.urandom(permissions.TOKEN_BYTES) for _ in range(count)]
