"""Curves as SVG paths. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 600, 120
ROOM = 4  #: above the highest value


class Curve(NamedTuple):
    """`line` and `area` are paths in a box of `width` x `height`. `top` is the largest value."""

    line: str
    area: str
    top: float
    last: float
    width: int
    height: int
    about: str  #: a description for screen readers


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    title: str


class Bars(NamedTuple):
    bars: list[Bar]
    top: float
    width: int
    height: int
    about: str


class Strip(NamedTuple):
    """A bar over an hour: it waits from `begin` to `run`, and runs to `end`."""

    begin: float
    run: float
    end: float
    width: int
    height: int
    about: str


def strip(begin: float, run: float, end: float, about: str, width: int = WIDTH, height: int = 12) -> Strip:
    """Return the bar of shares 0 to 1. It is two units wide at least, and stays in its box."""
    right = max(end * width, begin * width + 2)
    left = min(begin * width, width - 2.0)
    middle = min(max(run * width, left), width - 1.0)
    return Strip(round(left, 1), round(middle, 1), round(min(right, width), 1), width, height, about)


def curve(
    values: Sequence[float], about: str, width: int = WIDTH, height: int = HEIGHT, room: int = 0
) -> Curve:
    """Return a curve with the newest value on the right. The box has space for `room` values."""
    count = max(room, len(values), 2)
    top = max(values, default=0.0)
    scale = (height - ROOM) / (top or 1.0)
    step = width / (count - 1)
    first = count - len(values)
    points = [
        (round((first + at) * step, 1), round(height - value * scale, 1)) for at, value in enumerate(values)
    ]
    last = values[-1] if values else 0.0
    if not points:
        return Curve("", "", 0.0, 0.0, width, height, f"{about}: nothing is known yet")
    line = "M" + " ".join(f"{x:g} {y:g}" for x, y in points)
    area = f"{line} L{points[-1][0]:g} {height} L{points[0][0]:g} {height}Z"
    return Curve(line, area, top, last, width, height, f"{about}: {last:,.0f} now, at most {top:,.0f}")


def bars(
    values: Sequence[float], titles: Sequence[str], about: str, width: int = WIDTH, height: int = HEIGHT
) -> Bars:
    """Return a bar for each value, with its title."""
    top = max(values, default=0.0)
    scale, step = (height - ROOM) / (top or 1.0), width / max(1, len(values))
    gap = min(2.0, step / 4)
    made = [
        Bar(
            round(at * step + gap / 2, 1),
            round(height - max(value * scale, 1.0 if value else 0.0), 1),
            round(step - gap, 1),
            round(max(value * scale, 1.0 if value else 0.0), 1),
            title,
        )
        for at, (value, title) in enumerate(zip(values, titles, strict=True))
    ]
    return Bars(made, top, width, height, f"{about}: at most {top:,.0f}")
