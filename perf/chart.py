"""Draws charts as SVG: bars of records a second, on a scale of powers of ten, and curves of growing costs."""

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


HUES = ("#0a7d5a", "#b4532a", "#3b6fb6", "#8a6d1d", "#7a4fa3", "#5b6470")


def lines(path: Path, title: str, at: list[float], curves: dict[str, list[float]]) -> None:
    """Write an SVG of curves over `at`, each as a ratio to its first value. Both scales are in powers of ten.
    A flat cost stays at 1, and a linear one follows the dashed diagonal."""
    ratios = {name: [value / curve[0] for value in curve] for name, curve in curves.items()}
    every = [ratio for curve in ratios.values() for ratio in curve if ratio > 0]
    low, high = min(-1, floor(log10(min(every)))), max(1, ceil(log10(max(every))))
    left, right = floor(log10(at[0])), max(floor(log10(at[0])) + 1, ceil(log10(at[-1])))
    high_px, legend_y = 60 * (high - low), TOP + 60 * (high - low) + 40

    def place(x: float, ratio: float) -> tuple[float, float]:
        across = 60 + (log10(x) - left) / (right - left) * WIDTH
        return across, TOP + (high - log10(max(ratio, 10**low))) / (high - low) * high_px

    made = [f'<text x="8" y="16" font-weight="bold">{escape(title)}</text>']
    for power in range(low, high + 1):
        y = place(10**left, 10**power)[1]
        made.append(f'<line x1="60" y1="{y:.1f}" x2="{60 + WIDTH}" y2="{y:.1f}" stroke="{LINE}"/>')
        made.append(f'<text x="54" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for power in range(left, right + 1):
        x = place(10**power, 1)[0]
        made.append(f'<text x="{x:.1f}" y="{TOP + high_px + 16}" text-anchor="middle">{10**power:,}</text>')
    end = min(at[-1], at[0] * 10**high)
    (x1, y1), (x2, y2) = place(at[0], 1), place(end, end / at[0])
    made.append(
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{THEIRS}" '
        'stroke-dasharray="4 4"/>'
    )
    for (name, curve), hue in zip(ratios.items(), HUES, strict=False):
        spots = [place(x, ratio) for x, ratio in zip(at, curve, strict=True)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        made.append(f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="2"/>')
        made += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{hue}"/>' for x, y in spots]
        made.append(f'<rect x="60" y="{legend_y - 9}" width="12" height="10" fill="{hue}"/>')
        made.append(f'<text x="80" y="{legend_y}">{escape(name)}</text>')
        legend_y += 18
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 110} {legend_y}" '
        f'font-family="sans-serif" font-size="12" fill="{TEXT}">'
    )
    path.write_text("\n".join([head, *made, "</svg>"]) + "\n")
