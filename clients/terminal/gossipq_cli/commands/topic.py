"""`gossipq topic`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gossipq import errors, limits
from gossipq.texts import dashed, many, size, typed
from gossipq.types import partition_of
from gossipq.values import PartitionStats, TopicInfo
from gossipq_cli import ask, failures, names
from gossipq_cli.kinds import Duration, Durations, Size
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter
from gossipq_ops import actions

if TYPE_CHECKING:
    from gossipq_client import Client


@click.group(cls=Noun, lazy=("schema",))
def command() -> None:
    """List, make, change, show, empty, remove topics and their schemas."""


NEVER = ("group_idle_ms", "alarm_lag", "age_after_ms")  #: options for which 0 means never
POLICY = (
    click.option(
        "--retention",
        type=Duration(),
        help="age at which records that every group has acked are removed; 0 = at once",
    ),
    click.option("--retain", type=click.Choice(["acked", "forever"]), help="forever: age removes nothing"),
    click.option("--bytes-max", type=Size(), help="stored bytes per partition; 0 = no bound"),
    click.option(
        "--overflow", type=click.Choice(["refuse", "drop_oldest"]), help="when bytes-max is reached"
    ),
    click.option(
        "--level",
        type=click.Choice(["stored", "none"]),
        help="default confirm level of publishes",
    ),
    click.option("--ttl", type=Duration(), help="default time to live, counted from when a record is due"),
    click.option(
        "--expire",
        type=click.Choice(["dead", "drop", "try_once"]),
        help="records that expire before their first delivery: dead letter, dropped, or delivered once",
    ),
    click.option("--dedup", type=Duration(), help="deduplication: how long an id is remembered"),
    click.option(
        "--dedup-count",
        type=click.IntRange(0, limits.DEDUP_HARD_COUNT),
        help="deduplication: for how many later ids of its partition an id is remembered",
    ),
    click.option(
        "--trace", type=click.Choice(["failures", "all", "off"]), help="steps kept for `gossipq why --steps`"
    ),
    click.option(
        "--lease",
        type=Duration(),
        help="lease: records are redelivered after this silence of their consumer; a group may override it",
    ),
    click.option(
        "--attempts-max", type=click.IntRange(min=1), help="failures after which a record is a dead letter"
    ),
    click.option("--backoff", type=Durations(), help="pause after the first, second ... failure: 1s,5s,1m"),
    click.option(
        "--alarm-lag",
        type=click.IntRange(min=0),
        help="raise an alarm at this lag of a group in a partition, in records; 0 = never",
    ),
    click.option(
        "--group-idle",
        type=Duration(),
        help="remove groups without consumers and progress after this time; 0 = never",
    ),
)


def policy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options of `create` and `set`."""
    for option in reversed(POLICY):
        function = option(function)
    return function


def _for_people(config: dict[str, Any]) -> dict[str, Any]:
    """Return the policy with units."""
    shown = {name.removesuffix("_ms"): _shown(name, value) for name, value in config.items()}
    return shown | {"bytes_max": size(config["bytes_max"]) if config["bytes_max"] else "none"}


def _shown(name: str, value: Any) -> Any:
    if value is None:
        return "as the cluster says"
    if name in NEVER and not value:
        return "never"
    if value in ("", []) or (name == "ttl_ms" and not value):
        return "none"
    if name == "backoff_ms":
        return ", ".join(map(typed, value))
    if isinstance(value, list):
        return ", ".join(value)
    return typed(value) if name.endswith("_ms") else value


def _row(topic: TopicInfo, mine: list[PartitionStats]) -> dict[str, Any]:
    """Return a row. `mine` are the rows of its partitions."""
    return {
        "topic": topic.name,
        "partitions": topic.config.partitions,
        "records": sum(part.next - part.first for part in mine),
        "bytes": sum(part.bytes for part in mine),
        "published": sum(part.published for part in mine),
        "removed": sum(part.removed for part in mine),
        "retention_ms": topic.config.retention_ms,
        "scheduled": sum(part.scheduled for part in mine),
        "virtual": topic.config.virtual,
    }


@command.command("ls")
@click.argument("pattern", default="*")
@pass_choices
def list_topics(choices: Choices, pattern: str) -> None:
    """List topics, all or those that match.

    \b
    gossipq topic ls
    gossipq topic ls 'orders.*' -o names
    """
    with ask.connect(choices) as mq:
        topics, stats = mq.admin.raw.topics(pattern), mq.admin.raw.stats()
    columns = [Column("topic"), counter("partitions"), counter("records"), Column("bytes", size, right=True)]
    columns += [counter("published"), Column("retention_ms", typed, right=True, title="retention")]
    parts: dict[str, list[PartitionStats]] = {}
    for part in stats.partitions:
        parts.setdefault(part.topic, []).append(part)
    rows = [_row(topic, parts.get(topic.name, [])) for topic in sorted(topics, key=lambda topic: topic.name)]
    if any(row["scheduled"] for row in rows):
        columns.append(counter("scheduled"))
    if any(row["virtual"] for row in rows):
        columns.append(Column("virtual", ", ".join, title="copied to"))
    Output(choices).rows(columns, rows)


@command.command("create")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="fixed for the topic's life (1)")
@policy_options
@click.option("--beside", metavar="TOPIC", help="place it in the same shards as this topic")
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="leave an existing topic as it is; refused if it has other --partitions",
)
@pass_choices
def create(
    choices: Choices, /, name: str, partitions: int | None, if_not_exists: bool, **policy: Any
) -> None:
    """Make a topic.

    \b
    gossipq topic create orders -p 8 --retention 7d
    gossipq topic create jobs --retention 0 --bytes-max 1GiB
    gossipq topic create mails --ttl 1d --expire drop --attempts-max 5 --backoff 1s,10s,5m
    """
    given = {option: value for option, value in policy.items() if value is not None}
    with ask.connect(choices) as mq:
        topic = mq.create_topic(name, partitions=partitions, if_not_exists=if_not_exists, **given)
    row = {"topic": topic.name, "id": topic.id, "partitions": topic.config.partitions, "shards": topic.shards}
    Output(choices).one(
        row, f"topic {topic.name} has {many(topic.config.partitions, 'partition')}", topic.name
    )


@command.command("virtual")
@click.argument("name")
@click.argument("targets", nargs=-1, required=True, metavar="TOPIC...")
@pass_choices
def virtual(choices: Choices, name: str, targets: tuple[str, ...]) -> None:
    """Make a virtual topic, or bind it to other topics: what is published to it is copied to each.

    \b
    gossipq topic virtual audit orders billing

    A publish is confirmed when every copy is stored. Consumers and groups are those of the real topics.
    """
    with ask.connect(choices) as mq:
        topic = mq.topic(name).bind(list(targets))
    row = {"topic": topic.name, "id": topic.id, "virtual": topic.config.virtual}
    Output(choices).one(row, f"topic {topic.name} is copied to {', '.join(topic.config.virtual)}", topic.name)


@command.command("show")
@click.argument("name", type=names.TOPIC)
@pass_choices
def show(choices: Choices, name: str) -> None:
    """Show one topic: its policy, groups and partitions, with the node that leads each.

    \b
    gossipq topic show orders
    gossipq topic show orders -o json
    """
    import msgspec

    with ask.connect(choices) as mq:
        topic = next((topic for topic in mq.admin.raw.topics(name) if topic.name == name), None)
        if topic is None:
            raise ask.no_topic(mq, name)
        stats, leaders = mq.admin.raw.stats([name]), _leaders(mq)
    parts = _parts(stats.partitions, leaders)
    # an array on the wire, an object for people
    config = {field: getattr(topic.config, field) for field in msgspec.structs.asdict(topic.config)}
    groups = sorted({group.group for group in stats.groups})
    out = Output(choices)
    if out.for_machines:
        out.one(
            {
                "topic": name,
                "id": topic.id,
                "version": topic.version,
                "config": config,
                "partitions": parts,
                "groups": groups,
            }
        )
        return
    if topic.config.virtual:
        out.one({"topic": name, "id": topic.id, "virtual": ", ".join(topic.config.virtual)}, name=name)
        return
    del config["virtual"]
    out.one(
        {"topic": name, "id": topic.id} | _for_people(config) | {"groups": ", ".join(groups) or "none"},
        name=name,
    )
    if out.form == "table":
        out.write("")
        columns = [counter("partition"), Column("leader", dashed)]
        columns += [*map(counter, ("shard", "worker", "first", "next", "records"))]
        columns += [Column("bytes", size, right=True)]
        out.rows([*columns, *map(counter, ("published", "removed", "scheduled", "voided"))], parts)


def _parts(rows: list[PartitionStats], leaders: dict[int, str]) -> list[dict[str, Any]]:
    fields = ("first", "next", "records", "bytes", "published", "removed", "scheduled", "voided")
    return [
        {
            "partition": partition_of(part.partition),
            "leader": leaders.get(part.shard, ""),
            "shard": part.shard,
            "worker": part.worker,
        }
        | {name: part.next - part.first if name == "records" else getattr(part, name) for name in fields}
        for part in sorted(rows, key=lambda part: part.partition)
    ]


def _leaders(mq: "Client") -> dict[int, str]:
    """Return shard -> name of its leader. Empty for users who may not see the cluster."""
    try:
        status = mq.admin.raw.status()
    except errors.Forbidden:
        return {}
    if not status.leads:  # a node with the only copy of each shard
        return dict.fromkeys((route.shard for route in status.routes), status.node)
    nodes = {member.copy: member.name for member in status.members}
    return {lead.shard: nodes.get(lead.copy, "") for lead in status.leads}


@command.command("set")
@click.argument("name", type=names.TOPIC)
@policy_options
@pass_choices
def change(choices: Choices, /, name: str, **policy: Any) -> None:
    """Change the policy of a topic; options that are not given stay as they are.

    \b
    gossipq topic set orders --retention 30d
    gossipq topic set orders --alarm-lag 10000
    gossipq topic set mails --ttl 1d --expire drop

    The number of partitions, and beside whom a topic lies, are chosen when it is made.
    """
    given = {option: value for option, value in policy.items() if value is not None}
    if not given:
        raise click.UsageError("name what is to change, as in --retention 30d")
    with ask.connect(choices) as mq:
        topic = mq.topic(name).configure(**given)
    row = {"topic": topic.name, "id": topic.id, "version": topic.version, "changed": sorted(given)}
    Output(choices).one(
        row, f"topic {topic.name} is changed: {', '.join(sorted(given)).replace('_', '-')}", topic.name
    )


@command.command("purge")
@click.argument("name", type=names.TOPIC)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="only this partition")
@click.option("--dry-run", is_flag=True, help="only say how many that would be")
@pass_choices
def purge(choices: Choices, name: str, partition: int | None, dry_run: bool) -> None:
    """Remove all records that a topic has now; topic, groups and scheduled records stay.

    \b
    gossipq topic purge orders --dry-run
    gossipq topic purge orders          asks first
    gossipq topic purge orders --yes    for scripts

    Groups count what they had not done as removed. Records that come meanwhile stay, and so do dead letters:
    those that were replayed are still delivered, and `gossipq dlq purge` removes the others.
    """
    with ask.connect(choices) as mq:
        outcome = actions.empty(mq, name, partition, dry=True)
        if not dry_run:
            place = f"topic {name}" if partition is None else f"partition {partition} of topic {name}"
            ask.sure(choices, f"purging {place}", f"{outcome.text}; remove them?")
            outcome = actions.empty(mq, name, partition)
    Output(choices).did(outcome, str(outcome.row["count"]))


def _ask_first(choices: Choices, names: tuple[str, ...]) -> None:
    """Ask the user. Raises UnknownTopic if none of the topics exists."""
    with ask.connect(choices) as mq:
        missing = ask.missing(mq, names)
    if len(missing) == len(names):
        raise errors.UnknownTopic(f"no topic {names[0]}")
    what = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics"
    ask.sure(choices, f"removing {what}", f"remove {what} with all records?")


@command.command("rm")
@click.argument("names", type=names.TOPIC, nargs=-1, required=True, metavar="NAME...")
@pass_choices
def remove(choices: Choices, names: tuple[str, ...]) -> int:
    """Remove topics with all their records.

    \b
    gossipq topic rm orders          asks first
    gossipq topic rm orders --yes    for scripts
    """
    if not choices.yes:
        _ask_first(choices, names)
    out, gone = Output(choices), 0
    error: errors.GossipqError | None = None
    with ask.connect(choices) as mq:
        for name in names:
            try:
                mq.topic(name).delete()
            except errors.UnknownTopic as missing:
                error = error or missing
                continue
            gone += 1
            out.say(f"topic {name} removed")
    if error is not None and gone:
        raise failures.Failure(
            "partly", f"{gone} of {len(names)} removed: {error.message}", exit_code=failures.PARTLY
        )
    if error is not None:
        raise error
    return failures.DONE
