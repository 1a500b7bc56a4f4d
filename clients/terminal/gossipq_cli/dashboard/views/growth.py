"""Growth over the last week or hours: records, bytes, copies; joins and takeovers are marked."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from gossipq.limits import GROWTH_HOURS_MS, GROWTH_MINUTES_MS, HOUR_MS, MINUTE_MS
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import BAD, DIM, GOOD, HEAD, LIVE, WARN, Column, box
from gossipq_cli.dashboard.timeline import Axis, hourly, steps
from gossipq_cli.dashboard.views.base import Lister, Size
from gossipq_cli.dashboard.views.nodes import clock
from gossipq_ops.figures import AXIS, axed, chart, short, size
from gossipq_ops.rows import Growth

JOIN, LEAVE, TAKEOVER, SEVERAL = "+", "-", "!", "*"
LEGEND = f"{JOIN}join {LEAVE}left {TAKEOVER}takeover {SEVERAL}several"


class Span(NamedTuple):
    name: str
    title: str
    step: str
    step_ms: int
    most: int  #: number of steps, including the present one


SPANS = (
    Span("week", "last week, by the hour", "hour", HOUR_MS, GROWTH_HOURS_MS // HOUR_MS + 1),
    Span("hours", "last hours, by the minute", "minute", MINUTE_MS, GROWTH_MINUTES_MS // MINUTE_MS + 1),
)


class Measure(NamedTuple):
    title: str
    value: Callable[[Growth], float]
    show: Callable[[int], str]
    style: str
    flows: bool = False  #: counted in each step; otherwise a gauge


MEASURES = (
    Measure("published", lambda row: row.published, short, LIVE, True),
    Measure("stored bytes", lambda row: row.bytes, size, "magenta"),
    Measure("copies of a shard", lambda row: row.voters, short, GOOD),
    Measure("backlog", lambda row: row.backlog, short, WARN),
    Measure("records kept", lambda row: row.records, short, LIVE),
    Measure("acked", lambda row: row.acked, short, GOOD, True),
    Measure("dead letters", lambda row: row.dead, short, BAD),
)


def marks(rows: Sequence[Growth], axis: Axis, width: int) -> Text:
    """Return the line of marks: + a copy joined, - one left, ! a
    takeover, * several in one column.
    """
    line = [" "] * width
    for number, row in enumerate(rows):
        for mark, there in ((JOIN, row.joined), (LEAVE, row.left), (TAKEOVER, row.takeovers)):
            at = axis.column(number)
            if there and at < width:
                line[at] = mark if line[at] in (" ", mark) else SEVERAL
    text = Text("".join(line))
    for at, mark in enumerate(line):
        if mark != " ":
            text.stylize(GOOD if mark == JOIN else BAD, at, at + 1)
    return text


class GrowthView(Lister):
    """The pointer switches between the week and the last hours."""

    what = "span"

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        return [Column("span", lambda span: span.title)]

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Span]:
        return SPANS

    def key(self, row: Span) -> str:
        return row.name

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        span = self._span(board, ui)
        minutes = board.history.growth_minutes
        stored = minutes if span is SPANS[1] else hourly(board.history.growth_hours, minutes)
        rows = steps(stored, span.step_ms, board.history, span.most)
        if not rows:
            return self._live(board, ui, width, height, span.title)
        count = max(2, min(len(MEASURES), height // 6))
        lines, left = [_head(span, width)], height - 1
        for number, measure in enumerate(MEASURES[:count]):
            part = left // (count - number)
            left -= part
            lines += _measure_box(measure, rows, (width, part), span, board, ui)
        return lines

    @staticmethod
    def _span(board: Board, ui: Ui) -> Span:
        """Return the chosen span. Default: the week, or the last hours if
        all rows lie within them.
        """
        history = board.history
        if ui.look.chosen or not history.growth_minutes:
            return SPANS[ui.look.chosen == SPANS[1].name]
        first_ms = min(row.time_ms for row in (*history.growth_hours[:1], history.growth_minutes[0]))
        return SPANS[history.now.time_ms - first_ms < GROWTH_MINUTES_MS]

    def _live(self, board: Board, ui: Ui, width: int, height: int, title: str) -> list[Text]:
        """Draw the values seen since the dashboard started, if no growth is stored."""
        reason = (
            "this node keeps no growth"
            if "growth" in board.history.now.missing
            else "nothing is stored yet; a row comes with each minute"
        )
        history = board.history
        lines = [
            Text(f"{title}: {reason}", WARN),
            Text(),
            Text("published /s since this began to watch", DIM),
        ]
        room = max(1, (height - 8) // 2)
        lines += [Text(line, LIVE) for line in chart(history.series("in"), width - 4, room, ui.graph)]
        lines += [
            Text(),
            Text("backlog", DIM),
            *(Text(line, WARN) for line in chart(history.series("backlog"), width - 4, room, ui.graph)),
        ]
        return box("growth", lines, width, height, "↑↓ week or hours")


def _head(span: Span, width: int) -> Text:
    other = "   ↑↓ week or hours"
    line = Text(f" {span.title}", HEAD).append(f"  {LEGEND}", "not bold " + DIM)
    return line.append(other, "not bold " + DIM) if line.cell_len + len(other) < width else line


def _measure_box(
    measure: Measure, rows: Sequence[Growth], extent: Size, span: Span, board: Board, ui: Ui
) -> list[Text]:
    width, height = extent
    tall, values = max(1, height - 3), [measure.value(row) for row in rows]
    left = AXIS if tall > 1 else 0
    inner = width - 4 - left
    axis = Axis(len(rows), inner, 2 if ui.graph == "braille" else 1)
    now, unit = ("so far", f" per {span.step}") if measure.flows else ("now", "")
    title = (
        f"{measure.title}{unit}  {now} {measure.show(int(values[-1]))}  peak {measure.show(int(max(values)))}"
    )
    drawn = axed(axis.laid(values), width - 4, tall, ui.graph, measure.show)
    lines = [
        *(Text(line, measure.style) for line in drawn),
        Text(" " * left).append_text(marks(rows, axis, inner)),
    ]
    end_ms = min(rows[-1].time_ms, board.history.now.time_ms)
    return box(
        title, lines, width, height, f"{clock_day(rows[0].time_ms - span.step_ms)} to {clock_day(end_ms)}"
    )


def clock_day(time_ms: int) -> str:
    from gossipq.texts import iso

    text = iso(time_ms)
    return f"{text[5:10]} {clock(time_ms)[:5]}" if text else "?"
