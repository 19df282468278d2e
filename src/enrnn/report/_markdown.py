"""The same results as plain Markdown, for RESULTS.md: the tables, the verdicts, what failed and what was used."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._cells import Cell, Column, columns
from ._numbers import NOTHING, duration, moment, plain

SIGNS = {"reproduced": "✓", "not reproduced": "✕", "cannot be judged": "?"}
SHORT_ID = 12
"""As much of a run's id as the name of its directory has."""


def results_markdown(results: Mapping[str, Any], pictures: Mapping[str, str] | None = None) -> str:
    """Title, claims with their verdicts, one table for each table, figures, failed runs, environment.

    Arguments:
        pictures: of the figures to show, by their names: where each one's file is, seen from the document.
    """
    made = f" on {moment(results['made'])}" if results.get("made") else ""
    kind = "the quick version: shorter runs of smaller networks" if results.get("quick") else "the full version"
    blocks = [
        f"# {_text(results.get('title', ''))}",
        f"Made{made} by `enrnn paper`, {kind}. ± is the standard deviation over seeds, with their number in brackets; "
        "what has none is one seed. Bold is the best of its column.",
    ]
    if results.get("claims"):
        blocks += ["## Claims", f"{claims_in_words(results)}.", "\n".join(_claim(claim) for claim in results["claims"])]
    for table in results.get("tables") or ():
        blocks += [
            f"## {_text(table.get('title') or table.get('name'))}",
            _text(table.get("caption") or ""),
            _table(table),
            _notes(table),
        ]
    shown = [figure for figure in results.get("figures") or () if figure.get("name") in (pictures or {})]
    if pictures and shown:
        blocks.append("## Figures")
        for figure in shown:
            blocks += [f"### {_text(figure.get('title') or figure['name'])}", picture_markdown(figure, pictures[figure["name"]])]
            blocks.append(_text(figure.get("caption") or ""))
    amiss = [run for run in results.get("runs") or () if run.get("state") != "finished"]
    if amiss:
        rows = [
            [
                f"`{str(run.get('id'))[:SHORT_ID]}`",
                run.get("recipe"),
                run.get("seed"),
                run.get("state"),
                _first_line(run.get("error")),
            ]
            for run in amiss
        ]
        blocks += [
            "## Runs that failed or are not finished",
            grid_markdown(["run", "recipe", "seed", "state", "error"], rows, numeric=(2,)),
        ]
    environment = results.get("environment") or {}
    if environment:
        blocks += ["## Environment", grid_markdown(["what", "value"], [[name, value] for name, value in environment.items()])]
    return "\n\n".join(block for block in blocks if block) + "\n"


def claims_in_words(results: Mapping[str, Any]) -> str:
    """As in "22 claims: 9 reproduced, 3 not reproduced, 10 cannot be judged"."""
    verdicts = [str(claim.get("verdict")) for claim in results.get("claims") or ()]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in SIGNS if verdict in verdicts]
    return f"{len(verdicts)} claims: {', '.join(counts)}"


def picture_markdown(figure: Mapping[str, Any], place: str) -> str:
    """The figure as an image that is kept in a file at `place`."""
    return f"![{_text(figure.get('title') or figure.get('name'))}]({place})"


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
    return grid_markdown(head, [_row(row, index, all_columns, costs) for index, row in enumerate(rows)], numeric)


def _row(row: Mapping[str, Any], index: int, all_columns: Sequence[Column], costs: bool) -> list[object]:
    cells: list[object] = [row.get("label", "")]
    for column in all_columns:
        cell = column.cells[index]
        if column.compared:
            cells += [_bold(cell.published, cell.best_published), ours_markdown(cell), cell.difference]
        else:
            cells.append(ours_markdown(cell) if column.measured else cell.published)
    if costs:
        parameters = row.get("parameters") or {}
        cells += [plain(parameters.get("ours")), plain(parameters.get("published")), duration(row.get("seconds"))]
    return cells


def ours_markdown(cell: Cell) -> str:
    """A cell's mean, with its spread and the number of seeds where there are several."""
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
            told = dict.fromkeys(_text(note) for note in notes if note)
            lines.append(f"- {_text(row.get('label', ''))}: {' '.join(told)}")
    return "\n".join(dict.fromkeys(lines))


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error or "").splitlines() if line.strip()), "")


def grid_markdown(head: Sequence[str], rows: Iterable[Sequence[object]], numeric: Iterable[int] = ()) -> str:
    """A table. `numeric` are the columns, by their numbers, that stand to the right."""
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
