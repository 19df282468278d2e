"""Figures as the frame that the script draws into, with their main numbers as a table for readers who do not see the picture."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._html import Html, anchor, element
from ._numbers import finite, plain


def figure(entry: Mapping[str, Any], index: int) -> Html:
    name = str(entry.get("name", f"figure-{index}"))
    title, caption = entry.get("title") or name, entry.get("caption")
    head, rows = SUMMARIES.get(str(entry.get("kind")), _nothing)(entry)
    return element(
        "figure",
        element("figcaption", element("h3", title), element("p", caption, class_="caption") if caption else None),
        element("div", class_="drawing", data_figure=index),
        _values(head, rows) if rows else None,
        class_="card",
        id=anchor("item", name),
    )


def _values(head: Iterable[str], rows: Iterable[Sequence[object]]) -> Html:
    lines = (
        element("tr", element("th", row[0], scope="row"), *(element("td", plain(value)) for value in row[1:])) for row in rows
    )
    heading = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    body = element("div", element("table", heading, element("tbody", *lines), class_="values"), class_="scroll", tabindex="0")
    return element("details", element("summary", "In numbers"), body)


def _curves(entry: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    across, up = ((entry.get(axis) or {}).get("label", axis) for axis in "xy")
    rows: list[list[object]] = []
    for series in entry.get("series") or ():
        points = [(x, y) for x, y in series.get("points") or () if finite(x) is not None and finite(y) is not None]
        last = max(points, default=(None, None))
        low = min((y for _, y in points), default=None)
        rows.append([series.get("label", ""), len(points), last[0], last[1], low, max((y for _, y in points), default=None)])
    rows += [[line.get("label", ""), None, None, line.get("y"), None, None] for line in entry.get("lines") or ()]
    return ["series", "points", f"last {across}", f"{up} there", "lowest", "highest"], rows


def _heatmaps(entry: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    rows: list[list[object]] = []
    for panel in entry.get("panels") or ():
        values = panel.get("values") or ()
        numbers = [value for line in values for value in line if finite(value) is not None]
        rows.append(
            [
                panel.get("title", ""),
                len(values),
                len(values[0]) if values else 0,
                min(numbers, default=None),
                max(numbers, default=None),
            ]
        )
    return ["panel", "rows", "columns", "lowest", "highest"], rows


def _spectrum(entry: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    rows: list[list[object]] = []
    for panel in entry.get("panels") or ():
        sizes = [abs(complex(*point)) for point in panel.get("points") or () if all(finite(part) is not None for part in point)]
        rows.append([panel.get("title", ""), len(sizes), max(sizes, default=None)])
    return ["panel", "eigenvalues", "largest |λ|"], rows


def _nothing(entry: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    return [], []


SUMMARIES = {"curves": _curves, "heatmaps": _heatmaps, "spectrum": _spectrum}
