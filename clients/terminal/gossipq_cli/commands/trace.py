"""`gossipq trace`."""

import click

from gossipq_cli import ask, refs
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, as_object, dashed, moment


@click.command(cls=Verb)
@click.argument("ref")
@click.option("-g", "--group", default="", help="only what happened to it in this group")
@refs.id_option
@pass_choices
def command(choices: Choices, ref: str, group: str, record_id: str | None) -> None:
    """Show what happened to a record, step by step.

    \b
    gossipq trace orders/0/17
    gossipq trace orders --id order-17 -g billing

    The topic says which steps are kept: `gossipq topic create --trace failures|all|off`.
    """
    where, out = refs.where(ref, record_id), Output(choices)
    with ask.connect(choices) as mq:
        steps = mq.admin.trace(**where, group=group)
        topics = mq.topics(ref.partition("/")[0])
    columns = [
        Column("time_ms", moment, title="time"),
        Column("what"),
        Column("group", dashed),
        Column("consumer", dashed),
    ]
    columns += [Column("attempt", lambda attempt: str(attempt or "-"), right=True), Column("reason", dashed)]
    out.rows(columns, map(as_object, steps))
    if any(topic.config.trace == "off" for topic in topics):
        out.say("its topic keeps no steps (trace = off): what it went through before is not known")
    elif not steps:
        out.say("no steps are kept of it; its topic's `trace` says which are")
