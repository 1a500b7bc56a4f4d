"""Numbers in few columns, and charts made of characters. Pure."""

from collections.abc import Callable, Mapping, Sequence

GRAPHS = ("block", "braille", "ascii")
WITHOUT_BRAILLE = ("linux", "dumb", "", "vt100", "vt220")  #: consoles whose fonts lack braille
AXIS = 6  #: columns of an axis: a number and its tick
LEVELS = {"block": " ▁▂▃▄▅▆▇█", "ascii": " .:-=+*#@"}
PARTS = {"block": " ▏▎▍▌▋▊▉█", "ascii": "         #"}
BRAILLE = 0x2800
#: dots from the bottom up
BRAILLE_LEFT, BRAILLE_RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)


def speaks_unicode(environ: Mapping[str, str]) -> bool:
    """True if the locale says that the terminal shows Unicode."""
    spoken = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    return "utf" in spoken.casefold()


def graph_of(environ: Mapping[str, str]) -> str:
    """Return the characters for charts on this terminal: braille, blocks, or ASCII."""
    if not speaks_unicode(environ):
        return "ascii"
    return "block" if environ.get("TERM", "") in WITHOUT_BRAILLE else "braille"


def short(value: float) -> str:
    """Format a number in at most five columns: 0, 83, 999, 1.2k, 74.8k, 102k, 1.2M, 3.4P."""
    if value < 0:
        return "-" + short(-value)
    if value < 9.95 and value != int(value):
        return f"{value:.1f}"
    amount = float(value)
    for unit in ("", "k", "M", "G", "T", "P", "E"):
        if amount < 999.5:
            return f"{amount:.0f}{unit}" if not unit or amount >= 99.95 else f"{amount:.1f}{unit}"
        amount /= 1_000
    return "lots"


def size(value: int) -> str:
    """Format bytes in at most five columns: 12B, 3.4K, 118M, 1.2G."""
    amount = float(value)
    for unit in ("B", "K", "M", "G", "T", "P"):
        if amount < 999.5:
            return f"{amount:.0f}{unit}" if unit == "B" or amount >= 99.95 else f"{amount:.1f}{unit}"
        amount /= 1_024
    return "lots"


def span(value_ms: float) -> str:
    """Format a duration in at most four columns: 0.4s, 38s, 12m, 4h, 2d, 3y."""
    seconds = max(0.0, value_ms / 1_000)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, of, end in (
        ("s", 1, 99.5),
        ("m", 60, 99.5 * 60),
        ("h", 3_600, 47.5 * 3_600),
        ("d", 86_400, 999.5 * 86_400),
    ):
        if seconds < end:
            return f"{seconds / of:.0f}{unit}"
    return f"{min(999, seconds / 31_557_600):.0f}y"


def micros(value_us: float) -> str:
    """Format a duration: 0.4ms, 38ms, 1.2s."""
    if value_us < 99_500:
        return f"{value_us / 1_000:.1f}ms" if value_us < 9_950 else f"{value_us / 1_000:.0f}ms"
    return span(value_us / 1_000)


def fold(values: Sequence[float], width: int) -> list[float]:
    """Return the newest `width` values, or all if fewer."""
    return list(values[-width:]) if width > 0 else []


def spark(values: Sequence[float], width: int, graph: str = "block") -> str:
    """Return one line of `width` columns, with the newest value on the right."""
    return chart(values, width, 1, graph)[0]


def chart(
    values: Sequence[float], width: int, height: int, graph: str = "block", top: float = 0.0
) -> list[str]:
    """Return a chart of `height` lines and `width` columns, with the newest value on the right.

    It goes from 0 to `top` (default: the largest value).
    """
    if width <= 0 or height <= 0:
        return [""] * max(0, height)
    per = 2 if graph == "braille" else 1
    shown = fold(values, width * per)
    shown = [0.0] * (width * per - len(shown)) + shown
    top = top or max(shown) or 1.0
    steps = 4 if graph == "braille" else 8
    heights = [_height(value, top, steps * height) for value in shown]
    if graph == "braille":
        return [_braille_row(heights, 4 * row) for row in range(height - 1, -1, -1)]
    levels = LEVELS[graph]
    return [
        "".join(levels[max(0, min(8, found - 8 * row))] for found in heights)
        for row in range(height - 1, -1, -1)
    ]


def axed(
    values: Sequence[float], width: int, height: int, graph: str, show: Callable[[int], str] = short
) -> list[str]:
    """Return a chart with an axis in `width` columns, from 0 to the largest value.

    A chart of one line has no space for an axis.
    """
    if height < 2:
        return chart(values, width, height, graph)
    per = 2 if graph == "braille" else 1
    top = max(fold(values, (width - AXIS) * per), default=0.0)
    drawn = chart(values, width - AXIS, height, graph, top)
    tick, line = ("+", "|") if graph == "ascii" else ("┤", "│")
    marks = {0: show(int(top)) if top >= 1 else short(top)} if top else {}
    marks[height - 1] = "0"
    return [
        f"{marks.get(at, ''):>{AXIS - 1}}{tick if at in marks else line}{text}"
        for at, text in enumerate(drawn)
    ]


def _height(value: float, top: float, steps: int) -> int:
    """Return a height in steps; values above 0 get at least one."""
    if value <= 0:
        return 0
    return max(1, min(steps, round(value / top * steps)))


def _braille_row(heights: Sequence[int], below: int) -> str:
    cells = []
    for left, right in zip(heights[::2], heights[1::2], strict=True):
        dots = sum(bit for at, bit in enumerate(BRAILLE_LEFT) if left > below + at)
        dots += sum(bit for at, bit in enumerate(BRAILLE_RIGHT) if right > below + at)
        cells.append(chr(BRAILLE + dots) if dots else " ")
    return "".join(cells)


def stretch(begin: float, run: float, end: float, width: int, graph: str = "block") -> str:
    """Return a bar from `begin` to `end`, shares of the width: thin until `run`, then thick. It has one
    column at least."""
    thin, thick, empty = ("-", "#", ".") if graph == "ascii" else ("─", "█", "·")
    first = min(width - 1, int(begin * width))
    last = max(first + 1, min(width, round(end * width)))
    turn = max(first, min(last - 1, int(run * width)))
    return (empty * first + thin * (turn - first) + thick * (last - turn)).ljust(width, empty)[:width]


def bar(share: float, width: int, graph: str = "block") -> str:
    """Return a horizontal bar over dots."""
    parts = PARTS["ascii" if graph == "ascii" else "block"]
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    text = parts[-1] * full + (parts[rest] if rest and parts[rest] != " " else "")
    return text.ljust(width, "." if graph == "ascii" else "·")[:width]
