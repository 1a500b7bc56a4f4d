"""`gossipq why`."""

import time
from typing import TYPE_CHECKING, Any

import click

from gossipq.errors import Refused, UnknownTopic
from gossipq.texts import dashed, many, moment, printable
from gossipq.times import unix_ms_of
from gossipq_cli import ask, refs
from gossipq_cli.commands.group import asking, unknown
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, as_object
from gossipq_ops import outlook

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_client.answers import Explanation, GroupStand, Standing

COLORS = dict.fromkeys(("acked", "moving", "working", "idle"), "green") | dict.fromkeys(
    ("in_flight", "ready"), "cyan"
)
COLORS |= {"dead": "red"}
LATER = ("scheduled", "retrying", "in_flight")  #: states with a time in the future


@click.command(cls=Verb)
@click.argument("ref", metavar="REF|TOPIC")
@click.option(
    "-g", "--group", default="", help="only this group; with a TOPIC: why the group does not progress"
)
@refs.id_option
@click.option("--steps", is_flag=True, help="show what happened to the record, step by step")
@click.option(
    "--over",
    "over_s",
    type=Duration(),
    metavar="SECONDS",
    default="2s",
    show_default=True,
    help="of a group: how long its rates are measured",
)
@pass_choices
def command(
    choices: Choices, ref: str, group: str, record_id: str | None, steps: bool, over_s: float
) -> None:
    """Explain why a record or a group is in its state, and what changes it.

    \b
    gossipq why orders/0/17
    gossipq why orders/0/17 -g billing
    gossipq why orders --id order-17
    gossipq why orders --group billing
    gossipq why orders/0/17 --steps

    A REF is TOPIC/PARTITION/OFFSET, or what `gossipq pub` printed for a record that is not due yet.
    The topic says which steps are kept: `gossipq topic create --trace failures|all|off`.
    """
    out = Output(choices)
    if steps:
        _tell_steps(choices, out, ref, record_id, group)
        return
    if group and record_id is None and "/" not in ref:
        with ask.connect(choices) as mq:
            try:
                stands = mq.group(ref, group).why()
            except UnknownTopic:
                raise ask.no_topic(mq, ref) from None
            if not stands:
                raise unknown(ref, group, mq.admin.raw.stats([ref]).groups)
            foreseen = _foresee(mq, ref, group, 0.0 if out.form == "names" else over_s)
        _tell_group(out, ref, group, stands, foreseen)
        return
    where = refs.where(ref, record_id, also="; of a group: TOPIC --group GROUP")
    topic = ref.partition("/")[0]
    with ask.connect(choices) as mq:
        with asking(mq, topic, group):
            told = mq.record(**where).why(group=group)
        misfit = _misfit(mq, topic, where)
    _tell(out, told, misfit)


def _tell_steps(choices: Choices, out: Output, ref: str, record_id: str | None, group: str) -> None:
    where = refs.where(ref, record_id)
    with ask.connect(choices) as mq:
        steps = mq.record(**where).trace(group=group)
        topics = mq.topics(ref.partition("/")[0])
    columns = [
        Column("time_ms", moment, title="time"),
        Column("what"),
        Column("group", dashed),
        Column("consumer", dashed),
        Column("attempt", lambda attempt: str(attempt or "-"), right=True),
        Column("reason", dashed),
    ]
    out.rows(columns, map(as_object, steps))
    if any(topic.config.trace == "off" for topic in topics):
        out.say("its topic keeps no steps (trace = off): what it went through before is not known")
    elif not steps:
        out.say("no steps are kept of it; its topic's `trace` says which are")


def _misfit(mq: "Client", topic: str, where: dict[str, Any]) -> str:
    """Return how the value does not fit the topic's schema; "" if it fits."""
    schema = mq.topic(topic).schema()
    if schema is None:
        return ""
    try:
        trouble = schema.trouble(mq.record(**where).show().value)
    except Refused:
        return ""  # the record was removed
    return trouble and f"its value does not fit schema version {schema.version} of {topic}: {trouble}"


def _tell(out: Output, told: "Explanation", misfit: str) -> None:
    lines = [*told.lines, *([misfit] if misfit else [])]
    row = {"ref": told.ref, "standings": [as_object(each) for each in told.standings], "lines": lines}
    paragraphs = [_paragraph(out, each) for each in told.standings]
    if lines:
        paragraphs.append("\n".join(map(printable, lines)))
    out.one(row, "\n\n".join([printable(told.ref), *paragraphs]), told.ref)


def _paragraph(out: Output, standing: "Standing") -> str:
    """Format the state of one group: with its time, reason and next command."""
    head = _state(out, standing.state)
    if standing.time is not None:
        head += f" {'until' if standing.state in LATER else 'at'} {moment(unix_ms_of(standing.time))}"
    counts = [
        many(number, name)
        for number, name in ((standing.attempts, "attempt"), (standing.failures, "failure"))
        if number
    ]
    return _told(
        f"{printable(standing.group) or 'every group'}: {', '.join([head, *counts])}",
        standing.because,
        standing.next,
    )


def _foresee(mq: "Client", topic: str, group: str, over_s: float) -> outlook.Outlook:
    """Return the forecast from two looks at a group."""

    def look() -> outlook.Look:
        stats = mq.admin.raw.stats([topic])
        at_ms = round(time.monotonic() * 1_000)
        return outlook.look(at_ms, topic, group, stats.partitions, stats.groups, mq.admin.raw.clients())

    first = look()
    time.sleep(over_s)
    return outlook.outlook(first, look())


def _tell_group(
    out: Output, topic: str, group: str, told: "list[GroupStand]", foreseen: outlook.Outlook
) -> None:
    """Print the state of a group; partitions with equal state together."""
    rows: list[dict[str, Any]] = list(map(as_object, told))
    if out.form == "names":
        out.rows([Column("state")], rows)
        return
    alike: dict[tuple[str, str, str, int], list[int]] = {}
    for row in rows:
        alike.setdefault((row["state"], row["because"], row["next"], row["since_ms"]), []).append(
            row["partition"]
        )
    paragraphs = []
    for (state, because, next_step, since_ms), partitions in alike.items():
        acked = f", last ack at {moment(since_ms)}" if since_ms else ""
        where = "partition " if len(partitions) == 1 else "partitions "
        paragraphs.append(
            _told(f"{where}{spans(partitions)}: {_state(out, state)}{acked}", because, next_step)
        )
    lines = [f"  {line}" for line in outlook.lines(foreseen)]
    title = "\n".join(map(printable, [f"{group} on {topic}", *lines]))
    row = {"topic": topic, "group": group, "partitions": rows, "outlook": outlook.as_object(foreseen)}
    out.one(row, "\n\n".join([title, *paragraphs]))


def _state(out: Output, state: str) -> str:
    return out.paint(printable(state.replace("_", " ")), COLORS.get(state, "yellow"))


def spans(numbers: list[int]) -> str:
    """Return 0-2, 5 for 0 1 2 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _told(head: str, because: str, next_step: str) -> str:
    lines = [head]
    if because:
        lines.append(f"  because {printable(because)}")
    if next_step:
        lines.append(f"  next: {printable(next_step)}")
    return "\n".join(lines)
