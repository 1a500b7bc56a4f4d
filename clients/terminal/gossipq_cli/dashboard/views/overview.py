"""The overview: traffic, nodes, backlogs, events, and problems that need attention."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import (
    BAD,
    GOOD,
    HEAD,
    LIVE,
    UNSORTED,
    WARN,
    Column,
    Sorting,
    arranged,
    beside,
    box,
)
from gossipq_cli.dashboard.views.base import SEPARATOR, Page, Section, none_yet, opened, safe_name
from gossipq_cli.dashboard.views.groups import group_columns, group_rows
from gossipq_cli.dashboard.views.nodes import events_box, node_columns
from gossipq_cli.dashboard.views.topics import topic_columns, topic_rows
from gossipq_ops.figures import AXIS, axed, short
from gossipq_ops.history import History, alarms
from gossipq_ops.questions import Subject
from gossipq_ops.rows import Alarm

ALARM_SHARE = 8  #: at most one line in this many is for alarms
SHORT = 18  #: on shorter screens, one alarm is shown, and without width no chart
OF_GROUPS = ("lag", "dead_letters")  #: names of alarms
WIDE = 100  #: on wider screens, each alarm shows its command
SHORT_CHART = 3  #: maximum height of a chart without an axis
TWO_COLUMNS = 76  #: on wider screens, panels are side by side


def alarm_text(alarm: Alarm) -> Text:
    """Return an alarm in words, behind the mark of its severity."""
    style = BAD if alarm.severity == "critical" else WARN
    return Text("✖ " if style == BAD else "▲ ", style).append(safe_name(alarm.text), style)


ALARM_COLUMNS: list[Column[Alarm]] = [
    Column("alarm", alarm_text, least=30),
    Column("next", lambda alarm: Text(safe_name(alarm.command), HEAD), leave=1),
]


def alarm_key(alarm: Alarm) -> str:
    """Return a stable key: numbers in the text change."""
    return SEPARATOR.join((alarm.name, alarm.node, alarm.subject or alarm.text))


class Overview(Page):
    """The pointer moves over alarms, worst first, then nodes, topics and groups."""

    what = "row"
    sorting = Sorting("in/s", True)

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return topic_columns(board.history, ui, few=True)

    def sections(self, board: Board, ui: Ui) -> list[Section]:
        history, wanted = board.history, ui.look.filter.casefold()
        nodes, topics = node_columns(history, ui), topic_columns(history, ui, few=True)
        groups = group_columns(history, ui, few=True)
        by_flow = arranged(topics, topic_rows(history), ui.look.sorting or self.sorting)
        by_lag = arranged(groups, group_rows(history), Sorting("lag", True))
        found = [
            Section("alarms", ALARM_COLUMNS, alarms(history), alarm_key),
            Section("nodes", nodes, history.now.nodes, lambda node: str(node.name), "no node answered yet"),
            Section(
                "topics",
                topics,
                sorted(by_flow, key=lambda row: row.topic.name.startswith("_")),
                lambda row: str(row.topic.name),
                none_yet(history, "no topic yet"),
            ),
            Section(
                "groups",
                groups,
                sorted(by_lag, key=lambda row: row.topic.startswith("_")),
                lambda row: f"{row.topic}{SEPARATOR}{row.group}",
                none_yet(history, "no groups"),
            ),
        ]
        if not wanted:
            return found
        return [
            each._replace(rows=[row for row in each.rows if wanted in each.key(row).casefold()])
            for each in found
        ]

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        name, _, key = chosen.partition(SEPARATOR)
        if name == "alarms":
            alarm = next(alarm for alarm in alarms(board.history) if alarm_key(alarm) == key)
            view, path = place_of(alarm, board.history)
            return replace(ui, view=view, path=path, notice=alarm.text, bad=True)
        return opened(replace(ui, view=name), *key.split(SEPARATOR))

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        """Return the target for verbs; for an alarm, its subject."""
        name, _, key = chosen.partition(SEPARATOR)
        if name == "alarms":
            alarm = next(alarm for alarm in alarms(board.history) if alarm_key(alarm) == key)
            name, path = place_of(alarm, board.history)
            key = SEPARATOR.join(path[:1] if name == "nodes" else path)
        return Subject(name.removesuffix("s"), tuple(key.split(SEPARATOR))) if key else None

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        parts = {section.name: section for section in self.sections(board, ui)}
        pointer = self.pointer(list(parts.values()), ui)
        lines = self._alarms(parts["alarms"], pointer, width, height)
        left = height - len(lines)
        if width >= TWO_COLUMNS or height >= SHORT:
            flow = max(3, min(10, left // 4))
            lines += flow_box(board, ui, width, flow)
            left -= flow
        nodes, topics, groups = (len(parts[name].rows) + 3 for name in ("nodes", "topics", "groups"))
        if width < TWO_COLUMNS:
            nodes = max(4, min(left // 2 - 1, nodes))
            topics = (left - nodes + 1) // 2
            sizes = {"nodes": nodes, "topics": topics, "groups": left - nodes - topics}
            return lines + [
                line
                for name, tall in sizes.items()
                for line in self._box(parts[name], pointer, width, tall, ui, len(parts["nodes"].rows))
            ]
        half, alone = width // 2, len(parts["nodes"].rows)
        nodes, groups = max(4, min(left // 2 + left % 2, nodes)), max(4, min(left // 2, groups))
        left_side = [
            *self._box(parts["nodes"], pointer, half, nodes, ui, alone),
            *events_box(board, ui, half, left - nodes),
        ]
        right_side = [
            *self._box(parts["topics"], pointer, width - half, left - groups, ui, alone),
            *self._box(parts["groups"], pointer, width - half, groups, ui, alone),
        ]
        return lines + beside(left_side, right_side)

    def _alarms(self, section: Section, pointer: tuple[str, str], width: int, height: int) -> list[Text]:
        """Return the alarms that fit, including the one under the pointer.

        If the list is too narrow for its command, that follows below.
        """
        found = section.rows
        if not found:
            return []
        most = max(2, height // ALARM_SHARE) if height >= SHORT else 1
        shown = min(len(found), most)
        if width < WIDE:
            section = section._replace(columns=ALARM_COLUMNS[:1])
        laid, where = self.part(section, pointer, (width - 4, shown + 1))
        keys = [section.key(row) for row in found]
        at = keys.index(pointer[1]) if pointer[0] == section.name and pointer[1] in keys else 0
        helps = found[at].command
        foot = f"{safe_name(helps)}  {where}" if width < WIDE or shown < len(found) else where
        return box("alarms", laid[1:], width, shown + 2, foot.strip())

    def _box(
        self, section: Section, pointer: tuple[str, str], width: int, height: int, ui: Ui, nodes: int
    ) -> list[Text]:
        sorting = (ui.look.sorting or self.sorting) if section.name == "topics" else UNSORTED
        lines, where = self.part(section, pointer, (width - 4, height - 2), sorting)
        if section.name == "nodes" and nodes == 1 and width > 50:
            where = "add one: gossipq node --join HOST"
        title = "backlog by group" if section.name == "groups" else section.name
        return box(title, lines, width, height, where)


def place_of(alarm: Alarm, history: History) -> tuple[str, tuple[str, ...]]:
    """Return (view, path) of an alarm's subject; a list if the subject does not exist any more."""
    topic, _, group = alarm.subject.partition("/")
    if (topic, group) in history.groups:
        return "groups", (topic, group)
    if alarm.subject in history.topics:
        return "topics", (alarm.subject,)
    nodes = [node.name for node in history.now.nodes]
    name = next((name for name in (alarm.subject, alarm.node) if name in nodes), "")
    return ("groups", ()) if alarm.name in OF_GROUPS else ("nodes", (name,) if name else ())


def flow_box(board: Board, ui: Ui, width: int, height: int) -> list[Text]:
    """Return the charts of publishes and deliveries, side by side if they fit."""
    history = board.history
    if width >= 2 * TWO_COLUMNS:
        half = width // 2
        return beside(
            _flow(history.series("in"), "published /s", LIVE, half, height, ui),
            _flow(history.series("out"), "delivered /s", GOOD, width - half, height, ui),
        )
    return _flow(history.series("in"), "published /s", LIVE, width, height, ui)


def _flow(values: Sequence[float], title: str, style: str, width: int, height: int, ui: Ui) -> list[Text]:
    lines = [Text(line, style) for line in axed(values, width - 4, height - 2, ui.graph)]
    room = width - 4 - (AXIS if height > SHORT_CHART else 0)
    shown = list(values)[-room * (2 if ui.graph == "braille" else 1) :]
    foot = f"peak {short(max(shown, default=0))}/s · the last {len(shown) * ui.every_s:g} s"
    return box(title, lines, width, height, foot)
