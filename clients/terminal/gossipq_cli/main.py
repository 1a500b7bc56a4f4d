"""The `gossipq` command: a tree of commands whose modules are imported when they are called."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from gossipq import __version__
from gossipq_cli import failures, streams
from gossipq_cli.options import Choices, Noun

#: command -> first line of its help; the click object is `gossipq_cli.commands.<command>.command`
COMMANDS = {
    "init": "Make keys, an admin and a context for a closed, encrypted cluster.",
    "node": "Run a node: the first of a cluster, or one more.",
    "witness": "Run a witness, which votes so that two nodes can take over from each other.",
    "pub": "Publish records: an argument, stdin, or a line each.",
    "sub": "Print records as they come, or from any point of a topic.",
    "peek": "Look at records without consuming them: nothing is leased, acked or counted.",
    "query": "Read records of a partition from a position on, as often as you like.",
    "run": "Run the handlers of an application.",
    "gateway": "Serve HTTP, a console for browsers, Amazon SQS and the wires of older brokers.",
    "topic": "List, make, change, show, empty and remove topics.",
    "schema": "Declare, show, check and remove the schema of a topic's values.",
    "group": "List, show, change, move, pause, resume and remove consumer groups.",
    "dlq": "List, show, replay and purge dead letters.",
    "msg": "Show, find, cancel, move, edit and remove records.",
    "why": "Explain the state of a record or a group: why it is in it, and what changes that.",
    "trace": "Show what happened to a record, step by step.",
    "status": "Show the health of a node and its cluster, or wait until all is well.",
    "cluster": "List, invite, drain, remove nodes; change options; close it; follow gossip; recover.",
    "user": "Add, list, remove users; rotate their tokens; test their permissions.",
    "role": "Add, list, remove roles; grant and revoke permissions on topics.",
    "audit": "Show what a closed cluster refused, and who mended, operated or changed it.",
    "whoami": "Show which user you are to the cluster, and what you may do there.",
    "export": "Write records, acks and states to Parquet or LMDB files.",
    "backup": "Back up a running cluster, incrementally: all of it at first, later what is new.",
    "restore": "Restore a backup into a new data directory.",
    "spark": "Run Spark jobs over exports: import, growth, status, latency, dead, search, dedup, replay.",
    "top": "Watch the cluster: nodes, topics, groups, clients, messages, growth.",
    "client": "List who is connected, and end a session.",
    "check": "Answer a monitoring system: ready, cluster, lag, disk.",
    "doctor": "Examine this machine: Serf, ports, encryption, disk, limits, clock, versions.",
    "bench": "Measure publish, consume, end to end, round trip, and latency at a rate.",
    "demo": "Run a demo once: nodes, a producer, three consumers, some of them killed.",
    "conformance": "Test a client in another language against nodes that are killed meanwhile.",
    "config": "Show or check the configuration a node would run with.",
    "store": "Inspect, check, copy and shrink a data directory, offline.",
    "context": "Save servers under a name, and choose the default.",
    "spool": "Inspect the spool of a client, where records wait until they are confirmed.",
    "completion": "Print what a shell needs to complete these commands.",
    "help": "Explain a command or a topic: health, exit codes, an alarm, times, refs.",
    "version": "Print the version.",
}
EPILOG = """\b
Exit codes:
""" + "\n".join(f"  {number:<4} {text}" for number, text in failures.EXIT_CODES.items())


class Root(Noun):
    """Knows its commands by name and imports only the called one."""

    def make_context(
        self, info_name: str | None, args: list[str], *more: Any, **options: Any
    ) -> click.Context:
        """Options before `check` belong to the check: a wrong one is UNKNOWN too."""
        if next((word for word in args if word in COMMANDS), "") != "check":
            return super().make_context(info_name, args, *more, **options)
        from gossipq_cli.commands.check import unknown_unless_known

        with unknown_unless_known():
            return super().make_context(info_name, args, *more, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"gossipq_cli.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"gossipq {__version__}")
        ctx.exit()


@click.group(
    cls=Root,
    epilog=EPILOG,
    invoke_without_command=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="print the version"
)
def root() -> None:
    """gossipq: a message broker that keeps what it confirmed.

    \b
    gossipq node &                          start a node on this machine
    gossipq pub hello "first message"       publish
    gossipq sub hello --from first -n 1     read it back
    gossipq why hello/0/0                   and where does it stand?

    Data goes to stdout, everything else to stderr. Options below go before or after the command.
    """


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
