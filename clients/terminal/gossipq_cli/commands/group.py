"""`gossipq group`."""

from collections.abc import Iterable
from typing import Any

import click

from gossipq import errors
from gossipq.messages import GroupStats
from gossipq.types import partition_of
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter

COUNTERS = ("lag", "ready", "in_flight", "acked", "redelivered", "consumers")


@click.group(cls=Noun)
def command() -> None:
    """List consumer groups and how far behind they are."""


def totals(groups: Iterable[GroupStats]) -> list[dict[str, Any]]:
    """One row a group and topic; lag = published and not acked yet."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for part in groups:
        row = rows.setdefault(
            (part.topic, part.group), {"group": part.group, "topic": part.topic, "partitions": 0, **dict.fromkeys(COUNTERS, 0)}
        )
        row["partitions"] += 1
        row["lag"] += part.ready + part.in_flight
        for name in ("ready", "in_flight", "acked", "redelivered"):
            row[name] += getattr(part, name)
        # a consumer is subscribed to many partitions and is one consumer all the same
        row["consumers"] = max(row["consumers"], part.consumers)
    return [rows[at] for at in sorted(rows)]


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
    out.rows([Column("group"), Column("topic"), counter("partitions"), counter("consumers"), counter("lag")], totals(groups))
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

    lag = ready + in flight: published since the group's start and not acked yet.
    """
    with ask.connect(choices) as mq:
        if not mq.topics(topic):
            raise errors.UnknownTopic(f"no topic {topic}")
        groups = [part for part in mq.groups(topic) if group in (None, part.group)]
    if group is not None and not groups:
        raise failures.Failure(
            "unknown_group", f"no group {group} on {topic}", f"`gossipq group ls {topic}`", failures.NOT_FOUND
        )
    out, columns = Output(choices), [Column("group"), Column("topic")]
    if not groups:
        _say_none(out, topic)
    if not by_partition:
        out.rows([*columns, *map(counter, COUNTERS)], totals(groups))
        return
    rows = [
        {"group": part.group, "topic": part.topic, "partition": partition_of(part.partition), "cursor": part.cursor}
        | {"lag": part.ready + part.in_flight, "ready": part.ready, "in_flight": part.in_flight, "acked": part.acked}
        | {"redelivered": part.redelivered, "consumers": part.consumers}
        for part in sorted(groups, key=lambda part: (part.group, part.partition))
    ]
    out.rows([*columns, counter("partition"), counter("cursor"), *map(counter, COUNTERS)], rows)
