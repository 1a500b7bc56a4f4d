"""`gossipq sub`."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gossipq import alarms, errors
from gossipq.texts import readable
from gossipq_cli import ask, failures, records
from gossipq_cli.kinds import Durations
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output, is_terminal
from gossipq_ops.inputs import moment_of

if TYPE_CHECKING:
    from gossipq.values import GroupStats
    from gossipq_client import Client, Record, Records, Subscription

LOOK_S = 1.0  #: interval at which the topic of the first alarm is looked for
QUIET_S = 0.5  #: after this time without records, a remark is printed


def start_of(text: str | None) -> str | int | datetime | None:
    """Return --from for the client: a word, an offset, a relative or an absolute time.

    Raises Failure.
    """
    from gossipq_client.values import start_of as checked

    if text is None:
        return None
    start = int(text) if text.isdecimal() else text
    try:
        checked(start, wall_ms=0)
    except errors.BadRequest:
        try:
            return moment_of(text)
        except ValueError:
            hint = "pass first, new, an offset, a time like 2026-11-21T09:00Z, or a time back like -10m"
            raise failures.Failure("usage", f"invalid --from {text!r}", hint, failures.USAGE) from None
    return start


def _standing(mq: "Client", topics: tuple[str, ...], group: str | None) -> "list[GroupStats]":
    """Return the group in each partition of these topics, if it is given and exists."""
    if group is None:
        return []
    named = [topic for topic in topics if "*" not in topic]
    return [row for topic in named for row in mq.admin.raw.stats([topic]).groups if row.group == group]


def _lines(mq: "Client", topics: tuple[str, ...], create: bool, rows: "list[GroupStats]") -> list[str]:
    """Return remarks for the case that no records come at first. `rows` are those of the group.

    Raises UnknownTopic if a topic is missing and should not be created.
    """
    missing = ask.missing(mq, topics)
    if missing and not create:
        hint = "`gossipq topic ls` lists topics; with `--create` it is made, and waited for"
        raise ask.no_topic(mq, missing[0], hint)
    lines = [f"created topic {name}" for name in missing]
    lines += [
        f"group {group} is paused on {topic}: nothing comes before `gossipq group resume {topic} {group}`"
        for topic, group in dict.fromkeys((row.topic, row.group) for row in rows if row.paused)
    ]
    if is_terminal(sys.stderr):
        lines.append(f"waiting for records of {', '.join(topics)}; Ctrl-C ends")
    return lines


def _first_alarm(mq: "Client", topics: tuple[str, ...], out: Output, exit_at_end: bool) -> bool:
    """Wait for the topic of alarms, which the first alarm creates. False: stop without it."""
    if alarms.TOPIC not in topics or not ask.missing(mq, [alarms.TOPIC]):
        return True
    out.say("no alarm was raised yet" + ("" if exit_at_end else ": waiting for the first one; Ctrl-C ends"))
    while not exit_at_end and ask.missing(mq, [alarms.TOPIC]):
        time.sleep(LOOK_S)
    return not exit_at_end


def _among_others(choices: Choices, rows: "list[GroupStats]") -> None:
    """Ask users at a terminal before they take work from a group's
    consumers. Programs are not asked.
    """
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        return
    busy = next((row for row in rows if row.consumers), None)
    if busy is not None:
        topic, group = busy.topic, busy.group
        question = f"{group} has consumers: what is printed here is acked, and they never get it. Continue?"
        ask.sure(choices, "sub", f"{question} (gossipq peek {topic} -g {group} only looks)")


@contextmanager
def remarks(out: Output, lines: list[str]) -> Iterator[threading.Timer]:
    """Print lines on stderr after QUIET_S, unless the yielded timer is cancelled before."""

    def say() -> None:
        for line in lines:
            out.say(line)

    timer = threading.Timer(QUIET_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


@contextmanager
def complaints(out: Output, subscription: "Subscription | Records") -> Iterator[None]:
    """While the block runs, print once on stderr why no records can
    arrive, and when they do again.
    """
    ended = threading.Event()

    def watch() -> None:
        said = ""
        while not ended.wait(LOOK_S):
            trouble = subscription.trouble
            if trouble and not said:
                out.say(f"no records arrive: {trouble}. Waiting for an answer; Ctrl-C ends")
            elif said and not trouble:
                out.say("somebody answers again")
            said = trouble

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


class _UnwrittenError(BaseException):
    """Stdout does not take a record.

    Not an Exception, so that the record is given back without counting an attempt: it was not seen.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _print(
    subscription: "Subscription | Records",
    render: Callable[["Record"], bytes],
    number: int,
    remark: threading.Timer,
) -> int:
    """Write messages to stdout, at most `number` (0: no limit). Returns how many."""
    from gossipq_client import Message

    printed, out = 0, sys.stdout.buffer
    try:
        for message in subscription:
            remark.cancel()
            with message if isinstance(message, Message) else nullcontext():
                try:
                    out.write(render(message))
                    out.flush()
                except OSError as error:
                    raise _UnwrittenError(error) from None
            printed += 1
            if printed == number:
                break
    except _UnwrittenError as unwritten:
        raise unwritten.error from None
    return printed


def tame(render: Callable[["Record"], bytes]) -> Callable[["Record"], bytes]:
    """Return the text without control characters for a terminal."""
    return lambda message: readable(render(message), keep="\n\t").encode()


@click.command(cls=Verb)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-g", "--group", help="join this group and ack what was printed; without it every record is only read"
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="new, first, an OFFSET, a TIME, or a time back like -10m "
    "(default: first for a new group and with --exit-at-end, else new)",
)
@click.option(
    "-n", "--number", type=click.IntRange(min=0), default=0, help="stop after this many records; 0: never"
)
@click.option("--create", is_flag=True, help="make a topic that is not there, and wait for its first record")
@click.option("--exit-at-end", is_flag=True, help="stop when everything that is there has been printed")
@click.option(
    "-f",
    "--format",
    "pattern",
    help=r"how to print: %t topic %p partition %o offset %k key %v value %S bytes %T time (ms) %h headers "
    r"%r route %i id %a attempt; ends in a newline unless it has \n or \0",
)
@click.option(
    "--raw",
    is_flag=True,
    help="byte by byte, also on a terminal, where control characters are escaped otherwise",
)
@click.option(
    "--mode", type=click.Choice(["shared", "exclusive", "key_ordered"]), help="how the group shares records"
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="PATTERN",
    help="only records of such a route: eu.fr, eu.*, eu.#",
)
@click.option("--no-ack", is_flag=True, help="at most once: a record counts as acked when it is delivered")
@click.option(
    "--attempts-max", type=click.IntRange(min=1), help="failures after which the group has a dead letter"
)
@click.option("--backoff", type=Durations(), help="pause after the first, second ... failure: 1s,5s,1m")
@pass_choices
def command(
    choices: Choices,
    /,
    topics: tuple[str, ...],
    group: str | None,
    start: str | None,
    number: int,
    create: bool,
    exit_at_end: bool,
    pattern: str | None,
    raw: bool,
    routes: tuple[str, ...],
    no_ack: bool,
    **policy: Any,
) -> int:
    """Print records as they come, or from any point of a topic.

    \b
    gossipq sub orders                                   what comes from now on
    gossipq sub orders --exit-at-end                     all there is
    gossipq sub orders --from -10m -f '%p/%o %k %v\\n'
    gossipq sub 'orders.*' -g billing -n 100 -o jsonl
    gossipq sub orders -g audit --mode exclusive --route 'eu.#'

    --attempts-max and --backoff become the group's; --mode is for a new group. A record counts as acked when
    it has been written to stdout. Exits 1 when it ends before -n records came.
    """
    as_json = choices.output.startswith("json")
    if pattern is not None and as_json:
        raise click.UsageError("-f and -o json exclude each other")
    if group is not None and not group.strip():
        raise click.UsageError("-g is empty: name a group, or leave -g out to read without one")
    given = {name: value for name, value in policy.items() if value is not None}
    if group is None and (given or no_ack):
        option = "no_ack" if no_ack else next(iter(given))
        raise click.UsageError(f"--{option.replace('_', '-')} is for groups: add -g NAME")
    given |= (
        {"create": True} | ({"route": list(routes)} if routes else {}) | ({"ack": False} if no_ack else {})
    )
    render = records.to_json if as_json else records.formatter(pattern if pattern is not None else r"%v\n")
    if not raw and is_terminal(sys.stdout):
        render = tame(render)
    where = start_of(start)
    with ask.connect(choices) as mq:
        rows = _standing(mq, topics, group)
        _among_others(choices, rows)
        if not _first_alarm(mq, topics, Output(choices), exit_at_end):
            return failures.FAILED if number else failures.DONE
        lines = _lines(mq, topics, create, rows)
        subscription: Subscription | Records
        if group is None:
            subscription = mq.read(list(topics), start=where, follow=not exit_at_end, **given)
        else:
            subscription = mq.subscribe(list(topics), group, start=where, stop_at_end=exit_at_end, **given)
        complains = complaints(Output(choices), subscription)
        with subscription, complains, remarks(Output(choices), lines) as remark:
            printed = _print(subscription, render, number, remark)
    return failures.FAILED if printed < number else failures.DONE
