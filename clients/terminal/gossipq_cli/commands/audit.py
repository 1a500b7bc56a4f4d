"""`gossipq user audit`."""

import json

import click

from gossipq.texts import dashed, iso, spaced
from gossipq_cli import ask
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output

TOPIC = "_audit"


@click.command(cls=Verb)
@click.option("--from", "start", default="first", show_default=True, help="first, -10m, or a time")
@click.option("--user", "only", help="rows of this user")
@pass_choices
def command(choices: Choices, start: str, only: str | None) -> None:
    """Show what a closed cluster refused, and who mended, operated or changed it.

    \b
    gossipq user audit
    gossipq user audit --from -1h --user ada -o jsonl

    "admitted" means that the user has the permission: a request may still be refused for another reason.
    """
    out = Output(choices)
    rows = []
    with ask.connect(choices) as mq:
        if not ask.missing(mq, [TOPIC]):
            for record in mq.read(TOPIC, start=start):
                row = json.loads(record.value)
                if only is None or row["user"] == only:
                    rows.append({"time": iso(row.pop("time_ms"))} | row)
    names = ("time", "node", "user", "address", "verb", "target", "outcome")
    # each process writes its own rows, some seconds later
    rows.sort(key=lambda row: row["time"] or "")
    out.rows([Column(name, spaced if name == "time" else dashed) for name in names], rows)
    if not rows:
        out.say("nothing was noted")
