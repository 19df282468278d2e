"""A sweep from beginning to end: its points, an engine that does the runs, and the table of how they do."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from .._nearest import nearest
from ..recipes import RECIPES, recipe
from ..training import Config
from ._grid import Axes, Point, axis, drawn, grid, paper_axes
from ._local import LocalRunner, Tick
from ._outcome import outcome
from ._processes import cores
from ._rungs import jobs_of
from ._sharing import shared
from ._standing import Row, Standing
from ._sweep import Sweep
from ._table import LiveTable, summary, table
from ._work import Job


class Runner(Protocol):
    """An engine: does jobs, and returns when all of them have ended. What came of them is in the directories."""

    @property
    def about(self) -> str:
        """A few words on what it works with, if there is something to say."""
        ...

    def run(self, jobs: Sequence[Job], tick: Tick) -> None: ...

    def close(self) -> None: ...


def opened(
    name: str,
    changes: Mapping[str, object],
    device: str,
    runs: str | Path,
    sweep_name: str | None = None,
    grids: Sequence[str] = (),
    paper: bool = False,
) -> Sweep:
    """The sweep around a recipe with these changes, or a sweep by its name.

    `grids` and `paper`, as of `points_of`, are what the points will set: the recipe's values of these need not fit the changes.
    """
    runs = Path(runs)
    if name not in RECIPES:
        try:
            sweep = Sweep.find(name, runs)
        except ValueError as error:
            raise ValueError(f"unknown recipe {name!r} ({nearest(name, RECIPES)}), and {error}") from None
        if changes or sweep_name:
            raise ValueError(f"{sweep.path} has its settings already; --set, --data, --text and --name are for a recipe")
        if device not in ("auto", sweep.base.run.device):
            raise ValueError(f"{sweep.path} has runs on {sweep.base.run.device}; --device {device} is for a recipe")
        return sweep
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    axes = (paper_axes(recipe(name)) if paper else {}) | dict(map(axis, grids))
    return Sweep.of(name, _base(recipe(name), {"run.device": chosen, **changes}, axes), runs, sweep_name)


def _base(config: Config, changes: Mapping[str, object], axes: Axes) -> Config:
    """With these changes. If it does not fit together so, then with defaults for what the points set anyway, or the first point's
    values: in the base they are of no account."""
    defaults = _defaults(config, axes)
    first = {path: values[0] for path, values in axes.items() if isinstance(values, list) and not values[0].endswith("%")}
    for instead in ({}, defaults):
        with contextlib.suppress(ValueError):
            return config.override({**instead, **changes})
    return config.override({**defaults, **first, **changes})


def _defaults(config: Config, paths: Iterable[str]) -> dict[str, object]:
    """What the settings at these paths are where nobody gives them. What is no setting is for the points to name."""
    sections = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    known = {
        f"{section}.{own.name}": own.default
        for section, settings in sections.items()
        for own in dataclasses.fields(settings)
        if own.default is not dataclasses.MISSING
    }
    return {path: known[path] for path in paths if path in known}


def stand_ins(sweep: Sweep) -> list[str]:
    """What the runs have other data for than those of their task, in words, each once."""
    tasks = dict.fromkeys(trial.config.task for trial in sweep.trials)
    return [words for words in dict.fromkeys(task.stand_in() for task in tasks) if words is not None]


def points_of(base: Config, grids: Sequence[str], paper: bool, random: int | None, search_seed: int = 0) -> list[Point]:
    """The points of a search. An axis given by hand takes the place of the paper's."""
    axes = paper_axes(base) if paper else {}
    given = [axis(text) for text in grids]
    for key, values in given:
        if [other for other, _ in given].count(key) > 1:
            raise ValueError(f"--grid {key} is given twice; list its values in one")
        axes[key] = values
    return grid(axes) if random is None else drawn(axes, random, search_seed)


def local_runner(sweep: Sweep, workers: int | None = None, retries: int = 3) -> LocalRunner:
    """As many workers as there are cores for, by the runs' own number of threads; on GPUs, as many as can share them.

    To be closed, by `run_sweep` or by hand.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1, got: {workers}")
    run = sweep.base.run
    if not run.device.startswith("cuda"):
        return LocalRunner(sweep.runs, workers or max(1, cores() // run.threads), retries)
    gpus = torch.cuda.device_count()
    if not gpus:
        raise ValueError(f"run.device is {run.device!r}, but torch sees no such device here; choose cpu")
    todo = sum(outcome(trial.folder).status != "finished" for trial in sweep.trials)
    spread = gpus if run.device == "cuda" else 0
    sharing = shared(spread or 1, workers, todo)
    return LocalRunner(sweep.runs, sharing.processes, retries, spread, sharing)


def run_sweep(sweep: Sweep, runner: Callable[[], Runner], retry: bool = False) -> list[Row]:
    """Do what is left to do of a sweep, and say how it goes. Returns the points, best first.

    `runner` is called, and may say that it cannot work, before sweep.json is written.
    """
    with contextlib.closing(runner()) as engine:
        sweep.write()
        standing = Standing(sweep)
        print(f"{sweep.path}: {summary(standing.rows())}" + (f"; {engine.about}" if engine.about else ""))
        with LiveTable(standing) as live:
            jobs_of(sweep, retry, lambda jobs: engine.run(jobs, live.tick))
    rows = standing.rows()
    if not live.alive:
        print("\n".join([summary(rows), *table(standing, rows, 24)]))
    for row in rows:
        for error in row.errors:
            print(f"failed: {error}", file=sys.stderr)
    return rows
