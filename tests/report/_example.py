"""Results that nobody measured: made up, and said to be so, with everything in them that a page can stumble over."""

from __future__ import annotations

import math
import random
from typing import Any

NASTY = '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned = 1"> & "quotes" \u2028'
LONG = "A network whose name goes on " + "and on and on " * 6 + "Withoutasinglespaceinthislastpartwhichisquitelong"


def cell(published: object, values: list[float] | None, better: str = "low") -> dict[str, Any]:
    if not values:
        return {"published": published, "ours": None, "difference": None, "better": better}
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    difference = mean - published if isinstance(published, float) else None
    ours = {"mean": mean, "spread": spread, "count": len(values), "values": values}
    return {"published": published, "ours": ours, "difference": difference, "better": better}


def row(label: str, cells: dict[str, Any], **more: Any) -> dict[str, Any]:
    settings = {
        "model.long_size": [310, "paper"],
        "model.short_size": [720, "paper"],
        "optimizer.lr": [1e-4, "paper"],
        "optimizer.clip": [None, "sheet"],
        "run.batch_size": [128, "chosen"],
    }
    made = {
        "label": label,
        "recipe": "example/" + label.split()[0].lower(),
        "cells": cells,
        "parameters": {"ours": 15441, "published": "≈15k", "note": ""},
        "seconds": 341.2,
        "runs": [],
        "note": "",
        "settings": settings,
        "failed": [],
    }
    return made | more


def ptb() -> dict[str, Any]:
    def cells(n: str, valid: object, test: object, ours: list[float] | None) -> dict[str, Any]:
        return {
            "n": {"published": n, "ours": None, "difference": None, "better": None},
            "valid": cell(valid, [value + 0.045 for value in ours] if ours else None),
            "test": cell(test, ours),
        }

    note = "The paper says ≈1016k; counting its own equations gives 893 575."
    rows = [
        row(
            "ENRNN",
            cells("310/720", 1.475, 1.429, [1.4312, 1.4371, 1.4298]),
            runs=["aa01aa01aa01ff", "aa02", "aa03"],
            parameters={"ours": 893575, "published": "≈1016k", "note": note},
            note="Epoch chosen on validation data.",
        ),
        row(
            "LSTM 350",
            cells("350", 1.506, 1.461, [1.4598, 1.4633]),
            runs=["bb01", "bb02", "bb03"],
            failed=[{"id": "bb03", "error": NASTY}],
        ),
        row(
            "GRU 415", cells("415", None, "1.601*", None), parameters={"ours": None, "published": None, "note": ""}, seconds=None
        ),
        row("oRNN", cells("512", "1.73**", "1.68**", [1.7011]), runs=["cc01"], seconds=7400.0),
        row(LONG, cells("1024", None, 1.47, [float("nan")]), runs=["dd01"], seconds=4.2),
        row(
            "LSTM 1030",
            cells("1030", 1.447, 1.408, None),
            runs=["ee01"],
            failed=[{"id": "ee01", "error": "CUDA out of memory\n" * 40}],
        ),
    ]
    columns = [
        {"key": "n", "label": "n", "kind": "text"},
        {"key": "valid", "label": "Validation BPC", "kind": "number"},
        {"key": "test", "label": "Test BPC", "kind": "number"},
    ]
    caption = "Made-up numbers. Best test BPC after 20 epochs; entries marked * are reported from other papers."
    return {
        "name": "table3",
        "title": "Table 3. Character PTB (made-up example)",
        "caption": caption,
        "columns": columns,
        "rows": rows,
    }


def adding_table() -> dict[str, Any]:
    rows = [
        row("ENRNN", {"n": {"published": 160}, "mse": cell(None, [2.1e-6, 3.3e-6])}, runs=["aa02", "aa03"]),
        row("LSTM", {"n": {"published": 60}, "mse": cell(0.167, [0.1671, 0.1632])}, runs=["bb01"]),
        row("Spectral RNN", {"n": {"published": 60}, "mse": cell(0.0002, None)}),
    ]
    columns = [{"key": "n", "label": "n", "kind": "int"}, {"key": "mse", "label": "Test MSE", "kind": "number"}]
    return {"name": "table1", "title": "Table 1. Adding (made-up example)", "caption": "", "columns": columns, "rows": rows}


def grouped_table() -> dict[str, Any]:
    """Nothing published, two groups, and a row that is no run."""
    given = [("adding", "ENRNN", [0.2]), ("adding", "LSTM", [0.3]), ("copying", "ENRNN", [0.05]), ("copying", "LSTM", [0.04])]
    rows = [row(label, {"m": cell(None, values)}, group=group, runs=["aa04"]) for group, label, values in given]
    columns = [{"key": "m", "label": "Test", "kind": "number"}]
    return {"name": "groups", "title": "Groups (made-up example)", "caption": "", "columns": columns, "rows": rows}


def cost_table() -> dict[str, Any]:
    nothing = {"recipe": None, "parameters": None, "seconds": None, "runs": [], "settings": {}}
    columns = [{"key": "s", "label": "n − q", "kind": "int"}, {"key": "ms", "label": "Schur form (ms)", "kind": "number"}]
    rows = [row("T = 750", {"s": {"published": 64}, "ms": cell(None, [3.21])}, **nothing)]
    return {"name": "cost", "title": "Cost (made-up example)", "caption": "", "columns": columns, "rows": rows}


def speech() -> dict[str, Any]:
    keys = {"valid": "Valid. MSE", "test": "Test MSE", "snr": "SegSNR (dB)", "stoi": "STOI", "pesq": "PESQ"}
    rows = []
    published = [
        ("ENRNN", 0.13, 0.13, 4.84, 0.83, 2.75),
        ("scoRNN", 1.56, 1.52, 4.55, 0.82, 2.72),
        ("LSTM 158", 8.53, 8.27, 4.0, 0.79, 2.51),
    ]
    for label, *values in published:
        cells = {
            key: cell(value, [value * 1.1, value * 1.13, value * 1.08], "low" if key in ("valid", "test") else "high")
            for key, value in zip(keys, values, strict=True)
        }
        rows.append(row(label, {"n": {"published": 468}} | cells, runs=[f"sp{label[0]}{seed}" for seed in range(3)]))
    rows.append(row("LSTM 468", {"n": {"published": 468}} | {key: cell(1.0, None) for key in keys}))
    columns = [
        {"key": "n", "label": "n", "kind": "int"},
        *({"key": key, "label": label, "kind": "number"} for key, label in keys.items()),
    ]
    return {
        "name": "table2",
        "title": "Table 2. Speech (made-up example)",
        "caption": "Stand-in corpus.",
        "columns": columns,
        "rows": rows,
    }


def curve(rate: float, floor: float, seed: int, count: int = 120) -> tuple[list[list[Any]], list[list[float]]]:
    noise = random.Random(seed)
    points, band = [], []
    for step in range(count):
        x = 100 * step
        y = floor + 0.167 / (1 + math.exp((step - rate) / 4)) * noise.uniform(0.93, 1.07)
        points.append([x, y])
        band.append([x, y * 0.8, y * 1.25])
    return points, band


def adding() -> dict[str, Any]:
    labels = ["ENRNN", "LSTM", "Spectral RNN", "scoRNN", "oRNN", "Full-capacity uRNN"]
    series = []
    for index, label in enumerate(labels):
        points, band = curve(20 + 14 * index, 10.0 ** (-6 + index / 2), index)
        series.append({"label": label, "points": points, "band": band if index < 3 else None, "recipe": "example"})
    series[3]["points"][40:50] = [
        [x, float("nan") if index % 2 else None] for index, (x, _) in enumerate(series[3]["points"][40:50])
    ]
    series.append({"label": "nnRNN", "points": [], "band": None, "recipe": "example"})
    series.append({"label": "LSTM, one point", "points": [[6000, 0.02]], "band": None, "recipe": "example"})
    return {
        "name": "figure-adding",
        "title": "Adding problem, T = 750 (made-up example)",
        "caption": "Test MSE. The band is the range over seeds.",
        "kind": "curves",
        "x": {"label": "iteration"},
        "y": {"label": "test MSE", "log": True, "range": None},
        "series": series,
        "lines": [{"label": "baseline 1/6", "y": 0.1667}],
    }


def many() -> dict[str, Any]:
    series = [
        {
            "label": f"{'A rather long label of series' if index == 4 else 'network'} {chr(97 + index)}",
            "points": curve(5 * index, 0.01 * index, index, 400)[0],
            "band": None,
        }
        for index in range(20)
    ]
    return {
        "name": "many",
        "title": "Twenty series (made-up example)",
        "caption": "",
        "kind": "curves",
        "x": {"label": "iteration"},
        "y": {"label": "MSE", "log": False, "range": None},
        "series": series,
        "lines": [],
    }


def sizes() -> dict[str, Any]:
    series = [
        {"label": f"s = {size}", "points": curve(110 - size / 2, 1e-4, size)[0], "band": None}
        for size in (0, 16, 32, 48, 64, 80, 96)
    ]
    return {
        "name": "figure-sizes",
        "title": "Hidden sizes, q = 96 (made-up example)",
        "caption": "",
        "kind": "curves",
        "x": {"label": "iteration"},
        "y": {"label": "test MSE", "log": False, "range": [0, 0.2]},
        "series": series,
        "lines": [{"label": "baseline", "y": 0.167}, {"label": "half", "y": 0.0835}],
    }


def gradients() -> dict[str, Any]:
    short = [[0.8 ** (tau - t) if tau >= t else 0.0 for t in range(50)] for tau in range(50)]
    long = [[0.9 + 0.1 * math.sin(t * tau / 40) if tau >= t else None for t in range(50)] for tau in range(50)]
    panels = [
        {"title": "‖∂h_τ^(S)/∂x_t‖", "values": short, "x": "t", "y": "τ", "log": True},
        {"title": "‖∂h_τ^(L)/∂x_t‖", "values": long, "x": "t", "y": "τ", "log": True},
    ]
    return {
        "name": "figure-gradients",
        "title": "Gradient norms (made-up example)",
        "caption": "Rows from top to bottom.",
        "kind": "heatmaps",
        "panels": panels,
    }


def pseudospectrum() -> dict[str, Any]:
    places = [-1.5 + step / 10 for step in range(31)]
    values = [[abs(complex(x, y) - 0.5) for x in places] for y in reversed(places)]
    panel = {
        "title": "σ_min(zI − W_S)",
        "values": values,
        "x": "Re z",
        "y": "Im z",
        "log": True,
        "xs": places,
        "ys": places[::-1],
    }
    return {"name": "plane", "title": "Pseudospectrum (made-up example)", "caption": "", "kind": "heatmaps", "panels": [panel]}


def eigenvalues() -> dict[str, Any]:
    noise = random.Random(1)
    panels = []
    for title, radius in (("before", 0.6), ("after 2 epochs", 0.9), ("at the end", 1.0), ("none", 0.0)):
        turns = [(radius * math.sqrt(noise.random()), math.tau * noise.random()) for _ in range(40 if radius else 0)]
        panels.append({"title": title, "points": [[size * math.cos(turn), size * math.sin(turn)] for size, turn in turns]})
    return {
        "name": "spectrum",
        "title": "Eigenvalues of W_S (made-up example)",
        "caption": "",
        "kind": "spectrum",
        "panels": panels,
    }


def example() -> dict[str, Any]:
    """All of it."""
    empty = {
        "name": "nothing",
        "title": "Not run yet (made-up example)",
        "caption": "",
        "kind": "curves",
        "x": {"label": "epoch"},
        "y": {"label": "bpc"},
        "series": [],
        "lines": [],
    }
    single = empty | {
        "name": "single",
        "title": "One point (made-up example)",
        "series": [{"label": "ENRNN", "points": [[3, 0.5]], "band": None}],
    }
    runs = [
        {
            "id": f"aa{seed:02d}",
            "recipe": "example/enrnn",
            "seed": seed,
            "state": "finished",
            "seconds": 300.0 + seed,
            "error": None,
        }
        for seed in range(2, 30)
    ]
    runs += [
        {"id": "aa01aa01aa01ff", "recipe": "example/enrnn", "seed": 1, "state": "finished", "seconds": 331.0, "error": None},
        {"id": "bb01", "recipe": "example/lstm", "seed": 1, "state": "finished", "seconds": 95.0, "error": None},
        {"id": "bb02", "recipe": "example/lstm", "seed": 2, "state": "unfinished", "seconds": 40.0, "error": None},
        {"id": "bb03", "recipe": "example/lstm", "seed": 3, "state": "failed", "seconds": None, "error": NASTY},
        {"id": "ee01", "recipe": LONG, "seed": 0, "state": "failed", "seconds": 12.0, "error": "CUDA out of memory\n" * 40},
    ]
    claims = [
        {
            "text": "ENRNN reaches zero MSE on the adding problem before all others.",
            "where": "§5.1",
            "verdict": "reproduced",
            "why": "It falls below 10⁻³ at iteration 2 300; the next one, LSTM, at 3 700 (made up).",
            "evidence": ["figure-adding"],
        },
        {
            "text": "LSTM 192 never falls below the baseline on the copying problem.",
            "where": "§5.2",
            "verdict": "not reproduced",
            "why": "Ours does after 9 000 iterations with two of three seeds (made up).",
            "evidence": ["table2", "figure-copying"],
        },
        {
            "text": "ENRNN beats an LSTM of equal parameters on speech.",
            "where": "§5.3",
            "verdict": "cannot be judged",
            "why": "TIMIT needs a licence; " + LONG,
            "evidence": ["table3", "spectrum"],
        },
        {"text": NASTY, "where": "§<b>", "verdict": "reproduced", "why": NASTY, "evidence": []},
    ]
    return {
        "title": "ENRNN: the paper, run again (made-up example)",
        "made": "2025-11-15T16:30:00+00:00",
        "environment": {"enrnn": "0.1.0", "torch": "2.13.0", "python": "3.11", "device": "an imaginary GPU", "note": NASTY},
        "quick": True,
        "tables": [
            adding_table(),
            grouped_table(),
            cost_table(),
            speech(),
            ptb(),
            {"name": "table0", "title": "A table without rows (made-up example)", "caption": "", "columns": [], "rows": []},
        ],
        "figures": [
            adding(),
            sizes(),
            many(),
            gradients(),
            pseudospectrum(),
            eigenvalues(),
            empty,
            single,
            {"name": "odd", "title": "Unknown (made-up example)", "caption": "", "kind": "pie"},
        ],
        "claims": claims,
        "runs": runs,
    }
