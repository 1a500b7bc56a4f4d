"""Clients: who is connected, what they publish and consume, and how long they have been silent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from gossipq_cli.dashboard.figures import short, size, span
from gossipq_cli.dashboard.rows import Client, Subscription
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import DIM, WARN, Column, Sorting, box, wrapped
from gossipq_cli.dashboard.views.base import Lister, safe_name

SILENT_MS = 2_000  #: a client that says nothing for so long is about to lose its session


class Session(NamedTuple):
    """A client over all workers that know it."""

    session: str
    client: str
    version: str
    nodes: tuple[str, ...]
    workers: int
    age_ms: int
    silent_ms: int
    published: int
    bytes: int
    in_flight: int
    reads: tuple[str, ...]


def reading(subscription: Subscription) -> str:
    return (
        f"{subscription.topic}:{subscription.group}"
        if subscription.group
        else f"{subscription.topic} (reads)"
    )


def sessions(clients: Sequence[Client]) -> list[Session]:
    found: dict[str, list[Client]] = {}
    for client in clients:
        found.setdefault(client.session, []).append(client)
    return [
        Session(
            session=session,
            client=rows[0].client,
            version=rows[0].version,
            nodes=tuple(sorted({row.node for row in rows})),
            workers=len(rows),
            age_ms=max(row.age_ms for row in rows),
            silent_ms=min(row.silent_ms for row in rows),
            published=sum(row.published for row in rows),
            bytes=sum(row.bytes for row in rows),
            in_flight=sum(each.in_flight for row in rows for each in row.subscriptions),
            reads=tuple(sorted({reading(each) for row in rows for each in row.subscriptions})),
        )
        for session, rows in found.items()
    ]


COLUMNS: list[Column[Session]] = [
    Column("client", lambda row: row.client or "-", least=10, sort=lambda row: row.client),
    Column("session", lambda row: Text(row.session, DIM), leave=3),
    Column("node", lambda row: ", ".join(row.nodes), least=6, leave=5),
    Column("workers", lambda row: str(row.workers), right=True, leave=7),
    Column("version", lambda row: row.version, least=6, leave=8),
    Column("age", lambda row: span(row.age_ms), right=True, leave=2, sort=lambda row: row.age_ms),
    Column(
        "silent",
        lambda row: Text(span(row.silent_ms), WARN if row.silent_ms > SILENT_MS else ""),
        right=True,
        sort=lambda row: row.silent_ms,
    ),
    Column("published", lambda row: short(row.published), right=True, sort=lambda row: row.published),
    Column("bytes", lambda row: size(row.bytes), right=True, leave=4, sort=lambda row: row.bytes),
    Column("in hand", lambda row: short(row.in_flight), right=True, leave=1, sort=lambda row: row.in_flight),
    Column("consumes", lambda row: ", ".join(map(safe_name, row.reads)) or "-", least=10, leave=6),
]


class Clients(Lister):
    what = "client"
    sorting = Sorting("client", False)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return COLUMNS

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Session]:
        return sessions(board.history.now.clients)

    def key(self, row: Session) -> str:
        return f"{row.client} {row.session} {' '.join(row.reads)}"

    def empty(self, board: Board, ui: Ui) -> str:
        if "clients" in board.history.now.missing:
            return f"this node ({board.history.now.version}) does not tell its clients; a newer one does"
        return super().empty(board, ui)

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 5)
        rows = self.rows(board, ui)
        chosen = next((row for row in rows if self.key(row) == ui.look.chosen), rows[0] if rows else None)
        told = (
            wrapped(
                f"{safe_name(chosen.client)} consumes {', '.join(chosen.reads) or 'nothing'}", width - 4, DIM
            )[:2]
            if chosen
            else []
        )
        command = f"gossipq client kick {chosen.session}" if chosen else ""
        return [*box("clients", lines, width, height - 4, where), *box("", told, width, 4, command)]
