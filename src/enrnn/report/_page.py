"""The page as a whole: what was run, the claims, the tables, the figures, the runs, and how to do it again."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from ._claims import claims, tally
from ._colours import colour_map, theme_css
from ._embed import embedded
from ._figures import figure
from ._html import Html, anchor, element, join
from ._numbers import duration, finite, moment, plain
from ._runs import runs
from ._series import styles
from ._tables import table

AGAIN = (
    "A finished run is never repeated, and an interrupted one resumes. A run’s directory is named by its id; "
    "the settings of each are in its row above."
)
SCRIPTS = ("base.js", "curves.js", "heatmaps.js", "spectrum.js", "page.js")


def page(results: Mapping[str, Any]) -> str:
    script = "".join(_asset(name) for name in SCRIPTS)
    script = f'(() => {{ "use strict";\n{script}}})();'
    drawing = {"map": colour_map(), "styles": styles(results.get("figures") or ())}
    return Template(_asset("page.html")).substitute(
        title=element("title", results.get("title", "")),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=theme_css() + _asset("style.css"),
        header=_header(results),
        contents=_contents(results),
        body=_body(results),
        footer=_footer(results),
        results=embedded(results),
        drawing=embedded(drawing),
        script=script,
    )


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _header(results: Mapping[str, Any]) -> Html:
    environment = results.get("environment") or {}
    quick = bool(results.get("quick"))
    badge = element(
        "span",
        "Quick version" if quick else "Full version",
        class_=f"badge {'quick' if quick else 'full'}",
        title="Shorter runs of smaller networks: a check of the machinery, not of the paper"
        if quick
        else "The paper's own sizes and lengths",
    )
    facts = [("Run on", environment.get("device")), ("Made", moment(results["made"]) if results.get("made") else None)]
    return join(
        (
            element("p", badge, class_="kicker"),
            element("h1", results.get("title", "")),
            element("p", _what_was_run(results.get("runs") or ()), class_="lead"),
            _facts((name, value) for name, value in facts if value),
        )
    )


def _facts(pairs: Iterable[tuple[str, Any]]) -> Html:
    return element(
        "dl", *(element("div", element("dt", name), element("dd", plain(value))) for name, value in pairs), class_="facts"
    )


def _what_was_run(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return "Nothing has been run yet."
    states = [run.get("state") for run in entries]
    recipes, seeds = {run.get("recipe") for run in entries}, {run.get("seed") for run in entries}
    seconds = sum(finite(run.get("seconds")) or 0.0 for run in entries)
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("finished", "unfinished", "failed") if state in states)
    what = f"{_many(len(entries), 'run')} of {_many(len(recipes), 'recipe')} with {_many(len(seeds), 'seed')}"
    return f"{what}: {counts}; {duration(seconds)} of computing."


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _named(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(entry.get("name")): str(entry.get("title") or entry.get("name")) for entry in entries}


def _contents(results: Mapping[str, Any]) -> Html:
    def links(entries: Sequence[Mapping[str, Any]]) -> Html:
        items = (element("li", element("a", title, href=f"#{anchor('item', name)}")) for name, title in _named(entries).items())
        return element("ul", *items)

    tables, figures = results.get("tables") or (), results.get("figures") or ()
    parts = [
        element("li", element("a", "Claims", href="#claims")) if results.get("claims") else None,
        element("li", element("a", "Tables", href="#tables"), links(tables)) if tables else None,
        element("li", element("a", "Figures", href="#figures"), links(figures)) if figures else None,
        element("li", element("a", "Runs", href="#runs")),
        element("li", element("a", "How to do it again", href="#again")),
    ]
    return element("ul", *parts)


def _body(results: Mapping[str, Any]) -> Html:
    tables, figures, verdicts = (results.get(name) or () for name in ("tables", "figures", "claims"))
    entries = results.get("runs") or ()
    states = {str(run.get("id")): str(run.get("state")) for run in entries}
    known = _named(tables) | _named(figures)
    sections = [
        ("claims", "What the paper says, and what we found", [tally(verdicts), claims(verdicts, known)] if verdicts else []),
        ("tables", "Tables", [table(entry, states) for entry in tables]),
        ("figures", "Figures", [figure(entry, index) for index, entry in enumerate(figures)]),
        ("runs", "Runs", [element("div", runs(entries), class_="card")]),
    ]
    return join(element("section", element("h2", title), *content, id=name) for name, title, content in sections if content)


def _footer(results: Mapping[str, Any]) -> Html:
    environment = results.get("environment") or {}
    version = environment.get("enrnn")
    quick = " --quick" if results.get("quick") else ""
    commands = [f"pip install .  # in a checkout of enrnn {version}"] if version else []
    commands.append(f"enrnn paper{quick}")
    return join(
        (
            element("h2", "How to do it again"),
            element(
                "p",
                AGAIN,
            ),
            element("pre", "\n".join(commands), class_="command"),
            element("p", element("button", "Save these results as JSON", type="button", id="save", hidden=True)),
            element("h3", "Versions"),
            _facts(environment.items()),
        )
    )
