"""The figures: the paper's own, and some that it might have had."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._found import Found, Run
from ._items import COPIES, ITEMS, RULES, SPEECH, ruled, sized
from ._published import LONG_96, TOTAL_160
from ._quick import TITLE
from ._runs import base, titled

RULE_LABELS = {
    "normalized": "T/ρ(T), gradient of Prop. 3.2",
    "plainly_normalized": "T/ρ(T), gradient without the second term",
    "renormalized": "descend on W_S, then divide by ρ",
    "spectral_norm": "T/‖T‖₂",
}


def figures(found: Found, items: Sequence[str], quick: bool) -> list[dict[str, Any]]:
    """Those of the items, in their order; none without a run to draw."""
    makers: dict[str, Callable[[Found], list[dict[str, Any]]]] = {
        "figure-adding": _adding,
        "figure-copying": _copying,
        "figure-timit": _speech,
        "figure-gradients": _gradients,
        "figure-sizes": _sizes,
        "figure-coupling": _coupling,
        "figure-spectrum": _spectrum,
        "figure-transient": _transient,
        "figure-gradient-rule": _rules,
    }
    made = [figure for item in items if item in makers for figure in makers[item](found)]
    if quick:
        for figure in made:
            figure["title"] += f" ({TITLE})"
            figure["caption"] = f"{TITLE.capitalize()}, not the paper's experiment. {figure['caption']}"
    return [figure for figure in made if figure.get("series") or figure.get("panels")]


def _adding(found: Found) -> list[dict[str, Any]]:
    series = [_series(found, name, titled(name, found.quick)) for name in ITEMS["figure-adding"].runs]
    caption = f"Test MSE of the adding problem, T = {_length(found, 'adding/enrnn', 750)}, by iteration."
    return [_curves("figure-adding", "Figure 1: adding", caption, "test MSE", series, [_sixth()], bounds=[0.0, 0.25])]


def _copying(found: Found) -> list[dict[str, Any]]:
    series = [_series(found, name, titled(name, found.quick)) for name in ITEMS["figure-copying"].runs]
    T = _length(found, "copying/enrnn", 2000)
    baseline = 10 * math.log(8) / (T + 20)
    caption = f"Cross-entropy of the copying problem, T = {T}, by iteration."
    lines = [{"label": "baseline 10 log(8)/(T + 20)", "y": baseline}]
    return [
        _curves("figure-copying", "Figure 2: copying", caption, "test cross-entropy", series, lines, bounds=[0.0, 3 * baseline])
    ]


def _speech(found: Found) -> list[dict[str, Any]]:
    made = []
    for name, title, runs in (
        ("figure-timit", "Figure 3: speech, prediction", SPEECH),
        ("figure-timit-copy", "Figure 3: speech, delayed copy", COPIES),
    ):
        series = [_series(found, run, titled(run, found.quick)) for run in runs]
        data = {run.data or "data that nobody has named" for each in runs for run in found.of(each)}
        caption = f"Validation MSE in dB² by iteration, on {', '.join(sorted(data))}."
        made.append(_curves(name, title, caption, "validation MSE", series, [], log=True))
    return made


def _sizes(found: Found) -> list[dict[str, Any]]:
    made = []
    for name, title, pairs in (
        (
            "figure-sizes-long",
            "Figure 6: the short-term size, with a long-term state of the same size",
            [(96, s) for s in LONG_96],
        ),
        ("figure-sizes-total", "Figure 7: both sizes, with the same number in all", [(160 - s, s) for s in TOTAL_160]),
    ):
        series = [_series(found, sized(*pair), _pair(found, sized(*pair), pair)) for pair in pairs]
        T = _length(found, "adding/enrnn", 750)
        caption = f"Test MSE of the adding problem, T = {T}: sizes of h^(L)/h^(S)."
        made.append(_curves(name, title, caption, "test MSE", series, [_sixth()], bounds=[0.0, 0.25]))
    return made


def _coupling(found: Found) -> list[dict[str, Any]]:
    series = [_series(found, "adding/enrnn", "with W_C"), _series(found, "adding/enrnn_uncoupled", "without")]
    caption = "Test MSE of the adding problem, whose only output comes at the end."
    return [_curves("figure-coupling", "With and without the coupling matrix", caption, "test MSE", series, [_sixth()])]


def _rules(found: Found) -> list[dict[str, Any]]:
    made = []
    for task, label in (("adding", "test MSE"), ("characters", "validation bits per character")):
        series = [_series(found, ruled(task, rule), RULE_LABELS[rule]) for rule in RULES]
        lines = [_sixth()] if task == "adding" else []
        title = f"Ways to train W_S: {task}"
        caption = "The same network and the same first weights; only how W_S is written and trained differs."
        if sum(bool(one["points"]) for one in series) > 1:
            made.append(_curves(f"figure-gradient-rule-{task}", title, caption, label, series, lines))
    return made


def _gradients(found: Found) -> list[dict[str, Any]]:
    for run in found.of("adding/enrnn_sixth_epoch"):
        maps = run.measures.get("gradients")
        if maps:
            short = {"title": "‖∂h_τ^(S)/∂x_t‖, short-term", "values": maps["short"], "x": "t", "y": "τ", "log": True}
            long = {"title": "‖∂h_τ^(L)/∂x_t‖, long-term", "values": maps["long"], "x": "t", "y": "τ", "log": True}
            caption = (
                f"Means over batch {maps['place']} of epoch {maps['epoch']}, seed {run.seed}, adding problem with "
                f"T = {run.values['task']['length']}. The column at t shows how the states from then on depend on x_t: it falls "
                f"to a tenth of its largest value after {maps['lifetimes']['short']:.1f} steps on average in h^(S), and after "
                f"{maps['lifetimes']['long']:.1f} in h^(L)."
            )
            panels = [short, long]
            return [
                {
                    "name": "figure-gradients",
                    "title": "Figures 4 and 5: gradient norms",
                    "caption": caption,
                    "kind": "heatmaps",
                    "panels": panels,
                }
            ]
    return []


def _spectrum(found: Found) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name in ITEMS["figure-spectrum"].runs:
        runs = [run for run in found.of(name) if run.measures.get("short")]
        task = name.partition("/")[0]
        if not runs:
            continue
        looks = _looks(runs[0])
        panels = [
            {"title": f"step {step:,}, ρ(W_S) = {look['radius']:.4f}", "points": look["eigenvalues"]} for step, look in looks
        ]
        switched = [run.result["switched_at"] for run in runs if run.result is not None]
        moments = ", ".join("never" if step is None else f"step {step:,}" for step in switched)
        caption = f"{titled(name, found.quick)}, {task}, seed {runs[0].seed}. Normalised since: {moments}."
        made.append(
            {
                "name": f"figure-spectrum-{task}",
                "title": f"Eigenvalues of W_S: {task}",
                "caption": caption,
                "kind": "spectrum",
                "panels": panels,
            }
        )
        radius = [{"label": f"seed {run.seed}", "points": _radii(run), "band": None, "recipe": name} for run in runs]
        text = f"ρ(T) by iteration; T is divided by it from the first moment that it exceeds 1 ({moments})."
        lines = [{"label": "ρ(T) = 1", "y": 1.0}]
        made.append(_curves(f"figure-radius-{task}", f"Spectral radius of T: {task}", text, "ρ(T)", radius, lines))
    return made


def _transient(found: Found) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name in ITEMS["figure-transient"].runs:
        runs = [run for run in found.of(name) if run.measures.get("short")]
        task = name.partition("/")[0]
        if not runs:
            continue
        run = runs[0]
        series = [
            {
                "label": f"step {step:,}",
                "points": [list(pair) for pair in zip(look["powers"], look["norms"], strict=True)],
                "band": None,
                "recipe": name,
            }
            for step, look in _looks(run)
        ]
        caption = f"‖W_S^k‖₂ by k, seed {run.seed}. Above 1: what comes in grows before it is forgotten."
        figure = _curves(
            f"figure-transient-{task}",
            f"Transient growth: {task}",
            caption,
            "‖W_S^k‖₂",
            series,
            [{"label": "1: no growth", "y": 1.0}],
            log=True,
        )
        figure["x"] = {"label": "k"}
        made.append(figure)
        plane = run.measures.get("pseudospectrum")
        if plane:
            mirrored = [*plane["smallest"][:0:-1], *plane["smallest"]][::-1]
            ys = [*[-y for y in plane["imaginary"][:0:-1]], *plane["imaginary"]][::-1]
            panel = {"title": "σ_min(zI − W_S) after training", "values": mirrored, "x": "Re z", "y": "Im z", "log": True}
            caption = (
                "The ε-pseudospectrum is where σ_min(zI − W_S) < ε; of a normal matrix, all points closer than ε to an "
                f"eigenvalue. Kreiss: sup ‖W_S^k‖ is at least {plane['kreiss']:.2f}. Top row: Im z = {ys[0]:g}; left column: "
                f"Re z = {plane['real'][0]:g}."
            )
            panel |= {"xs": plane["real"], "ys": ys}
            title = f"Pseudospectrum of W_S: {task}"
            made.append(
                {
                    "name": f"figure-pseudospectrum-{task}",
                    "title": title,
                    "caption": caption,
                    "kind": "heatmaps",
                    "panels": [panel],
                }
            )
    return made


def _looks(run: Run) -> list[tuple[int, dict[str, Any]]]:
    return sorted((int(step), look) for step, look in run.measures["short"].items())


def _radii(run: Run) -> list[list[float]]:
    return [[record["step"], record["spectral_radius"]] for record in run.records if record["spectral_radius"] is not None]


def _series(found: Found, name: str, label: str) -> dict[str, Any]:
    """The mean over the seeds where all of them were evaluated, and the range from the least to the greatest."""
    curves = [dict(run.curve()) for run in found.of(name)]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    values = [[curve[step] for curve in curves] for step in steps]
    band = [[step, min(each), max(each)] for step, each in zip(steps, values, strict=True)] if len(curves) > 1 else None
    points = [[step, statistics.fmean(each)] for step, each in zip(steps, values, strict=True)]
    return {"label": label, "points": points, "band": band, "recipe": base(name)}


def _curves(
    name: str,
    title: str,
    caption: str,
    label: str,
    series: Iterable[dict[str, Any]],
    lines: list[dict[str, Any]],
    log: bool = False,
    bounds: list[float] | None = None,
) -> dict[str, Any]:
    drawn = [one for one in series if one["points"]]
    y = {"label": label, "log": log, "range": bounds}
    x = {"label": "iteration"}
    return {"name": name, "title": title, "caption": caption, "kind": "curves", "x": x, "y": y, "series": drawn, "lines": lines}


def _sixth() -> dict[str, Any]:
    return {"label": "baseline 1/6", "y": 1 / 6}


def _length(found: Found, name: str, published: int) -> int:
    runs = found.of(name)
    return int(runs[0].values["task"]["length"]) if runs else published


def _pair(found: Found, name: str, published: tuple[int, int]) -> str:
    """The sizes of both states, as they are in the runs."""
    for run in found.of(name):
        model = run.values["model"]
        return f"{model['hidden_size'] - model['short_size']}/{model['short_size']}"
    return f"{published[0]}/{published[1]}"
