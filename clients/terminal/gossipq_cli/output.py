"""Answers on stdout, everything else on stderr. Tables have borders on a terminal and none in a pipe."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gossipq_cli.options import Choices

Row = Mapping[str, Any]


class Column(NamedTuple):
    """A field of a row and how a table shows it; JSON shows the raw value."""

    name: str
    show: Callable[[Any], str] = str
    right: bool = False
    title: str = ""  #: head of the column in a table; without one the name

    @property
    def head(self) -> str:
        return self.title or self.name


def number(value: int | float) -> str:
    return f"{value:,}"


def size(value: int) -> str:
    """Bytes for people: 12 B, 3.4 KiB, 1.2 GiB."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(value_ms: int) -> str:
    """Milliseconds for people: 7d, 1h30m, 4.2s, 12ms."""
    if value_ms < 1_000:
        return f"{value_ms}ms"
    if value_ms < 60_000:
        return f"{value_ms / 1_000:g}s"
    parts, rest = [], value_ms // 1_000
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if rest >= seconds:
            parts.append(f"{rest // seconds}{unit}")
            rest %= seconds
    return "".join(parts[:2])


def counter(name: str) -> Column:
    return Column(name, number, right=True)


def is_terminal(stream: Any) -> bool:
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


class Output:
    """Where one command says things."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.form = choices.output

    @property
    def for_machines(self) -> bool:
        return self.form in ("json", "jsonl")

    def say(self, text: str) -> None:
        """A remark for people; never data."""
        if not self.choices.quiet:
            print(text, file=sys.stderr)

    def detail(self, text: str) -> None:
        if self.choices.verbose:
            print(text, file=sys.stderr)

    def rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """A list: table, JSON array, one JSON object a line, or only the first column."""
        found = list(rows)
        if self.form == "json":
            self.write(_json(found))
        elif self.form == "jsonl":
            for row in found:
                self.write(_json(row))
        elif self.form == "names":
            for row in found:
                self.write(str(row[columns[0].name]))
        elif found:
            cells = [[column.show(row[column.name]) for column in columns] for row in found]
            (self._bordered if is_terminal(sys.stdout) else self._plain)(columns, cells)

    def one(self, row: Row, text: str = "", name: str = "") -> None:
        """A single answer: a JSON object, its name, or `text` (default: one `field value` line each)."""
        if self.for_machines:
            self.write(_json(row))
        elif self.form == "names" and name:
            self.write(name)
        else:
            width = max((len(field) for field in row), default=0)
            self.write(text or "\n".join(f"{field:<{width}}  {value}" for field, value in row.items()))

    @staticmethod
    def write(text: str) -> None:
        sys.stdout.write(text + "\n")

    @staticmethod
    def _plain(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        head = [column.head for column in columns]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        for line in (head, *cells):
            padded = (
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            )
            sys.stdout.write("  ".join(padded).rstrip() + "\n")

    def _bordered(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        from rich.box import ROUNDED
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=ROUNDED, header_style="bold")
        for column in columns:
            table.add_column(column.head, justify="right" if column.right else "left", overflow="fold")
        for line in cells:
            table.add_row(*map(escape, line))
        Console(no_color=True if not self.choices.color else None).print(table)


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
