"""`gossipq msg`."""

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gossipq.errors import GossipqError
from gossipq.texts import brief, dashed, many, moment
from gossipq_cli import ask, failures, records, refs
from gossipq_cli.commands.group import asking
from gossipq_cli.kinds import Duration, Moment
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Output
from gossipq_cli.progress import Progress
from gossipq_ops import actions
from gossipq_ops.answers import published_ms
from gossipq_ops.inputs import moment_of

if TYPE_CHECKING:
    from gossipq_client import Record

FOUND_MAX = 100  #: default number of records shown by `find`


@click.group(cls=Noun)
def command() -> None:
    """Show, find, cancel, move, edit and remove records."""


# --- show


@command.command("show")
@click.argument("ref")
@refs.id_option
@click.option("--raw", is_flag=True, help="only the value, byte by byte")
@pass_choices
def show(choices: Choices, ref: str, record_id: str | None, raw: bool) -> None:
    """Show one record, also while it is scheduled or a dead letter.

    \b
    gossipq msg show orders/0/17
    gossipq msg show orders --id order-17
    gossipq msg show orders/0/17 --raw > order.bin
    """
    where, out = refs.where(ref, record_id), Output(choices)
    with ask.connect(choices) as mq:
        record = mq.record(**where).show()
    if raw:
        sys.stdout.buffer.write(record.value)
        return
    out.one({"ref": record.ref} | records.as_row(record), records.as_text(record), record.ref)


@command.command("find")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="first, an OFFSET, a TIME, or a time back like -10m (default: first)",
)
@click.option(
    "--until",
    "end",
    metavar="WHERE",
    help="an OFFSET, a TIME, or a time back like -10m (default: the last record of now)",
)
@click.option("-k", "--key", help="the whole key")
@click.option("--contains", metavar="TEXT", help="somewhere in the value")
@click.option("-H", "--header", metavar="NAME:VALUE", help="a header and its whole value")
@click.option(
    "-n",
    "--number",
    "limit",
    type=click.IntRange(min=0),
    default=FOUND_MAX,
    show_default=True,
    help="maximum number of records; 0: all",
)
@pass_choices
def find(
    choices: Choices,
    /,
    topic: str,
    start: str | None,
    end: str | None,
    key: str | None,
    contains: str | None,
    header: str | None,
    limit: int,
) -> int:
    """Find the records of a topic that match all given options.

    \b
    gossipq msg find orders --contains apples
    gossipq msg find orders --from -1h --key ada
    gossipq msg find orders --from 2026-11-21T08:00 --until 2026-11-21T09:00 -H source:shop -o jsonl
    gossipq msg find orders --contains apples -o names | xargs gossipq msg rm --yes

    Every record between start and end is read; none is acked. Exits 1 when none matches.
    """
    first = None if start is None else _place(start, "--from")
    last = None if end is None else _place(end, "--until")
    headers = None if header is None else dict([records.header(header)])
    out, shown, progress = Output(choices), 0, Progress("records", choices.quiet)
    with ask.connect(choices) as mq, closing(progress):
        found = mq.read(topic, start=first, end=last).where(
            key=key, contains=contains, headers=headers, limit=limit or None, progress=progress
        )
        for _ in out.stream(_rows(found, progress), "ref"):
            shown += 1
    if shown == limit and shown:
        out.say(f"only the first {many(limit, 'record')}; -n 0 shows all")
    return failures.DONE if shown else failures.FAILED


def _place(text: str, option: str) -> str | int | datetime:
    """Parse a start or end position. Raises BadParameter."""
    if text in ("first", "new"):
        return text
    try:
        return int(text) if text.isdecimal() else moment_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; or an offset", param_hint=f"'{option}'") from None


def _rows(found: "Iterator[Record]", progress: Progress) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each record as an object and as a line for people."""
    for record in found:
        progress.clear()
        ref = f"{record.topic}/{record.partition}/{record.offset}"
        key = dashed(brief(record.key, 20) if record.key is not None else None)
        line = f"{ref}  {moment(published_ms(record))}  {key}  {brief(record.value)}"
        yield {"ref": ref} | records.as_row(record), line


# --- change


@command.command("cancel")
@click.argument("ref")
@refs.id_option
@click.option("--reason", default="", help="kept in the record's trace")
@pass_choices
def cancel(choices: Choices, ref: str, record_id: str | None, reason: str) -> None:
    """Cancel a record before a consumer gets it.

    \b
    gossipq msg cancel orders/0/@210.3 --yes
    gossipq msg cancel orders --id reminder-17 --reason paid --yes

    It must be scheduled, or ready and not in flight.
    """
    where = refs.where(ref, record_id)
    ask.sure(
        choices, f"cancelling {_name(ref, record_id)}", f"cancel {_name(ref, record_id)} for every group?"
    )
    with ask.connect(choices) as mq:
        outcome = actions.cancel(mq, where, reason)
    Output(choices).did(outcome, outcome.row["ref"])


@command.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="REF...")
@click.option("--reason", default="removed", help="kept in the records' traces")
@pass_choices
def remove(choices: Choices, names: tuple[str, ...], reason: str) -> int:
    """Remove records from a topic.

    \b
    gossipq msg rm orders/0/17 orders/0/18 --yes

    They are void for every group that has not acked them, and readers skip them.
    """
    wheres = [refs.where(ref, None) for ref in names]
    what = names[0] if len(names) == 1 else many(len(names), "record")
    ask.sure(choices, f"removing {what}", f"remove {what} for every group?")
    out, gone = Output(choices), 0
    error: GossipqError | None = None
    with ask.connect(choices) as mq:
        for where in wheres:
            try:
                mq.record(**where).cancel(reason=reason)
            except GossipqError as refused:
                if len(names) == 1 or refused.retryable:
                    raise
                out.say(f"{where['name']}: {refused.message}")
                error = error or refused
                continue
            gone += 1
    if error is not None and not gone:
        raise error
    if error is not None:
        raise failures.Failure(
            "partly", f"{gone} of {len(names)} removed: {error.message}", error.hint, failures.PARTLY
        )
    out.one({"removed": gone}, f"removed {what}")
    return failures.DONE


@command.command("reschedule")
@click.argument("ref")
@refs.id_option
@click.option("--delay", type=Duration(), help="delay from now on until it is due")
@click.option("--at", type=Moment(), help="due then: 2026-11-21T09:00Z, or 2026-11-21 09:00 of this machine")
@pass_choices
def reschedule(
    choices: Choices, ref: str, record_id: str | None, delay: float | None, at: datetime | None
) -> None:
    """Give a scheduled record another time.

    \b
    gossipq msg reschedule orders/0/@210.3 --delay 5m
    gossipq msg reschedule orders --id reminder-17 --at 2026-11-22T08:00Z
    """
    if (delay is None) == (at is None):
        raise click.UsageError("give --delay or --at")
    when: dict[str, Any] = {"delay": delay} if at is None else {"at": at}
    where = refs.where(ref, record_id)
    with ask.connect(choices) as mq:
        outcome = actions.reschedule(mq, where, **when)
    Output(choices).did(outcome, outcome.row["ref"])


@command.command("requeue")
@click.argument("ref")
@refs.id_option
@click.option("-g", "--group", required=True, help="the group that gets it again")
@pass_choices
def requeue(choices: Choices, ref: str, record_id: str | None, group: str) -> None:
    """Redeliver a record to a group, now.

    \b
    gossipq msg requeue orders/0/17 -g billing

    The group has acked it, or it waits for its next attempt, or it is a dead letter.
    """
    where = refs.where(ref, record_id)
    with ask.connect(choices) as mq, asking(mq, ref.partition("/")[0], group):
        outcome = actions.requeue(mq, where, group)
    Output(choices).did(outcome, outcome.row["ref"])


@command.command("edit")
@click.argument("ref")
@click.argument("body", required=False)
@refs.id_option
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="header; replaces all headers of the record",
)
@pass_choices
def edit(
    choices: Choices, ref: str, body: str | None, record_id: str | None, headers: tuple[str, ...]
) -> None:
    """Replace the value of a record.

    \b
    gossipq msg edit orders/0/17 "18 apples"
    gossipq msg show orders/0/17 --raw | sed s/17/18/ | gossipq msg edit orders/0/17 -

    In one atomic step the old record becomes void and the new one is appended. BODY `-` is stdin. Without -H
    the headers stay, without BODY the value. A scheduled record keeps its time.
    """
    if body is None and not headers:
        raise click.UsageError("nothing to change: give a BODY, - for stdin, or -H")
    change: dict[str, Any] = {"headers": dict(map(records.header, headers))} if headers else {}
    if body is not None:
        change["value"] = sys.stdin.buffer.read() if body == "-" else body.encode("utf-8", "surrogateescape")
    where = refs.where(ref, record_id)
    with ask.connect(choices) as mq:
        outcome = actions.edit(mq, where, _name(ref, record_id), **change)
    Output(choices).did(outcome, outcome.row["ref"])


def _name(ref: str, record_id: str | None) -> str:
    return ref if record_id is None else f"id {record_id} of {ref}"
