"""Common code of the views: a list with a pointer, a filter, an order, and pages that open."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import (
    BAD,
    DIM,
    GOOD,
    LIVE,
    UNSORTED,
    WARN,
    Column,
    Sorting,
    arranged,
    sortable,
    table,
)
from gossipq_ops.figures import bar, spark
from gossipq_ops.history import History
from gossipq_ops.questions import Subject

Size = tuple[int, int]  #: columns, lines

MARKS = {
    "ready": ("●", GOOD),
    "ok": ("●", GOOD),
    "witness": ("●", GOOD),
    "failed": ("✖", BAD),
    "down": ("✖", BAD),
}
MARKS |= {"paused": ("✖", BAD)}
MARKS |= {"asking": ("○", DIM), "no leader": ("✖", BAD), "left": ("○", DIM), "full": ("✖", BAD)}
OTHER_MARK = ("▲", WARN)


def marked(state: str, name: str) -> Text:
    """Return a name with the mark of its state, so that colour is not the only sign."""
    mark, style = MARKS.get(state, OTHER_MARK)
    return Text().append(f"{mark} ", style).append(safe_name(name), style if style == BAD else "")


def safe_name(name: str) -> str:
    from gossipq.texts import printable

    return printable(name)


def state_text(state: str) -> Text:
    _, style = MARKS.get(state, OTHER_MARK)
    return Text(state.replace("_", " "), style)


def line_of(values: Sequence[float], width: int, ui: Ui, style: str = LIVE) -> Text:
    return Text(spark(values, width, ui.graph), style)


def share_bar(share: float, width: int, ui: Ui) -> Text:
    style = BAD if share > 0.9 else WARN if share > 0.7 else GOOD
    return Text(bar(share, width, ui.graph), style)


def none_yet(history: History, text: str) -> str:
    """Return the text for an empty list of topics, groups or clients."""
    return "not known: a leader does not answer" if history.uncounted else text


class Lister:
    """A list of rows. `what` is their singular for people. `counted`: leaders report them."""

    what = "row"
    counted = False
    sorting = Sorting()  #: default order

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        raise NotImplementedError

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Any]:
        raise NotImplementedError

    def key(self, row: Any) -> str:
        """Return the stable name of a row, also used by the filter."""
        raise NotImplementedError

    def rows(self, board: Board, ui: Ui) -> list[Any]:
        """Return filtered and sorted rows. Rows of system topics come last."""
        look, wanted = ui.look, ui.look.filter.casefold()
        rows = [row for row in self.all_rows(board, ui) if wanted in self.key(row).casefold()]
        found = arranged(self.columns(board, ui), rows, look.sorting or self.sorting)
        return sorted(found, key=self.of_nodes)

    def of_nodes(self, row: Any) -> bool:
        """True for system topics and their rows."""
        return False

    def keys(self, board: Board, ui: Ui) -> list[str]:
        return [self.key(row) for row in self.rows(board, ui)]

    def sorts(self, board: Board, ui: Ui) -> list[str]:
        return sortable(self.columns(board, ui))

    def empty(self, board: Board, ui: Ui) -> str:
        if ui.look.filter:
            return f"no {self.what} matches"
        return none_yet(board.history, f"no {self.what} yet") if self.counted else f"no {self.what} yet"

    def pointed(self, keys: Sequence[str], ui: Ui) -> int:
        """Return the index of the row under the pointer, -1 without rows."""
        look = ui.look
        return keys.index(look.chosen) if look.chosen in keys else min(look.at, len(keys) - 1)

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        """Return the Ui after Enter."""
        return ui

    def subject(self, board: Board, ui: Ui, chosen: str) -> Subject | None:
        """Return the target for verbs: the row `chosen`, or "" for the page itself."""
        return None

    def listed(self, board: Board, ui: Ui, width: int, height: int) -> tuple[list[Text], str]:
        """Return the list, and the text for its foot."""
        rows = self.rows(board, ui)
        at = self.pointed([self.key(row) for row in rows], ui)
        laid = table(
            self.columns(board, ui),
            rows,
            width,
            height,
            at=at,
            sorting=ui.look.sorting or self.sorting,
            empty=self.empty(board, ui),
        )
        return laid.lines, foot(at, len(rows), ui)

    def draw(self, board: Board, ui: Ui, width: int, height: int) -> list[Text]:
        raise NotImplementedError


class Section(NamedTuple):
    """One of several lists of a page."""

    name: str
    columns: list[Column[Any]]
    rows: Sequence[Any]
    key: Callable[[Any], str]
    empty: str = "nothing here"


class Page(Lister):
    """Several lists with one pointer that moves from each into the next.

    The keys of their rows begin with the name of their list.
    """

    def sections(self, board: Board, ui: Ui) -> list[Section]:
        """Return the visible lists in order, filtered and sorted."""
        raise NotImplementedError

    def keys(self, board: Board, ui: Ui) -> list[str]:
        return keys_of(self.sections(board, ui))

    def next_section(self, board: Board, ui: Ui) -> Ui:
        """Move the pointer to the first row of the next list with rows."""
        keys = self.keys(board, ui)
        at = self.pointed(keys, ui)
        if at < 0:
            return ui
        here = keys[at].partition(SEPARATOR)[0]
        turned = [*range(at + 1, len(keys)), *range(at)]
        to = next((each for each in turned if keys[each].partition(SEPARATOR)[0] != here), at)
        return ui.looking(chosen=keys[to], at=to)

    def pointer(self, sections: Sequence[Section], ui: Ui) -> tuple[str, str]:
        """Return (list, key of the row) under the pointer; empty without rows."""
        keys = keys_of(sections)
        at = self.pointed(keys, ui)
        name, _, key = keys[at].partition(SEPARATOR) if keys else ("", "", "")
        return name, key

    def part(
        self, section: Section, pointer: tuple[str, str], size: Size, sorting: Sorting = UNSORTED
    ) -> tuple[list[Text], str]:
        """Return a list in the given size, and the text for its foot."""
        name, key = pointer
        keys = [section.key(row) for row in section.rows] if name == section.name else []
        at = keys.index(key) if key in keys else -1
        laid = table(
            section.columns, section.rows, *size, at=at, sorting=sorting, empty=section.empty, indent=2
        )
        count = len(section.rows)
        if at >= 0:
            return laid.lines, f"{at + 1}/{count}"
        return laid.lines, f"{laid.seen} of {count}" if laid.seen < count else ""


def keys_of(sections: Sequence[Section]) -> list[str]:
    return [f"{section.name}{SEPARATOR}{section.key(row)}" for section in sections for row in section.rows]


SEPARATOR = "\t"  #: between names in a key: names do not contain it


def foot(at: int, count: int, ui: Ui) -> str:
    told = f"{at + 1}/{count}" if count else "0"
    return f"filter {ui.look.filter!r}  {told}" if ui.look.filter else told


def opened(ui: Ui, *path: str) -> Ui:
    return msgspec.structs.replace(ui, path=path)
