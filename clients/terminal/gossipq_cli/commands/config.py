"""`gossipq config`."""

import os
from typing import Any

import click

from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output


@click.group(cls=Noun)
def command() -> None:
    """Show or check the configuration a node would run with."""


file_option = click.option(
    "--config", metavar="FILE", help="default: $GOSSIPQ_CONFIG, ./cluster.toml, /etc/gossipq/cluster.toml, none"
)


@command.command("show")
@file_option
@pass_choices
def show(choices: Choices, config: str | None) -> None:
    """Show every option, its value, and where that comes from.

    \b
    gossipq config show
    GOSSIPQ_NODE__WORKERS=4 gossipq config show -o json
    """
    from gossipq.config import find, load, options, value_of

    loaded = load(find(config, os.environ), os.environ, {})
    rows: list[dict[str, Any]] = [
        {"key": key, "value": value_of(loaded.config, key), "origin": loaded.origins[key]} for key, _ in options()
    ]
    Output(choices).rows([Column("key"), Column("value", _toml), Column("origin")], rows)


def _toml(value: object) -> str:
    """As the file has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {_toml(each)}' for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


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
