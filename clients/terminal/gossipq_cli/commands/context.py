"""`gossipq context`."""

import os

import click

from gossipq_cli import contexts, failures, names
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output


@click.group(cls=Noun)
def command() -> None:
    """Save servers under a name, and choose the default."""


@command.command("save")
@click.argument("name")
@pass_choices
def save(choices: Choices, name: str) -> None:
    """Save the servers given with -s under a name.

    \b
    gossipq context save shop -s tcp://10.0.0.7:7700 -s tcp://10.0.0.8:7700
    gossipq -s shop status
    gossipq --credentials ~/shop.token context save shop -s tcp://127.0.0.1:7700

    A file of credentials that is given is kept with it: the name of the file, not the token.
    """
    if ":" in name or not name.strip():
        raise click.UsageError(f"{name!r} is no name for a context")
    if not choices.servers:
        raise click.UsageError("name its servers: -s tcp://HOST:7700")
    kept = contexts.load()
    kept.servers[name] = contexts.servers_of(choices.servers)
    if choices.credentials:
        kept.credentials[name] = os.path.abspath(choices.credentials)
    kept.save()
    row = {"context": name, "servers": kept.servers[name]}
    Output(choices).one(
        row,
        f"{name} is {', '.join(kept.servers[name])}; gossipq context use {name} makes it the default",
        name,
    )


@command.command("use")
@click.argument("name", type=names.CONTEXT)
@pass_choices
def use(choices: Choices, name: str) -> None:
    """Make a context the default; - for none.

    \b
    gossipq context use shop
    gossipq context use -

    $GOSSIPQ_SERVER and -s come before it.
    """
    kept = contexts.load()
    if name != "-":
        with contexts.told():
            kept.named(name)
    kept.current = "" if name == "-" else name
    kept.save()
    Output(choices).one(
        {"context": kept.current},
        f"{kept.current} is in use" if kept.current else "none is in use",
        kept.current,
    )


@command.command("ls")
@pass_choices
def list_contexts(choices: Choices) -> None:
    """List the saved contexts.

    \b
    gossipq context ls
    """
    kept, out = contexts.load(), Output(choices)
    rows = [
        {"context": name, "servers": urls, "current": name == kept.current}
        for name, urls in sorted(kept.servers.items())
    ]
    columns = [
        Column("context"),
        Column("servers", ", ".join),
        Column("current", lambda current: "in use" if current else ""),
    ]
    out.rows(columns, rows)
    if not rows:
        out.say("none is kept; gossipq context save NAME -s tcp://HOST:7700 keeps one")


@command.command("rm")
@click.argument("name", type=names.CONTEXT)
@pass_choices
def remove(choices: Choices, name: str) -> int:
    """Forget a context.

    \b
    gossipq context rm shop
    """
    kept = contexts.load()
    with contexts.told():
        kept.named(name)
    del kept.servers[name]
    kept.current = "" if kept.current == name else kept.current
    kept.save()
    Output(choices).say(f"context {name} is forgotten")
    return failures.DONE
