"""`gossipq peek`."""

import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from gossipq.errors import UnknownRecord
from gossipq.texts import brief, dashed, many, spaced
from gossipq.types import partition_of
from gossipq.values import GroupStats
from gossipq_cli import ask, records
from gossipq_cli.commands.group import found
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output
from gossipq_ops.inputs import place_of

if TYPE_CHECKING:
    from gossipq_client import Client, Record

#: states of records that a group has finished
DONE = ("acked", "dead", "voided", "removed", "skipped")
LOOKED_MAX = 1_000  #: records of a partition whose state is asked for
PEEK_MAX = 100
POSITION_MAX = 1_000_000  #: records from a position on

Row = dict[str, Any]


@click.command(cls=Verb)
@click.argument("topic")
@click.option("-g", "--group", help="show the next records of this group, and those in flight")
@click.option(
    "-n",
    "--number",
    type=click.IntRange(1, POSITION_MAX),
    default=10,
    show_default=True,
    help=f"records at most; above {PEEK_MAX} only with --position",
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="from there on, the oldest first: first, an OFFSET, a TIME, or a time back like -10m",
)
@click.option(
    "--position",
    type=click.IntRange(0),
    metavar="POS",
    help="from this offset of one partition on, to its end",
)
@click.option(
    "--partition", type=click.IntRange(0), default=0, show_default=True, help="the partition of --position"
)
@click.option("--frames", is_flag=True, help="with --position: bytes as prettyQ's consumers get them")
@pass_choices
def command(
    choices: Choices,
    topic: str,
    group: str | None,
    number: int,
    start: str | None,
    position: int | None,
    partition: int,
    frames: bool,
) -> None:
    """Look at records without consuming them.

    \b
    gossipq peek orders                       the newest ones
    gossipq peek orders --from -10m           those of the last ten minutes
    gossipq peek orders --group billing       those that billing is not done with, the oldest first
    gossipq peek orders --position 1000 -n 50
    gossipq peek orders --position 0 -n 100000 --frames

    Nothing is leased, acked or counted. One record whole: `gossipq msg show`.
    """
    if start is not None and group:
        raise click.UsageError("--from goes without --group: a group has a position of its own")
    if position is not None:
        if group or start is not None:
            raise click.UsageError("--position goes without --group and --from")
        _from_position(choices, topic, position, number, partition, frames)
        return
    if frames:
        raise click.UsageError("--frames needs --position")
    if number > PEEK_MAX:
        raise click.UsageError(f"-n {number} is above {PEEK_MAX}: read more with --position")
    place = None if start is None else _place(start)
    out = Output(choices)
    with ask.connect(choices) as mq:
        if ask.missing(mq, [topic]):
            raise ask.no_topic(mq, topic)
        parts = found(mq, topic, group) if group else []
        if place is not None:
            rows = [_shown(record) for record in mq.read(topic, start=place).where(limit=number)]
        else:
            rows = list(islice(_open(mq, topic, parts) if group else _newest(mq, topic, number), number))
    columns = [Column("ref"), Column("time", spaced, title="published"), Column("key", dashed)]
    if group:
        columns += [Column("state"), Column("consumer", dashed)]
    out.rows([*columns, Column("value", _beginning)], rows)
    if behind := sum(part.retrying + part.parked for part in parts):
        waits = "waits" if behind == 1 else "wait"
        out.say(f"{many(behind, 'record')} more {waits} to be delivered: gossipq group lag {topic}")
    elif not rows:
        nothing = f"{topic} is empty" if place is None else f"{topic} has no record from there on"
        out.say(f"{group} is done with everything" if group else nothing)


def _from_position(
    choices: Choices, topic: str, position: int, limit: int, partition: int, frames: bool
) -> None:
    """Print records of one partition as a table, or as prettyQ's frames."""
    out = Output(choices)
    with ask.connect(choices) as mq:
        if ask.missing(mq, [topic]):
            raise ask.no_topic(mq, topic)
        records = islice(_values(mq, topic, position, partition), limit)
        if frames:
            from gossipq_dialects.prettyq import wire

            for offset, value in records:
                sys.stdout.buffer.write(wire.frame(offset, value))
            sys.stdout.buffer.flush()
            return
        rows = [
            {"position": offset, "value": value.decode(errors="replace"), "size": len(value)}
            for offset, value in records
        ]
    out.rows([Column("position"), Column("size"), Column("value", _beginning)], rows)
    if not rows:
        out.say(f"{topic} has no record at {position} or behind")


def _values(mq: "Client", topic: str, position: int, partition: int) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and values up to the end of the partition."""
    for stretch in mq.read(topic, start=position).batches(partition):
        yield from enumerate(stretch.values(), stretch.first)


def _place(text: str) -> str | int | datetime:
    """Parse a position. Raises UsageError."""
    try:
        return place_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--from") from None


def _shown(record: "Record") -> Row:
    ref = f"{record.topic}/{record.partition}/{record.offset}"
    return {"ref": ref, "value": None} | records.as_row(record)


def _newest(mq: "Client", topic: str, number: int) -> Iterator[Row]:
    """Yield the newest records over all partitions, newest first."""
    rows = []
    for partition, (first, end) in mq.topic(topic).positions().items():
        for offset in range(end - 1, max(first, end - number) - 1, -1):
            rows += _row(mq, topic, partition, offset)
    yield from sorted(rows, key=lambda row: str(row["time"]), reverse=True)


def _open(mq: "Client", topic: str, parts: list[GroupStats]) -> Iterator[Row]:
    """Yield records that a group has not received yet or holds, partition by partition."""
    ends = {partition: end for partition, (_, end) in mq.topic(topic).positions().items()}
    for part in parts:
        partition = partition_of(part.partition)
        last = min(ends.get(partition, part.cursor), part.cursor + LOOKED_MAX)
        for offset in range(part.cursor, last):
            standings = mq.record(topic, partition, offset).why(group=part.group).standings
            if standings and standings[0].state not in DONE:
                stands = {"state": standings[0].state.replace("_", " "), "consumer": standings[0].consumer}
                yield from (row | stands for row in _row(mq, topic, partition, offset))


def _beginning(value: str | None) -> str:
    return "(not text)" if value is None else brief(value.encode())


def _row(mq: "Client", topic: str, partition: int, offset: int) -> list[Row]:
    """Return the row in a list; empty if the record was removed meanwhile."""
    try:
        record = mq.record(topic, partition, offset).show()
    except UnknownRecord:
        return []
    return [{"ref": record.ref, "value": None} | records.as_row(record)]
