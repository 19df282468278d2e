"""What the directories of runs say, by the runs' names. Reads config.json, metrics.jsonl, result.json, error.json and
measures.json, and nothing else."""

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..sweep._outcome import outcome
from ..training import RunFolder
from ._cost import FOLDER
from ._data import PTB, PTB_NAME, PYTHON_NAME
from ._measure import measures
from ._runs import named
from ._work import failure


class Run(NamedTuple):
    """A directory of a run."""

    name: str
    quick: bool
    folder: str
    values: dict[str, Any]
    records: list[dict[str, Any]]
    result: dict[str, Any] | None
    state: str
    error: str | None
    measures: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.values["run"]["seed"])

    @property
    def data(self) -> str | None:
        """What its data are called; None where they are generated, or nobody has written it down."""
        if self.values["task"]["name"] == "characters" and self.result is not None:
            other = PYTHON_NAME if self.values["task"]["corpus"] in ("python", "auto") else "another text"
            return PTB_NAME if self.result["fingerprint"] == PTB else other
        found: str | None = self.measures.get("data")
        return found

    @property
    def metric(self) -> str:
        return {"copying": "cross_entropy", "characters": "bits_per_character"}.get(self.values["task"]["name"], "mse")

    def curve(self) -> list[tuple[int, float]]:
        return [(record["step"], record[self.metric]) for record in self.records]

    def final(self, split: str = "test") -> float | None:
        """With the weights that were chosen on validation data, where there are such, else with the last."""
        if self.result is None:
            return None
        metrics = self.result.get("chosen", self.result["last"]).get(split)
        return None if metrics is None else float(metrics[self.metric])

    def first_below(self, value: float) -> int | None:
        """The first evaluation below a value, by its step."""
        return next((step for step, got in self.curve() if got < value), None)

    def below_for_good(self, value: float) -> int | None:
        """The first evaluation from which on all are below a value."""
        found = None
        for step, got in reversed(self.curve()):
            if not got < value:
                break
            found = step
        return found


class Found:
    """All runs under a directory that are the paper's, or those of the small version."""

    def __init__(self, runs: Iterable[Run], cost: dict[str, Any] | None = None, quick: bool = False) -> None:
        self.all = sorted(runs, key=lambda run: (run.name, run.seed, run.folder))
        self.cost = cost
        self.quick = quick

    def of(self, name: str) -> list[Run]:
        """The finished runs of a name, one a seed: on the paper's text before any other, on a GPU before a CPU."""
        finished = [run for run in self.all if run.name == name and run.state == "finished"]
        if any(run.data == PTB_NAME for run in finished):
            finished = [run for run in finished if run.data == PTB_NAME]
        by_seed: dict[int, Run] = {}
        for run in sorted(finished, key=lambda run: run.values["run"]["device"], reverse=True):
            by_seed.setdefault(run.seed, run)
        return [by_seed[seed] for seed in sorted(by_seed)]

    def failed(self, name: str) -> list[Run]:
        return [run for run in self.all if run.name == name and run.state == "failed"]

    def values(self, name: str, of: Callable[[Run], float | None]) -> list[float]:
        return [value for run in self.of(name) if (value := of(run)) is not None]

    def mean(self, name: str, split: str = "test") -> float | None:
        values = self.values(name, lambda run: run.final(split))
        return statistics.fmean(values) if values else None


def read(runs: Path, quick: bool) -> Found:
    """What is there under `runs`."""
    found = []
    for file in sorted(runs.glob("*/config.json")):
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            name = named(values)
        except (ValueError, KeyError, AttributeError):
            continue  # a directory that is no run's
        if name is None or name.quick != quick:
            continue
        folder = RunFolder(file.parent)
        standing = outcome(folder)
        state = {"waiting": "unfinished", "begun": "unfinished"}.get(standing.status, standing.status)
        error = failure(folder) if standing.error is None else standing.error
        result = folder.result if state == "finished" else None  # which may be damaged, where it is not
        found.append(Run(name.run, quick, file.parent.name, values, standing.records, result, state, error, measures(folder)))
    costs = sorted((runs / FOLDER).glob("cost-*.json"))
    return Found(found, json.loads(costs[-1].read_text(encoding="utf-8")) if costs else None, quick)
