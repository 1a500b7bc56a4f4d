"""Lines of text onto a terminal: only those that changed, as one synchronized update, or as a picture."""

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

from gossipq_cli.dashboard.figures import BRAILLE, LEVELS

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  #: a terminal that knows these shows all of it at once
SYSTEMS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}

#: what stands for marks, borders and charts where they cannot be shown
ASCII = str.maketrans("●○✖▲▴▾▸›…·│┤─╭╮╰╯↑↓⏎▏▎▍▌▋▊▉", "*ox!^v>>.-|+-++++^v<|||####")
ASCII |= str.maketrans(LEVELS["block"], LEVELS["ascii"])
ASCII |= {BRAILLE: ord(" ")} | {BRAILLE + dots: ord(":") for dots in range(1, 256)}


def in_ascii(text: str) -> str:
    """With as many columns, for a terminal that shows nothing else."""
    if text.isascii():
        return text
    return "".join(each if each.isascii() else "?" * cell_len(each) for each in text.translate(ASCII))


def colors_of(wanted: bool) -> str | None:
    """How many the terminal has, as it says; None where nobody wants any."""
    if not wanted or "NO_COLOR" in os.environ:
        return None
    if os.environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in os.environ.get("TERM", "") else "standard"


class Painter:
    """Knows what the terminal shows. `colors`: as `rich` names its colour systems, None = bold and reverse
    only."""

    def __init__(self, colors: str | None = "standard") -> None:
        self._system = SYSTEMS.get(colors or "", ColorSystem.STANDARD)
        self._plain = colors is None
        self._console = Console(file=StringIO(), color_system=None, width=1_000)
        self._shown: list[str] = []

    def forget(self) -> None:
        """The terminal shows something else now."""
        self._shown = []

    def paint(self, lines: Sequence[Text]) -> str:
        """What to send; "" when nothing changed."""
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
        """With its escape sequences."""
        found = []
        for segment in _styled(line).render(self._console):
            style = segment.style or Style.null()
            if self._plain:
                style = style.without_color
            found.append(style.render(segment.text, color_system=self._system) if style else segment.text)
        return "".join(found)


def _styled(line: Text) -> Text:
    """With its own style as a span: `render` leaves out the style of a text that has no spans."""
    if line.style and not line.spans:
        line = line.copy()
        line.stylize(line.style)
    return line


def _words(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Blanks apart from words, so that a viewer with another font puts each word where it belongs all the
    same."""
    for segment in segments:
        for part in re.split("( +)", segment.text):
            if part:
                yield Segment(part, segment.style)


def svg(lines: Sequence[Text], width: int, title: str) -> str:
    """A picture. Its font is whatever the viewer has in fixed width: nothing is fetched from the net."""
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
    """Without the web fonts that the exporter names."""
    head, _, rest = text.partition("@font-face")
    while rest:
        _, _, rest = rest.partition("}")
        before, found, rest = rest.partition("@font-face")
        head += before
        if not found:
            break
    return head.replace("Fira Code", "DejaVu Sans Mono")
