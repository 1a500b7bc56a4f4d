"""Everything at a glance: what flows, who is there, what piles up, what happened, and what needs somebody."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from gossipq_cli.dashboard.figures import chart, short
from gossipq_cli.dashboard.history import alarms
from gossipq_cli.dashboard.rows import Alarm
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import (
    BAD,
    GOOD,
    HEAD,
    LIVE,
    WARN,
    Column,
    Sorting,
    arranged,
    beside,
    box,
    table,
)
from gossipq_cli.dashboard.views.base import Lister, opened, safe_name
from gossipq_cli.dashboard.views.groups import group_columns, group_rows
from gossipq_cli.dashboard.views.nodes import events_box, node_columns
from gossipq_cli.dashboard.views.topics import topic_columns, topic_rows

ALARM_SHARE = 8  #: one line of so many is for alarms, at most
SHORT = 18  #: lines below which one alarm is shown, and no chart when it is narrow as well
TWO_COLUMNS = 76  #: columns from which panels stand side by side


def alarm_lines(found: Sequence[Alarm], width: int) -> list[Text]:
    """In words, with the command that helps."""
    lines = []
    for alarm in found:
        style = BAD if alarm.severity == "critical" else WARN
        line = Text("✖ " if style == BAD else "▲ ", style).append(safe_name(alarm.text), style)
        if alarm.command:
            line.append("  ").append(safe_name(alarm.command), HEAD)
        lines.append(line)
    return lines


class Overview(Lister):
    """The pointer walks over the topics."""

    what = "topic"
    sorting = Sorting("in/s", True)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return topic_columns(board.history, ui, few=True)

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Any]:
        return topic_rows(board.history)

    def key(self, row: Any) -> str:
        return str(row.topic.name)

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        from msgspec.structs import replace

        return opened(replace(ui, view="topics"), chosen)

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        found = alarms(board.history)
        lines = []
        if found:
            shown = found[: max(2, height // ALARM_SHARE) if height >= SHORT else 1]
            rest = f"{len(found)} alarms" if len(found) > len(shown) else ""
            lines = box("alarms", alarm_lines(shown, width - 4), width, len(shown) + 2, rest)
        left = height - len(lines)
        if width >= TWO_COLUMNS or height >= SHORT:
            flow = max(3, min(10, left // 4))
            lines += flow_box(board, ui, width, flow)
            left -= flow
        if width < TWO_COLUMNS:
            return lines + self._stacked(board, ui, width, left)
        half = width // 2
        upper = left // 2 + left % 2
        wanted = len(board.history.now.nodes) + 3
        nodes_height = max(4, min(upper, wanted))
        left_side = [
            *self._nodes(board, ui, half, nodes_height),
            *events_box(board, ui, half, left - nodes_height),
        ]
        groups_height = max(4, min(left // 2, len(board.history.groups) + 3))
        right_side = [
            *self._topics(board, ui, width - half, left - groups_height),
            *self._groups(board, ui, width - half, groups_height),
        ]
        return lines + beside(left_side, right_side)

    def _stacked(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        """Narrow: nodes over topics over groups."""
        nodes_height = max(4, min(height // 2 - 1, len(board.history.now.nodes) + 3))
        topics_height = (height - nodes_height + 1) // 2
        groups_height = height - nodes_height - topics_height
        lines = self._nodes(board, ui, width, nodes_height) + self._topics(board, ui, width, topics_height)
        return lines + self._groups(board, ui, width, groups_height)

    def _nodes(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        nodes = board.history.now.nodes
        laid = table(
            node_columns(board.history, ui), nodes, width - 4, height - 2, empty="no node answered yet"
        )
        more = f"{laid.seen} of {len(nodes)}" if laid.seen < len(nodes) else ""
        hint = "add one: gossipq node --join HOST" if len(nodes) == 1 and width > 50 else more
        return box("nodes", laid.lines, width, height, hint)

    def _topics(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        lines, where = self.listed(board, ui, width - 4, height - 2)
        return box("topics", lines, width, height, where)

    def _groups(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        columns = group_columns(board.history, ui, few=True)
        rows = arranged(columns, group_rows(board.history), Sorting("lag", True))
        laid = table(columns, rows, width - 4, height - 2, empty="no groups")
        more = f"{laid.seen} of {len(rows)}" if laid.seen < len(rows) else ""
        return box("backlog by group", laid.lines, width, height, more)


def flow_box(board: Board, ui: Ui, width: int, height: int) -> list[Text]:
    """What comes in and what goes out, beside each other when there is room."""
    history = board.history
    if width >= 2 * TWO_COLUMNS:
        half = width // 2
        return beside(
            _flow(history.series("in"), "published /s", LIVE, half, height, ui),
            _flow(history.series("out"), "delivered /s", GOOD, width - half, height, ui),
        )
    return _flow(history.series("in"), "published /s", LIVE, width, height, ui)


def _flow(values: Sequence[float], title: str, style: str, width: int, height: int, ui: Ui) -> list[Text]:
    lines = [Text(line, style) for line in chart(values, width - 4, height - 2, ui.graph)]
    shown = list(values)[-(width - 4) * (2 if ui.graph == "braille" else 1) :]
    foot = f"peak {short(max(shown, default=0))}/s · {len(shown) * ui.every_s:g} s"
    return box(title, lines, width, height, foot)
