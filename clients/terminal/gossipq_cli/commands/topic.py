"""`gossipq topic`."""

import sys
from typing import Any

import click

from gossipq import errors
from gossipq.messages import PartitionStats, TopicInfo
from gossipq.types import partition_of
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Duration, Noun, Size, pass_choices
from gossipq_cli.output import Column, Output, counter, size, span


@click.group(cls=Noun)
def command() -> None:
    """List, make, show and remove topics."""


def _for_people(config: dict[str, Any]) -> dict[str, Any]:
    """The policy with its spans and sizes in units."""
    shown = {name.removesuffix("_ms"): span(value) if name.endswith("_ms") else value for name, value in config.items()}
    return shown | {"bytes_max": size(config["bytes_max"]) if config["bytes_max"] else "none"}


def _row(topic: TopicInfo, partitions: list[PartitionStats]) -> dict[str, Any]:
    mine = [part for part in partitions if part.topic == topic.name]
    return {
        "topic": topic.name,
        "partitions": topic.config.partitions,
        "records": sum(part.next - part.first for part in mine),
        "bytes": sum(part.bytes for part in mine),
        "published": sum(part.published for part in mine),
        "removed": sum(part.removed for part in mine),
        "retention_ms": topic.config.retention_ms,
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
        topics, stats = mq.topics(pattern), mq.stats()
    columns = [Column("topic"), counter("partitions"), counter("records"), Column("bytes", size, right=True)]
    columns += [counter("published"), Column("retention_ms", span, right=True, title="retention")]
    rows = [_row(topic, stats.partitions) for topic in sorted(topics, key=lambda topic: topic.name)]
    Output(choices).rows(columns, rows)


@command.command("create")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="fixed for the topic's life")
@click.option("--retention", type=Duration(), help="age at which records that every group has acked are removed; 0 = at once")
@click.option("--retain", type=click.Choice(["acked", "forever"]), help="forever: age removes nothing")
@click.option("--bytes-max", type=Size(), help="stored bytes per partition; 0 = no bound")
@click.option("--overflow", type=click.Choice(["refuse", "drop_oldest"]), help="when bytes-max is reached")
@click.option("--level", type=click.Choice(["stored", "none"]), help="what a publish waits for, if it does not say")
@click.option("--beside", metavar="TOPIC", help="lie in the same shards as this topic")
@click.option("--if-not-exists", is_flag=True, help="leave an existing topic as it is")
@pass_choices
def create(choices: Choices, /, name: str, partitions: int, if_not_exists: bool, **policy: Any) -> None:
    """Make a topic.

    \b
    gossipq topic create orders -p 8 --retention 7d
    gossipq topic create jobs --retention 0 --bytes-max 1GiB
    """
    given = {option: value for option, value in policy.items() if value is not None}
    with ask.connect(choices) as mq:
        topic = mq.create_topic(name, partitions=partitions, if_not_exists=if_not_exists, **given)
    row = {"topic": topic.name, "id": topic.id, "partitions": topic.config.partitions, "shards": topic.shards}
    Output(choices).one(row, f"topic {topic.name} has {topic.config.partitions} partitions", topic.name)


@command.command("show")
@click.argument("name")
@pass_choices
def show(choices: Choices, name: str) -> None:
    """Show one topic: its policy, partitions and groups.

    \b
    gossipq topic show orders
    gossipq topic show orders -o json
    """
    import msgspec

    with ask.connect(choices) as mq:
        topic = next((topic for topic in mq.topics(name) if topic.name == name), None)
        if topic is None:
            raise errors.UnknownTopic(f"no topic {name}")
        stats = mq.stats([name])
    parts = [
        {
            "partition": partition_of(part.partition),
            "shard": part.shard,
            "worker": part.worker,
            "first": part.first,
            "next": part.next,
        }
        | {"records": part.next - part.first, "bytes": part.bytes, "published": part.published, "removed": part.removed}
        for part in sorted(stats.partitions, key=lambda part: part.partition)
    ]
    # array-like on the wire, an object for people
    config = {field: getattr(topic.config, field) for field in msgspec.structs.asdict(topic.config)}
    groups = sorted({group.group for group in stats.groups})
    out = Output(choices)
    if out.for_machines:
        out.one(
            {"topic": name, "id": topic.id, "version": topic.version, "config": config, "partitions": parts, "groups": groups}
        )
        return
    out.one({"topic": name, "id": topic.id} | _for_people(config) | {"groups": ", ".join(groups) or "none"}, name=name)
    if out.form == "table":
        out.write("")
        fields = ("partition", "shard", "worker", "first", "next", "records")
        out.rows([*map(counter, fields), Column("bytes", size, right=True), counter("published"), counter("removed")], parts)


def _ask_first(choices: Choices, names: tuple[str, ...]) -> None:
    """Goes on when somebody says yes; raises UnknownTopic where there is nothing to ask about."""
    with ask.connect(choices) as mq:
        missing = ask.missing(mq, names)
    if len(missing) == len(names):
        raise errors.UnknownTopic(f"no topic {names[0]}")
    what = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics"
    if not sys.stdin.isatty():
        raise click.UsageError(f"removing {what} needs --yes when nobody can be asked")
    click.confirm(f"remove {what} with all records?", abort=True, err=True)


@command.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
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
                mq.delete_topic(name)
            except errors.UnknownTopic as missing:
                error = error or missing
                continue
            gone += 1
            out.say(f"topic {name} removed")
    if error is not None and gone:
        raise failures.Failure("partly", f"{gone} of {len(names)} removed: {error.message}", exit_code=failures.PARTLY)
    if error is not None:
        raise error
    return failures.DONE
