"""Global options, accepted before and after a command's name, and the click classes for that."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource
from click.types import StringParamType

from gossipq_cli import names
from gossipq_cli.choices import FORMS
from gossipq_cli.choices import Choices as Choices  # the commands take it from here
from gossipq_cli.kinds import Duration
from gossipq_ops.hints import nearest


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that stores given options only, so that a later
    one replaces an earlier one.
    """

    def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT:
            setattr(ctx.ensure_object(Choices), name, value)

    return store


def _servers(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> None:
    if value:
        ctx.ensure_object(Choices).servers = [
            server for text in value for server in text.split(",") if server
        ]


def _no_color(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Choices).color = False


def global_options() -> list[click.Option]:
    """Return new option objects, for one command."""

    def option(*names: str, **more: Any) -> click.Option:
        more.setdefault("callback", _keep(names[-1].lstrip("-").replace("-", "_")))
        return click.Option(names, expose_value=False, **more)

    return [
        option(
            "-s",
            "--server",
            multiple=True,
            type=names.CONTEXT,
            metavar="HOST:PORT",
            callback=_servers,
            help="node to ask, or several, or a context; default $GOSSIPQ_SERVER",
        ),
        option("-o", "--output", type=click.Choice(FORMS), help="form of the answer"),
        option("-q", "--quiet", is_flag=True, help="data and errors only"),
        option("-v", "--verbose", is_flag=True, help="say more on stderr"),
        option(
            "--timeout", type=Duration(), callback=_keep("timeout_s"), help="how long a request may take (5s)"
        ),
        option("--no-color", is_flag=True, callback=_no_color, help="no colours; NO_COLOR does the same"),
        option("--debug", is_flag=True, help="show the traceback of an error"),
        option("--credentials", metavar="FILE", help="file with the access token for a closed cluster"),
        option("--insecure", is_flag=True, help="send the token even over unencrypted connections"),
        option("-y", "--yes", is_flag=True, help="answer yes to all questions"),
    ]


class Verb(click.Command):
    """A command that also accepts the global options."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for param in self.params:
            if isinstance(param.type, StringParamType) and (kind := names.KINDS.get(param.name or "")):
                param.type = kind
        taken = {name for param in self.params for name in param.opts}
        self.own = list(self.params)
        self.params += [option for option in global_options() if not taken & set(option.opts)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Explain -g if a group was given as an extra argument, and name
        the command in other errors.
        """
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            extra = re.search(r"unexpected extra argument \((\S+)\)", error.message)
            if extra is None or not any("--group" in param.opts for param in self.own):
                raise
            raise click.UsageError(
                f"{extra[1]} is one name too many; if it is a group: -g {extra[1]}", ctx
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            row
            for param in self.get_params(ctx)
            if (param in self.own or "--help" in param.opts) and (row := param.get_help_record(ctx))
        ]
        with formatter.section("Options"):
            formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_text(
            "Also -s -o -q -v --timeout --no-color --credentials --insecure --debug -y: see `gossipq --help`."
        )


class Noun(click.Group):
    """A group of commands."""

    command_class = Verb

    def __init__(self, *args: Any, lazy: Sequence[str] = (), **more: Any) -> None:
        """`lazy` names commands whose module in `gossipq_cli.commands` is imported when they are called."""
        super().__init__(*args, **more)
        self.params += global_options()
        self.group_class = Noun
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(f"gossipq_cli.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command if it does not exist. Never runs a guess."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            makes_group = ctx.info_name == "group" and args[0] in ("create", "add", "new", "make")
            where = MAKES_GROUP if makes_group else pointer(args[0], self.list_commands(ctx))
            raise click.UsageError(f"no such command: {args[0]}{where}", ctx)
        return super().resolve_command(ctx, args)


#: commands of other tools -> their equivalents here
POINTERS = {
    "consume": ("sub",),
    "subscribe": ("sub",),
    "tail": ("sub",),
    "produce": ("pub",),
    "publish": ("pub",),
    "send": ("pub",),
    "put": ("pub",),
    "delete": ("rm", "topic rm", "group rm", "msg rm"),
    "del": ("rm", "topic rm", "group rm", "msg rm"),
    "remove": ("rm", "topic rm", "group rm", "msg rm"),
    "info": ("show", "status"),
    "describe": ("show", "topic show", "group show"),
    "get": ("show", "msg show"),
    "list": ("ls", "topic ls", "group ls"),
    "ls": ("topic ls", "group ls"),
    "lag": ("group lag",),
    "nodes": ("cluster ls",),
    "add": ("create", "topic create"),
    "new": ("create", "topic create"),
    "make": ("create", "topic create"),
    "reset": ("seek", "group seek"),
    "edit": ("set", "topic set", "msg edit"),
    "server": ("node",),
    "start": ("node",),
}
MAKES_GROUP = "; a group is made by its first consumer: `gossipq sub TOPIC -g GROUP`"


def pointer(word: str, known: Sequence[str]) -> str:
    """Like `nearest`, also for commands of other tools."""
    named = POINTERS.get(word, ())
    here = [verb for verb in named if verb in known] or [
        verb for verb in named if verb.partition(" ")[0] in known
    ]
    return f"; that is {' or '.join(f'`{verb}`' for verb in here)} here" if here else nearest(word, known)


pass_choices = click.make_pass_decorator(Choices, ensure=True)
