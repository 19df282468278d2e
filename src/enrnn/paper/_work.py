"""One run in a process of its own: to its end, with looks at W_S on the way, and then what is measured of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..sweep._outcome import outcome
from ..sweep._work import leave_error_or_end, work
from ..training import Config, RunFolder, Watch
from . import _measure


class Job(NamedTuple):
    """A run to do, and what its data are called where that is not plain from the configuration."""

    name: str
    config: Config
    data: str | None = None

    @property
    def folder_name(self) -> str:
        return self.config.folder_name

    def done(self, runs: Path) -> bool:
        """Whether nothing is left to do: it is finished, and measured."""
        folder = RunFolder(runs / self.folder_name)
        return outcome(folder).status == "finished" and bool(_measure.measures(folder).get("complete"))


def do(name: str, values: Mapping[str, Any], runs: str, data: str | None, watch: Watch | None = None) -> None:
    """Do what is left of a run. All that comes of it is in its directory; an error is, too."""
    config = Config.from_dict(values)
    torch.set_num_threads(config.run.threads)
    folder = RunFolder(Path(runs) / config.folder_name)
    for stop in _measure.stops(_evaluations(config)) if name in _measure.SPECTRA else ():
        if outcome(folder).step < stop and work(values, runs, stop, watch) != "paused":
            return
        _measure.look(config, folder, stop)
    if outcome(folder).status != "finished" and work(values, runs, None, watch) != "finished":
        return
    try:
        _measure.finish(name, config, folder, data)
    except Exception as error:
        leave_error_or_end(config, Path(runs), type(error).__name__, f"measuring: {error}")


def _evaluations(config: Config) -> list[int]:
    """The steps after which a run is evaluated, as the loop has it."""
    per_epoch = 0
    if config.run.steps is None or config.run.evaluate_every is None:
        per_epoch = len(config.task.load().order("train", 0))
    steps = config.run.steps or (config.run.epochs or 0) * per_epoch
    every = config.run.evaluate_every or per_epoch
    return sorted({*range(every, steps + 1, every), steps})


def failure(folder: RunFolder) -> str | None:
    """What a run, or its measuring, has failed with."""
    try:
        found = json.loads((folder.path / "error.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return f"{found['error']}: {found['message']}"
