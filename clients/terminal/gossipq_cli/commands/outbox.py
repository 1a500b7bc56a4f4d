"""`gossipq outbox`."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from gossipq.errors import GossipqError
from gossipq.texts import many, moment
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter

if TYPE_CHECKING:
    from gossipq_outbox import Relay
    from gossipq_outbox.source import Source

Command = Callable[..., Any]


def database_options(command: Command) -> Command:
    """Add --database and --table, which each verb takes."""
    command = click.option(
        "--table", default="gossipq_outbox", show_default=True, help="name of the table; SCHEMA.TABLE"
    )(command)
    return click.option(
        "--database",
        required=True,
        envvar="GOSSIPQ_OUTBOX",
        metavar="URL",
        help="postgresql://USER@HOST/NAME or sqlite:///PATH; $GOSSIPQ_OUTBOX if absent",
    )(command)


@click.group(cls=Noun)
def command() -> None:
    """Publish the rows that transactions left in an outbox."""


@command.command("create")
@database_options
def create(database: str, table: str) -> None:
    """Create the table of an outbox, unless it exists.

    \b
    gossipq outbox create --database postgresql://shop@db/shop
    """
    from gossipq_outbox import Outbox
    from gossipq_outbox.databases import opened

    with _database_errors(), closing(opened(database)) as connection:
        Outbox(table).create(connection)
        connection.commit()


@command.command("relay")
@database_options
@click.option("--once", is_flag=True, help="end when no row is left that can be published")
@click.option("--every", default="200ms", show_default=True, help="pause between looks at an empty table")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="rows of one look"
)
@pass_choices
def run_relay(choices: Choices, database: str, table: str, once: bool, every: str, batch: int) -> None:
    """Publish rows in order, and delete those that are stored, until SIGTERM or Ctrl-C.

    \b
    gossipq outbox relay --database postgresql://shop@db/shop
    gossipq outbox relay --database sqlite:///shop.db --once

    Each row has an id, so a row that is sent again after a crash is stored once. Start a second relay on
    another host if you like: on PostgreSQL it waits until the first one is gone.
    """
    from gossipq_outbox import Relay

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with ask.connect(choices) as mq:
        relay = Relay(mq, database, table=table, every=every, batch=batch)
        with _source(database, table) as source:
            source.rows(1)  # a wrong URL, or a table that is missing, ends the command
        with _stopped_by_signals(relay):
            relay.run(until_empty=once)
    refused = f", {relay.refused} refused" if relay.refused else ""
    Output(choices).say(f"{many(relay.published, 'row')} published{refused}")


@command.command("ls")
@database_options
@click.option(
    "-n", "--number", type=click.IntRange(min=1), default=100, show_default=True, help="rows at most"
)
@pass_choices
def list_rows(choices: Choices, database: str, table: str, number: int) -> None:
    """List rows that wait, the oldest first, and why the broker refused one.

    \b
    gossipq outbox ls --database postgresql://shop@db/shop
    """
    with _source(database, table) as source:
        found = source.rows(number)
    rows = [
        {
            "number": row.number,
            "topic": row.topic,
            "id": row.id,
            "created_ms": row.created_ms,
            "bytes": len(row.value),
            "refused": reason,
        }
        for row, reason in found
    ]
    columns = [
        counter("number"),
        Column("topic"),
        Column("id"),
        Column("created_ms", moment, title="created"),
    ]
    Output(choices).rows([*columns, counter("bytes"), Column("refused", _told)], rows)


def _told(reason: str | None) -> str:
    return "-" if reason is None else reason


@command.command("retry")
@database_options
@pass_choices
def retry(choices: Choices, database: str, table: str) -> None:
    """Hand all refused rows to the relay again.

    \b
    gossipq outbox retry --database postgresql://shop@db/shop
    """
    with _source(database, table) as source:
        count = source.retry()
    Output(choices).one({"rows": count}, f"{many(count, 'row')} handed to the relay", str(count))


@contextmanager
def _stopped_by_signals(relay: "Relay") -> Iterator[None]:
    """SIGTERM and Ctrl-C let the relay finish the rows that it took."""
    before = {
        number: signal.signal(number, lambda *_: relay.stop()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _source(database: str, table: str) -> "Iterator[Source]":
    from gossipq_outbox.source import source_of

    source = source_of(database, table)
    with _database_errors():
        try:
            yield source
        finally:
            with suppress(Exception):  # the first error counts
                source.abandon()


@contextmanager
def _database_errors() -> Iterator[None]:
    """Turn errors of whatever driver into a Failure."""
    try:
        yield
    except GossipqError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        hint = "if the table is missing: gossipq outbox create"
        raise failures.Failure("database", f"the database says: {text}", hint, failures.FAILED) from error
