"""Tables as HTML: published and ours side by side, and everything behind a row on demand.

On a narrow screen a row becomes a card: each cell carries its heading as `data-label`, and the roles of a table are written out,
since browsers forget them when the style changes `display`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._behind import behind
from ._cells import Cell, Column, columns
from ._html import Html, anchor, element, join
from ._numbers import NOTHING, duration, plain

STACKED = 2
"""From so many columns with something published on, published, ours and the difference stand one above the other."""

SIGNS = {"better": ("▲", "better than published"), "worse": ("▼", "worse than published")}
BETTER = {"low": ("↓ better", "lower is better"), "high": ("↑ better", "higher is better")}
"""Under the name of a column, and for those who do not see the arrow."""


@dataclass(frozen=True)
class Layout:
    """`costs`: whether the rows say how many parameters and how much time."""

    columns: Sequence[Column]
    stacked: bool
    costs: bool

    def three(self, column: Column) -> bool:
        """Whether a column is three beside one another."""
        return column.compared and not self.stacked

    @property
    def width(self) -> int:
        return 1 + sum(3 if self.three(column) else 1 for column in self.columns) + (2 if self.costs else 0)


def table(entry: Mapping[str, Any], states: Mapping[str, str]) -> Html:
    """`states`: of each run by its id."""
    name, rows = str(entry.get("name")), entry.get("rows") or ()
    all_columns = columns(entry)
    stacked = sum(column.compared for column in all_columns) >= STACKED
    costs = any(row.get("parameters") or row.get("seconds") for row in rows)
    layout = Layout(all_columns, stacked, costs)
    body: list[Html] = []
    for index, row in enumerate(rows):
        if row.get("group") and (index == 0 or rows[index - 1].get("group") != row["group"]):
            body.append(_group(row["group"], layout.width))
        body.append(_row(name, index, row, layout, states))
    content = (
        element(
            "div",
            element("table", _head(layout), *body, class_=f"results {'stacked' if stacked else ''}", role="table"),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label=entry.get("title") or name,
        )
        if rows
        else element("p", "This table has no rows yet.", class_="empty")
    )
    return element(
        "section",
        element("h3", entry.get("title") or name),
        element("p", entry.get("caption") or "", class_="caption") if entry.get("caption") else None,
        content,
        _legend(all_columns) if rows else None,
        class_="card",
        id=anchor("item", name),
    )


def _legend(all_columns: Sequence[Column]) -> Html | None:
    cells = [cell for column in all_columns for cell in column.cells]
    parts = ["Mean ± spread over seeds"] if any(cell.spread for cell in cells) else []
    if any(cell.best_ours or cell.best_published for cell in cells):
        parts.append("bold: the best of its column")
    if any(cell.difference != NOTHING for column in all_columns if column.compared for cell in column.cells):
        parts.append("difference: ours − published")
    if any(cell.sense for cell in cells):
        parts.append("▲ better, ▼ worse than published")
    told = "; ".join(parts)
    return element("p", f"{told[0].upper()}{told[1:]}.", class_="legend-note") if told else None


def _head(layout: Layout) -> Html:
    rows = 2 if any(map(layout.three, layout.columns)) else None
    first, second = [_heading("Model", rowspan=rows, class_="model")], []
    for column in layout.columns:
        short, long = BETTER[column.better] if column.better else ("", "")
        note = element("small", short, title=long, aria_label=long) if short else None
        if layout.three(column):
            first.append(_heading(column.label, note, colspan=3, class_="group"))
            second.append(_heading("published", class_="number first"))
            second += [_heading(name, class_="number") for name in ("ours", "difference")]
        else:
            first.append(_heading(column.label, note, rowspan=rows, class_="number" if column.numeric else None))
    if layout.costs:
        first += [_heading(name, rowspan=rows, class_="number") for name in ("Parameters", "Time")]
    lines = [element("tr", *cells, role="row") for cells in (first, second) if cells]
    return element("thead", *lines, role="rowgroup")


def _heading(*content: object, **attributes: object) -> Html:
    return element("th", *content, role="columnheader", scope="col", **attributes)


def _group(name: str, width: int) -> Html:
    heading = element("th", name, colspan=width, scope="rowgroup", role="rowheader", class_="model")
    return element("tbody", element("tr", heading, role="row"), role="rowgroup", class_="group-name")


def _row(name: str, index: int, row: Mapping[str, Any], layout: Layout, states: Mapping[str, str]) -> Html:
    more = f"{anchor('more', name)}-{index}"
    seeds = max((column.cells[index].count for column in layout.columns), default=0)
    label = _label(row, more, states, seeds) if row.get("recipe") else element("span", row.get("label", ""), class_="name")
    cells = [element("th", label, scope="row", role="rowheader", class_="model")]
    for column in layout.columns:
        cell = column.cells[index]
        if not column.measured:
            cells.append(_fact(column, cell))
        elif layout.three(column):
            cells += _side_by_side(column, cell)
        else:
            cells.append(_stacked(column, cell))
    if layout.costs:
        parameters = _parameters(row.get("parameters") or {})
        cells.append(element("td", parameters, class_="number fact", role="cell", data_label="parameters"))
        cells.append(element("td", duration(row.get("seconds")), class_="number fact", role="cell", data_label="time"))
    lines = [element("tr", *cells, role="row")]
    if row.get("recipe"):  # a row that is no run's has nothing behind it
        details = element("td", behind(row, index, layout.columns, states), colspan=layout.width, role="cell")
        lines.append(element("tr", details, id=more, class_="more", role="row"))
    return element(
        "tbody",
        *lines,
        role="rowgroup",
        class_=None if any(column.cells[index].has_ours for column in layout.columns) else "missing",
    )


def _label(row: Mapping[str, Any], more: str, states: Mapping[str, str], seeds: int) -> Html:
    name = element("span", row.get("label", ""), class_="name", title=row.get("label"))
    button = element("button", name, type="button", class_="open-row", aria_expanded="false", aria_controls=more)
    return join((button, _standing(row, states, seeds)))


def _standing(row: Mapping[str, Any], states: Mapping[str, str], seeds: int) -> Html | None:
    """How many seeds a row has, and what is wrong with its runs, where something is."""
    found = [states.get(str(run), "unfinished") for run in row.get("runs") or ()]
    failed = max(len(row.get("failed") or ()), found.count("failed"))
    unfinished = found.count("unfinished")
    parts = [
        element("small", "1 seed" if seeds == 1 else f"{seeds} seeds") if seeds else None,
        element("span", f"✕ {failed} failed", class_="tag bad") if failed else None,
        element("span", f"… {unfinished} unfinished", class_="tag open") if unfinished else None,
        element("span", "not run", class_="tag") if row.get("recipe") and not found and not failed else None,
    ]
    return element("span", *parts, class_="tags") if any(parts) else None


def _fact(column: Column, cell: Cell) -> Html:
    return element("td", cell.published, class_="number fact" if column.numeric else "fact", role="cell", data_label=column.label)


def _side_by_side(column: Column, cell: Cell) -> list[Html]:
    label = column.label
    return [
        element(
            "td",
            _bold(cell.published, cell.best_published),
            class_="number first published",
            role="cell",
            data_label=f"{label}, published",
        ),
        element("td", _ours(cell), class_="number ours", role="cell", data_label="ours"),
        element("td", _difference(cell), class_="number", role="cell", data_label="difference"),
    ]


def _stacked(column: Column, cell: Cell) -> Html:
    known = cell.published != NOTHING
    published = element("div", "paper ", _bold(cell.published, cell.best_published), class_="published") if known else None
    difference = element("div", _difference(cell)) if cell.difference != NOTHING else None
    return element(
        "td",
        element("div", _ours(cell), class_="ours"),
        published,
        difference,
        class_="number",
        role="cell",
        data_label=column.label,
    )


def _bold(text: str, best: bool) -> Html:
    return element("b" if best else "span", text)


def _ours(cell: Cell) -> Html:
    return join((_bold(cell.ours, cell.best_ours), element("small", f" ± {cell.spread}") if cell.spread else None))


def _difference(cell: Cell) -> Html:
    if not cell.sense:
        return element("span", cell.difference, class_="difference")
    sign, words = SIGNS[cell.sense]
    mark = element("span", sign, class_="sign", role="img", aria_label=words, title=words)
    return element("span", cell.difference, " ", mark, class_=f"difference {cell.sense}")


def _parameters(parameters: Mapping[str, Any]) -> Html:
    published, note = parameters.get("published"), parameters.get("note")
    return join(
        (
            element("span", plain(parameters.get("ours")), "*" if note else None, title=note or None),
            element("small", f"paper {plain(published)}", class_="below") if published else None,
        )
    )
