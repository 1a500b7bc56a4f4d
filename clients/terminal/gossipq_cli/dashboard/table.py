"""Tables and boxes as lines of text of an exact width. Pure.

Numbers are never cut: on a narrow screen columns are left out, those with the largest `leave`
first. Only columns with a `least` can be cut, and show an ellipsis.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.text import Text

from gossipq.texts import printable

GOOD, BAD, WARN, DIM, HEAD, LIVE, MARK = (
    "green",
    "bold red",
    "yellow",
    "bright_black",
    "bold",
    "cyan",
    "on grey23",
)
BORDER = "bright_black"
WIDE_GAP, GAP = 2, 1  #: between columns, on a wide and on a narrow screen
POINTER = "▸"

R = TypeVar("R")
Cell = str | Text


class Column(NamedTuple, Generic[R]):
    """A column of a table.

    `draw` fills the remaining width, as a sparkline does, with `least` columns at least.
    """

    title: str
    cell: Callable[[R], Cell] | None = None
    right: bool = False
    leave: int = 0  #: 0 = never left out
    least: int = 0  #: 0 = as wide as its widest cell; else it can shrink to this
    draw: Callable[[R, int], Cell] | None = None
    sort: Callable[[R], object] | None = None
    grow: int = 0  #: maximum width of a drawn column; 0 = all that remains


class Sorting(NamedTuple):
    """Title of the column to sort by; "" = unsorted."""

    title: str = ""
    down: bool = True


def safe(cell: Cell) -> Text:
    """Remove control characters."""
    if isinstance(cell, Text):
        return cell if cell.plain.isprintable() else Text(printable(cell.plain))
    return Text(printable(cell))


def fit(text: Text, width: int, right: bool = False) -> Text:
    """Cut or pad to exactly `width` columns."""
    if width <= 0:
        return Text()
    text = text.copy()
    have = cell_len(text.plain)
    if have > width:
        text.truncate(width, overflow="ellipsis")
        have = cell_len(text.plain)
    if have < width:
        gap = " " * (width - have)
        return Text(gap).append_text(text) if right else text.append(gap)
    return text


def arranged(columns: Sequence[Column[R]], rows: Sequence[R], sorting: Sorting) -> list[R]:
    column = next((column for column in columns if column.title == sorting.title and column.sort), None)
    if column is None or column.sort is None:
        return list(rows)
    return sorted(rows, key=column.sort, reverse=sorting.down)  # type: ignore[arg-type]


def sortable(columns: Sequence[Column[R]]) -> list[str]:
    return [column.title for column in columns if column.sort]


UNSORTED = Sorting()


class Laid(NamedTuple):
    """A table with its layout."""

    lines: list[Text]  #: head and rows
    first: int  #: index of the first visible row
    seen: int


def table(
    columns: Sequence[Column[R]],
    rows: Sequence[R],
    width: int,
    height: int,
    *,
    at: int = -1,
    sorting: Sorting = UNSORTED,
    empty: str = "nothing here",
    indent: int = 0,
) -> Laid:
    """Return head and rows, at most `height` lines, with row `at` visible and marked (-1: none).

    `indent` columns are kept free for the pointer while it is elsewhere.
    """
    room = max(0, height - 1)
    first = 0 if at < 0 or len(rows) <= room else max(0, min(at - room // 2, len(rows) - room))
    shown = rows[first : first + room]
    cells = {
        number: [safe(column.cell(row)) for row in shown]
        for number, column in enumerate(columns)
        if column.cell is not None
    }
    pointer = 2 if at >= 0 else indent
    gap, widths = _widths(columns, cells, sorting, width - pointer)
    lines = [_head(columns, widths, sorting, gap, pointer, width)]
    for number, row in enumerate(shown):
        line = Text(f"{POINTER} " if number + first == at else "  ")[:pointer] if pointer else Text()
        parts = []
        for which, column in enumerate(columns):
            if which in widths:
                cell = (
                    cells[which][number]
                    if which in cells
                    else safe(column.draw(row, widths[which]) if column.draw else "")
                )
                parts.append(fit(cell, widths[which], column.right))
        line.append_text(Text(" " * gap).join(parts))
        line = fit(line, width)
        if number + first == at:
            line.stylize_before(MARK)
        lines.append(line)
    if not rows:
        lines.append(fit(Text(" " * pointer + empty, DIM), width))
    return Laid(lines[:height], first, len(shown))


def _title(column: Column[R], sorting: Sorting) -> str:
    if column.title == sorting.title and column.sort:
        return f"{column.title}{'▾' if sorting.down else '▴'}"
    return column.title


def _head(
    columns: Sequence[Column[R]], widths: dict[int, int], sorting: Sorting, gap: int, pointer: int, width: int
) -> Text:
    parts = [
        fit(Text(_title(columns[which], sorting)), widths[which], columns[which].right) for which in widths
    ]
    head = fit(Text(" " * pointer).append_text(Text(" " * gap).join(parts)), width)
    head.stylize(DIM)
    return head


def _widths(
    columns: Sequence[Column[R]], cells: dict[int, list[Text]], sorting: Sorting, width: int
) -> tuple[int, dict[int, int]]:
    """Return the gap between columns, and column number -> width of the remaining columns."""
    natural = {
        which: max(
            [
                cell_len(_title(column, sorting)),
                column.least,
                *(cell_len(cell.plain) for cell in cells.get(which, ())),
            ]
        )
        for which, column in enumerate(columns)
    }
    least = {which: column.least or natural[which] for which, column in enumerate(columns)}
    stay = list(range(len(columns)))

    def needed(gap: int) -> int:
        return sum(least[which] for which in stay) + gap * (len(stay) - 1)

    gap = WIDE_GAP if needed(WIDE_GAP) <= width else GAP
    while needed(gap) > width and any(columns[which].leave for which in stay):
        stay.remove(max(stay, key=lambda which: (columns[which].leave, which)))
    widths = {which: least[which] for which in stay}
    spare = width - needed(gap)
    # no further column may be left out: cut texts
    for which in sorted(stay, key=lambda which: -least[which]):
        if spare < 0 and not columns[which].right:
            cut = min(widths[which] - 1, -spare)
            widths[which] -= cut
            spare += cut
    for which in stay:  # texts first, then drawn columns
        if columns[which].draw is None and spare > 0:
            more = min(spare, natural[which] - widths[which])
            widths[which] += more
            spare -= more
    for which in stay:
        if columns[which].draw is not None and spare > 0:
            more = max(0, min(spare, columns[which].grow - widths[which])) if columns[which].grow else spare
            widths[which] += more
            spare -= more
    return gap, widths


# --- boxes


def box(
    title: Cell, lines: Sequence[Text], width: int, height: int, foot: Cell = "", *, bare: bool = False
) -> list[Text]:
    """Return `lines` in a frame of exactly `width` x `height`. `bare`:
    without a border, for pipes.
    """
    inner = max(0, width - 4)
    body = [fit(line, inner) for line in lines[: max(0, height - 2)]]
    body += [Text(" " * inner)] * (height - 2 - len(body))
    top, bottom = safe(title).copy(), safe(foot).copy()
    top.stylize_before(HEAD)
    bottom.stylize_before(DIM)
    if bare:
        edge = [fit(Text("  ").append_text(top), width)]
        tail = [fit(Text("  ").append_text(bottom), width)]
        return [*edge, *(fit(Text("  ").append_text(line), width) for line in body), *tail][:height]
    return [
        _edge("╭", top, "╮", width),
        *(Text("│ ", BORDER).append_text(_plain(line)).append(" │", BORDER) for line in body),
        _edge("╰", bottom, "╯", width, right=True),
    ][:height]


def _plain(line: Text) -> Text:
    """Return a line that does not inherit the style of the text before it."""
    found = Text()
    found.append_text(line)
    return found


def _edge(left: str, label: Text, right_end: str, width: int, right: bool = False) -> Text:
    """Return a border with its label: ╭─ label ────╮, or ╰──── label ─╯."""
    room = width - 6
    if not label.plain or room < 1:
        return fit(Text(left + "─" * max(0, width - 2) + right_end, BORDER), width)
    if cell_len(label.plain) > room:
        label.truncate(room, overflow="ellipsis")
    rest = "─" * (room - cell_len(label.plain))
    before, after = (f"{left}─{rest} ", f" ─{right_end}") if right else (f"{left}─ ", f" {rest}─{right_end}")
    return Text().append(before, BORDER).append_text(label).append(after, BORDER)


def beside(*blocks: Sequence[Text]) -> list[Text]:
    """Join blocks of the same height side by side."""
    return [Text().join(parts) for parts in zip(*blocks, strict=True)]


def block(lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """Cut or pad to exactly `width` x `height`."""
    found = [fit(line, width) for line in lines[:height]]
    return found + [Text(" " * width)] * (height - len(found))


def flowed(parts: Sequence[Text], width: int) -> list[Text]:
    """Place parts one after the other in as many lines as needed. A part is never split."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + WIDE_GAP + part.cell_len <= width:
            lines[-1].append(" " * WIDE_GAP).append_text(part)
        else:
            lines.append(part.copy())
    return lines


def wrapped(text: str, width: int, style: str = "", keep_lines: bool = False) -> list[Text]:
    """Fold a text to `width` columns. With `keep_lines`, its newlines are kept."""
    found: list[Text] = []
    for line in text.split("\n") if keep_lines else [text]:
        rest = printable(line)
        while True:
            head = Text(rest, style)
            if cell_len(rest) <= width or width <= 0:
                found.append(head)
                break
            cut = _cut(rest, width)
            found.append(Text(rest[:cut].rstrip(), style))  # a trailing blank may exceed the width
            rest = rest[cut:].lstrip(" ") if rest[cut - 1 : cut] != " " else rest[cut:]
    return found


def _cut(text: str, width: int) -> int:
    """Return how many characters fit, up to the end of a word if possible."""
    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            space = text.rfind(" ", max(0, at - 30), at + 1)
            return max(1, space + 1 if space > 0 else at)
    return max(1, len(text))
