"""`gossipq schedule`."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gossipq.texts import dashed, many, moment
from gossipq_cli import ask
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter

if TYPE_CHECKING:
    from gossipq_client.operations import ScheduleState


@click.group(cls=Noun)
def command() -> None:
    """Store records by a cron expression or every so often."""


@command.command("add")
@click.argument("topic")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--cron", default="", metavar="EXPR", help="five fields: '0 7 * * mon-fri'")
@click.option("--every", metavar="DURATION", help="at least 1s, in place of --cron")
@click.option("--tz", default="", metavar="ZONE", help="time zone of --cron, as Europe/Berlin; UTC if absent")
@click.option("--from", "start", metavar="TIME", help="no tick before it, in ISO 8601 with a time zone")
@click.option("--until", "end", metavar="TIME", help="no tick at or after it")
@click.option("--count", type=click.IntRange(min=1), help="ticks in all")
@click.option("--jitter", default="0s", metavar="DURATION", help="records come up to this long after a tick")
@click.option(
    "--missed",
    type=click.Choice(("none", "last", "all")),
    default="last",
    show_default=True,
    help="which ticks of a time without a leader get a record",
)
@click.option("--missed-max", type=click.IntRange(1, 1_000), default=100, help="of --missed all")
@click.option(
    "--overlap",
    type=click.Choice(("allow", "skip", "replace")),
    default="allow",
    show_default=True,
    help="while a group has not finished the last record",
)
@click.option("--paused", is_flag=True, help="no ticks before `gossipq schedule resume`")
@click.option("-k", "--key", help="key of each record; it chooses the partition")
@click.option("--route", default="", help="route of each record")
@click.option("--ttl", metavar="DURATION", help="time to live of each record")
@click.option("--file", type=click.File("rb"), help="file with the value, - for stdin")
@pass_choices
def add(
    choices: Choices,
    /,
    topic: str,
    name: str,
    value: str | None,
    file: BinaryIO | None,
    start: str | None,
    end: str | None,
    count: int | None,
    **options: Any,
) -> None:
    """Set a schedule of a topic, or change it. Each tick stores one record with VALUE.

    \b
    gossipq schedule add reports nightly '{"kind": "daily"}' --cron '0 7 * * mon-fri' --tz Europe/Berlin
    gossipq schedule add reports pulse beat --every 10s --overlap skip

    Each record has the id NAME/TIME. A tick is never early, and stored once, also if the leader changes.
    """
    if (value is None) == (file is None):
        raise click.UsageError("give the VALUE of the records, or --file")
    raw = file.read() if file is not None else value
    options |= {"start": _time(start, "--from"), "end": _time(end, "--until")}
    with ask.connect(choices) as mq:
        changed = mq.schedule(topic, raw, name=name, count=count or 0, **options)
        state = mq.schedules.show(topic, name)
    told = "is set" if changed else "is the same already"
    upcoming = f"; next: {moment(_ms(state.next[0]))}" if state.next else ""
    Output(choices).one(_row(state), f"schedule {name} of {topic} {told}{upcoming}", name)


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} {text!r} is no time; 2026-01-31T07:00:00+00:00 is one") from None
    return found if found.tzinfo is not None else found.astimezone()


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def _row(state: "ScheduleState") -> dict[str, Any]:
    row = asdict(state)
    row["last"] = [{"time_ms": _ms(tick.time), "offset": tick.offset} for tick in state.last]
    row["next_ms"] = [_ms(at) for at in state.next]
    row["when"] = f"{state.cron} {state.tz}" if state.cron else f"every {state.every:g} s"
    for name in ("start", "end"):
        at = row.pop(name)
        row[f"{name}_ms"] = None if at is None else _ms(at)
    del row["next"]
    return row


def _next(times: list[int]) -> str:
    return moment(times[0]) if times else "-"


@command.command("list")
@click.argument("topic")
@pass_choices
def list_schedules(choices: Choices, topic: str) -> None:
    """List the schedules of a topic, with the next tick of each.

    \b
    gossipq schedule list reports
    """
    out = Output(choices)
    with ask.connect(choices) as mq:
        rows = [_row(state) for state in mq.schedules.all(topic)]
    columns = [Column("name"), Column("when"), Column("next_ms", _next, title="next"), counter("ticks")]
    out.rows([*columns, Column("paused", _told)], rows)
    if not rows:
        out.say(f"no schedules of {topic}")


def _told(value: bool) -> str:
    return "yes" if value else "-"


@command.command("show")
@click.argument("topic")
@click.argument("name")
@pass_choices
def show(choices: Choices, topic: str, name: str) -> None:
    """Show a schedule, its last ticks and the next ones.

    \b
    gossipq schedule show reports nightly
    """
    with ask.connect(choices) as mq:
        state = mq.schedules.show(topic, name)
    out, row = Output(choices), _row(state)
    if out.for_machines:
        out.one(row, name=name)
        return
    fields = {"when": row["when"], "paused": _told(state.paused), "ticks": state.ticks}
    fields |= {"missed": state.missed, "overlap": state.overlap, "jitter": f"{state.jitter:g} s"}
    fields |= {"partition": state.partition, "next": dashed(", ".join(map(moment, row["next_ms"])))}
    last = [f"{moment(_ms(tick.time))} at {dashed(tick.offset)}" for tick in state.last]
    out.one(fields | {"last": dashed(", ".join(last))}, name=name)


@command.command("pause")
@click.argument("topic")
@click.argument("name")
@pass_choices
def pause(choices: Choices, topic: str, name: str) -> None:
    """Stop the ticks of a schedule until it is resumed. A tick of the pause never gets a record.

    \b
    gossipq schedule pause reports nightly
    """
    from gossipq_ops import actions

    with ask.connect(choices) as mq:
        outcome = actions.pause_schedule(mq, topic, name)
    Output(choices).did(outcome, name)


@command.command("resume")
@click.argument("topic")
@click.argument("name")
@pass_choices
def resume(choices: Choices, topic: str, name: str) -> None:
    """Let a paused schedule go on with its next tick.

    \b
    gossipq schedule resume reports nightly
    """
    from gossipq_ops import actions

    with ask.connect(choices) as mq:
        outcome = actions.resume_schedule(mq, topic, name)
        state = mq.schedules.show(topic, name)
    upcoming = f"; next: {moment(_ms(state.next[0]))}" if state.next else ""
    Output(choices).did(outcome._replace(text=f"{outcome.text}{upcoming}"), name)


@command.command("run-now")
@click.argument("topic")
@click.argument("name")
@pass_choices
def run_now(choices: Choices, topic: str, name: str) -> None:
    """Store the record of a schedule now, besides its ticks.

    \b
    gossipq schedule run-now reports nightly
    """
    from gossipq_ops import actions

    with ask.connect(choices) as mq:
        outcome = actions.run_schedule(mq, topic, name)
    Output(choices).one(dict(outcome.row), outcome.text, outcome.row["ref"])


@command.command("remove")
@click.argument("topic")
@click.argument("names", nargs=-1, required=True)
@pass_choices
def remove(choices: Choices, topic: str, names: tuple[str, ...]) -> None:
    """Remove schedules. Records that they stored stay.

    \b
    gossipq schedule remove reports nightly
    """
    with ask.connect(choices) as mq:
        removed = [name for name in names if mq.schedules.remove(topic, name)]
    row = {"topic": topic, "removed": removed}
    Output(choices).one(row, f"{many(len(removed), 'schedule')} of {topic} removed")
