"""Clients: their publishes, their subscriptions, and how long they have been silent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import DIM, WARN, Column, Sorting, box, wrapped
from gossipq_cli.dashboard.views.base import SEPARATOR, Lister, opened, safe_name
from gossipq_ops.figures import short, size, span
from gossipq_ops.questions import Subject
from gossipq_ops.rows import Client, Subscription

SILENT_MS = 2_000  #: a client that is silent for this long is about to lose its session


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
    Column(
        "in flight", lambda row: short(row.in_flight), right=True, leave=1, sort=lambda row: row.in_flight
    ),
    Column("consumes", lambda row: ", ".join(map(safe_name, row.reads)) or "-", least=10, leave=6),
]


class Clients(Lister):
    what = "client"
    counted = True
    sorting = Sorting("client", False)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return COLUMNS

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Session]:
        return sessions(board.history.now.clients)

    def key(self, row: Session) -> str:
        return f"{row.client} {row.session} {' '.join(row.reads)}"

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        return opened(ui, self._session(board, ui, chosen))

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("client", (self._session(board, ui, chosen),)) if chosen else None

    def _session(self, board: Board, ui: Ui, chosen: str) -> str:
        return next(row.session for row in self.all_rows(board, ui) if self.key(row) == chosen)

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
        return [
            *box("clients", lines, width, height - 4, f"enter: what it consumes  a: act  {where}"),
            *box("", told, width, 4),
        ]


SUBSCRIPTION_COLUMNS: list[Column[Subscription]] = [
    Column("group", lambda each: each.group or "(reads)", least=8, sort=lambda each: each.group),
    Column("topic", lambda each: each.topic, least=8, sort=lambda each: each.topic),
    Column("P", lambda each: str(each.partitions), right=True),
    Column("in flight", lambda each: short(each.in_flight), right=True, sort=lambda each: each.in_flight),
    Column("credit", lambda each: short(each.credit_records), right=True),
]


class ClientPage(Lister):
    """The subscriptions of one session, added up over the workers that know it."""

    what = "subscription"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return SUBSCRIPTION_COLUMNS

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Subscription]:
        found: dict[tuple[str, str], Subscription] = {}
        for client in board.history.now.clients:
            for each in client.subscriptions if client.session == ui.path[0] else ():
                old = found.get((each.topic, each.group), Subscription(topic=each.topic, group=each.group))
                found[each.topic, each.group] = Subscription(
                    topic=each.topic,
                    group=each.group,
                    partitions=old.partitions + each.partitions,
                    credit_records=old.credit_records + each.credit_records,
                    in_flight=old.in_flight + each.in_flight,
                )
        return [found[at] for at in sorted(found)]

    def key(self, row: Subscription) -> str:
        return f"{row.topic}{SEPARATOR}{row.group}"

    def empty(self, board: Board, ui: Ui) -> str:
        return "it consumes nothing"

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        topic, _, group = chosen.partition(SEPARATOR)
        view, path = ("groups", (topic, group)) if group else ("topics", (topic,))
        return msgspec.structs.replace(ui, view=view, path=path)

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("client", ui.path)

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        row = next((row for row in sessions(board.history.now.clients) if row.session == ui.path[0]), None)
        if row is None:
            return box(f"session {ui.path[0]}", [Text("this session is gone", WARN)], width, height)
        about = (
            f"{safe_name(row.client) or '-'}  version {safe_name(row.version)}  on {', '.join(row.nodes)}  "
            f"{row.workers} workers  age {span(row.age_ms)}  silent {span(row.silent_ms)}  "
            f"published {short(row.published)} ({size(row.bytes)})  in flight {short(row.in_flight)}"
        )
        told = wrapped(about, width - 4)[: height // 2]
        top = len(told) + 2
        lines, where = self.listed(board, ui, width - 4, height - top - 2)
        return [
            *box(f"session {row.session}", told, width, top),
            *box("consumes", lines, width, height - top, f"enter: open  a: act  {where}"),
        ]
