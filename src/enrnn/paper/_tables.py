"""The tables: what was published, what our runs came to, and how far apart they are."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..recipes import RECIPES, recipe, sources
from ._cost import SCHUR, timed
from ._data import TIMIT_NAME
from ._found import Found, Run
from ._items import ITEMS
from ._published import EXPERIMENTS, TABLE1, TABLE2, TABLE3
from ._quick import TITLE
from ._runs import BEYOND, RATES, at_rate, base, changes, configured, known, titled

Cell = dict[str, Any]
ONE_TENTH, BASELINE = 0.1, 1 / 6
MISMATCH = 0.05
"""Relative difference from which parameter counts do not agree."""
SCORES = {"segsnr": "SegSNR", "stoi": "STOI", "pesq": "PESQ"}
LETTERS = {"rmsprop_tf": "R", "rmsprop": "R", "adam": "A", "adagrad": "Adagrad"}
SHARED = "Seconds are those of a run, others beside it on the same device included."


def tables(found: Found, items: Sequence[str], quick: bool) -> list[dict[str, Any]]:
    """Those of the items, in their order."""
    makers: dict[str, Callable[[Found, bool], list[dict[str, Any]]]] = {
        "table1": lambda found, quick: [_settings(found, quick), _adding(found, quick), _copying(found, quick)],
        "table2": lambda found, quick: [_speech(found, quick, ""), _speech(found, quick, "_copy")],
        "table3": lambda found, quick: [_characters(found, quick)],
        "table-rates": lambda found, quick: [] if quick else [_rates(found)],
        "table-beyond": lambda found, quick: [] if quick else [_beyond(found)],
        "table-cost": lambda found, quick: [_cost(found)],
    }
    return [table for item in items if item in makers for table in makers[item](found, quick)]


def published_count(text: str) -> float | None:
    """From "≈15k" to 15000."""
    return float(text.strip("≈k")) * 1000 if text else None


def parameters(found: Found, name: str, quick: bool) -> dict[str, Any]:
    """Ours, those that the paper states, and why they are not the same where they are not."""
    recipe = RECIPES[base(name)]
    counted = [run.result["parameters"] for run in found.of(name) if run.result is not None]
    ours = counted[0] if counted else None if quick else recipe.parameters
    published = published_count(recipe.published)
    note = ""
    if quick and ours != recipe.parameters:
        note = f"The {TITLE} has other sizes; at the paper's there are {recipe.parameters:,}."
    elif ours is not None and published is not None and abs(ours / published - 1) > MISMATCH:
        note = recipe.note or "The stated sizes do not come to the stated number."
    return {"ours": ours, "published": recipe.published, "note": note}


def _settings(found: Found, quick: bool) -> dict[str, Any]:
    n = ("n", "n, ours", "text") if quick else ("n", "n", "int")
    optimizer = ("optimizer", "optimiser, ours" if quick else "optimiser", "text")
    columns = [("task", "task", "text"), n, optimizer, ("test", "test", "number")]
    rows = []
    for row in TABLE1:
        cells = {
            "task": _cell(row.task),
            "n": _cell(size(row.recipe) if quick else row.n),
            "optimizer": _cell(optimizer_text(row.recipe, quick) if quick else row.optimizer),
            "test": _cell(None, found.values(row.recipe, Run.final)),
        }
        rows.append(_row(found, row.model, row.recipe, cells, quick) | {"group": row.task})
    whose = f"Settings of the {TITLE}, not the published ones" if quick else "Settings as published"
    caption = f"{whose}; R is RMSProp, A is Adam. Test: MSE, cross-entropy in nats, MSE in dB², bits per character. {SHARED}"
    return _table("table1", "Table 1: settings and parameters", caption, columns, rows, quick)


def size(name: str) -> str | None:
    """What the network of the small version's run has for n; None where there is no such run."""
    found = re.search(r"\d+(/\d+)?", titled(name, quick=True)) if name in known(quick=True) else None
    return found[0] if found else None


def optimizer_text(name: str, quick: bool) -> str | None:
    """The optimiser of a run as Table 1 writes it, and how its rates fall, if they do."""
    if quick and name not in known(quick=True):
        return None
    own = configured(name, quick).optimizer
    names = [LETTERS[one] for one in (own.long_name, own.name) if one is not None]
    rates = [_rate(one) for one in (own.long_lr, own.lr) if one is not None]
    falling = f", × {own.lr_decay:g} an epoch" if own.lr_decay != 1 else ""
    return f"{'/'.join(names)} {'/'.join(rates)}{falling}"


def _rate(value: float) -> str:
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _sized(quick: bool) -> list[tuple[str, str, str]]:
    """The columns of sizes. In the small version the published numbers, which stand beside ours, are of other sizes than ours."""
    return [("n", "n, ours", "text"), ("published_n", "n, published", "text")] if quick else [("n", "n", "text")]


def _experiment(task: str, quick: bool) -> str:
    return f"The paper's: {EXPERIMENTS[task]}" if quick else EXPERIMENTS[task]


def _size_cells(name: str, published: str, quick: bool) -> dict[str, Cell]:
    return {"n": _cell(size(name)), "published_n": _cell(published)} if quick else {"n": _cell(published)}


ADDING_COLUMNS = [
    ("final", "test MSE, last", "number"),
    ("best", "test MSE, least", "number"),
    ("half", "step below half of 1/6", "int"),
    ("tenth", "step below a tenth of 1/6", "int"),
]


def _adding_cells(found: Found, name: str) -> dict[str, Cell]:
    return {
        "final": _cell(None, found.values(name, Run.final), "low"),
        "best": _cell(None, found.values(name, lambda run: min(value for _, value in run.curve())), "low"),
        "half": _cell(None, _steps_below(found, name, BASELINE / 2), "low"),
        "tenth": _cell(None, _steps_below(found, name, BASELINE * ONE_TENTH), "low"),
    }


def _steps_below(found: Found, name: str, value: float) -> list[float]:
    """Of each seed, or nothing: a mean without the seeds that never came there would flatter a network by its failures."""
    steps = [run.first_below(value) for run in found.of(name)]
    return [step for step in steps if step is not None] if None not in steps else []


def _adding(found: Found, quick: bool) -> dict[str, Any]:
    rows = [_row(found, titled(name, quick), name, _adding_cells(found, name), quick) for name in ITEMS["figure-adding"].runs]
    caption = f"{_experiment('adding', quick)}. The paper gives no numbers, only the curves of Figure 1. {SHARED}"
    return _table("table1-adding", "The adding problem", caption, ADDING_COLUMNS, rows, quick)


def _copying(found: Found, quick: bool) -> dict[str, Any]:
    columns = [
        ("final", "test cross-entropy, last", "number"),
        ("best", "least", "number"),
        ("accuracy", "digits right", "number"),
    ]
    rows = []
    for name in ITEMS["figure-copying"].runs:
        cells = {
            "final": _cell(None, found.values(name, Run.final), "low"),
            "best": _cell(None, found.values(name, lambda run: min(value for _, value in run.curve())), "low"),
            "accuracy": _cell(None, found.values(name, lambda run: run.records[-1]["accuracy"]), "high"),
        }
        rows.append(_row(found, titled(name, quick), name, cells, quick))
    caption = f"{_experiment('copying', quick)}. The paper gives no numbers, only the curves of Figure 2. {SHARED}"
    return _table("table1-copying", "The copying problem", caption, columns, rows, quick)


def _speech(found: Found, quick: bool, ending: str) -> dict[str, Any]:
    columns = [*_sized(quick), ("valid", "valid. MSE", "number"), ("test", "test MSE", "number")]
    columns += [("entries", "without padding", "number")]
    columns += [(score, title + (" (dB)" if score == "segsnr" else ""), "number") for score, title in SCORES.items()]
    rows = []
    for row in TABLE2:
        name = row.recipe + ending
        cells = _size_cells(name, row.n, quick)
        for split, published in (("valid", row.valid_mse), ("test", row.test_mse)):
            cells[split] = _cell(published, found.values(name, lambda run, split=split: run.final(split)), "low")  # type: ignore[misc]
        cells["entries"] = _cell(None, found.values(name, _over_valid_entries), "low")
        for score, published in (("segsnr", row.segsnr), ("stoi", row.stoi), ("pesq", row.pesq)):
            cells[score] = _cell(published, found.values(name, lambda run, score=score: _score(run, score)), "high")  # type: ignore[misc]
        if any(run.data != TIMIT_NAME for run in found.of(name)):
            _not_compared(cells)
        made = _row(found, row.model, name, cells, quick)
        made["note"] = " ".join([made["note"], *_about_scores(found.of(name))]).strip()
        rows.append(made)
    which = (
        "frame t to frame t + 1, as the text says"
        if not ending
        else "frame t + 1 to frame t, to which the published numbers point"
    )
    title = "Table 2: speech, " + ("prediction" if not ending else "delayed copy")
    data = _data_of(found, [row.recipe + ending for row in TABLE2])
    caption = f"{_experiment('speech', quick)}; {which}. Ours: {data}. An MSE's mean is over the padding as well. {SHARED}"
    return _table("table2" + ending.replace("_", "-"), title, caption, columns, rows, quick)


def _characters(found: Found, quick: bool) -> dict[str, Any]:
    columns = [*_sized(quick), ("valid", "valid. bpc", "number"), ("test", "test bpc", "number")]
    rows = []
    for row in TABLE3:
        cells = _size_cells(row.recipe, row.n, quick)
        for split, published in (("valid", row.valid_bpc), ("test", row.test_bpc)):
            cells[split] = _cell(published, found.values(row.recipe, lambda run, split=split: run.final(split)), "low")  # type: ignore[misc]
        made = _row(found, row.model, row.recipe, cells, quick)
        if row.quoted:
            made["note"] = f"Published: quoted from {row.quoted}. {made['note']}".strip()
        rows.append(made)
    data = _data_of(found, [row.recipe for row in TABLE3])
    caption = f"{_experiment('characters', quick)}; the epoch is chosen on validation data. Ours: {data}. {SHARED}"
    return _table("table3", "Table 3: character prediction", caption, columns, rows, quick)


def _rates(found: Found) -> dict[str, Any]:
    """The networks that came out unlike the paper, at the paper's learning rate and at others."""
    rows = []
    for name, rates in RATES.items():
        for run, rate in ((name, f"{recipe(name).optimizer.lr:.0e}"), *((at_rate(name, rate), rate) for rate in rates)):
            if found.of(run) or found.failed(run):
                label = f"{titled(name)}: {float(rate):g}" + (", the paper's" if run == name else "")
                made = _row(found, label, run, _adding_cells(found, run), quick=False)
                rows.append(made | {"note": "", "group": name})
    caption = f"The adding problem, T = 750, with other learning rates for the networks that came out unlike the paper. {SHARED}"
    return _table("table-rates", "Where ours differs: other learning rates", caption, ADDING_COLUMNS, rows, quick=False)


def _beyond(found: Found) -> dict[str, Any]:
    columns = [("valid", "valid. bpc", "number"), ("test", "test bpc", "number"), ("epoch", "best epoch", "int")]
    rows = []
    for name, (label, _) in {"characters/enrnn": ("as the paper: 20 epochs, constant rates", {}), **BEYOND}.items():
        if not found.of(name) and not found.failed(name):
            continue
        cells = {
            split: _cell(None, found.values(name, lambda run, split=split: run.final(split)), "low")  # type: ignore[misc]
            for split in ("valid", "test")
        }
        cells["epoch"] = _cell(None, found.values(name, _best_epoch))
        made = _row(found, label, name, cells, quick=False)
        rows.append(made | {"note": "", "parameters": {"ours": made["parameters"]["ours"], "published": None, "note": ""}})
    caption = (
        "ENRNN 310/720 with one thing changed after the other, chosen by validation data alone, with no more parameters than the "
        f"row of Table 3. Ours: {_data_of(found, ['characters/enrnn', *BEYOND])}. {SHARED}"
    )
    return _table("table-beyond", "Beyond the paper: ENRNN on characters", caption, columns, rows, quick=False)


def _best_epoch(run: Run) -> float | None:
    best = None if run.result is None else run.result["best"].get("step")
    return next((record["epoch"] + 1 for record in run.records if record["step"] == best), None)


def _cost(found: Found) -> dict[str, Any]:
    cost = found.cost or {}
    what = timed(cost) if cost else SCHUR
    columns = [("s", "n − q", "int"), ("BL", "B·L", "int"), ("schur", f"{what} (ms)", "number")]
    columns += [("rest", "recurrence, forwards and back (ms)", "number"), ("ratio", "ratio", "number")]
    rows = []
    for name, shape in cost.get("shapes", {}).items():
        cells = {"s": _cell(shape["s"]), "BL": _cell(shape["BL"])}
        cells |= {key: _cell(None, [shape[key] * 1000]) for key in ("schur", "rest")}
        cells["ratio"] = _cell(None, [shape["ratio"]])
        rows.append({"label": name, "recipe": None, "cells": cells, "parameters": None, "seconds": None} | _nothing())
    caption = f"{ITEMS['table-cost'].where}."
    if cost:
        how = f"{cost['method']} of a random matrix, float64, on one CPU thread; recurrence on {cost['device']}."
        caption += f" {how[0].upper()}{how[1:]}"
    if what != SCHUR:
        caption += f" The {SCHUR} itself takes scipy, which was not there."
    title = f"What the {SCHUR} costs" if what == SCHUR else f"What {what} cost, in place of the {SCHUR}"
    return _table("table-cost", title, caption, columns, rows, quick=False)


def _nothing() -> dict[str, Any]:
    return {"runs": [], "note": "", "settings": {}, "failed": []}


def _table(
    name: str, title: str, caption: str, columns: Iterable[tuple[str, str, str]], rows: list[dict[str, Any]], quick: bool
) -> dict[str, Any]:
    heads = [{"key": key, "label": label, "kind": kind} for key, label, kind in columns]
    title = f"{title} ({TITLE})" if quick else title
    caption = (
        f"Ours is a {TITLE}: other lengths, sizes and steps, not to be compared with the published numbers. {caption}"
        if quick
        else caption
    )
    return {"name": name, "title": title, "caption": caption, "columns": heads, "rows": rows}


def _row(found: Found, label: str, name: str, cells: dict[str, Cell], quick: bool) -> dict[str, Any]:
    runs = found.of(name)
    if quick:
        _not_compared(cells)
    seconds = [run.result["seconds"] for run in runs if run.result is not None]
    return {
        "label": label,
        "recipe": base(name),
        "cells": cells,
        "parameters": parameters(found, name, quick),
        "seconds": round(statistics.fmean(seconds), 1) if seconds else None,
        "runs": [run.values["id"] for run in runs],
        "note": " ".join(part for part in (_sizes(name) if quick else "", RECIPES[base(name)].note) if part),
        "settings": settings(name, quick),
        "failed": [{"id": run.values["id"], "error": run.error} for run in found.failed(name)],
    }


def _not_compared(cells: dict[str, Cell]) -> None:
    """Published and ours are of different things."""
    for cell in cells.values():
        cell["difference"] = None


def settings(name: str, quick: bool) -> dict[str, list[Any]]:
    """Every setting that the run names, and where it comes from."""
    recipe, of = RECIPES[base(name)], sources(base(name))
    own = changes(name, quick)
    found = {path: [value, of[path]] for path, value in recipe.values.items() if path not in own}
    return dict(sorted((found | {path: [value, "chosen"] for path, value in own.items()}).items()))


def _sizes(name: str) -> str:
    if name not in known(quick=True):
        return f"Not in the {TITLE}."
    own = changes(name, quick=True)
    shown = [f"{label} {own[path]}" for path, label in (("task.length", "T ="), ("run.steps", "steps:")) if path in own]
    return f"{TITLE.capitalize()}: {', '.join([titled(name, quick=True), *shown])}."


def _cell(published: object, values: Sequence[float] = (), better: str | None = None) -> Cell:
    ours = None
    difference = None
    if values:
        mean = statistics.fmean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        ours = {"mean": mean, "spread": spread, "count": len(values), "values": list(values)}
        if isinstance(published, float):
            difference = mean - published
    return {"published": published, "ours": ours, "difference": difference, "better": better}


def _over_valid_entries(run: Run) -> float | None:
    """The test error over the entries that count. (Wisdom's mean, and so ours, is over the padding as well.)"""
    if run.result is None:
        return None
    value: float | None = run.result.get("chosen", run.result["last"])["test"].get("mse_valid")
    return value


def _score(run: Run, score: str) -> float | None:
    value: float | None = run.measures.get("scores", {}).get("means", {}).get(score)
    return value


def _about_scores(runs: Iterable[Run]) -> list[str]:
    """Which scores could not be taken, and of which a mean leaves utterances out."""
    of = [run.measures.get("scores", {}) for run in runs]
    reasons = {f"A score {reason}." for scores in of for reason in scores.get("reasons", {}).values()}
    failed = {
        f"{SCORES[name]} could not be taken of {len(names)} in {len(names) + scores['scored'][name]} utterances."
        for scores in of
        for name, names in scores.get("failed", {}).items()
        if names
    }
    return sorted(reasons) + sorted(failed)


def _data_of(found: Found, names: Iterable[str]) -> str:
    data = {run.data or "data that nobody has named" for name in names for run in found.of(name)}
    return ", ".join(sorted(data)) if data else "no run yet"
