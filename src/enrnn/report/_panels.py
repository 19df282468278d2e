"""What a figure of several panels shows, as plain SVG: eigenvalues beside the unit circle, and heat maps."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ._chart import BOTTOM, LEFT, RIGHT, TOP, Chart, Scale
from ._colours import colour_map
from ._html import Html, element, join
from ._numbers import finite

WIDTH, TITLE = 960, 26
BAR, SHADES = 78, 32
"""The room for a colour bar, and how many colours it has."""

Panel = Mapping[str, Any]
Placed = tuple[Html, int, int]
"""Panels beside and below each other, and how wide and tall they are together."""


def spectrum(figure: Mapping[str, Any]) -> Placed:
    """Three panels a row on one scale."""
    panels = [panel for panel in figure.get("panels") or () if _points(panel)]
    reach = max([1.15, *(1.08 * max(abs(x), abs(y)) for panel in panels for x, y in _points(panel))])
    wide = WIDTH // 3
    return _placed([(_disc(panel, reach, wide), panel) for panel in panels], wide, wide - LEFT - RIGHT + TOP + BOTTOM)


def heatmaps(figure: Mapping[str, Any]) -> Placed:
    """Two panels a row, on one colour scale unless the figure or the panels' own scales forbid it."""
    panels = [panel for panel in figure.get("panels") or () if panel.get("values") and panel["values"][0]]
    together = figure.get("shared") is not False and len({bool(panel.get("log")) for panel in panels}) == 1
    wide = WIDTH // 2
    made = [(_heat(panel, _extremes(panels if together else [panel]), wide), panel) for panel in panels]
    return _placed(made, wide, wide - BAR - LEFT - RIGHT + TOP + BOTTOM)


def _placed(panels: Sequence[tuple[Html, Panel]], wide: int, tall: int) -> Placed:
    """From left to right and from top to bottom, each under its title."""
    parts, across = [], WIDTH // wide
    for index, (content, panel) in enumerate(panels):
        row, column = divmod(index, across)
        title = element("text", panel.get("title") or "", class_="label", x=LEFT, y=18)
        inner = element("g", content, transform=f"translate(0,{TITLE - TOP + 6})")
        parts.append(element("g", title, inner, transform=f"translate({column * wide},{row * (tall + TITLE)})"))
    return join(parts), min(len(panels), across) * wide, -(-len(panels) // across) * (tall + TITLE)


def _disc(panel: Panel, reach: float, wide: int) -> Html:
    chart = Chart((-reach, reach), (-reach, reach), "Re λ", "Im λ", width=wide, height=wide - LEFT - RIGHT + TOP + BOTTOM)
    centre = {"cx": round(chart.across(0), 1), "cy": round(chart.up(0), 1)}
    chart.parts.append(element("circle", class_="circle", r=round(chart.across(1) - chart.across(0), 1), **centre))
    # Lines of no length with round ends: a tenth of what as many circles would take.
    dots = "".join(f"M{round(chart.across(x), 1)},{round(chart.up(y), 1)}h0" for x, y in _points(panel))
    chart.parts.append(element("path", class_="eigen", d=dots))
    return chart.content()


def _points(panel: Panel) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in panel.get("points") or () if finite(x) is not None and finite(y) is not None]


def _heat(panel: Panel, extremes: tuple[float, float], wide: int) -> Html:
    values, log = panel["values"], bool(panel.get("log"))
    rows, columns = len(values), len(values[0])
    across, down = _edges(panel.get("xs"), columns), _edges(panel.get("ys"), rows)
    low, high, height = min(down), max(down), wide - BAR - LEFT - RIGHT + TOP + BOTTOM
    chart = Chart(across, (low, high), panel.get("x") or "", panel.get("y") or "", width=wide - BAR, height=height)
    right, bottom = chart.width - RIGHT, height - BOTTOM
    if down[0] == low:  # the first row is on top, whether its place is the least or the greatest
        chart.up = Scale(low, high, TOP, bottom)
    shade = Scale(*extremes, 0, SHADES - 1, log)
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(values):
        begin = 0
        for index, same in groupby(_shade(value, shade) for value in row):
            count = len(list(same))
            if index is not None:
                paths.setdefault(index, []).append(f"M{begin},{i}h{count}v1h-{count}z")
            begin += count
    colours = colour_map(SHADES)
    size = f"translate({LEFT},{TOP}) scale({(right - LEFT) / columns:.5g},{(bottom - TOP) / rows:.5g})"
    cells = [element("path", fill=colours[index], d="".join(paths[index])) for index in sorted(paths)]
    chart.parts.append(element("g", *cells, transform=size, shape_rendering="crispEdges"))
    return join((chart.content(), _bar(extremes, log, right + 14, bottom, colours)))


def _shade(value: object, shade: Scale) -> int | None:
    """Which colour; the lowest for what a logarithmic scale has no place for, and none for what is no number."""
    number = finite(value)
    if number is None:
        return None
    return 0 if shade.log and number <= 0 else min(SHADES - 1, max(0, round(shade(number))))


def _bar(extremes: tuple[float, float], log: bool, x: int, bottom: int, colours: Sequence[str]) -> Html:
    step = (bottom - TOP) / SHADES
    along = Scale(*extremes, bottom, TOP, log)
    parts = [
        element("rect", fill=colour, x=x, width=12, y=round(bottom - (index + 1) * step, 2), height=round(step + 0.5, 2))
        for index, colour in enumerate(colours)
    ]
    for value, text in along.ticks(6):
        parts.append(element("text", text, x=x + 18, y=round(along(value) + 4, 1)))
    return join(parts)


def _edges(places: Sequence[float] | None, count: int) -> tuple[float, float]:
    """Half a cell beyond the first and the last, which are counted from 1 where nobody says where they are."""
    first, last = (places[0], places[-1]) if places else (1.0, float(count))
    half = (last - first) / (count - 1) / 2 if count > 1 else 0.5
    return first - half, last + half


def _extremes(panels: Iterable[Panel]) -> tuple[float, float]:
    found = [
        number
        for panel in panels
        for row in panel["values"]
        for value in row
        if (number := finite(value)) is not None and (number > 0 or not panel.get("log"))
    ]
    low, high = (min(found), max(found)) if found else (0.1, 1.0)
    return (low, high) if low < high else (low / 2 if low > 0 else low - 0.5, high * 2 if low > 0 else high + 0.5)
