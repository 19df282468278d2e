"""A sweep's directory: sweep.json, a base configuration and a set of points with the ids of their runs.

The runs themselves are beside it, each in the directory it would have anyway: they are the truth, and sweeps may share them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._nearest import nearest, shortly
from ..training import Config, RunError, RunFolder
from ..training._container import replace
from ..training._loop import OTHER_DATA
from ._grid import Point, configured
from ._outcome import Measure, outcome
from ._plan import Planned, planned

FILE = "sweep.json"
FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    config: Config
    folder: RunFolder
    steps: int


@dataclass(frozen=True)
class SweepPoint:
    """A point, and its runs: one a seed."""

    values: Point
    trials: list[Trial]


class Sweep:
    """A base configuration and points around it. `halving`: by how much each rung thins them out; None: all go to the end."""

    def __init__(self, path: Path, recipe: str, base: Config, halving: int | None = None) -> None:
        self.path, self.recipe, self.base, self.halving = path, recipe, base, halving
        self.measure = Measure("", "min", "test")
        self._planned: list[Planned] = []
        self._asked: set[str] = set()

    @staticmethod
    def of(recipe: str, base: Config, runs: Path, name: str | None = None) -> "Sweep":
        """The sweep of this name, or of this base, under `runs`; a new one, not written yet, if there is none."""
        if name is not None and (Path(name).name != name or name == ".."):
            raise ValueError(f"--name takes a name without a path, got: {name!r}; --runs FOLDER is for where the sweep is to be")
        path = runs / (name or f"sweep-{recipe.replace('/', '-')}-{base.id[:8]}")
        if not (path / FILE).exists():
            return Sweep(path, recipe, base)
        sweep = Sweep.read(path)
        if sweep.base.id != base.id:
            raise ValueError(f"{path} is a sweep around other settings; choose another --name")
        return sweep

    @staticmethod
    def find(sweep: str, runs: Path) -> "Sweep":
        """A sweep by its directory, or by the beginning of its name under `runs`."""
        for path in (Path(sweep), runs / sweep):
            if (path / FILE).is_file():
                return Sweep.read(path)
        there = sorted(path.parent for path in runs.glob(f"*/{FILE}"))
        matching = [path for path in there if path.name.startswith(sweep)]
        if len(matching) == 1:
            return Sweep.read(matching[0])
        if matching:
            found = shortly(path.name for path in matching)
            raise ValueError(f"several sweeps match {sweep!r} under {runs}: {found}; give more of the name")
        names = [path.name for path in there]
        instead = nearest(sweep, names, f"there: {shortly(names)}") if names else "there is none"
        raise ValueError(f"no sweep is called {sweep!r} under {runs}; {instead}")

    @staticmethod
    def read(path: Path) -> "Sweep":
        file = path / FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise RunError(f"{file} is of format {content['format']!r}; this version reads format {FORMAT}")
            sweep = Sweep(path, content["recipe"], Config.from_dict(content["base"]), content["halving"])
            sweep.measure = Measure(**content["measure"])
            for point in content["points"]:
                runs = {int(seed): configured(sweep.base, point["values"], int(seed)) for seed in point["runs"]}
                sweep._planned.append(Planned(point["values"], runs, point["steps"]))
                if [run.id for run in runs.values()] != list(point["runs"].values()):
                    raise RunError(
                        f"{file}: a point's settings do not have the id they had; was it changed, or is enrnn another?"
                    )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{file} is damaged: {error}") from None
        return sweep

    def extend(self, points: Sequence[Point], seeds: int) -> int:
        """Add points, or seeds to points; how many runs that adds. If one will not do, none is added."""
        plan, measure = planned(self.base, points, seeds)
        if self._planned and measure != self.measure:
            raise ValueError(f"the sweep is measured by {self.measure.metric}, the new points by {measure.metric}")
        self._check_data(plan)
        before = len(self.trials)
        self._merge(plan)
        self.measure = measure
        self._asked |= {self._first(point) for point in plan}
        return len(self.trials) - before

    @property
    def earlier(self) -> int:
        """How many points are here that `extend` was not asked for: those of earlier searches around the same base."""
        return sum(self._first(point) not in self._asked for point in self._planned)

    def _first(self, point: Planned) -> str:
        """What makes it the same point as another: the run of its first seed."""
        return point.runs[self.base.run.seed].id

    def _check_data(self, plan: Sequence[Planned]) -> None:
        """A finished run must not pass for one of these points if it was done with other data."""
        for point in plan:
            for folder in (RunFolder(self.runs / run.folder_name) for run in point.runs.values()):
                result = folder.result if outcome(folder).status == "finished" else None
                if result is not None and result.get("fingerprint") not in (None, point.fingerprint):
                    raise RunError(f"{folder.path}: {OTHER_DATA}")

    def _merge(self, plan: Sequence[Planned]) -> None:
        known = {self._first(point): point for point in self._planned}
        for point in plan:
            old = known.get(self._first(point))
            if old is None:
                self._planned.append(point)
            else:
                old.runs.update(point.runs)

    def write(self) -> None:
        """Put sweep.json in its place, with what others may have added to it in the meantime."""
        self.path.mkdir(parents=True, exist_ok=True)
        with RunFolder(self.path).lock():
            if (self.path / FILE).exists():
                self._merge(Sweep.read(self.path)._planned)
            self._replace()

    def _replace(self) -> None:
        content: dict[str, Any] = {
            "format": FORMAT,
            "recipe": self.recipe,
            "base": self.base.as_dict(),
            "measure": asdict(self.measure),
            "halving": self.halving,
            "points": [
                {"values": p.values, "steps": p.steps, "runs": {str(seed): run.id for seed, run in p.runs.items()}}
                for p in self._planned
            ],
        }
        replace(self.path / FILE, (json.dumps(content, indent=1) + "\n").encode())

    @property
    def runs(self) -> Path:
        return self.path.parent

    @property
    def points(self) -> list[SweepPoint]:
        return [
            SweepPoint(p.values, [Trial(run, RunFolder(self.runs / run.folder_name), p.steps) for run in p.runs.values()])
            for p in self._planned
        ]

    @property
    def trials(self) -> list[Trial]:
        return [trial for point in self.points for trial in point.trials]
