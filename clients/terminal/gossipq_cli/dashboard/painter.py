"""Paints lines on a terminal: only changed ones, in one synchronized update. Also makes pictures.

A trial of one screen in Textual took more processor time and 17 times the bytes, and would have
saved fewer lines than it costs to move there. perf/README.md has its figures.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from gossipq_ops.figures import BRAILLE, LEVELS

#: a terminal that supports these shows the update at once
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
SYSTEMS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}

#: replacements for marks, borders and charts in ASCII
ASCII = str.maketrans("●○✖▲▴▾▸›…·│┤─╭╮╰╯↑↓⏎▏▎▍▌▋▊▉", "*ox!^v>>.-|+-++++^v<|||####")
ASCII |= str.maketrans(LEVELS["block"], LEVELS["ascii"])
ASCII |= {BRAILLE: ord(" ")} | {BRAILLE + dots: ord(":") for dots in range(1, 256)}


def in_ascii(text: str) -> str:
    """Return the same number of columns in ASCII."""
    if text.isascii():
        return text
    return "".join(each if each.isascii() else "?" * cell_len(each) for each in text.translate(ASCII))


def colors_of(wanted: bool) -> str | None:
    """Return the number of colours of the terminal; None if colours are off."""
    if not wanted or "NO_COLOR" in os.environ:
        return None
    if os.environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in os.environ.get("TERM", "") else "standard"


class Painter:
    """Knows the content of the terminal.

    `colors` is a colour system of `rich`, None = only bold and reverse.
    """

    def __init__(self, colors: str | None = "standard") -> None:
        self._system = SYSTEMS.get(colors or "", ColorSystem.STANDARD)
        self._plain = colors is None
        self._console = Console(file=StringIO(), color_system=None, width=1_000)
        self._shown: list[str] = []

    def forget(self) -> None:
        """Forget the content, because something else was shown."""
        self._shown = []

    def paint(self, lines: Sequence[Text]) -> str:
        """Return the text to send; "" if nothing changed."""
        fresh = [self.line(line) for line in lines]
        parts = [] if len(fresh) == len(self._shown) else ["\x1b[2J"]
        before = self._shown if not parts else [""] * len(fresh)
        parts += [
            f"\x1b[{at};1H{new}"
            for at, (new, old) in enumerate(zip(fresh, before, strict=True), 1)
            if new != old
        ]
        self._shown = fresh
        return f"{BEGIN}{''.join(parts)}{END}" if parts else ""

    def line(self, line: Text) -> str:
        """Return a line with its escape sequences."""
        found = []
        for segment in _styled(line).render(self._console):
            style = segment.style or Style.null()
            if self._plain:
                style = style.without_color
            found.append(style.render(segment.text, color_system=self._system) if style else segment.text)
        return "".join(found)


def _styled(line: Text) -> Text:
    """Return a line with its style as a span, because `render` ignores the style without spans."""
    if line.style and not line.spans:
        line = line.copy()
        line.stylize(line.style)
    return line


def _words(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Separate blanks from words, so that a viewer with another font
    keeps the position of words.
    """
    for segment in segments:
        for part in re.split("( +)", segment.text):
            if part:
                yield Segment(part, segment.style)


def svg(lines: Sequence[Text], width: int, title: str) -> str:
    """Return a picture. It uses the viewer's fixed-width font and loads nothing from the net."""
    console = Console(
        record=True,
        file=StringIO(),
        width=width,
        height=len(lines),
        force_terminal=True,
        color_system="truecolor",
    )
    for line in lines:
        console.print(Segments([*_words(_styled(line).render(console)), Segment.line()]), end="")
    text = console.export_svg(title=title, unique_id="gossipq")
    return _own_font(text)


def _own_font(text: str) -> str:
    """Remove the web fonts that the exporter names."""
    head, _, rest = text.partition("@font-face")
    while rest:
        _, _, rest = rest.partition("}")
        before, found, rest = rest.partition("@font-face")
        head += before
        if not found:
            break
    return head.replace("Fira Code", "DejaVu Sans Mono")
