"""The same results as plain Markdown, for RESULTS.md: the tables, the verdicts, what failed and what was used."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._cells import Cell, Column, columns
from ._numbers import NOTHING, duration, moment, plain

SIGNS = {"reproduced": "✓", "not reproduced": "✕", "cannot be judged": "?"}


def results_markdown(results: Mapping[str, Any]) -> str:
    """Title, claims with their verdicts, one table for each table, failed runs, environment."""
    made = f" on {moment(results['made'])}" if results.get("made") else ""
    kind = "the quick version: shorter runs of smaller networks" if results.get("quick") else "the full version"
    blocks = [
        f"# {_text(results.get('title', ''))}",
        f"Made{made} by `enrnn paper`, {kind}. ± is the spread over seeds; bold is the best of its column.",
    ]
    if results.get("claims"):
        blocks += ["## Claims", "\n".join(_claim(claim) for claim in results["claims"])]
    for table in results.get("tables") or ():
        blocks += [
            f"## {_text(table.get('title') or table.get('name'))}",
            _text(table.get("caption") or ""),
            _table(table),
            _notes(table),
        ]
    amiss = [run for run in results.get("runs") or () if run.get("state") != "finished"]
    if amiss:
        rows = [
            [f"`{run.get('id')}`", run.get("recipe"), run.get("seed"), run.get("state"), _first_line(run.get("error"))]
            for run in amiss
        ]
        blocks += [
            "## Runs that failed or are not finished",
            _grid(["run", "recipe", "seed", "state", "error"], rows, numeric=(2,)),
        ]
    environment = results.get("environment") or {}
    if environment:
        blocks += ["## Environment", _grid(["what", "value"], [[name, value] for name, value in environment.items()])]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _claim(claim: Mapping[str, Any]) -> str:
    verdict = str(claim.get("verdict"))
    where = f" ({_text(claim['where'])})" if claim.get("where") else ""
    said, why = _text(claim.get("text", "")), _text(claim.get("why") or "")
    return f"- {SIGNS.get(verdict, '?')} **{_text(verdict)}**: {said}{where} {why}".rstrip()


def _table(table: Mapping[str, Any]) -> str:
    rows, all_columns = table.get("rows") or (), columns(table)
    if not rows:
        return "No rows yet."
    costs = any(row.get("parameters") or row.get("seconds") for row in rows)
    head, numeric = ["model"], list[int]()
    for column in all_columns:
        names = [f"{column.label}, {what}" for what in ("published", "ours", "difference")] if column.compared else [column.label]
        numeric += range(len(head), len(head) + len(names)) if column.numeric else []
        head += names
    if costs:
        numeric += range(len(head), len(head) + 3)
        head += ["parameters", "published", "time"]
    return _grid(head, [_row(row, index, all_columns, costs) for index, row in enumerate(rows)], numeric)


def _row(row: Mapping[str, Any], index: int, all_columns: Sequence[Column], costs: bool) -> list[object]:
    cells: list[object] = [row.get("label", "")]
    for column in all_columns:
        cell = column.cells[index]
        if column.compared:
            cells += [_bold(cell.published, cell.best_published), _ours(cell), cell.difference]
        else:
            cells.append(_ours(cell) if column.measured else cell.published)
    if costs:
        parameters = row.get("parameters") or {}
        cells += [plain(parameters.get("ours")), plain(parameters.get("published")), duration(row.get("seconds"))]
    return cells


def _ours(cell: Cell) -> str:
    if not cell.has_ours:
        return NOTHING
    return _bold(cell.ours, cell.best_ours) + (f" ± {cell.spread} ({cell.count})" if cell.spread else "")


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _notes(table: Mapping[str, Any]) -> str:
    lines = []
    for row in table.get("rows") or ():
        notes = [
            row.get("note"),
            (row.get("parameters") or {}).get("note"),
            *(f"failed: {_first_line(failure.get('error'))}" for failure in row.get("failed") or ()),
        ]
        if any(notes):
            lines.append(f"- {_text(row.get('label', ''))}: {' '.join(_text(note) for note in notes if note)}")
    return "\n".join(lines)


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error or "").splitlines() if line.strip()), "")


def _grid(head: Sequence[str], rows: Iterable[Sequence[object]], numeric: Iterable[int] = ()) -> str:
    right = set(numeric)
    lines = [[_cell(name) for name in head], ["--:" if index in right else "---" for index in range(len(head))]]
    lines += [[_cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else plain(value)
    return text if re.fullmatch(r"\*\*[^*|<]*\*\*.*|`[^`|]*`", text) else _text(text)


def _text(value: object) -> str:
    """Text that Markdown and HTML leave alone, on one line."""
    text = re.sub(r"([\\`*_\[\]|])", r"\\\1", re.sub(r"[ \t\r\n\u2028\u2029]+", " ", str(value)).strip())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
