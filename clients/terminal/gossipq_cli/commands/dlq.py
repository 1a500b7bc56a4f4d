"""`gossipq dlq`."""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import click

from gossipq.texts import brief, dashed, many, moment, printable
from gossipq.times import unix_ms_of
from gossipq_cli import ask, failures, records, refs
from gossipq_cli.commands.group import found, group_option, totals
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, as_object, counter
from gossipq_ops import actions

if TYPE_CHECKING:
    from gossipq_client.answers import Step
    from gossipq_client.operations import DeadLetter

LISTED_MAX = 100  #: default number of dead letters shown by `ls`


@click.group(cls=Noun)
def command() -> None:
    """List, show, replay and purge dead letters."""


def _row(letter: "DeadLetter") -> dict[str, Any]:
    """Return a dead letter without its record. Neighbours that died together are one range."""
    last = f"-{letter.offset + letter.count - 1}" if letter.count > 1 else ""
    row = {
        "range": letter.ref + last,
        "count": letter.count,
        "topic": letter.topic,
        "partition": letter.partition,
    }
    row |= {"offset": letter.offset, "group": letter.group, "reason": letter.reason, "error": letter.error}
    return row | {
        "attempts": letter.attempts,
        "failures": letter.failures,
        "time_ms": unix_ms_of(letter.time),
    }


@command.command("ls")
@click.argument("topic", required=False)
@click.option("-g", "--group", help="only of this group")
@click.option(
    "-n",
    "--number",
    "limit",
    type=click.IntRange(min=0),
    default=LISTED_MAX,
    show_default=True,
    help="maximum number of rows; 0: all",
)
@click.option(
    "--by-error", is_flag=True, help="count the dead letters of the topic by error, the newest first"
)
@pass_choices
def list_dead(choices: Choices, topic: str | None, group: str | None, limit: int, by_error: bool) -> None:
    """Count the dead letters of each group, or list those of a topic.

    \b
    gossipq dlq ls
    gossipq dlq ls orders -g billing
    gossipq dlq ls orders --by-error
    gossipq dlq ls orders -g billing -n 0 -o names | xargs gossipq dlq replay orders -g billing

    Consecutive records with the same error are one row.
    """
    out = Output(choices)
    if topic is None and by_error:
        raise click.UsageError("--by-error is for the dead letters of a TOPIC")
    if topic is None:
        _count(choices, out, group)
        return
    if by_error:
        _count_errors(choices, out, topic, group)
        return
    columns = [
        Column("range"),
        counter("count"),
        Column("group"),
        Column("reason"),
        *map(counter, ("failures", "attempts")),
    ]
    columns += [Column("time_ms", moment, title="time"), Column("error", _line)]
    shown = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal shown
        for letter in islice(mq.dead(topic, group or "").letters(values=False), limit or None):
            shown += 1
            yield _row(letter)

    with ask.connect(choices) as mq:
        found(mq, topic, group)
        out.rows(columns, rows())
    if not shown:
        out.say(_none(topic, group))
    elif shown == limit:
        out.say(f"only the first {many(limit, 'row')}; -n 0 shows all")


def _none(topic: str | None, group: str | None) -> str:
    of, on = f" of {group}" if group else "", f" on {topic}" if topic else ""
    return f"no dead letters{of}{on}"


def _line(error: str) -> str:
    return dashed(brief(error.encode()))


def _count_errors(choices: Choices, out: Output, topic: str, group: str | None) -> None:
    from gossipq_ops.answers import dead_by_error

    with ask.connect(choices) as mq:
        found(mq, topic, group)
        rows = dead_by_error(mq.dead(topic, group or "").letters(values=False))
    columns = [counter("letters"), Column("reason"), Column("error", _line)]
    columns += [Column("time_ms", moment, title="newest"), Column("ref")]
    out.rows(columns, [row._asdict() for row in rows])
    if not rows:
        out.say(_none(topic, group))


def _count(choices: Choices, out: Output, group: str | None) -> None:
    with ask.connect(choices) as mq:
        groups = mq.admin.raw.stats().groups
    rows = [row for row in totals(groups) if row["dead"] and group in (None, row["group"])]
    fields = ("topic", "group", "dead")
    out.rows(
        [Column("topic"), Column("group"), counter("dead")],
        [{name: row[name] for name in fields} for row in rows],
    )
    if not rows:
        out.say(_none(None, group))


@command.command("show")
@click.argument("ref")
@click.option("-g", "--group", help="only of this group")
@pass_choices
def show(choices: Choices, ref: str, group: str | None) -> None:
    """Show a dead letter: why, what the last consumer said, each attempt that was kept, and the record.

    \b
    gossipq dlq show orders/0/17
    gossipq dlq show orders/0/17 -g billing -o json
    """
    place, out = refs.place(ref), Output(choices)
    with ask.connect(choices) as mq:
        letters = mq.dead(place.topic, group or "").letters(partition=place.number, start=place.offset)
        here = list(takewhile(lambda letter: letter.offset == place.offset, letters))
        if not here:
            whose = f" of {group}" if group else ""
            raise failures.Failure(
                "not_found", f"{ref} is no dead letter{whose}", f"`gossipq why {ref}`", failures.NOT_FOUND
            )
        steps = [mq.record(ref).trace(group=letter.group) for letter in here]
    if out.for_machines:
        rows = [
            _row(letter) | {"steps": list(map(as_object, taken))} | records.content(letter)
            for letter, taken in zip(here, steps, strict=True)
        ]
        out.one({"ref": ref, "letters": rows})
    else:
        told = [_paragraph(letter, taken) for letter, taken in zip(here, steps, strict=True)]
        out.one({}, "\n\n".join([*told, records.as_text(here[0])]), ref)


def _paragraph(letter: "DeadLetter", steps: "list[Step]") -> str:
    """Return why a group does not get the record any more."""
    counts = f"{many(letter.attempts, 'attempt')}, {many(letter.failures, 'failure')}"
    lines = [f"{letter.group}: dead since {moment(unix_ms_of(letter.time))}: {letter.reason}, {counts}"]
    if letter.error:
        lines.append(f"  last error: {letter.error}")
    for step in steps:
        who = f" by {step.consumer}" if step.consumer else ""
        attempt = f", attempt {step.attempt}" if step.attempt else ""
        lines.append(
            f"  {moment(unix_ms_of(step.time))}  "
            f"{step.what.replace('_', ' ')}{who}{attempt}{': ' if step.reason else ''}{step.reason}"
        )
    lines.append(
        f"  next: gossipq dlq replay {letter.topic} -g {letter.group} {letter.partition}/{letter.offset}"
    )
    return "\n".join(map(printable, lines))


ranges_argument = click.argument("ranges", nargs=-1, metavar="[RANGE...]")
dry_run_option = click.option("--dry-run", is_flag=True, help="only say how many that would be")


@command.command("replay")
@click.argument("topic")
@group_option
@ranges_argument
@click.option("--to", metavar="TOPIC", help="publish them to this topic instead, and remove them here")
@dry_run_option
@pass_choices
def replay(
    choices: Choices, topic: str, group: str, ranges: tuple[str, ...], to: str | None, dry_run: bool
) -> None:
    """Redeliver dead letters to their group, all or some, with fresh attempt counters.

    \b
    gossipq dlq replay orders -g billing --dry-run
    gossipq dlq replay orders -g billing
    gossipq dlq replay orders -g billing 0/17 1/100-199 2
    gossipq dlq replay orders -g billing --to orders.repaired

    A RANGE is PARTITION, PARTITION/OFFSET or PARTITION/FIRST-LAST. Other groups do not get them again.
    """
    chosen = [refs.range_of(text, topic) for text in ranges] or None
    with ask.connect(choices) as mq:
        found(mq, topic, group)
        outcome = actions.replay(mq, topic, group, chosen, to, dry_run)
    Output(choices).did(outcome, group)


@command.command("purge")
@click.argument("topic")
@group_option
@ranges_argument
@dry_run_option
@pass_choices
def purge(choices: Choices, topic: str, group: str, ranges: tuple[str, ...], dry_run: bool) -> None:
    """Remove dead letters of a group for good, all or some.

    \b
    gossipq dlq purge orders -g billing --dry-run
    gossipq dlq purge orders -g billing 0/17 --yes
    """
    chosen = [refs.range_of(text, topic) for text in ranges] or None
    with ask.connect(choices) as mq:
        found(mq, topic, group)
        outcome = actions.purge(mq, topic, group, chosen, dry=True)
        if not dry_run:
            if outcome.row["count"]:
                what = f"{many(outcome.row['count'], 'dead letter')} of {group} on {topic}"
                ask.sure(choices, f"purging {what}", f"purge {what} for good?")
            outcome = actions.purge(mq, topic, group, chosen)
    Output(choices).did(outcome, group)
