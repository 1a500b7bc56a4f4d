"""Groups with their backlog, where it goes and when it is gone; one group with its partitions and why it
stands."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from gossipq_cli.dashboard.asked import Failed, Stand, Standing
from gossipq_cli.dashboard.figures import short, span
from gossipq_cli.dashboard.history import GroupSum, History, lag_of
from gossipq_cli.dashboard.rows import Client, Group
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    Column,
    Sorting,
    block,
    box,
    table,
    wrapped,
)
from gossipq_cli.dashboard.views.base import Lister, line_of, opened, safe_name
from gossipq_cli.dashboard.views.nodes import clock

SEPARATOR = "\t"  #: between topic and group in a key: no name has it
CALM = ("moving", "working", "idle")  #: states of a group that need nobody
GROWING = 1.05  #: a lag so many times its former self is one that grows


def eta_text(history: History, row: GroupSum) -> Text:
    """38s, or what keeps it from ending."""
    if row.paused:
        return Text("paused", WARN)
    if not row.lag:
        return Text("0s", DIM)
    if not row.consumers:
        return Text("no one", BAD)
    seconds = history.eta_s(row.topic, row.group)
    if seconds is None:
        return Text("grows", BAD) if history.trend(row.topic, row.group) > 0 else Text("stands", WARN)
    return Text(span(seconds * 1_000))


def name_of(row: GroupSum) -> Text:
    return Text(safe_name(row.group)).append(" · ", DIM).append(safe_name(row.topic), DIM)


def lag_style(row: GroupSum) -> str:
    return BAD if row.alarm_lag and row.lag > row.alarm_lag else ""


def group_columns(history: History, ui: Ui, few: bool = False) -> list[Column[GroupSum]]:
    def count(title: str, field: str, leave: int, style: str = "") -> Column[GroupSum]:
        def cell(row: GroupSum) -> Text:
            return Text(short(getattr(row, field)), style if getattr(row, field) else "")

        return Column(title, cell, right=True, leave=leave, sort=lambda row: getattr(row, field))

    columns: list[Column[GroupSum]] = [
        Column("group", name_of, least=12 if few else 18, sort=lambda row: (row.group, row.topic)),
        Column(
            "M",
            lambda row: Text(str(row.consumers), BAD if row.lag and not row.consumers else ""),
            right=True,
            leave=2,
            sort=lambda row: row.consumers,
        ),
        Column("lag", lambda row: Text(short(row.lag), lag_style(row)), right=True, sort=lambda row: row.lag),
    ]
    if not few:
        columns += [
            Column(
                "done/s",
                lambda row: short(history.last("group", row.topic, row.group)),
                right=True,
                leave=3,
                sort=lambda row: history.last("group", row.topic, row.group),
            ),
            count("ready", "ready", 5),
            count("fly", "in_flight", 6),
            count("retry", "retrying", 7, WARN),
            count("park", "parked", 9, WARN),
            count("dead", "dead", 1, BAD),
            count("again", "redelivered", 10),
            count("acked", "acked", 8),
            Column(
                "oldest",
                lambda row: span(row.oldest_ms) if row.oldest_ms else "-",
                right=True,
                leave=11,
                sort=lambda row: row.oldest_ms,
            ),
        ]
    columns.append(
        Column(
            "trend",
            draw=lambda row, width: line_of(history.series("lag", row.topic, row.group), width, ui, WARN),
            least=7,
            leave=4,
            grow=14 if few else 60,
        )
    )
    columns.append(
        Column("eta", lambda row: eta_text(history, row), right=True, sort=lambda row: _eta(history, row))
    )
    return columns


def _eta(history: History, row: GroupSum) -> float:
    found = history.eta_s(row.topic, row.group)
    return float("inf") if found is None else found


def group_rows(history: History) -> list[GroupSum]:
    return [history.groups[at] for at in sorted(history.groups)]


class Groups(Lister):
    what = "group"
    sorting = Sorting("lag", True)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return group_columns(board.history, ui)

    def all_rows(self, board: Board, ui: Ui) -> Sequence[GroupSum]:
        return group_rows(board.history)

    def key(self, row: GroupSum) -> str:
        return f"{row.topic}{SEPARATOR}{row.group}"

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        return opened(ui, *chosen.split(SEPARATOR, 1))

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 2)
        return box("backlog by group", lines, width, height, f"enter: partitions, why, dead letters  {where}")


def _count(title: str, field: str, leave: int = 0, style: str = "") -> Column[Group]:
    def cell(part: Group) -> Text:
        return Text(short(getattr(part, field)), style if getattr(part, field) else "")

    return Column(title, cell, right=True, leave=leave, sort=lambda part: getattr(part, field))


PART_COLUMNS: list[Column[Group]] = [
    Column("P", lambda part: str(part.partition), right=True, sort=lambda part: part.partition),
    Column("cursor", lambda part: str(part.cursor), right=True, leave=3),
    Column("lag", lambda part: short(lag_of(part)), right=True, sort=lag_of),
    _count("ready", "ready"),
    _count("fly", "in_flight"),
    _count("retry", "retrying", 1, WARN),
    _count("park", "parked", 2, WARN),
    _count("no route", "unmatched", 6, WARN),
    _count("key busy", "blocked_by_key", 7, WARN),
    _count("dead", "dead", 0, BAD),
    _count("acked", "acked", 4),
    _count("again", "redelivered", 5),
    _count("M", "consumers"),
]


class GroupPage(Lister):
    what = "partition"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return PART_COLUMNS

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Group]:
        topic, group = ui.path
        rows = [part for part in board.history.now.groups if (part.topic, part.group) == (topic, group)]
        return sorted(rows, key=lambda part: part.partition)

    def key(self, row: Group) -> str:
        return str(row.partition)

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        topic, group = ui.path
        row = board.history.groups.get((topic, group))
        if row is None:
            return box(f"{group} on {topic}", [Text("this group is gone", WARN)], width, height)
        top = min(max(5, len(self.all_rows(board, ui)) + 3), height // 2)
        lines, where = self.listed(board, ui, width - 4, top - 2)
        eta = eta_text(board.history, row).plain
        about = (
            f"{group} on {topic}  lag {short(row.lag)}  "
            f"{short(board.history.last('group', topic, group))}/s  eta {eta}"
        )
        parts = box(about, lines, width, top, where)
        rest = height - top
        below = min(rest, 7) if rest > 10 else 0
        why = box("why", _why(board.answers.get(Stand(topic, group)), board, width - 4), width, rest - below)
        return [*parts, *why, *(_members(board, topic, group, width, below) if below else ())]


def _why(answer: object, board: Board, width: int) -> list[Text]:
    """States that partitions have in common are told once; then the newest dead letters."""
    if board.recorded:
        return [Text("a recording cannot be asked", DIM)]
    if isinstance(answer, Failed):
        return [Text(answer.text, BAD)]
    if not isinstance(answer, Standing):
        return [Text("asking ...", DIM)]
    alike: dict[tuple[str, str, str], list[int]] = {}
    for partition, *told in answer.rows:
        alike.setdefault((told[0], told[1], told[2]), []).append(partition)
    lines: list[Text] = []
    for (state, because, command), numbers in alike.items():
        where = ", ".join(map(str, numbers[:12])) + (" ..." if len(numbers) > 12 else "")
        style = GOOD if state in CALM else WARN
        lines.append(Text(f"partition {where}: ").append(safe_name(state.replace("_", " ")), style))
        lines += wrapped(f"  {because}", width)
        if command:
            lines += wrapped(f"  {command}", width, HEAD)
    if answer.dead:
        lines.append(Text("dead letters", BAD))
        for ref, reason, error, time_ms in answer.dead:
            lines.append(Text(f"  {clock(time_ms)} {safe_name(ref)} {safe_name(reason)}: {safe_name(error)}"))
    return lines


def _members(board: Board, topic: str, group: str, width: int, height: int) -> list[Text]:
    found = [
        (client, subscription)
        for client in board.history.now.clients
        for subscription in client.subscriptions
        if (subscription.topic, subscription.group) == (topic, group)
    ]
    columns: list[Column[Any]] = [
        Column("consumer", lambda pair: _client_name(pair[0]), least=8),
        Column("session", lambda pair: pair[0].session),
        Column("P", lambda pair: str(pair[1].partitions), right=True),
        Column("in hand", lambda pair: short(pair[1].in_flight), right=True),
        Column("credit", lambda pair: short(pair[1].credit_records), right=True),
        Column("silent", lambda pair: span(pair[0].silent_ms), right=True),
    ]
    empty = (
        "no consumer is there"
        if "clients" not in board.history.now.missing
        else "this node does not tell its clients"
    )
    lines = table(columns, found, width - 4, height - 2, empty=empty).lines
    return box("consumers", block(lines, width - 4, height - 2), width, height)


def _client_name(client: Client) -> str:
    return client.client or client.session
