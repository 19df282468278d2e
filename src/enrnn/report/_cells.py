"""A table's columns and cells, before it is known whether they become HTML or Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._numbers import NOTHING, finite, fixed, places, plain, published_places, signed


@dataclass(frozen=True)
class Cell:
    """One number of a row. `sense`: "better", "worse" or "" where nothing was published, or there is no better and worse."""

    published: str
    ours: str
    spread: str
    difference: str
    sense: str
    count: int
    values: Sequence[object] = ()
    best_ours: bool = False
    best_published: bool = False

    @property
    def has_ours(self) -> bool:
        return self.ours != NOTHING


@dataclass(frozen=True)
class Column:
    """`cells`: one a row. `measured`: there is something of ours in it, or could be; `compared`: and something published."""

    label: str
    numeric: bool
    measured: bool
    better: str | None
    cells: Sequence[Cell]

    @property
    def compared(self) -> bool:
        return self.measured and any(cell.published != NOTHING for cell in self.cells)


def columns(table: Mapping[str, Any]) -> list[Column]:
    """Where rows belong to groups, the best of a column is the best of each group."""
    rows = table.get("rows") or ()
    groups = [row.get("group") for row in rows]
    return [_column(entry, [_as_cell(row, entry["key"]) for row in rows], groups) for entry in table.get("columns") or ()]


def _as_cell(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    cell = (row.get("cells") or {}).get(key)
    return cell if isinstance(cell, Mapping) else {"published": cell}


def _column(entry: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], groups: Sequence[object]) -> Column:
    kind = entry.get("kind", "number")
    ours = [cell.get("ours") or {} for cell in cells]
    measured = kind == "number" or any(value.get("mean") is not None for value in ours)
    better = next((cell["better"] for cell in cells if cell.get("better") in ("low", "high")), None)
    published = published_places(cell.get("published") for cell in cells)
    best_ours = _best([value.get("mean") for value in ours], groups, better)
    best_published = _best([cell.get("published") for cell in cells], groups, better)
    made = []
    for index, (cell, value) in enumerate(zip(cells, ours, strict=True)):
        spread = value.get("spread") if value.get("count", 2) > 1 else None
        counted = kind == "int" and spread is None
        decimals = 0 if counted else places(value.get("mean"), spread, published)
        made.append(
            Cell(
                published=_published(cell.get("published"), published),
                ours=fixed(value.get("mean"), decimals) if measured else NOTHING,
                spread=fixed(spread, decimals) if finite(spread) is not None else "",
                difference=signed(cell.get("difference"), decimals),
                sense=_sense(cell.get("difference"), better),
                count=int(value.get("count") or 0),
                values=value.get("values") or (),
                best_ours=index in best_ours,
                best_published=index in best_published,
            )
        )
    return Column(str(entry.get("label", entry["key"])), kind in ("int", "number"), measured, better, made)


def _published(value: object, decimals: int) -> str:
    """As it was given; a float with two decimals at least where others of its column have them, since 4.00 was read as 4.0."""
    number = finite(value)
    if number is None or isinstance(value, int) or abs(number) < 1e-3:
        return plain(value)
    return max(plain(value), fixed(value, min(decimals, 2)), key=len)


def _best(values: Sequence[object], groups: Sequence[object], better: str | None) -> set[int]:
    """Which are the best of their group; none where there is nothing to compare."""
    found: set[int] = set()
    for group in set(groups) if better else ():
        numbers = {
            index: number
            for index, value in enumerate(values)
            if groups[index] == group and (number := finite(value)) is not None
        }
        if len(numbers) > 1:
            best = (min if better == "low" else max)(numbers.values())
            found |= {index for index, number in numbers.items() if number == best}
    return found


def _sense(difference: object, better: str | None) -> str:
    number = finite(difference)
    if not number or better is None:
        return ""
    return "better" if (number < 0) == (better == "low") else "worse"
