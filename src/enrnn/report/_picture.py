"""A figure as one SVG file, light and dark, curves with their legend: for README.md and RESULTS.md, where no script runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from . import _panels
from ._chart import LEFT, RIGHT, Chart
from ._colours import SERIES, THEME
from ._html import Html, element, join
from ._numbers import finite
from ._series import styles

WIDTH, HEIGHT, LINE = 760, 400, 22
LETTER = 7.2

Drawn = tuple[Html, str, int, int]
"""What is in a picture, its style, its width and its height."""


def figure_svg(figure: Mapping[str, Any]) -> str:
    """The picture of a figure, whatever its kind."""
    kinds = {"curves": _curves, "spectrum": _spectrum, "heatmaps": _heatmaps}
    if figure.get("kind") not in kinds:
        raise ValueError(f"figure {figure.get('name')!r} is of kind {figure.get('kind')!r}, not one of {', '.join(kinds)}")
    content, style, width, height = kinds[str(figure["kind"])](figure)
    if not content:
        raise ValueError(f"figure {figure.get('name')!r} has no point to draw")
    svg = element(
        "svg",
        element("style", Html(style)),
        element("rect", class_="paper", width=width, height=height),
        content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=figure.get("title") or figure.get("name"),
    )
    return f"{svg}\n"


def _spectrum(figure: Mapping[str, Any]) -> Drawn:
    content, width, height = _panels.spectrum(figure)
    look = {"light": SERIES[0][0], "dark": SERIES[0][1]}
    return content, _style([(look, "eigen")]), width, height


def _heatmaps(figure: Mapping[str, Any]) -> Drawn:
    content, width, height = _panels.heatmaps(figure)
    return content, _style([]), width, height


def _curves(figure: Mapping[str, Any]) -> Drawn:
    looks = styles([figure])[0]
    drawn = [
        (series, look, f"s{index}")
        for index, (series, look) in enumerate(zip(figure.get("series") or (), looks, strict=True))
        if any(finite(x) is not None and finite(y) is not None for x, y in series.get("points") or ())
    ]
    if not drawn:
        return Html(), "", WIDTH, HEIGHT
    chart = _chart(figure, [series for series, _, _ in drawn])
    for series, _, kind in drawn:
        chart.band(series.get("band") or (), kind)
    for series, look, kind in drawn:
        chart.curve(series["points"], kind, look["dash"])
    lines = [line for line in figure.get("lines") or () if finite(line.get("y")) is not None]
    for line in lines:
        chart.level(float(line["y"]))
    entries = [(str(series.get("label")), f"curve {kind}", look["dash"]) for series, look, kind in drawn]
    legend, bottom = _legend(entries + [(str(line.get("label", "")), "level", "") for line in lines])
    return join((chart.content(), legend)), _style([(look, kind) for _, look, kind in drawn]), WIDTH, bottom


def _chart(figure: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> Chart:
    across, up = figure.get("x") or {}, figure.get("y") or {}
    points = [(x, y) for one in series for x, y in one["points"] if finite(x) is not None and finite(y) is not None]
    log = bool(up.get("log")) and any(y > 0 for _, y in points)
    xs = [float(x) for x, _ in points]
    ys = [float(y) for _, y in points] + [
        float(line["y"]) for line in figure.get("lines") or () if finite(line.get("y")) is not None
    ]
    low, high = up.get("range") or _around([y for y in ys if y > 0 or not log], log)
    first, last = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, max(xs) + 1)
    return Chart((first, last), (low, high), across.get("label", ""), up.get("label", ""), False, log, WIDTH, HEIGHT)


def _around(values: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        room = max(1.2, (high / low) ** 0.04)
        return low / room, high * room
    room = 0.05 * (high - low) or 0.5 * (abs(high) or 1.0)
    return (0.0 if 0 <= low < 0.3 * high else low - room), high + room


def _legend(entries: Sequence[tuple[str, str, str]]) -> tuple[Html, int]:
    """In lines from left to right, away from all curves; and where the last one ends. An entry is a label, classes and dashes."""
    parts: list[Html] = []
    x, y = float(LEFT), HEIGHT + 14
    for label, kind, dash in entries:
        wide = 34 + LETTER * len(label) + 16
        if x + wide > WIDTH - RIGHT and x > LEFT:
            x, y = float(LEFT), y + LINE
        parts.append(element("line", class_=kind, x1=x, x2=x + 26, y1=y - 4, y2=y - 4, stroke_dasharray=dash or None))
        parts.append(element("text", label, class_="label", x=x + 33, y=y))
        x += wide
    return join(parts), y + 14


SHAPES = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif }
text.label { stroke-width: 3px; stroke-linejoin: round; paint-order: stroke }
.axis, .curve { fill: none } .level { stroke-dasharray: 1 4; stroke-linecap: round }
.curve { stroke: currentColor; stroke-width: 1.9; stroke-linejoin: round }
.dot { fill: currentColor } .band { fill: currentColor; opacity: .16 }
.circle { fill: none; stroke-width: 1.2 } .eigen { fill: none; stroke: currentColor; stroke-width: 3.6; stroke-linecap: round }
"""


def _style(looks: Sequence[tuple[Mapping[str, str], str]]) -> str:
    def colours(theme: int) -> str:
        paper, ink, soft, line = (THEME[name][theme] for name in ("card", "ink", "soft", "line"))
        fills = f".paper {{ fill: {paper} }} text {{ fill: {soft} }} text.label {{ fill: {ink}; stroke: {paper} }}"
        strokes = f".grid {{ stroke: {line} }} .axis {{ stroke: {soft} }} .level, .circle {{ stroke: {ink} }}"
        return f"{fills} {strokes} " + " ".join(
            f".{kind} {{ color: {look['dark' if theme else 'light']} }}" for look, kind in looks
        )

    return f"{SHAPES}{colours(0)}\n@media (prefers-color-scheme: dark) {{ {colours(1)} }}\n"
