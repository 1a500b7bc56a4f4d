"""What the seven views have in common: a list under a pointer, filtered and sorted, and what opens from
it."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from gossipq_cli.dashboard.figures import bar, spark
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_cli.dashboard.table import BAD, DIM, GOOD, LIVE, WARN, Column, Sorting, arranged, sortable, table

Size = tuple[int, int]  #: columns, lines

MARKS = {
    "ready": ("●", GOOD),
    "ok": ("●", GOOD),
    "witness": ("●", GOOD),
    "failed": ("✖", BAD),
    "down": ("✖", BAD),
}
MARKS |= {"asking": ("○", DIM), "no leader": ("✖", BAD), "left": ("○", DIM), "full": ("✖", BAD)}
OTHER_MARK = ("▲", WARN)


def marked(state: str, name: str) -> Text:
    """A name behind the mark of its state: never a colour alone."""
    mark, style = MARKS.get(state, OTHER_MARK)
    return Text().append(f"{mark} ", style).append(safe_name(name), style if style == BAD else "")


def safe_name(name: str) -> str:
    from gossipq_cli.output import printable

    return printable(name)


def state_text(state: str) -> Text:
    _, style = MARKS.get(state, OTHER_MARK)
    return Text(state.replace("_", " "), style)


def line_of(values: Sequence[float], width: int, ui: Ui, style: str = LIVE) -> Text:
    return Text(spark(values, width, ui.graph), style)


def share_bar(share: float, width: int, ui: Ui) -> Text:
    style = BAD if share > 0.9 else WARN if share > 0.7 else GOOD
    return Text(bar(share, width, ui.graph), style)


class Lister:
    """A list of rows. `what` names them in the singular for people."""

    what = "row"
    sorting = Sorting()  #: as long as the user says nothing

    def columns(self, board: Board, ui: Ui) -> list[Column[Any]]:
        raise NotImplementedError

    def all_rows(self, board: Board, ui: Ui) -> Sequence[Any]:
        raise NotImplementedError

    def key(self, row: Any) -> str:
        """Names the row while lists change around it; also what the filter looks at."""
        raise NotImplementedError

    def rows(self, board: Board, ui: Ui) -> list[Any]:
        """Filtered and sorted."""
        look, wanted = ui.look, ui.look.filter.casefold()
        rows = [row for row in self.all_rows(board, ui) if wanted in self.key(row).casefold()]
        return arranged(self.columns(board, ui), rows, look.sorting or self.sorting)

    def keys(self, board: Board, ui: Ui) -> list[str]:
        return [self.key(row) for row in self.rows(board, ui)]

    def sorts(self, board: Board, ui: Ui) -> list[str]:
        return sortable(self.columns(board, ui))

    def empty(self, board: Board, ui: Ui) -> str:
        return f"no {self.what} matches" if ui.look.filter else f"no {self.what} yet"

    def pointed(self, keys: Sequence[str], ui: Ui) -> int:
        """Index of the row under the pointer, -1 without rows."""
        look = ui.look
        return keys.index(look.chosen) if look.chosen in keys else min(look.at, len(keys) - 1)

    def open(self, board: Board, ui: Ui, chosen: str) -> Ui:
        """After Enter."""
        return ui

    def listed(self, board: Board, ui: Ui, width: int, height: int) -> tuple[list[Text], str]:
        """The list, and what stands at its foot."""
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


def foot(at: int, count: int, ui: Ui) -> str:
    told = f"{at + 1}/{count}" if count else "0"
    return f"filter {ui.look.filter!r}  {told}" if ui.look.filter else told


def opened(ui: Ui, *path: str) -> Ui:
    return msgspec.structs.replace(ui, path=path)
