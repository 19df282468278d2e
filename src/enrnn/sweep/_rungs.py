"""Which runs to do, and how far: all to the end, or by successive halving, in which bad points stop early.

With eta = 3 and 24 points, all go a ninth of their steps, the best eight go on to a third, and the best two of these to the end
(Jamieson & Talwalkar, AISTATS 2016). A point goes on with the very runs it has: they are stopped at an evaluation, with a
checkpoint, and resumed, so no step is done twice. Every choice follows from the runs' metrics alone, so a driver that was killed
makes it again.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from ._outcome import Outcome, outcome
from ._sweep import Sweep, SweepPoint, Trial
from ._work import Job


def rungs(points: int, eta: int | None) -> list[tuple[int, float]]:
    """How many points go on, and to which share of their steps, rung by rung."""
    if eta is None or points < eta:
        return [(points, 1.0)]
    count = int(math.log(points, eta) + 1e-9)
    return [(points // eta**rung, eta ** float(rung - count)) for rung in range(count + 1)]


def jobs_of(sweep: Sweep, retry: bool, run: Callable[[list[Job]], None]) -> None:
    """Hand to `run` the jobs of one rung after the other. It returns when they have ended, in whatever way."""
    alive = sweep.points
    previous = 0.0
    retried: set[str] = set()
    for count, share in rungs(len(alive), sweep.halving):
        alive = _best(alive, count, previous, sweep)
        todo = [job for trial in _by_seed(alive) if (job := _job(trial, share, retry, retried)) is not None]
        if todo:
            run(todo)
        previous = share


def _job(trial: Trial, share: float, retry: bool, retried: set[str]) -> Job | None:
    """What is left to do of a run on this rung."""
    now, until = outcome(trial.folder), _step(trial, share)
    failed = now.status == "failed" and (not retry or trial.config.id in retried)
    if now.status == "finished" or failed or (share < 1 and now.until(until) is not None):
        return None
    retried.add(trial.config.id)
    return Job(trial.config, until if share < 1 else None)


def _best(points: Sequence[SweepPoint], count: int, share: float, sweep: Sweep) -> list[SweepPoint]:
    """The best `count` after a share of the steps, in their first order. What has failed comes last."""
    if count >= len(points):
        return list(points)

    def loss(point: SweepPoint) -> float:
        scores = [_score(outcome(trial.folder), _step(trial, share), sweep) for trial in point.trials]
        return math.inf if None in scores else math.fsum(sweep.measure.loss(s) for s in scores if s is not None) / len(scores)

    ranked = sorted(range(len(points)), key=lambda index: (loss(points[index]), index))
    return [points[index] for index in sorted(ranked[:count])]


def _score(now: Outcome, step: int, sweep: Sweep) -> float | None:
    records = now.until(step)
    return None if records is None else sweep.measure.of(records)


def _step(trial: Trial, share: float) -> int:
    return math.ceil(trial.steps * share - 1e-9)


def _by_seed(points: Sequence[SweepPoint]) -> Iterator[Trial]:
    """The first seed of every point, then the second: so that an early look at a sweep sees all of its points."""
    for index in range(max((len(point.trials) for point in points), default=0)):
        yield from (point.trials[index] for point in points if index < len(point.trials))
