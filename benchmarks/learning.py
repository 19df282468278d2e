"""What each network learns at T = 100: the copying problem within 2,000 iterations, the adding problem within 6,000.

    python benchmarks/learning.py [--device cuda] [--tasks copying adding] [--only scornn ornn …] [--seeds 1] [--json FILE]

Every row is an ordinary run of `enrnn.training`, with 128 hidden numbers (64 complex units) and the rates that stand here; its
figures are the first evaluation below half the baseline, the first below a tenth, and where it stood at the end. A run that stops
being finite is reported as such. A row is done when it is printed; what was run before under --runs is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from enrnn.training import Config, NotFiniteError, train

HIDDEN = 128


def row(label: str, network: str, optimizer: dict[str, Any], **model: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return label, {"network": network, "hidden_size": HIDDEN, **model}, optimizer


def rmsprop(lr: float, long_lr: float | None = None, **others: Any) -> dict[str, Any]:
    return {"name": "rmsprop", "lr": lr, "long_lr": long_lr, **others}


def adam(lr: float, long_lr: float | None = None, **others: Any) -> dict[str, Any]:
    return {"name": "adam", "lr": lr, "long_lr": long_lr, **others}


CLIP = {"clip_norm": 1.0}

ROWS = {
    "copying": [
        row("ENRNN, s = 13", "enrnn", rmsprop(1e-3, 1e-4), short_size=13, head_bias="glorot"),
        row("scoRNN", "scornn", rmsprop(1e-3, 1e-4)),
        row("scuRNN", "scurnn", rmsprop(1e-3, 1e-4)),
        row("uRNN", "urnn", rmsprop(1e-3)),
        row("full-capacity uRNN", "full_capacity_urnn", rmsprop(1e-3, 1e-3)),
        row("EURNN, L = 2", "eurnn", rmsprop(1e-3)),
        row("EURNN, FFT", "eurnn", rmsprop(1e-3), options={"style": "fft"}),
        row("oRNN, leaky ReLU", "ornn", adam(1e-3, **CLIP)),
        row("oRNN, leaky ReLU, slower", "ornn", adam(1e-4, **CLIP)),
        row("oRNN, modReLU", "ornn", adam(1e-3), nonlinearity="modrelu"),
        row("Spectral RNN, r = 16, 1e-2", "spectral_rnn", adam(1e-2, **CLIP), options={"reflectors": 16, "margin": 0.01}),
        row("Spectral RNN, r = 16, 1e-3", "spectral_rnn", adam(1e-3, **CLIP), options={"reflectors": 16, "margin": 0.01}),
        row("Spectral RNN, r = n, 1e-3", "spectral_rnn", adam(1e-3, **CLIP), options={"reflectors": HIDDEN, "margin": 0.01}),
        row("Spectral RNN, r = 16, modReLU", "spectral_rnn", adam(1e-3), nonlinearity="modrelu", options={"reflectors": 16}),
        row("nnRNN", "nnrnn", rmsprop(5e-4, 1e-6)),
        row("EXPRNN", "exprnn", rmsprop(1e-3, 1e-4)),
        row("dtriv_100", "exprnn", rmsprop(1e-3, 1e-4), options={"rebase_every": 100}),
        row("Vorontsov's, margin 0.1", "vorontsov", rmsprop(1e-3, 1e-4, **CLIP), options={"margin": 0.1}),
        row("Henaff's orthogonal start", "orthogonal", rmsprop(1e-4, **CLIP)),
        row("IRNN", "irnn", rmsprop(1e-4, **CLIP)),
        row("GORU, FFT", "goru", rmsprop(1e-3, **CLIP), options={"style": "fft"}),
        row("cgRNN", "cgrnn", rmsprop(1e-3, 1e-3, clip_value=1.0)),
        row("LSTM, forget bias 1", "lstm", rmsprop(1e-3, **CLIP), forget_bias=1.0),
    ],
    "adding": [
        row("ENRNN, s = 51", "enrnn", rmsprop(1e-3, 1e-4)),
        row("scoRNN", "scornn", adam(1e-3, 1e-4)),
        row("scuRNN", "scurnn", adam(1e-3, 1e-4)),
        row("uRNN", "urnn", rmsprop(1e-3)),
        row("full-capacity uRNN", "full_capacity_urnn", rmsprop(1e-3, 1e-3, clip_value=1.0)),
        row("EURNN, L = 2", "eurnn", rmsprop(1e-3)),
        row("oRNN, leaky ReLU", "ornn", adam(1e-3, **CLIP)),
        row("Spectral RNN, r = 16, 1e-2", "spectral_rnn", adam(1e-2, **CLIP), options={"reflectors": 16, "margin": 0.01}),
        row("Spectral RNN, r = 16, 1e-3", "spectral_rnn", adam(1e-3, **CLIP), options={"reflectors": 16, "margin": 0.01}),
        row("nnRNN", "nnrnn", rmsprop(1e-3, 1e-4)),
        row("EXPRNN", "exprnn", rmsprop(1e-3, 1e-3)),
        row("Vorontsov's, margin 0.1, ReLU", "vorontsov", adam(1e-3, 1e-4, **CLIP), nonlinearity="relu", options={"margin": 0.1}),
        row("Henaff's orthogonal start", "orthogonal", adam(1e-4, **CLIP)),
        row("IRNN", "irnn", adam(1e-4, **CLIP)),
        row("GORU, FFT", "goru", rmsprop(1e-3, **CLIP), options={"style": "fft"}),
        row("cgRNN", "cgrnn", rmsprop(1e-3, 1e-3, clip_value=1.0)),
        row("Clockwork, 7 modules", "clockwork", adam(1e-3, **CLIP), options={"modules": 7}),
        row("LSTM, forget bias 1", "lstm", adam(1e-2, **CLIP), forget_bias=1.0),
        row("GRU", "gru", adam(1e-3, **CLIP)),
    ],
}
TASKS = {
    "copying": {"name": "copying", "length": 100, "train_size": 40_000, "test_size": 1_000},
    "adding": {"name": "adding", "length": 100, "train_size": 100_000, "test_size": 2_000},
}
STEPS = {"copying": 2_000, "adding": 6_000}


def learned(task: str, model: dict[str, Any], optimizer: dict[str, Any], seed: int, device: str, runs: Path) -> dict[str, Any]:
    """The run's figures, in units of the baseline."""
    steps = STEPS[task]
    run = {"steps": steps, "evaluate_every": 50, "checkpoint_every": steps, "seed": seed, "device": device}
    config = Config.from_dict({"task": TASKS[task], "model": model, "optimizer": optimizer, "run": run})
    baseline = config.task.load("cpu").baseline
    try:
        result: dict[str, Any] = train(config, runs)
        failure = None
    except NotFiniteError as error:
        result, failure = {}, str(error)
    lines = (runs / config.folder_name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    key = "cross_entropy" if task == "copying" else "mse"
    curve = [(record["step"], record[key] / baseline) for record in records]
    return {
        "half": next((step for step, value in curve if value < 0.5), None),
        "tenth": next((step for step, value in curve if value < 0.1), None),
        "end": curve[-1][1] if curve else None,
        "seconds": result.get("seconds"),
        "failure": failure,
        "id": config.id,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="+", choices=sorted(ROWS), default=sorted(ROWS, reverse=True))
    parser.add_argument("--only", nargs="+", metavar="NETWORK", help="networks by their names in enrnn.networks()")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, help="another number of iterations, for a trial")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = {model["network"] for task in options.tasks for _, model, _ in ROWS[task]}
    if unknown := sorted({*(options.only or [])} - known):
        parser.error(f"--only {' '.join(unknown)}: the networks here are {', '.join(sorted(known))}")
    if options.steps:
        STEPS.update(dict.fromkeys(STEPS, options.steps))
    found = []
    for task in options.tasks:
        print(f"{task}, T = 100, {STEPS[task]:,} iterations; in units of the baseline", flush=True)
        print(
            f"{'network':34}{'rate':>8}{'slow':>8}{'seed':>6}{'half at':>9}{'tenth at':>10}{'end':>9}{'seconds':>9}", flush=True
        )
        for label, model, optimizer in ROWS[task]:
            if options.only and model["network"] not in options.only:
                continue
            for seed in range(options.seeds):
                figures = learned(task, model, optimizer, seed, options.device, options.runs)
                found.append({"task": task, "network": label, "model": model, "optimizer": optimizer, "seed": seed, **figures})
                slow = "" if optimizer["long_lr"] is None else f"{optimizer['long_lr']:g}"
                marks = [str(figures[mark] or "-") for mark in ("half", "tenth")]
                end = "-" if figures["end"] is None else f"{figures['end']:.3f}"
                seconds = "" if figures["seconds"] is None else f"{figures['seconds']:.1f}"
                line = f"{label:34}{optimizer['lr']:>8g}{slow:>8}{seed:>6}{marks[0]:>9}{marks[1]:>10}{end:>9}{seconds:>9}"
                print(line + (f"  {figures['failure']}" if figures["failure"] else ""), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
