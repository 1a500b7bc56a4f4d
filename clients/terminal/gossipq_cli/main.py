"""The `gossipq` command: a tree of commands whose modules are imported when they are called."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from gossipq import __version__
from gossipq_cli import failures, streams
from gossipq_cli.options import Choices, Noun, pass_choices

#: group -> command -> first line of its help; the click object is `gossipq_cli.commands.<command>.command`
GROUPS = {
    "Use": {
        "pub": "Publish records: an argument, stdin, or a line each.",
        "sub": "Print records as they come, or from any point of a topic.",
        "peek": "Look at records without consuming them.",
        "msg": "Show, find, cancel, move, edit and remove records.",
        "schedule": "Store records by a cron expression or every so often.",
        "job": "Show a record as a job, wait for its result, join or cancel jobs, count errors.",
        "run": "Run the handlers of an application.",
        "outbox": "Publish the rows that transactions left in an outbox.",
    },
    "Inspect": {
        "status": "Show the health of a node and its cluster, or wait for it.",
        "why": "Explain why a record or a group is in its state, and what changes it.",
        "top": "Watch nodes, topics, groups, clients, messages and growth.",
        "check": "Answer a monitoring system: ready, cluster, lag, disk.",
        "doctor": "Examine this machine: Serf, ports, disk, limits, clock, versions.",
        "help": "Explain a command or a topic: health, exit codes, an alarm, times.",
    },
    "Operate": {
        "node": "Run a node or a witness: the first of a cluster, or one more.",
        "gateway": "Serve HTTP, a console for browsers, Amazon SQS and older wires.",
        "cluster": "List, invite, drain, remove nodes; options; close; recover.",
        "topic": "List, make, change, show, empty, remove topics and their schemas.",
        "group": "List, show, change, move, pause, remove consumer groups.",
        "dlq": "List, show, replay and purge dead letters.",
        "client": "List and end sessions; inspect a spool; test a new client.",
    },
    "Secure": {
        "init": "Make keys, an admin and a context for a closed, encrypted cluster.",
        "user": "Manage users, roles and tokens; read the audit log.",
        "context": "Save servers under a name, and choose the default.",
    },
    "Maintain": {
        "config": "Show or check the configuration a node would run with.",
        "store": "Inspect, check, copy, shrink, restore a data directory, offline.",
        "backup": "Back up a running cluster, or a stopped node, incrementally.",
        "export": "Write records, acks and states to Parquet or LMDB files.",
        "spark": "Run Spark jobs over exports: growth, latency, dead, search, replay.",
        "bench": "Measure publish, consume, end to end, round trip, and latency.",
        "demo": "Run a demo: nodes, a producer, consumers, some of them killed.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
#: command of an earlier version -> what does the same now
MOVED = {
    "witness": "node --witness",
    "query": "peek TOPIC --position POS",
    "trace": "why REF --steps",
    "role": "user role",
    "audit": "user audit",
    "whoami": "user whoami",
    "schema": "topic schema",
    "spool": "client spool",
    "conformance": "client conformance",
    "restore": "store restore",
    "completion": "--completion SHELL",
    "version": "--version",
}
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GOSSIPQ_COMPLETE"  #: read by click
EPILOG = """\b
Exit codes:
""" + "\n".join(f"  {number:<4} {text}" for number, text in failures.EXIT_CODES.items())


class Root(Noun):
    """Knows its commands by name and imports only the called one."""

    moved = MOVED

    def make_context(
        self, info_name: str | None, args: list[str], *more: Any, **options: Any
    ) -> click.Context:
        """Options before `check` belong to the check: a wrong one is UNKNOWN too."""
        if next((word for word in args if word in COMMANDS), "") != "check":
            return super().make_context(info_name, args, *more, **options)
        from gossipq_cli.commands.check import unknown_unless_known

        with unknown_unless_known():
            return super().make_context(info_name, args, *more, **options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the new command if an old one is called."""
        if args and (now := MOVED.get(args[0])):
            raise click.UsageError(f"no such command: {args[0]}; that is `gossipq {now}` now", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<7}", text) for name, text in group.items()])


def _print_version(choices: Choices) -> None:
    if choices.output not in ("json", "jsonl"):
        click.echo(f"gossipq {__version__}")
        return
    from importlib.metadata import version
    from platform import python_version

    from gossipq_cli.output import Output

    libraries = {name: version(name) for name in ("pyzmq", "lmdb", "msgspec", "click", "rich")}
    Output(choices).one({"version": __version__, "python": python_version(), **libraries})


def _print_completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows each of SHELLS"
    click.echo(kind(root, {}, "gossipq", VARIABLE).source())


@click.group(
    cls=Root,
    lazy=tuple(COMMANDS),
    epilog=EPILOG,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--version", is_flag=True, help="print the version; with -o json also those of libraries")
@click.option(
    "--completion",
    type=click.Choice(SHELLS),
    help="print what a shell needs to complete these commands, to be added to ~/.bashrc",
)
@pass_choices
@click.pass_context
def root(ctx: click.Context, choices: Choices, version: bool, completion: str | None) -> None:
    """gossipq: a message broker that keeps what it confirmed.

    \b
    gossipq node &                          start a node on this machine
    gossipq pub hello "first message"       publish
    gossipq sub hello --from first -n 1     read it back
    gossipq why hello/0/0                   and where does it stand?

    Data goes to stdout, everything else to stderr. Options below go before or after the command.
    """
    if version:
        _print_version(choices)
    elif completion:
        _print_completion(completion)
    elif ctx.invoked_subcommand is None:
        raise click.UsageError("Missing command.", ctx)
    else:
        return
    ctx.exit()


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are printed here."""
    choices = Choices()
    try:
        answer = root.main(args=list(argv), prog_name="gossipq", standalone_mode=False, obj=choices)
        sys.stdout.flush()
    except BaseException as error:
        return failures.report(error, argv, choices.output, choices.debug, choices.servers)
    return answer if isinstance(answer, int) else failures.DONE


def run() -> NoReturn:
    """The console script."""
    streams.prepare()
    sys.exit(main(sys.argv[1:]))
