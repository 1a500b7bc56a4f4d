"""`gossipq client`."""

from typing import Any

import click

from gossipq.texts import size, typed
from gossipq.values import ClientRow
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, as_object, counter
from gossipq_ops import actions
from gossipq_ops.actions import SESSION_DIGITS


@click.group(cls=Noun, lazy=("spool", "conformance"))
def command() -> None:
    """List and end sessions; inspect a spool; test a new client."""


def sessions(rows: list[ClientRow]) -> list[dict[str, Any]]:
    """Return one row for each session, over all workers that know it."""
    found: dict[bytes, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(
            row.session, {"session": row.session.hex(), "client": row.client, "version": row.version}
        )
        # after a restart of a worker, a session may lack its name
        known["client"] = known["client"] or row.client
        known["version"] = known["version"] or row.version
        for name in ("connections", "batches", "published", "bytes"):
            known[name] = known.get(name, 0) + getattr(row, name)
        known["age_ms"] = max(known.get("age_ms", 0), row.age_ms)
        known["silent_ms"] = min(known.get("silent_ms", row.silent_ms), row.silent_ms)
        known.setdefault("workers", []).append(f"{row.node}/{row.worker}")
        known.setdefault("consuming", []).extend(map(as_object, row.subscriptions))
    for known in found.values():
        known["in_flight"] = sum(each["in_flight"] for each in known["consuming"])
    return sorted(found.values(), key=lambda row: (row["client"], row["session"]))


def _consuming(subscriptions: list[dict[str, Any]]) -> str:
    names = {
        f"{each['topic']} as {each['group']}" if each["group"] else f"reads {each['topic']}"
        for each in subscriptions
    }
    return ", ".join(sorted(names)) or "-"


@command.command("ls")
@pass_choices
def list_clients(choices: Choices) -> None:
    """List who is connected: what it publishes, what it consumes, what it holds.

    \b
    gossipq client ls
    gossipq client ls -o json
    """
    with ask.connect(choices) as mq:
        rows = sessions(mq.admin.raw.clients())
    columns = [
        Column("session", lambda text: text[:SESSION_DIGITS]),
        Column("client"),
        Column("version"),
        Column("age_ms", typed, right=True, title="age"),
        Column("silent_ms", typed, right=True, title="silent"),
        *map(counter, ("connections", "published")),
        Column("bytes", size, right=True),
        counter("in_flight"),
        Column("consuming", _consuming),
    ]
    Output(choices).rows(columns, rows)


@command.command("kick")
@click.argument("session")
@click.option(
    "--for",
    "for_s",
    type=Duration(),
    default=30.0,
    metavar="DURATION",
    help="the client may not reconnect for this long (30s)",
)
@pass_choices
def kick(choices: Choices, session: str, for_s: float) -> None:
    """End a client's session: its unacked records are redelivered, and it may not reconnect for a while.

    \b
    gossipq client kick 5f3a9c01
    gossipq client kick 5f3a9c01 --for 10m --yes

    SESSION is what gossipq client ls shows, or the first characters of it. The process itself is not stopped.
    """
    if not session.strip():  # for example from an unset variable, which would match every session
        raise click.UsageError("SESSION is empty; `gossipq client ls` shows who is there")
    with ask.connect(choices) as mq:
        rows = [row for row in sessions(mq.admin.raw.clients()) if row["session"].startswith(session.lower())]
        if not rows:
            raise failures.Failure(
                "unknown_session", f"no session {session}", "`gossipq client ls`", failures.NOT_FOUND
            )
        if len(rows) > 1:
            raise click.UsageError(f"{session} is the beginning of {len(rows)} sessions; write more of it")
        whole = rows[0]["session"]
        outcome = actions.kick(mq, whole, for_s, dry=True)
        what = f"{outcome.row['client'] or 'a client'} ({whole[:SESSION_DIGITS]})"
        ask.sure(choices, f"ending {what}", f"{outcome.text}; end its session?")
        outcome = actions.kick(mq, whole, for_s)
    Output(choices).did(outcome, whole)
