"""How the points of a sweep stand, best first, as their runs' directories have it."""

import math
import statistics
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace

from ._grid import Point, ordered
from ._outcome import Outcome, outcome
from ._spelling import settings, spelt
from ._sweep import Sweep, SweepPoint

ORDER = ("running", "finished", "failed", "paused", "waiting")


@dataclass(frozen=True)
class Row:
    """A point: the mean of its runs' scores, their spread (standard deviation), and how far they are."""

    point: SweepPoint
    score: float | None
    spread: float | None
    step: int
    steps: int
    statuses: Counter[str]
    errors: list[str]

    @property
    def values(self) -> Point:
        return self.point.values

    @property
    def finished(self) -> bool:
        return self.statuses["finished"] == len(self.point.trials)

    @property
    def status(self) -> str:
        count = len(self.point.trials)
        parts = [(name, self.statuses[name]) for name in ORDER if self.statuses[name]]
        return ", ".join(name if number == count else f"{number} {name}" for name, number in parts)


class Standing:
    """Reads the directories, those of finished runs once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.points = _complete(sweep.points)
        self.axes = self._axes()
        self._finished: dict[str, Outcome] = {}

    def _axes(self) -> dict[str, list[str]]:
        """What the points differ in."""
        points = [point.values for point in self.points]
        found = ordered(list(dict.fromkeys(key for values in points for key in values)), points)
        return {key: values for key, values in found.items() if len(values) > 1 or any(key not in point for point in points)}

    def rows(self, running: Set[str] = frozenset()) -> list[Row]:
        """Best first; among finished and unfinished alike, since what leads is what one wants to see."""
        rows = [self._row(point, running) for point in self.points]
        return sorted(rows, key=lambda row: math.inf if row.score is None else self.sweep.measure.loss(row.score))

    def _row(self, point: SweepPoint, running: Set[str]) -> Row:
        found = [self._outcome(point, index) for index in range(len(point.trials))]
        names = [trial.folder.path.name for trial in point.trials]
        statuses = Counter(_status(now, name in running) for now, name in zip(found, names, strict=True))
        failed = [now.error for now in found if now.error is not None]
        scores = [score for now in found if (score := self.sweep.measure.of(now.records)) is not None]
        return Row(
            point,
            statistics.fmean(scores) if scores and not failed else None,
            statistics.stdev(scores) if len(scores) > 1 and not failed else None,
            sum(now.step for now in found),
            sum(trial.steps for trial in point.trials),
            statuses,
            failed,
        )

    def _outcome(self, point: SweepPoint, index: int) -> Outcome:
        folder = point.trials[index].folder
        now = self._finished.get(folder.path.name) or outcome(folder)
        if now.status == "finished":
            self._finished[folder.path.name] = now
        return now


def _complete(points: list[SweepPoint]) -> list[SweepPoint]:
    """The points with a value for each setting that any of them names, and every value spelt in one way.

    Points that came with different grids name different settings; what one does not name it has all the same, from the base.
    A share stays a share: what it comes to depends on the other settings.
    """
    keys = dict.fromkeys(key for point in points for key in point.values)
    spelling: dict[tuple[str, str], str] = {}
    complete = []
    for point in points:
        own, values = settings(point.trials[0].config), {}
        for key in keys:
            given = point.values.get(key)
            if given is not None and given.endswith("%"):
                values[key] = given
            elif key in own:
                text = spelt(own[key])
                values[key] = spelling.setdefault((key, text), text if given is None else given)
        complete.append(replace(point, values=values))
    return complete


def _status(now: Outcome, running: bool) -> str:
    if running and now.status != "finished":
        return "running"
    return "paused" if now.status == "begun" else now.status


def count(rows: list[Row]) -> Counter[str]:
    """Runs by their status."""
    return sum((row.statuses for row in rows), Counter())
