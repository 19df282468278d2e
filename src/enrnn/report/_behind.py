"""What is behind a row of a table: notes, failures, each seed, every setting with where it is from, and the runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ._cells import Column
from ._html import Html, anchor, element
from ._numbers import plain

SOURCES = {"paper": "stated in the paper", "sheet": "from the network's own paper or code", "chosen": "chosen by us"}


def behind(row: Mapping[str, Any], index: int, all_columns: Sequence[Column], states: Mapping[str, str]) -> Html:
    note = (row.get("parameters") or {}).get("note")
    failed = [
        element(
            "div",
            element("p", "✕ Failed: ", element("code", failure.get("id", ""))),
            element("pre", failure.get("error") or "no error text"),
            class_="failure",
        )
        for failure in row.get("failed") or ()
    ]
    seeds = [
        element("dd", f"{column.label}: {', '.join(map(plain, values))}")
        for column in all_columns
        if (values := column.cells[index].values)
    ]
    runs = [
        element(
            "li",
            element("a", element("code", str(run)[:12]), href=f"#{anchor('run', run)}"),
            f" {states.get(str(run), 'unknown')}",
        )
        for run in row.get("runs") or ()
    ]
    return element(
        "div",
        element("p", row["note"]) if row.get("note") else None,
        element("p", element("strong", "Parameters: "), note) if note else None,
        *failed,
        element("dl", element("dt", "Each seed"), *seeds) if seeds else None,
        _settings(row.get("settings") or {}),
        element("p", "Recipe ", element("code", row["recipe"])) if row.get("recipe") else None,
        element("ul", *runs, class_="run-list") if runs else element("p", "No run yet.", class_="empty"),
        class_="inner",
    )


def _settings(settings: Mapping[str, Any]) -> Html | None:
    if not settings:
        return None
    lines = []
    for key, given in settings.items():
        value, source = given if isinstance(given, list | tuple) and len(given) == 2 else (given, "")
        lines.append(
            element(
                "tr",
                element("th", key, scope="row"),
                element("td", "none" if value is None else plain(value)),
                element("td", element("span", source, class_=f"source {anchor('from', source)}", title=SOURCES.get(str(source)))),
            )
        )
    head = element(
        "tr", element("th", "setting", scope="col"), element("th", "value", scope="col"), element("th", "from", scope="col")
    )
    return element("table", element("thead", head), element("tbody", *lines), class_="settings")
