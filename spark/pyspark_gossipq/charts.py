"""Charts as SVG without a library: stacked bars, and lines over days."""

from collections.abc import Mapping, Sequence
from html import escape

COLORS = ("#2f6f9f", "#e07b39", "#4c9f70", "#b5495b", "#8067a9", "#8c6d46", "#5b6770", "#c2a83e")
OTHER = "#c4c8cc"
NAMED = len(COLORS)  #: names in a legend, each with a colour
LEGEND_LINE = 18
WIDTH, LABEL, ROW, LEFT, TOP, RIGHT = 860, 210, 26, 24, 64, 48
PLOT_HEIGHT = 260
TICKS = 4
CHAR = 6.4  #: approximate width of a letter


def bars(title: str, rows: Mapping[str, Mapping[str, float]], unit: str = "") -> str:
    """Draw a stacked bar for each row, as {"orders billing": {"done": 17, "ready": 3}}."""
    parts = list(dict.fromkeys(name for row in rows.values() for name, value in row.items() if value))
    most = max((sum(row.values()) for row in rows.values()), default=0) or 1
    scale = (WIDTH - LABEL - 130) / most
    drawn, y = [], TOP
    for label, row in rows.items():
        drawn.append(_text(LABEL - 8, y + 15, _cut(label, 30), "end"))
        x = float(LABEL)
        for name, value in row.items():
            if value:
                color = _color(parts.index(name))
                told = escape(f"{label}: {name} {_number(value)} {unit}".strip())
                drawn.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{max(1.0, value * scale):.1f}" height="18" '
                    f'fill="{color}">'
                    f"<title>{told}</title></rect>"
                )
                x += max(1.0, value * scale)
        drawn.append(_text(x + 6, y + 14, f"{_number(sum(row.values()))} {unit}".strip()))
        y += ROW
    return _picture(title, parts, drawn, y + 16)


def lines(title: str, series: Mapping[str, Sequence[tuple[str, float]]], unit: str = "") -> str:
    """Draw a line for each name, as {"orders": [("2026-11-20", 5), ...]}.
    Labels are sorted as text.
    """
    labels = sorted({label for points in series.values() for label, _ in points})
    most = max((value for points in series.values() for _, value in points), default=0) or 1
    left, bottom = 100, TOP + PLOT_HEIGHT
    step = (WIDTH - left - RIGHT) / max(1, len(labels) - 1)
    drawn = []
    for tick in range(TICKS + 1):
        y = bottom - PLOT_HEIGHT * tick / TICKS
        drawn.append(f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        drawn.append(_text(left - 8, y + 4, f"{_number(most * tick / TICKS)} {unit}".strip(), "end"))
    named = sorted({round(part * (len(labels) - 1) / 5) for part in range(6)}) if labels else []
    drawn += [_text(left + at * step, bottom + 18, labels[at], "middle") for at in named]
    ranked = sorted(series, key=lambda name: -sum(value for _, value in series[name]))
    for name in reversed(ranked):  # the largest ones on top
        points, number = series[name], ranked.index(name)
        color = _color(number)
        spots = [
            (left + labels.index(label) * step, bottom - PLOT_HEIGHT * value / most)
            for label, value in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" '
            f'stroke-width="2"><title>{escape(name)}</title></polyline>'
        )
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in spots]
    return _picture(title, ranked, drawn, bottom + 36)


def _color(number: int) -> str:
    return COLORS[number] if number < NAMED else OTHER


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """Return the legend of the first names, how many are missing, and
    the height of further lines.
    """
    drawn, x, lower = [], float(LEFT), 0
    shown = [(_cut(name, 24), _color(number)) for number, name in enumerate(names[:NAMED])]
    shown += [(f"{len(names) - NAMED:,} more", OTHER)] if len(names) > NAMED else []
    for name, color in shown:
        width = 32 + CHAR * len(name)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, lower = float(LEFT), lower + LEGEND_LINE
        drawn.append(f'<rect x="{x:.1f}" y="{38 + lower}" width="11" height="11" fill="{color}"/>')
        drawn.append(_text(x + 16, 48 + lower, name))
        x += width
    return drawn, lower


def _picture(title: str, names: Sequence[str], drawn: Sequence[str], height: float) -> str:
    """Join the parts of a picture, moved down by the extra lines of the legend."""
    legend, lower = _legend(names)
    height += lower
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} '
        f'{height:.0f}" '
        'font-family="sans-serif" font-size="12" fill="#222222">'
    )
    whole = [
        head,
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(LEFT, 24, title, size=16),
        *legend,
    ]
    whole += [f'<g transform="translate(0 {lower})">', *drawn, "</g>", "</svg>"]
    return "\n".join(whole) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _number(value: float) -> str:
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if sign == 'k' else limit):.1f}{sign}"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
