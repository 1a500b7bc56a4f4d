"""Bars of records a second, for people: one group for each workload, on a scale of powers of ten."""

from math import ceil, floor, log10
from pathlib import Path
from xml.sax.saxutils import escape

LEFT, WIDTH, BAR, GAP, TOP = 170, 560, 16, 30, 34
OURS, THEIRS, LINE, TEXT = "#0a7d5a", "#8a94a3", "#d7dbe0", "#3a4048"


def bars(path: Path, groups: dict[str, dict[str, float]], ours: str) -> None:
    """Writes an SVG. `groups`: by title and name of a bar, its figure; the bar `ours` stands out."""
    figures = [figure for group in groups.values() for figure in group.values()]
    low, high = floor(log10(min(figures))), ceil(log10(max(figures)))
    step = WIDTH / (high - low)
    made, y = [], TOP
    for title, group in groups.items():
        made.append(f'<text x="8" y="{y}" font-weight="bold">{escape(title)}</text>')
        y += 10
        for name, figure in group.items():
            long = (log10(figure) - low) * step
            colour = OURS if name == ours else THEIRS
            middle = y + BAR - 4
            made += [
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR - 2}" fill="{colour}"/>',
                f'<text x="{LEFT + long + 6:.1f}" y="{middle}">{figure:,.0f}/s</text>',
            ]
            y += BAR + 2
        y += GAP
    scale = [
        f'<line x1="{x:.1f}" y1="{TOP - 14}" x2="{x:.1f}" y2="{y - GAP}" stroke="{LINE}"/>'
        f'<text x="{x:.1f}" y="{TOP - 18}" text-anchor="middle" font-size="10">{10**power:,}</text>'
        for power in range(low, high + 1)
        for x in (LEFT + (power - low) * step,)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 110} {y - GAP + 8}" '
        f'font-family="sans-serif" font-size="12" fill="{TEXT}">'
    )
    path.write_text("\n".join([head, *scale, *made, "</svg>"]) + "\n")
