"""What has to be run for the items asked for, and what cannot be, for want of data."""

import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from .._counted import counted
from . import _data
from ._data import Available
from ._items import ITEMS, chosen, runs_of
from ._runs import configured
from ._work import Job

FEW = 4
"""Runs that are named in a line."""


class Plan(NamedTuple):
    jobs: list[Job]
    """The dearest first, so that none is left alone at the end; the first seed of each before the second."""
    left_out: dict[str, str]
    """Runs that cannot be done here, and why."""
    measures: tuple[str, ...]

    def waiting(self, runs: Path) -> list[Job]:
        return [job for job in self.jobs if not job.done(runs)]


def plan(
    what: Sequence[str] = (),
    quick: bool = False,
    seeds: int = 1,
    device: str = "cpu",
    data: str | None = None,
    rows: str | None = None,
) -> Plan:
    """Every run of the items, each once, whether it is done or not. `rows` is a pattern for their names, such as "*/enrnn*"."""
    if seeds < 1:
        raise ValueError(f"--seeds takes the number of seeds, at least 1, got: {seeds}")
    items = chosen(what)
    available: dict[str, Available] = {}
    jobs: list[Job] = []
    left_out: dict[str, str] = {}
    names = [name for name in runs_of(items, quick) if rows is None or fnmatch(name, rows)]
    if rows is not None and not names:
        raise ValueError(f"--rows: no run is called {rows!r}; there are {', '.join(runs_of(items, quick)[:5])}, …")
    if quick and rows is None:
        wanted = {name for item in items for name in ITEMS[item].runs}
        left_out = {name: "not in the small version" for name in sorted(wanted - set(runs_of(items, quick)))}
    for name in names:
        task = name.partition("/")[0]
        if task in ("characters", "speech") and task not in available:
            available[task] = _data.text(data, quick) if task == "characters" else _data.speech(data)
        there = available.get(task, Available("generated"))
        if there.name is None:
            left_out[name] = there.reason
            continue
        for seed in range(seeds):
            others = {"run.seed": seed, "run.device": device, **_data_settings(task, there.name, data, quick)}
            jobs.append(Job(name, configured(name, quick, **others), there.name if task in available else None))
    jobs.sort(key=lambda job: (job.config.run.seed, -_cost(job)))
    return Plan(jobs, left_out, tuple(measure for item in items for measure in ITEMS[item].measures))


def _data_settings(task: str, there: str, data: str | None, quick: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    if task in ("characters", "speech") and data is not None:
        found["task.data"] = data
    if task == "characters" and quick:
        found["task.corpus"] = "ptb" if there == _data.PTB_NAME else "python"
        if there != _data.PTB_NAME:
            found.pop("task.data", None)
    return found


def _cost(job: Job) -> float:
    """Multiplications, very roughly: only the order matters."""
    config = job.config
    epoch = {"characters": 3000, "speech": 132}.get(config.task.name, 2000)
    steps = config.run.steps or (config.run.epochs or 0) * epoch
    length = getattr(config.task, "length", 300)
    gates = {"lstm": 4, "gru": 3, "goru": 3, "full_capacity_urnn": 2}.get(config.model.network, 1)
    return float(steps * length * config.task.batch_size * gates * config.model.hidden_size**2)  # type: ignore[attr-defined]


def left_out(plan: Plan) -> list[str]:
    """What cannot be run, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in plan.left_out.items():
        reasons.setdefault(reason, []).append(name)
    return [f"left out: {_few(names)}: {reason}" for reason, names in reasons.items()]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= FEW else f"{counted(len(names), 'run')} (--dry-run names them)"


def on_terminal(plan: Plan, runs: Path) -> str:
    """What would be run, as text."""
    waiting = {id(job) for job in plan.waiting(runs)}
    width = shutil.get_terminal_size().columns
    by_name: dict[str, list[Job]] = {}
    for job in plan.jobs:
        by_name.setdefault(job.name, []).append(job)
    lines = []
    for name, jobs in by_name.items():
        run = jobs[0].config.run
        long = f"{run.steps:,} steps" if run.steps is not None else f"{run.epochs} epochs"
        todo = sum(id(job) in waiting for job in jobs)
        lines.append(f"{name:<36}{long:>14}  {todo} of {len(jobs)} to do"[:width])
    for name, reason in plan.left_out.items():
        lines.append(f"{name:<36}left out: {reason}")
    lines.append(f"{counted(len(plan.jobs), 'run')}, {len(waiting)} to do, {len(plan.left_out)} left out")
    return "\n".join(lines)
