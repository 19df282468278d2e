"""Sweeps of runs that take a tenth of a second, and what must be true of a sweep that is done."""

from __future__ import annotations

import json
from pathlib import Path

from enrnn.recipes import recipe
from enrnn.sweep import Sweep, points_of
from enrnn.training import Config, train
from tests.training._runs import differences, outcome

CHANGES = {
    **{"task.length": 10, "task.train_size": 100, "task.test_size": 20, "task.batch_size": 10},
    **{"model.hidden_size": 8, "model.short_size": 0.5, "model.negative_ones": 1, "model.backend": "torch"},
    **{"run.steps": 20, "run.evaluate_every": 4, "run.checkpoint_every": 3, "run.device": "cpu"},
}
BASE: Config = recipe("adding/enrnn").override(CHANGES)
ARGUMENTS = [
    *(part for key, value in CHANGES.items() if key != "run.device" for part in ("--set", f"{key}={value}")),
    *("--device", "cpu"),
]
GRID = ["optimizer.lr=1e-2,3e-3,1e-3,3e-4", "model.short_size=0.25:0.75:0.25", "optimizer.name=adam,rmsprop_tf"]
"""24 points."""


def small_sweep(runs: Path, grid: list[str] = GRID, seeds: int = 1, base: Config = BASE) -> Sweep:
    sweep = Sweep.of("adding/enrnn", base, runs)
    sweep.extend(points_of(base, grid, paper=False, random=None), seeds)
    sweep.write()
    return sweep


def check_every_run_is_there_once(sweep: Sweep) -> None:
    """No run is lost or there twice, and none has an evaluation twice."""
    trials = sweep.trials
    assert [file.read_text() for file in sweep.runs.glob("*/error.json")] == []
    results = [json.loads(file.read_text())["id"] for file in sweep.runs.glob("*/result.json")]
    assert sorted(results) == sorted(trial.config.id for trial in trials)
    for trial in trials:
        assert [record["step"] for record in trial.folder.records()] == [4, 8, 12, 16, 20]


def check_bits(sweep: Sweep, alone: Path, every: int) -> int:
    """Each `every`-th run is the run that was left alone."""
    chosen = sweep.trials[::every]
    for trial in chosen:
        train(trial.config, alone)
        assert differences(outcome(trial.folder.path), outcome(alone / trial.folder.path.name)) == []
    return len(chosen)
