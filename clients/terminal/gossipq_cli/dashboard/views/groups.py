"""Groups with backlog, trend and time left; one group with its
partitions and the reason it waits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    UNSORTED,
    WARN,
    Column,
    Sorting,
    arranged,
    box,
    wrapped,
)
from gossipq_cli.dashboard.views.base import SEPARATOR, Lister, Page, Section, line_of, opened, safe_name
from gossipq_cli.dashboard.views.nodes import clock
from gossipq_ops.figures import short, span
from gossipq_ops.history import History
from gossipq_ops.questions import Dead, Failed, Stand, Standing, Subject
from gossipq_ops.rows import Client, Group, Subscription
from gossipq_ops.sums import GroupSum, lag_of

CALM = ("moving", "working", "idle")  #: states of a group that need no attention


def eta_text(history: History, row: GroupSum) -> Text:
    """Return the time until the lag is 0, such as 38s, or the reason that it never is."""
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
            count("limit", "behind_limit", 12, WARN),
            count("rate", "behind_rate", 13, WARN),
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
    counted = True
    sorting = Sorting("lag", True)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return group_columns(board.history, ui)

    def all_rows(self, board: Board, ui: Ui) -> Sequence[GroupSum]:
        return group_rows(board.history)

    def key(self, row: GroupSum) -> str:
        return f"{row.topic}{SEPARATOR}{row.group}"

    def of_nodes(self, row: GroupSum) -> bool:
        return row.topic.startswith("_")

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        return opened(ui, *chosen.split(SEPARATOR, 1))

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        return Subject("group", tuple(chosen.split(SEPARATOR, 1))) if chosen else None

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 2)
        return box(
            "backlog by group", lines, width, height, f"enter: why, dead letters  J: jobs  a: act  {where}"
        )


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
    _count("limit", "behind_limit", 8, WARN),
    _count("rate", "behind_rate", 9, WARN),
    _count("dead", "dead", 0, BAD),
    _count("acked", "acked", 4),
    _count("again", "redelivered", 5),
    _count("M", "consumers"),
]


class Consumer(NamedTuple):
    client: Client
    subscription: Subscription


DEAD_COLUMNS: list[Column[Dead]] = [
    Column("dead", lambda dead: Text(short(dead.letters), BAD), right=True),
    Column("newest", lambda dead: Text(clock(dead.time_ms), DIM), leave=2),
    Column("of", lambda dead: dead.reason, leave=1),
    Column("last error", lambda dead: dead.error or "-", least=12),
    Column("ref", lambda dead: dead.ref, leave=3),
]
CONSUMER_COLUMNS: list[Column[Consumer]] = [
    Column("consumer", lambda row: row.client.client or row.client.session, least=8),
    Column("session", lambda row: row.client.session, leave=2),
    Column("P", lambda row: str(row.subscription.partitions), right=True),
    Column("in flight", lambda row: short(row.subscription.in_flight), right=True),
    Column("credit", lambda row: short(row.subscription.credit_records), right=True, leave=1),
    Column("silent", lambda row: span(row.client.silent_ms), right=True),
]


class GroupPage(Page):
    """Partitions, dead letters by reason, and consumers, with one pointer over all."""

    what = "partition"
    sorting = UNSORTED

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return PART_COLUMNS

    def sections(self, board: Board, ui: Ui) -> list[Section]:
        topic, group = ui.path
        parts = [part for part in board.history.now.groups if (part.topic, part.group) == (topic, group)]
        parts.sort(key=lambda part: part.partition)
        answer = board.answers.get(Stand(topic, group))
        dead = answer.dead if isinstance(answer, Standing) else []
        consumers = [
            Consumer(client, each)
            for client in board.history.now.clients
            for each in client.subscriptions
            if (each.topic, each.group) == (topic, group)
        ]
        wanted = ui.look.filter.casefold()
        dead = [row for row in dead if wanted in _dead_key(row).casefold()]
        consumers = [row for row in consumers if wanted in row.client.client.casefold()]
        told = "clients" not in board.history.now.missing
        nobody = "the group has no consumers" if told else "this node does not tell its clients"
        return [
            Section(
                "partitions",
                PART_COLUMNS,
                arranged(PART_COLUMNS, parts, ui.look.sorting or UNSORTED),
                lambda part: str(part.partition),
            ),
            Section("dead", DEAD_COLUMNS, dead, _dead_key),
            Section("consumers", CONSUMER_COLUMNS, consumers, lambda row: str(row.client.session), nobody),
        ]

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        """Open the newest of the dead letters, the messages of a
        partition, or a consumer's session.
        """
        (topic, _), (name, _, key) = ui.path, chosen.partition(SEPARATOR)
        if name == "consumers":
            return msgspec.structs.replace(ui, view="clients", path=(key,))
        found = msgspec.structs.replace(ui, view="messages", topic=topic, partition=-1, path=())
        found = msgspec.structs.replace(found, tail=True, back=0, find="")
        if name == "dead":
            dead = next(row for row in self.sections(board, ui)[1].rows if _dead_key(row) == key)
            return opened(found, dead.ref)
        return msgspec.structs.replace(found, partition=int(key))

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        """Return the target for verbs. A partition has the verbs of its group."""
        topic, group = ui.path
        name, _, key = chosen.partition(SEPARATOR)
        if name == "dead":
            return Subject("dead", (topic, group, *key.split(SEPARATOR, 1)))
        return Subject("client", (key,)) if name == "consumers" else Subject("group", (topic, group))

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        topic, group = ui.path
        row = board.history.groups.get((topic, group))
        if row is None:
            return box(f"{group} on {topic}", [Text("this group is gone", WARN)], width, height)
        eta = eta_text(board.history, row).plain
        about = (
            f"{group} on {topic}  lag {short(row.lag)}  "
            f"{short(board.history.last('group', topic, group))}/s  eta {eta}"
        )
        answer = board.answers.get(Stand(topic, group))
        sections = self.sections(board, ui)
        pointer = self.pointer(sections, ui)
        titles = {"dead": "dead letters by error", "partitions": about, "consumers": "consumers"}
        some = isinstance(answer, Standing) and answer.more
        titles["dead"] += " (of the first that were looked at)" if some else ""
        shown = [section for section in sections if section.rows or section.name != "dead"]
        heights = self._heights([len(section.rows) for section in shown], height)
        lines: list[Text] = []
        for section, tall in zip(shown, heights, strict=True):
            listed, where = self.part(section, pointer, (width - 4, tall - 2), ui.look.sorting or UNSORTED)
            lines += box(titles[section.name], listed, width, tall, where)
            if section.name == "partitions":
                why = _why(answer, board, width - 4)
                lines += box(
                    "why", why, width, height - sum(heights), "enter: open  J: jobs  a: act  o: next list"
                )
        return lines

    @staticmethod
    def _heights(counts: Sequence[int], height: int) -> list[int]:
        """Return the heights of the lists. At least a third is left for the reasons."""
        room = height - max(4, height // 3)
        least = [4] * len(counts)
        for _ in range(room - sum(least)):
            short_of = [
                at for at, count in enumerate(counts) if least[at] < min(count + 3, room // len(counts) + 2)
            ]
            if not short_of:
                break
            least[min(short_of, key=lambda at: least[at])] += 1
        return least if sum(least) <= room else least[:1] + [3] * (len(counts) - 1)


def _dead_key(dead: Dead) -> str:
    return f"{dead.reason}{SEPARATOR}{dead.error}"


def _why(answer: object, board: Board, width: int) -> list[Text]:
    """Return the reasons. Partitions with the same state are combined."""
    if board.recorded:
        return [Text("not available in a recording", DIM)]
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
    return lines
