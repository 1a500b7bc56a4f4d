"""`gossipq group`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gossipq import errors
from gossipq.types import partition_of
from gossipq.values import GroupStats
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter, many, number

if TYPE_CHECKING:
    from gossipq_client import Client

OPEN = ("ready", "in_flight", "retrying", "parked")  #: what makes the lag: published and not done yet
STORED = (*OPEN, "acked", "dead", "voided", "dropped", "removed", "redelivered", "unmatched", "blocked_by_key")
COUNTERS = ("lag", *OPEN, "acked", "dead", "redelivered", "consumers")

group_option = click.option("-g", "--group", required=True, help="the group")
group_argument = click.argument("group", required=False)
named_option = click.option("-g", "--group", "named", help="the group, when it is not the second argument")


@click.group(cls=Noun)
def command() -> None:
    """List, show, pause and resume consumer groups."""


def counters_of(part: GroupStats) -> dict[str, Any]:
    """Of one partition; lag = published and not done yet."""
    counts = {name: getattr(part, name) for name in STORED}
    lag = sum(counts[name] for name in OPEN)
    return {"lag": lag, **counts, "consumers": part.consumers, "paused": part.paused}


def totals(groups: Iterable[GroupStats]) -> list[dict[str, Any]]:
    """One row a group and topic."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for part in groups:
        counts = counters_of(part)
        row = rows.setdefault((part.topic, part.group), {"group": part.group, "topic": part.topic, "partitions": 0})
        row["partitions"] += 1
        for name in ("lag", *STORED):
            row[name] = row.get(name, 0) + counts[name]
        # a consumer is subscribed to many partitions and is one consumer all the same
        row["consumers"] = max(row.get("consumers", 0), part.consumers)
        row["paused"] = row.get("paused", False) or part.paused
    return [rows[at] for at in sorted(rows)]


def unknown(topic: str, group: str) -> failures.Failure:
    return failures.Failure("unknown_group", f"no group {group} on {topic}", f"`gossipq group ls {topic}`", failures.NOT_FOUND)


def found(mq: "Client", topic: str, group: str | None) -> list[GroupStats]:
    """The partitions of a topic's groups, or of one. Raises UnknownTopic, Failure."""
    if ask.missing(mq, [topic]):
        raise errors.UnknownTopic(f"no topic {topic}")
    parts = [part for part in mq.groups(topic) if group in (None, part.group)]
    if group is not None and not parts:
        raise unknown(topic, group)
    return sorted(parts, key=lambda part: (part.group, part.partition))


@command.command("ls")
@click.argument("topic", required=False)
@pass_choices
def list_groups(choices: Choices, topic: str | None) -> None:
    """List groups, of all topics or of one.

    \b
    gossipq group ls
    gossipq group ls orders -o json
    """
    with ask.connect(choices) as mq:
        groups = mq.stats([topic] if topic else []).groups
        if topic and not groups and ask.missing(mq, [topic]):
            raise errors.UnknownTopic(f"no topic {topic}")
    out = Output(choices)
    rows = totals(groups)
    columns = [Column("group"), Column("topic"), *map(counter, ("partitions", "consumers", "lag", "dead"))]
    if any(row["paused"] for row in rows):
        columns.append(Column("paused", lambda paused: "paused" if paused else ""))
    out.rows(columns, rows)
    if not groups:
        _say_none(out, topic)


def _say_none(out: Output, topic: str | None) -> None:
    out.say(f"no groups{f' on {topic}' if topic else ''}; one is made by gossipq sub {topic or 'TOPIC'} -g NAME")


@command.command("lag")
@click.argument("topic")
@click.option("-g", "--group", help="only this group")
@click.option("--partitions", "by_partition", is_flag=True, help="a row for each partition")
@pass_choices
def lag(choices: Choices, topic: str, group: str | None, by_partition: bool) -> None:
    """Say how far each group of a topic is behind.

    \b
    gossipq group lag orders
    gossipq group lag orders -g billing --partitions

    lag = ready + in flight + retrying + parked: published since the group's start and not done yet.
    """
    with ask.connect(choices) as mq:
        groups = found(mq, topic, group)
    out, columns = Output(choices), [Column("group"), Column("topic")]
    if not groups:
        _say_none(out, topic)
    if by_partition:
        rows = [{"group": part.group, "topic": part.topic} | _by_partition(part) for part in groups]
        out.rows([*columns, counter("partition"), counter("cursor"), *map(counter, COUNTERS)], rows)
    else:
        out.rows([*columns, *map(counter, COUNTERS)], totals(groups))


def _by_partition(part: GroupStats) -> dict[str, Any]:
    return {"partition": partition_of(part.partition), "cursor": part.cursor, **counters_of(part)}


def _one(group: str | None, named: str | None) -> str:
    """The group, which is named in one of two places."""
    if (group is None) == (named is None):
        raise click.UsageError("name one group")
    return group or named or ""


@command.command("show")
@click.argument("topic")
@group_argument
@named_option
@pass_choices
def show(choices: Choices, topic: str, group: str | None, named: str | None) -> None:
    """Show where the records of one group are.

    \b
    gossipq group show orders billing

    published since the group's start = ready + in flight + retrying + parked + acked + dead + voided + dropped + removed.
    Parked wait behind another record of their key (blocked by key), or for a consumer that takes their route (unmatched).
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        parts = found(mq, topic, group)
    row, out = totals(parts)[0], Output(choices)
    if out.for_machines:
        out.one(row | {"partitions": list(map(_by_partition, parts))})
        return
    shown = {name.replace("_", " "): number(value) if type(value) is int else value for name, value in row.items()}
    out.one(shown | {"paused": "yes" if row["paused"] else "no"}, name=group)
    if out.form == "table" and len(parts) > 1:
        out.write("")
        out.rows(list(map(counter, ("partition", "cursor", *COUNTERS))), map(_by_partition, parts))


@command.command("pause")
@click.argument("topic")
@group_argument
@named_option
@pass_choices
def pause(choices: Choices, topic: str, group: str | None, named: str | None) -> None:
    """Hand out nothing to a group until it is resumed; what is in flight may be acked.

    \b
    gossipq group pause orders billing
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        parts = found(mq, topic, group)
        mq.pause(topic, group)
    text = f"{group} on {topic} is paused; gossipq group resume {topic} {group} ends that"
    Output(choices).one({"topic": topic, "group": group, "paused": True, "partitions": len(parts)}, text, group)


@command.command("resume")
@click.argument("topic")
@group_argument
@named_option
@pass_choices
def resume(choices: Choices, topic: str, group: str | None, named: str | None) -> None:
    """Go on with a group that was paused.

    \b
    gossipq group resume orders billing
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        parts = found(mq, topic, group)
        mq.resume(topic, group)
    text = f"{group} on {topic} goes on: {many(sum(part.ready for part in parts), 'record')} ready"
    Output(choices).one({"topic": topic, "group": group, "paused": False, "partitions": len(parts)}, text, group)
