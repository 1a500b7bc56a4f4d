"""`gossipq topic schema`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gossipq.texts import many, printable
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, json_text

if TYPE_CHECKING:
    from gossipq_client import Client, Schema

LAST = 1_000  #: newest records of each partition that are checked
TOLD_MAX = 20  #: misfits shown


@click.group(cls=Noun)
def command() -> None:
    """Declare, show, check and remove the schema of a topic's values."""


@command.command("set")
@click.argument("topic")
@click.argument("file", type=click.File("rb"))
@pass_choices
def declare(choices: Choices, topic: str, file: BinaryIO) -> None:
    """Declare the schema of a topic: a JSON Schema of an object.

    \b
    gossipq topic schema set orders order.schema.json
    gossipq topic schema set orders - < order.schema.json

    Clients check the values that they publish; exports get a typed column beside `value`, and a table of
    records that do not fit. A later version can add optional fields. It is refused if it would refuse a
    value that the current version accepts.
    """
    document = file.read()
    with ask.connect(choices) as mq:
        mq.topic(topic).next_schema(document)  # an earlier version cannot return
        schema = mq.schema(topic, document)
    Output(choices).one(_row(schema), f"topic {topic} has schema version {schema.version}", topic)


@command.command("ls")
@pass_choices
def list_schemas(choices: Choices) -> None:
    """List the topics that have a schema.

    \b
    gossipq topic schema ls
    """
    with ask.connect(choices) as mq:
        known = mq.admin.schemas().schemas
        there = {info.id for info in mq.topics()}
    rows = [_row(schema) for topic_id, schema in known.items() if topic_id in there]
    fields = Column("fields", lambda fields: printable(", ".join(fields)))
    columns = [Column("topic"), Column("version", right=True), fields]
    Output(choices).rows(columns, sorted(rows, key=lambda row: str(row["topic"])))


@command.command("show")
@click.argument("topic")
@pass_choices
def show(choices: Choices, topic: str) -> None:
    """Show the schema of a topic, as JSON Schema.

    \b
    gossipq topic schema show orders > order.schema.json
    """
    with ask.connect(choices) as mq:
        schema = _schema(mq, topic)
    Output(choices).one(_row(schema) | {"schema": schema.document}, json_text(schema.document), topic)


@command.command("check")
@click.argument("topic")
@click.argument("file", type=click.File("rb"), required=False)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=LAST,
    show_default=True,
    help="how many of the newest records of each partition are checked",
)
@pass_choices
def check(choices: Choices, topic: str, file: BinaryIO | None, last: int) -> int:
    """Check the newest records of a topic against its schema, or against its next one.

    \b
    gossipq topic schema check orders
    gossipq topic schema check orders new.schema.json --last 100000

    Nothing is changed. The exit code is 1 when some do not fit.
    """
    with ask.connect(choices) as mq:
        schema = _schema(mq, topic) if file is None else mq.topic(topic).next_schema(file.read())
        count, bad = 0, list[dict[str, Any]]()
        for ref, value in _newest(mq, topic, last):
            count += 1
            if trouble := schema.trouble(value):
                bad.append({"ref": ref, "error": trouble})
    return _tell(Output(choices), topic, count, bad)


@command.command("rm")
@click.argument("topic")
@pass_choices
def remove(choices: Choices, topic: str) -> None:
    """Remove the schema of a topic; its records stay as they are.

    \b
    gossipq topic schema rm orders
    """
    ask.sure(choices, "removing a schema", f"Nobody checks values of {topic} any more. Remove its schema?")
    with ask.connect(choices) as mq:
        _schema(mq, topic)
        mq.topic(topic).delete_schema()
    Output(choices).one({"topic": topic}, f"topic {topic} has no schema", topic)


def _schema(mq: "Client", topic: str) -> "Schema":
    """Return the schema of a topic. Raises UnknownTopic, Failure."""
    if "*" in topic or ask.missing(mq, [topic]):
        raise ask.no_topic(mq, topic)
    schema = mq.topic(topic).schema()
    if schema is None:
        raise failures.Failure(
            "unknown_schema",
            f"topic {topic} has no schema",
            f"`gossipq topic schema set {topic} FILE`",
            failures.NOT_FOUND,
        )
    return schema


def _row(schema: "Schema") -> dict[str, Any]:
    fields = [field.name for field in schema.shape.fields]
    return {"topic": schema.topic, "version": schema.version, "fields": fields}


def _newest(mq: "Client", topic: str, last: int) -> Iterator[tuple[str, bytes]]:
    """Yield records with their refs."""
    for number, (first, end) in sorted(mq.topic(topic).positions().items()):
        if first < end:
            for each in mq.read(topic, start=max(first, end - last), end=end).batches(number):
                for offset, value in enumerate(each.values(), each.first):
                    yield f"{topic}/{number}/{offset}", value


def _tell(out: Output, topic: str, count: int, bad: list[dict[str, Any]]) -> int:
    lines = [f"{row['ref']}: {printable(row['error'])}" for row in bad[:TOLD_MAX]]
    if len(bad) > TOLD_MAX:
        lines.append(f"and {len(bad) - TOLD_MAX:,} more")
    lines.append(f"{count - len(bad):,} of {many(count, 'record')} fit")
    row = {"topic": topic, "records": count, "fit": count - len(bad), "bad": bad[:TOLD_MAX]}
    out.one(row, "\n".join(lines), topic)
    return failures.FAILED if bad else failures.DONE
