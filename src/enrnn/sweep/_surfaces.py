"""What a sweep has found: the metric against each setting, the best point, and how flat the optimum is."""

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..training import RunError
from ..training._container import replace
from ._grid import as_number
from ._spelling import settings, spelt
from ._standing import Row, Standing
from ._sweep import Sweep
from ._table import aligned, summary, table

NEAR = 0.05
"""A point is as good as the best within this share of it."""


@dataclass(frozen=True)
class Profile:
    """One setting: for each of its values the best point that has it, whatever the other settings are."""

    key: str
    values: list[str]
    best: list[Row | None]

    def at(self, value: str) -> float | None:
        row = self.best[self.values.index(value)]
        return None if row is None else row.score


@dataclass(frozen=True)
class Findings:
    """`rows`: the points that have a score, best first. `spread`: of a point's runs over the seeds, pooled; None for one seed."""

    standing: Standing
    rows: list[Row]
    profiles: list[Profile]
    spread: float | None

    @property
    def best(self) -> Row:
        return self.rows[0]

    def behind(self, score: float) -> float:
        """How much worse than the best, as a share of the best."""
        measure, best = self.standing.sweep.measure, self.best.score
        assert best is not None
        return (measure.loss(score) - measure.loss(best)) / (abs(best) or 1.0)

    def within(self, share: float) -> int:
        return sum(self.behind(row.score) <= share for row in self.rows if row.score is not None)

    @property
    def within_spread(self) -> int | None:
        """Points that another seed could have made the best."""
        return (
            None if self.spread is None or self.best.score is None else self.within(self.spread / (abs(self.best.score) or 1.0))
        )

    @property
    def command(self) -> str:
        """What does the best point's run again, as a command."""
        from ..recipes import recipe

        name = self.standing.sweep.recipe
        trial, stated = settings(self.best.point.trials[0].config), settings(recipe(name))
        device = trial.pop("run.device")
        changed = [f"{path}={spelt(value)}" for path, value in trial.items() if path not in stated or stated[path] != value]
        return " ".join(["enrnn train", name, *(f"--set {shlex.quote(one)}" for one in changed), f"--device {device}"])


def findings(sweep: Sweep) -> Findings:
    """Of the runs as they are now. Points that have gone to the end come before those that were stopped early or still run."""
    standing = Standing(sweep)
    scored = [row for row in standing.rows() if row.score is not None]
    if not scored:
        raise RunError(f"{sweep.path}: no run has been evaluated yet")
    rows = sorted(scored, key=lambda row: not row.finished)
    profiles = [Profile(key, values, [_best(rows, key, value) for value in values]) for key, values in standing.axes.items()]
    variances = [row.spread**2 for row in rows if row.spread is not None]
    return Findings(standing, rows, profiles, math.sqrt(statistics.fmean(variances)) if variances else None)


def report(sweep: Sweep, file: Path) -> str:
    """Write the page, and return the same in a few lines of text."""
    from ._page import page

    found = findings(sweep)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, page(found).encode())
    return "\n".join([*text(found), "", f"page   {file}"])


def text(found: Findings) -> list[str]:
    sweep = found.standing.sweep
    lines = [f"{sweep.path.name}  ({summary(found.standing.rows())})", "", *table(found.standing, found.rows, 12), ""]
    lines += [f"best   {found.command}", f"flat   {flatness(found)}"]
    if found.profiles:
        header = ["setting", "best at", sweep.measure.metric, "one step lower", "one step higher", "worst value"]
        lines += ["", *aligned([header, *(_sensitivity(found, profile) for profile in found.profiles)], right=(2, 3, 4))]
    return lines


def flatness(found: Findings) -> str:
    """How many points would have done as well."""
    count = len(found.rows)
    parts = [f"{found.within(NEAR)} of {count} points within {NEAR:.0%} of the best"]
    if found.within_spread is not None:
        parts.append(f"{found.within_spread} within one standard deviation over seeds ({found.spread:.2g})")
    return ", ".join(parts)


def _sensitivity(found: Findings, profile: Profile) -> list[str]:
    """What moving one setting from its best value costs, if all the others may follow."""
    value = found.best.values.get(profile.key)
    if value is None or found.best.score is None:
        return [profile.key, "·", "", "", "", ""]
    place, words = profile.values.index(value), as_number(value) is None
    lower = profile.at(profile.values[place - 1]) if place > 0 and not words else None
    higher = profile.at(profile.values[place + 1]) if place + 1 < len(profile.values) and not words else None
    scores = [(found.behind(score), other) for other in profile.values if (score := profile.at(other)) is not None]
    worst, at = max(scores)
    cells = [f"{found.best.score:.5g}", _percent(found, lower), _percent(found, higher), f"{worst:+.1%} at {at}"]
    return [profile.key, value, *cells]


def _percent(found: Findings, score: float | None) -> str:
    return "–" if score is None else f"{found.behind(score):+.1%}"


def _best(rows: Sequence[Row], key: str, value: str) -> Row | None:
    """The first of them, since the best is first."""
    return next((row for row in rows if row.values.get(key) == value), None)
