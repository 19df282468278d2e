"""The runs of a sweep's points, all of them checked before anything is written or started."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..tasks import Data, Task
from ..training import Config, ModelSettings, Network, OptimizerSettings
from ..training._optimizers import build_optimizers
from ._grid import Point, configured, described
from ._outcome import Measure


@dataclass(frozen=True)
class Planned:
    """A point that is sound: its runs by their seeds, and how many steps each has."""

    values: Point
    runs: dict[int, Config]
    steps: int
    fingerprint: str | None = None
    """Of the data, where they were read."""


def planned(base: Config, points: Sequence[Point], seeds: int) -> tuple[list[Planned], Measure]:
    """The points' runs. A value, a combination or data that will not do is one `ValueError` that names the point."""
    if seeds < 1:
        raise ValueError(f"--seeds takes the number of seeds, at least 1, got: {seeds}")
    check = _Check()
    found: dict[str, Planned] = {}
    for number, point in enumerate(points, 1):
        try:
            if "run.seed" in point:
                raise ValueError("run.seed is not an axis; use --seeds")
            first = base.run.seed
            runs = {seed: configured(base, point, seed) for seed in range(first, first + seeds)}
            steps = check.steps(runs[first])
        except (ValueError, TypeError, RuntimeError) as error:
            where = f"point {number} of {len(points)} ({described(point)})"
            raise ValueError(f"{where}: {error}; nothing was started") from None
        found.setdefault(runs[first].id, Planned(point, runs, steps, check.fingerprint(runs[first])))
    return list(found.values()), check.measure()


class _Check:
    """Builds each different network, and each optimiser for it, once, on the CPU, with the data that they are for."""

    def __init__(self) -> None:
        self._data: dict[Task, Data] = {}
        self._networks: dict[tuple[Task, ModelSettings], Network] = {}
        self._optimizers: set[tuple[Task, ModelSettings, OptimizerSettings]] = set()

    def steps(self, config: Config) -> int:
        """How many the run will take, if nothing about it is wrong."""
        if config.task not in self._data:
            self._data[config.task] = config.task.load("cpu")
        data = self._data[config.task]
        built = config.task, config.model
        if built not in self._networks:
            with torch.random.fork_rng(devices=[]):
                self._networks[built] = Network(config.model, data)
        if (*built, config.optimizer) not in self._optimizers:
            build_optimizers(self._networks[built], config.optimizer)
            self._optimizers.add((*built, config.optimizer))
        if config.run.steps is not None:
            return config.run.steps
        return (config.run.epochs or 0) * len(data.order("train"))

    def fingerprint(self, config: Config) -> str | None:
        return self._data[config.task].fingerprint

    def measure(self) -> Measure:
        found = {
            Measure(data.metric, data.direction, "valid" if "valid" in data.splits else "test") for data in self._data.values()
        }
        if len(found) > 1:
            raise ValueError("the points of a sweep must have one metric in common; their tasks have several")
        return found.pop()
