"""`gossipq config`."""

import os
from collections.abc import Callable
from typing import Any

import click

from gossipq_cli import ask
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, as_object


@click.group(cls=Noun)
def command() -> None:
    """Show or check the configuration a node would run with."""


file_option = click.option(
    "--config",
    metavar="FILE",
    help="default: $GOSSIPQ_CONFIG, ./cluster.toml, /etc/gossipq/cluster.toml, none",
)


@command.command("show")
@file_option
@click.option("--origin", is_flag=True, help="also where each value comes from; JSON always has that")
@click.option(
    "--running", is_flag=True, help="ask a node that runs what it runs with, instead of reading files"
)
@pass_choices
def show(choices: Choices, config: str | None, origin: bool, running: bool) -> None:
    """Show every option and its value.

    \b
    gossipq config show
    gossipq config show --origin
    gossipq config show --running -s tcp://127.0.0.1:7700
    GOSSIPQ_NODE__WORKERS=4 gossipq config show -o json
    """
    if running and config:
        raise click.UsageError("--running and --config exclude each other")
    rows, text = (_running(choices), str) if running else _here(config)
    Output(choices).rows(
        [Column("key"), Column("value", text), *([Column("origin")] if origin else [])], rows
    )


def _here(config: str | None) -> tuple[list[dict[str, Any]], Callable[[Any], str]]:
    from gossipq.config import find, load, options, toml_text, value_of

    loaded = load(find(config, os.environ), os.environ, {})
    keys = [key for key, _ in options()]
    return [
        {"key": key, "value": value_of(loaded.config, key), "origin": loaded.origins[key]} for key in keys
    ], toml_text


def _running(choices: Choices) -> list[dict[str, Any]]:
    with ask.connect(choices) as mq:
        return [as_object(row) for row in mq.admin.raw.running_config()]


@command.command("check")
@click.argument("file", required=False)
@file_option
@pass_choices
def check(choices: Choices, file: str | None, config: str | None) -> None:
    """Check a configuration without starting anything; exits 78 when it is bad.

    \b
    gossipq config check
    gossipq config check /etc/gossipq/cluster.toml
    gossipq config check --config /etc/gossipq/cluster.toml
    """
    from gossipq.config import find, load

    if file and config:
        raise click.UsageError("FILE and --config exclude each other")
    loaded = load(find(file or config, os.environ), os.environ, {})
    where = loaded.path or "defaults (no file found)"
    Output(choices).one({"ok": True, "path": loaded.path}, f"{where}: good")
