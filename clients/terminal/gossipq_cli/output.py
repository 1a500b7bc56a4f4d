"""Answers on stdout, everything else on stderr. Tables have borders on a terminal, none in a pipe.

Texts from records and names are printed with `printable`, so that publishers cannot send
escape sequences to a terminal.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gossipq.texts import number, printable
from gossipq_cli.choices import Choices

if TYPE_CHECKING:
    from gossipq_ops.actions import Outcome

Row = Mapping[str, Any]
FRAME = 3  #: columns of the terminal that borders take for each column of a table
GAP = 2
TEXT_LEAST = 12  #: columns that a text gets before it is folded


class Column(NamedTuple):
    """A field of a row and its form in a table; JSON has the raw value."""

    name: str
    show: Callable[[Any], str] = str
    right: bool = False
    title: str = ""  #: head of the column in a table; default: the name

    @property
    def head(self) -> str:
        return self.title or self.name


def as_object(found: Any) -> dict[str, Any]:
    """Return a struct that is an array on the wire, or an answer of the client, as an object."""
    if not is_dataclass(found):
        return {field: getattr(found, field) for field in found.__struct_fields__}
    from gossipq_client.answers import plain_of

    return plain_of(found)


def counter(name: str, title: str = "") -> Column:
    return Column(name, number, right=True, title=title)


def is_special(path: str | os.PathLike[str]) -> bool:
    """True if the path exists and is not a regular file, such as a pipe: it is never replaced."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def is_terminal(stream: Any) -> bool:
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


class Output:
    """The output of one command."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.form = choices.output

    @property
    def for_machines(self) -> bool:
        return self.form in ("json", "jsonl")

    def say(self, text: str) -> None:
        """Print a remark for people; never data."""
        if not self.choices.quiet:
            print(printable(text, "\n"), file=sys.stderr)

    def detail(self, text: str) -> None:
        if self.choices.verbose:
            print(text, file=sys.stderr)

    def rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """Print a list: table, JSON array, one JSON object a line, or only the first column."""
        if self.form == "json":
            self.write(json_text(list(rows)))
        elif self.form == "jsonl":
            for row in rows:
                self.write(json_text(row))
        elif self.form == "names":
            for row in rows:
                self.write(printable(str(row[columns[0].name])))
        elif cells := [[printable(column.show(row[column.name])) for column in columns] for row in rows]:
            (self._bordered if is_terminal(sys.stdout) else self._plain)(columns, cells)

    def stream(self, rows: Iterable[tuple[Row, str]], name: str) -> Iterator[Row]:
        """Print a list while it grows: (object, line for people). JSON waits for the end."""
        found = []
        for row, line in rows:
            if self.form == "json":
                found.append(row)
            elif self.form == "jsonl":
                self.write(json_text(row))
            else:
                self.write(printable(str(row[name])) if self.form == "names" else line)
            sys.stdout.flush()
            yield row
        if self.form == "json":
            self.write(json_text(found))

    def did(self, outcome: "Outcome", name: str) -> None:
        """Print what a verb would do or did, and the command that takes it back."""
        from gossipq_ops.verbs import undo_command, with_undo

        undo = {"undo": undo_command(outcome.undo)} if outcome.undo else {}
        self.one({**outcome.row, **undo}, with_undo(outcome.text, outcome.undo), name)

    def one(self, row: Row, text: str = "", name: str = "") -> None:
        """Print a single answer: a JSON object, its name, or `text`
        (default: `field value` lines).
        """
        if self.for_machines:
            self.write(json_text(row))
        elif self.form == "names" and name:
            self.write(printable(name))
        else:
            width = max((len(field) for field in row), default=0)
            self.write(
                text
                or "\n".join(f"{field:<{width}}  {printable(str(value))}" for field, value in row.items())
            )

    def paint(self, text: str, color: str) -> str:
        """Colour a text if the output has colours."""
        if not self.choices.color or "NO_COLOR" in os.environ or not is_terminal(sys.stdout):
            return text
        from click import style

        return style(text, fg=color, bold=True)

    @staticmethod
    def write(text: str) -> None:
        sys.stdout.write(text + "\n")

    @staticmethod
    def _plain(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        head = [column.head for column in columns]
        widths = [max(map(_columns, column)) for column in zip(head, *cells, strict=True)]
        for line in (head, *cells):
            parts = []
            for cell, width, column in zip(line, widths, columns, strict=True):
                gap = " " * (width - _columns(cell))
                parts.append(gap + cell if column.right else cell + gap)
            sys.stdout.write((" " * GAP).join(parts).rstrip() + "\n")

    def _bordered(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        """Print a table. Numbers are never broken.

        In a narrow terminal heads and texts are folded. If that is not enough, rows become columns.
        """
        from rich.box import ROUNDED
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        console = Console(no_color=True if not self.choices.color else None)
        natural = [
            max(map(_columns, column)) for column in zip((c.head for c in columns), *cells, strict=True)
        ]
        narrow = sum(natural) + FRAME * len(columns) + 1 > console.width
        heads = [column.head.replace("_", " ") if narrow else column.head for column in columns]
        least = [
            max(*map(_columns, head.split(" ")), min(max(map(_columns, told)), _whole(column)))
            for head, column, told in zip(heads, columns, zip(*cells, strict=True), strict=True)
        ]
        spare = console.width - FRAME * len(columns) - 1 - sum(least)
        if spare < 0:
            self._turned([column.head for column in columns], cells, console.width)
            return
        table = Table(box=ROUNDED, header_style="bold")
        for head, column, width in zip(heads, columns, _shared(spare, least, natural), strict=True):
            table.add_column(head, justify="right" if column.right else "left", overflow="fold", width=width)
        for line in cells:
            table.add_row(*map(escape, line))
        console.print(table)

    @staticmethod
    def _turned(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> None:
        """Print a line for each field, with as many rows side by side as fit."""
        title, rest = max(map(_columns, heads)), list(cells)
        while rest:
            shown, used = [rest.pop(0)], title
            used += GAP + max(map(_columns, shown[0]))
            while rest and used + GAP + max(map(_columns, rest[0])) <= width:
                used += GAP + max(map(_columns, rest[0]))
                shown.append(rest.pop(0))
            widths = [max(map(_columns, row)) for row in shown]
            for head, *told in zip(heads, *shown, strict=True):
                parts = [
                    head.ljust(title),
                    *(" " * (size - _columns(cell)) + cell for size, cell in zip(widths, told, strict=True)),
                ]
                sys.stdout.write((" " * GAP).join(parts).rstrip() + "\n")
            if rest:
                sys.stdout.write("\n")


def _shared(spare: int, least: Sequence[int], natural: Sequence[int]) -> list[int]:
    """Return column widths. Columns that need the least extra space get it first."""
    widths = list(least)
    for place in sorted(range(len(widths)), key=lambda place: natural[place] - least[place]):
        given = min(spare, max(0, natural[place] - least[place]))
        widths[place] += given
        spare -= given
    return widths


def _whole(column: Column) -> int:
    """Return the width up to which a cell stays on one line."""
    return sys.maxsize if column.right else TEXT_LEAST


def _columns(text: str) -> int:
    """Return the width of a text on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def json_text(value: Any) -> str:
    """Return JSON with escaped unprintable characters, which can only be in strings."""
    from json import dumps

    import msgspec

    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # an argument or a file name is not valid UTF-8
        text = dumps(msgspec.to_builtins(value), separators=(",", ":"))
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else dumps(char)[1:-1] for char in text)
    )
