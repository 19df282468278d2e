"""What the paper says, and what became of it. A verdict is a word and a shape; the colour only repeats it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ._html import Html, anchor, element

VERDICTS = {"reproduced": ("good", "✓"), "not reproduced": ("bad", "✕"), "cannot be judged": ("open", "?")}
"""Each with its class and its mark."""


def claims(entries: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> Html:
    """`known`: the tables' and figures' names and titles, which evidence may point to."""
    return element("ol", *(_claim(entry, known) for entry in entries), class_="claims")


def tally(entries: Iterable[Mapping[str, Any]]) -> Html:
    """How many of each verdict, as switches that show one kind alone."""
    given = [str(entry.get("verdict")) for entry in entries]
    kinds = [*VERDICTS, *sorted(set(given) - set(VERDICTS))]
    buttons = (
        element(
            "button",
            mark(kind),
            element("b", given.count(kind)),
            f" {kind}",
            type="button",
            class_="tally",
            data_verdict=kind,
            aria_pressed="false",
            title=f"Show only what is: {kind}",
        )
        for kind in kinds
        if kind in given
    )
    return element("div", *buttons, class_="tallies", role="group", aria_label="Show claims by verdict")


def mark(verdict: str) -> Html:
    kind, sign = VERDICTS.get(verdict, ("open", "?"))
    return element("span", sign, class_=f"mark {kind}", aria_hidden="true")


def _claim(entry: Mapping[str, Any], known: Mapping[str, str]) -> Html:
    verdict = str(entry.get("verdict"))
    links = [
        element("a", known[name], href=f"#{anchor('item', name)}")
        if name in known
        else element("span", f"{name} (not on this page)")
        for name in map(str, entry.get("evidence") or ())
    ]
    return element(
        "li",
        mark(verdict),
        element(
            "div",
            element("p", entry.get("text", ""), element("span", entry.get("where") or "", class_="where"), class_="claim"),
            element(
                "p",
                element("strong", verdict.capitalize(), class_=VERDICTS.get(verdict, ("open", ""))[0]),
                f" {entry.get('why') or ''}",
                class_="why",
            ),
            element("p", "Evidence: ", *_between(links), class_="evidence") if links else None,
        ),
        data_verdict=verdict,
    )


def _between(links: list[Html]) -> list[Html | str]:
    parts: list[Html | str] = []
    for link in links:
        parts += [", ", link] if parts else [link]
    return parts
