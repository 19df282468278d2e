"""Runs that nobody has run: directories, and what would be read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enrnn.paper import Found, Run, configured
from enrnn.paper._data import PTB
from enrnn.training import Config, RunFolder

METRICS = {"adding": "mse", "copying": "cross_entropy", "characters": "bits_per_character", "speech": "mse"}


def result_of(config: Config, curve: dict[int, float], fingerprint: str = "") -> dict[str, Any]:
    metric = METRICS[config.task.name]
    last = {split: {metric: list(curve.values())[-1]} for split in ("valid", "test")}
    return {
        **{"id": config.id, "steps": list(curve)[-1], "parameters": 7, "metric": metric, "last": last, "best": {}},
        **{"spectral_radius": 1.5, "switched_at": 300, "seconds": 2.0, "fingerprint": fingerprint},
        "versions": {"enrnn": "0", "torch": "0"},
    }


def records_of(config: Config, curve: dict[int, float]) -> list[dict[str, Any]]:
    metric = METRICS[config.task.name]
    return [{"step": step, metric: value, "accuracy": 0.5, "spectral_radius": 0.9} for step, value in curve.items()]


def made_up(name: str, *values: float, seed: int = 0, data: str | None = None, quick: bool = False, **measures: Any) -> Run:
    """A finished run with these errors, evaluated every 2,000 steps. On the Penn Treebank, unless `data` says otherwise."""
    config = configured(name, quick, **{"run.seed": seed})
    curve = {2000 * (index + 1): value for index, value in enumerate(values)}
    result = result_of(config, curve, PTB if data is None else "")
    stored = {"id": config.id, **config.as_dict()}
    return Run(
        name, quick, config.folder_name, stored, records_of(config, curve), result, "finished", None, {"data": data, **measures}
    )


def look(radius: float, *norms: float) -> dict[str, Any]:
    powers = list(range(len(norms)))
    return {"eigenvalues": [[radius, 0.0]], "radius": radius, "departure": 0.5, "powers": powers, "norms": list(norms)}


def written(run: Run, runs: Path, state: str = "finished") -> RunFolder:
    """The directory of a made-up run."""
    config = Config.from_dict({key: value for key, value in run.values.items() if key != "id"})
    folder = RunFolder.create(config, runs)
    for record in run.records:
        folder.add_record(record)
    if state == "finished":
        assert run.result is not None
        folder.finish(run.result)
    elif state == "failed":
        (folder.path / "error.json").write_text('{"error": "NotFiniteError", "message": "the loss is nan"}')
    return folder


def found(*runs: Run, cost: dict[str, Any] | None = None) -> Found:
    return Found(runs, cost)
