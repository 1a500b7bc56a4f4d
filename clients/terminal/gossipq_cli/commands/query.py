"""`gossipq query`."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from gossipq_cli import ask
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, brief
from gossipq_gateway.dialects.prettyq import wire

if TYPE_CHECKING:
    from gossipq_client import Client

LIMIT_MAX = 1_000_000


@click.command(cls=Verb)
@click.argument("topic")
@click.argument("position", type=click.IntRange(0), metavar="POS")
@click.argument("limit", type=click.IntRange(1, LIMIT_MAX))
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True)
@click.option("--frames", is_flag=True, help="bytes as prettyQ's consumers get them, on stdout")
@pass_choices
def command(choices: Choices, topic: str, position: int, limit: int, partition: int, frames: bool) -> None:
    """Read records of a partition from a position on, as often as you like.

    \b
    gossipq query orders 1000 50              from offset 1000 on, 50 at most
    gossipq query orders 0 100000 --frames    number, size, data, CRC-32 of each: prettyQ's frames

    Nothing is taken, held or acked. It ends where the partition ends; prettyQ's own ends with each file.
    """
    out = Output(choices)
    with ask.connect(choices) as mq:
        if ask.missing(mq, [topic]):
            raise ask.no_topic(mq, topic)
        found = _records(mq, topic, position, limit, partition)
        if frames:
            for number, data in found:
                sys.stdout.buffer.write(wire.frame(number, data))
            sys.stdout.buffer.flush()
            return
        rows = [
            {"position": number, "value": data.decode(errors="replace"), "size": len(data)}
            for number, data in found
        ]
    columns = [Column("position"), Column("size"), Column("value", lambda text: brief(text.encode()))]
    out.rows(columns, rows)
    if not rows:
        out.say(f"{topic} has no record at {position} or behind")


def _records(
    mq: "Client", topic: str, position: int, limit: int, partition: int
) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and values."""
    for stretch in mq.batches(topic, start=position, partition=partition):
        for number, data in enumerate(stretch.values(), stretch.first):
            yield number, data
            limit -= 1
            if not limit:
                return
