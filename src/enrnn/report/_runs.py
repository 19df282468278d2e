"""Every run: those that failed or are not done in full view, the others folded away."""

from collections.abc import Iterable, Mapping
from typing import Any

from ._html import Html, anchor, element, join
from ._numbers import duration, plain

STATES = {"finished": ("good", "✓"), "unfinished": ("open", "…"), "failed": ("bad", "✕")}
ORDER = {"failed": 0, "unfinished": 1, "finished": 2}


def runs(entries: Iterable[Mapping[str, Any]]) -> Html:
    ranked = sorted(entries, key=lambda run: (ORDER.get(str(run.get("state")), 0), str(run.get("recipe")), str(run.get("seed"))))
    amiss = [run for run in ranked if run.get("state") != "finished"]
    finished = [run for run in ranked if run.get("state") == "finished"]
    if not ranked:
        return element("p", "Nothing has been run yet.", class_="empty")
    folded = (
        element("details", element("summary", f"{len(finished)} finished"), _table(finished), open=not amiss)
        if finished
        else None
    )
    return join((_table(amiss) if amiss else None, folded))


def _table(entries: Iterable[Mapping[str, Any]]) -> Html:
    headings = (element("th", name, scope="col") for name in ("run", "recipe", "seed", "state", "time"))
    return element(
        "div",
        element("table", element("thead", element("tr", *headings)), element("tbody", *map(_run, entries)), class_="runs"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Runs",
    )


def _run(run: Mapping[str, Any]) -> Html:
    state = str(run.get("state"))
    kind, sign = STATES.get(state, ("open", "?"))
    error = run.get("error")
    return join(
        (
            element(
                "tr",
                element("td", element("code", str(run.get("id"))[:12], title=run.get("id"))),
                element("td", run.get("recipe") or ""),
                element("td", plain(run.get("seed")), class_="number"),
                element("td", element("span", f"{sign} {state}", class_=f"tag {kind}")),
                element("td", duration(run.get("seconds")), class_="number"),
                id=anchor("run", run.get("id")),
            ),
            element("tr", element("td", element("pre", error), colspan=5), class_="error") if error else None,
        )
    )
