"""`gossipq group`."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gossipq.errors import BadRequest
from gossipq.texts import many, number, typed
from gossipq.types import partition_of
from gossipq.values import ClientRow, GroupStats
from gossipq_cli import ask, failures
from gossipq_cli.commands.topic import NEVER
from gossipq_cli.kinds import Duration, Durations, Weights
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, as_object, counter
from gossipq_ops import actions
from gossipq_ops.hints import nearest
from gossipq_ops.inputs import place_of
from gossipq_ops.sums import ADDED, OPEN, group_sums, lag_of
from gossipq_ops.verbs import with_undo

if TYPE_CHECKING:
    from gossipq_client import Client

COUNTERS = ("lag", *OPEN, "acked", "dead", "redelivered", "consumers")

group_option = click.option("-g", "--group", required=True, help="the group")
group_argument = click.argument("group", required=False)
named_option = click.option("-g", "--group", "named", help="the group, when it is not the second argument")


@click.group(cls=Noun)
def command() -> None:
    """List, show, change, move, pause, remove consumer groups."""


def counters_of(part: GroupStats) -> dict[str, Any]:
    """Return counters of one partition."""
    counts = {name: getattr(part, name) for name in ADDED}
    return {"lag": lag_of(part), **counts, "consumers": part.consumers, "paused": part.paused}


def totals(groups: Iterable[GroupStats]) -> list[dict[str, Any]]:
    """Return one row for each group and topic."""
    sums = sorted(group_sums(groups).values(), key=lambda found: (found.topic, found.group))
    return [{"group": found.group, **found._asdict()} for found in sums]


def unknown(topic: str, group: str, known: Iterable[GroupStats] = ()) -> failures.Failure:
    near = nearest(group, sorted({part.group for part in known}))
    text = f"no group {group} on {topic}{near}"
    return failures.Failure("unknown_group", text, f"`gossipq group ls {topic}`", failures.NOT_FOUND)


def found(mq: "Client", topic: str, group: str | None) -> list[GroupStats]:
    """Return the partitions of a topic's groups, or of one group. Raises UnknownTopic, Failure."""
    if "*" in topic:
        raise ask.no_topic(mq, topic)
    return _parts(mq, topic, group)


def _parts(mq: "Client", topic: str, group: str | None) -> list[GroupStats]:
    """Return the partitions of all topics that match."""
    known = ask.groups_of(mq, topic)
    parts = [part for part in known if group in (None, part.group)]
    if group is not None and not parts:
        raise unknown(topic, group, known)
    return sorted(parts, key=lambda part: (part.topic, part.group, part.partition))


@contextmanager
def asking(mq: "Client", topic: str, group: str) -> Iterator[None]:
    """Raise Failure if a request about a group fails because the group does not exist.

    A node answers such a request like an invalid one.
    """
    try:
        yield
    except BadRequest:
        if group:
            found(mq, topic, group)
        raise


@command.command("ls")
@click.argument("topic", required=False)
@pass_choices
def list_groups(choices: Choices, topic: str | None) -> None:
    """List groups, of all topics or of some.

    \b
    gossipq group ls
    gossipq group ls 'orders.*' -o json
    """
    with ask.connect(choices) as mq:
        groups = ask.groups_of(mq, topic) if topic else mq.admin.raw.stats().groups
    out = Output(choices)
    rows = totals(groups)
    columns = [Column("group"), Column("topic"), *map(counter, ("partitions", "consumers", "lag", "dead"))]
    if any(row["paused"] for row in rows):
        columns.append(Column("paused", lambda paused: "paused" if paused else ""))
    if any(row["goes_ms"] for row in rows):  # unused, by the topic's policy
        columns.append(Column("goes_ms", lambda goes_ms: typed(goes_ms) if goes_ms else "", title="goes in"))
    out.rows(columns, rows)
    if not groups:
        _say_none(out, topic)


def _say_none(out: Output, topic: str | None) -> None:
    out.say(
        f"no groups{f' on {topic}' if topic else ''}; one is made by gossipq sub {topic or 'TOPIC'} -g NAME"
    )


@command.command("lag")
@click.argument("topic")
@click.option("-g", "--group", help="only this group")
@click.option("--partitions", "by_partition", is_flag=True, help="a row for each partition")
@pass_choices
def lag(choices: Choices, topic: str, group: str | None, by_partition: bool) -> None:
    """Show the lag of each group of a topic, or of all that fit a pattern.

    \b
    gossipq group lag orders
    gossipq group lag orders -g billing --partitions

    lag = ready + in flight + retrying + parked: published since the group's start and not done yet.
    """
    with ask.connect(choices) as mq:
        groups = _parts(mq, topic, group)
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
    """Return the group, given in one of two places."""
    if (group is None) == (named is None):
        raise click.UsageError("name the group once" if group else "name a topic and a group")
    return group or named or ""


@command.command("rate")
@click.argument("topic")
@click.option("-g", "--group", help="only this group")
@click.option(
    "--over", "over_s", type=Duration(), default="2s", show_default=True, help="how long to measure"
)
@pass_choices
def rate(choices: Choices, topic: str, group: str | None, over_s: float) -> None:
    """Show how many records per second each consumer of a topic gets, acks and fails.

    \b
    gossipq group rate orders
    gossipq group rate orders -g billing --over 30s

    Looks twice. Consumers that came or went meanwhile are not shown.
    """
    if over_s <= 0:
        raise click.UsageError("--over: a rate needs some time")
    with ask.connect(choices) as mq:
        if not found(mq, topic, group):
            _say_none(Output(choices), topic)
            return
        before, began_s = consumers(mq.admin.raw.clients(), topic, group), time.monotonic()
        time.sleep(over_s)
        after, took_s = consumers(mq.admin.raw.clients(), topic, group), time.monotonic() - began_s
    rows, out = rates(before, after, took_s), Output(choices)
    out.rows(RATE_COLUMNS, rows)
    if not rows:
        out.say(f"no consumer of {f'{group} on ' if group else ''}{topic} was there both times")


COUNTED = ("delivered", "acked", "failed")
RATE_COLUMNS = (
    Column("group"),
    Column("client"),
    Column("session", lambda text: text[:8]),
    *(Column(name, lambda value: f"{value:,.1f}", right=True, title=f"{name}/s") for name in COUNTED),
    counter("in_flight"),
)


def consumers(
    clients: Iterable[ClientRow], topic: str, group: str | None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return counters of a topic's consumers, over all workers: (group,
    session) -> counter -> value.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for client in clients:
        for each in client.subscriptions:
            if each.group and topic in each.topic.split(", ") and group in (None, each.group):
                row = rows.setdefault((each.group, client.session.hex()), {"client": client.client})
                for name in (*COUNTED, "in_flight"):
                    row[name] = row.get(name, 0) + getattr(each, name)
    return rows


def rates(
    before: Mapping[tuple[str, str], dict[str, Any]],
    after: Mapping[tuple[str, str], dict[str, Any]],
    seconds: float,
) -> list[dict[str, Any]]:
    """Return rates of consumers that exist in both looks.

    A counter that fell has restarted at another leader.
    """
    rows = []
    for name, row in sorted(after.items()):
        if name in before:
            told = {each: max(0, row[each] - before[name][each]) / seconds for each in COUNTED}
            rows.append({"group": name[0], "session": name[1], **row, **told})
    return rows


FLOWS_SHOWN = 10  #: flows with the most records, and as many that wait longest
FLOW_COLUMNS = (
    Column("flow", lambda name: name or "(none)"),
    counter("partition"),
    counter("waiting"),
    Column("oldest_ms", typed, right=True, title="oldest"),
    counter("in_flight"),
    Column("waits_for", lambda cause: cause or "-"),
)


@command.command("show")
@click.argument("topic")
@group_argument
@named_option
@pass_choices
def show(choices: Choices, topic: str, group: str | None, named: str | None) -> None:
    """Show one group: how many of its records are in which state.

    \b
    gossipq group show orders billing

    published since the group's start = ready + in flight + retrying + parked + acked + dead + voided +
    dropped + removed. Parked wait behind another record of their key (blocked by key), or for a consumer that
    takes their route (unmatched). In a group of order fair, a table shows the flows with the most waiting
    records, and those that wait longest.
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        parts = found(mq, topic, group)
        rules = mq.group(topic, group).describe(flows=FLOWS_SHOWN)
    row, out = totals(parts)[0], Output(choices)
    if out.for_machines:
        policy = {name: {"value": value, "origin": origin} for name, value, origin in rules.policy}
        partitions = list(map(_by_partition, parts))
        flows = list(map(as_object, rules.flows))
        names = {"consumer_names": rules.consumers, "partitions": partitions, "flows": flows}
        out.one(row | {"policy": policy} | names)
        return
    goes_ms, oldest_ms = row["goes_ms"], row["oldest_ms"]
    shown = {
        name.replace("_", " "): number(value) if type(value) is int else value
        for name, value in row.items()
        if name not in ("goes_ms", "oldest_ms", "alarm_lag")
    }
    if goes_ms:
        shown["goes in"] = typed(goes_ms)
    shown |= {"paused": "yes" if row["paused"] else "no", "oldest": typed(oldest_ms) if oldest_ms else "-"}
    for name, value, origin in rules.policy:
        text = ", ".join(typed(int(each)) for each in value.split(", ")) if name.endswith("_ms") else value
        text = "never" if name in NEVER and value == "0" else text
        said = "" if origin in ("group", "none") else f"  (as the {origin} says)"
        shown[name.removesuffix("_ms").replace("_", " ")] = text + said
    out.one(shown | {"consumed by": ", ".join(rules.consumers) or "nobody"}, name=group)
    if out.form == "table" and len(parts) > 1:
        out.write("")
        out.rows(list(map(counter, ("partition", "cursor", *COUNTERS))), map(_by_partition, parts))
    if out.form == "table" and rules.flows:
        out.write("")
        out.rows(FLOW_COLUMNS, map(as_object, rules.flows))


@command.command("pause")
@click.argument("topic")
@group_argument
@named_option
@pass_choices
def pause(choices: Choices, topic: str, group: str | None, named: str | None) -> None:
    """Pause delivery to a group until it is resumed; records in flight may still be acked.

    \b
    gossipq group pause orders billing
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        found(mq, topic, group)
        outcome = actions.pause(mq, topic, group)
    Output(choices).did(outcome, group)


@command.command("resume")
@click.argument("topic")
@group_argument
@named_option
@pass_choices
def resume(choices: Choices, topic: str, group: str | None, named: str | None) -> None:
    """Resume delivery to a group that was paused.

    \b
    gossipq group resume orders billing
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        found(mq, topic, group)
        outcome = actions.resume(mq, topic, group)
    Output(choices).did(outcome, group)


@command.command("set")
@click.argument("topic")
@group_argument
@named_option
@click.option(
    "--mode",
    type=click.Choice(["shared", "exclusive", "key_ordered"]),
    help="how the group shares records; stop its consumers first",
)
@click.option(
    "--lease", type=Duration(), help="lease: records are redelivered after this silence of their consumer"
)
@click.option(
    "--attempts-max", type=click.IntRange(min=1), help="failures after which a record is a dead letter"
)
@click.option("--backoff", type=Durations(), help="pause after the first, second ... failure: 1s,5s,1m")
@click.option(
    "--in-flight-max",
    type=click.IntRange(min=1),
    help="records of a partition in flight at most: delivered and not acked",
)
@click.option(
    "--parked-max",
    type=click.IntRange(min=1),
    help="records of a partition that may be parked behind others of their key",
)
@click.option(
    "--alarm-lag",
    type=click.IntRange(min=0),
    help="raise an alarm at this lag in a partition, in records; 0 = never",
)
@click.option(
    "--order",
    type=click.Choice(["arrival", "priority", "fair"]),
    help="which record is next: by arrival, the higher priority, or one of each flow in turn",
)
@click.option(
    "--weights", type=Weights(), help="records that a flow gets in its turn: ada=3,bob=2; others get 1"
)
@click.option(
    "--concurrency", type=click.IntRange(min=0), help="records of the group in flight at most; 0 = no limit"
)
@click.option(
    "--flow-concurrency",
    type=click.IntRange(min=0),
    help="records of each flow in flight at most; 0 = no limit",
)
@click.option("--rate", help='deliveries of the group in a time: 10/s, 600/1m, "10/s burst 20", none')
@click.option("--flow-rate", help="the same for each flow")
@click.option(
    "--flow-backlog",
    type=click.IntRange(min=0),
    help="records of each flow that may wait in a partition; publishes beyond are refused; 0 = no bound",
)
@click.option(
    "--age-after",
    help="records that wait longer get one of ten deliveries, whatever their priority: 1m; 0 = they do not",
)
@pass_choices
def change(choices: Choices, /, topic: str, group: str | None, named: str | None, **policy: Any) -> None:
    """Change the policy of a group; options that are not given stay as they are.

    \b
    gossipq group set orders billing --alarm-lag 10000
    gossipq group set orders billing --lease 5m --attempts-max 3
    gossipq group set orders billing --order fair --flow-concurrency 5 --rate 100/s
    gossipq group set orders billing --mode key_ordered    stop its consumers first
    """
    group = _one(group, named)
    given = {option: value for option, value in policy.items() if value is not None}
    if not given:
        raise click.UsageError("name what is to change, as in --alarm-lag 10000")
    with ask.connect(choices) as mq:
        found(mq, topic, group)
        mq.group(topic, group).configure(**given)
    row = {"topic": topic, "group": group, "changed": sorted(given)}
    Output(choices).one(
        row, f"{group} on {topic} is changed: {', '.join(sorted(given)).replace('_', '-')}", group
    )


@command.command("seek")
@click.argument("topic")
@group_argument
@named_option
@click.option(
    "--to",
    "to",
    required=True,
    metavar="PLACE",
    help="first, new, an offset, a time, or -10m: 10 minutes ago",
)
@click.option("--dry-run", is_flag=True, help="only say what would happen")
@pass_choices
def seek(choices: Choices, topic: str, group: str | None, named: str | None, to: str, dry_run: bool) -> None:
    """Move a group to another position: to read records again, or to skip some.

    \b
    gossipq group seek orders billing --to first --dry-run
    gossipq group seek orders billing --to -1h
    gossipq group seek orders billing --to 2026-11-21T09:00Z
    gossipq group seek orders billing --to new --yes      for scripts

    Stop its consumers and replay or purge its dead letters first. Its counters start over.
    """
    group = _one(group, named)
    try:
        place_of(to)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--to") from None
    with ask.connect(choices) as mq:
        found(mq, topic, group)
        outcome = actions.seek(mq, topic, group, to, dry=True)
        if not dry_run:
            ask.sure(choices, f"moving group {group}", f"{outcome.text}; move it?")
            outcome = actions.seek(mq, topic, group, to)
    out = Output(choices)
    columns = [counter("partition"), *map(counter, ("before", "after", "again", "skipped"))]
    out.rows(columns, list(map(as_object, outcome.row["partitions"])))
    out.say(with_undo(outcome.text, outcome.undo))


@command.command("rm")
@click.argument("topic")
@group_argument
@named_option
@click.option("--dead-letters", is_flag=True, help="also when it has dead letters, which go with it")
@pass_choices
def remove(choices: Choices, topic: str, group: str | None, named: str | None, dead_letters: bool) -> None:
    """Remove a group: its position and its counters. The records stay, for the other groups.

    \b
    gossipq group rm orders billing                  asks first
    gossipq group rm orders billing --yes            for scripts
    gossipq group rm orders billing --dead-letters   its dead letters go too
    """
    group = _one(group, named)
    with ask.connect(choices) as mq:
        parts = found(mq, topic, group)
        dead = sum(part.dead for part in parts)
        losing = f" and {many(dead, 'dead letter')}" if dead and dead_letters else ""
        ask.sure(choices, f"removing group {group}", f"remove group {group} on {topic}{losing}?")
        mq.group(topic, group).delete(dead=dead_letters)
    Output(choices).one(
        {"topic": topic, "group": group, "dead_letters": dead},
        f"group {group} on {topic} removed{losing}",
        group,
    )
