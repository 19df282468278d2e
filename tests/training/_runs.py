"""Small runs that take less than a second, and how two of them are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from enrnn.tasks import Adding, Characters, Copying, Task
from enrnn.training import Config, ModelSettings, OptimizerSettings, RunSettings, _container

ADDING = Adding(length=12, train_size=40, test_size=20, batch_size=4, eval_batch_size=10)
COPYING = Copying(length=5, train_size=12, test_size=6, batch_size=4, eval_batch_size=4)


def tiny(
    task: Task = ADDING,
    model: ModelSettings | None = None,
    optimizer: OptimizerSettings | None = None,
    **run: Any,
) -> Config:
    """A run of 25 steps over two and a half epochs, evaluated and saved at intervals that share no factor."""
    settings = {"steps": 25, "evaluate_every": 4, "checkpoint_every": 7} | run
    return Config(
        task,
        model or ModelSettings(hidden_size=6, short_size=3, backend="torch"),
        optimizer or OptimizerSettings(lr=1e-2, lr_decay=0.9),
        RunSettings(**settings),
    )


def text_task(folder: Path) -> Characters:
    """A text of some hundred characters, in which each follows from the one before."""
    file = folder / "text.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 40, encoding="utf-8")
    return Characters(text=str(file), length=5, batch_size=4, eval_batch_size=3)


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that a finished run leaves behind, but the time it took."""
    newest = max((folder / "checkpoints").glob("step-*.ckpt"))
    about, tensors = _container.read(newest)
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in (about, result, *lines):
        del record["seconds"]
    del about["metrics"]  # a digest over seconds as well
    _, best = _container.read(folder / "best.tensors")
    return {"about": about, "result": result, "metrics": lines, "tensors": tensors, "best": best}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two outcomes differ in as much as a bit."""
    found = [key for key in ("about", "result", "metrics") if one[key] != other[key]]
    for key in ("tensors", "best"):
        found += [f"{key}: {name}" for name in one[key].keys() ^ other[key].keys()]
        found += [name for name in one[key].keys() & other[key].keys() if not same_bits(one[key][name], other[key][name])]
    return found


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
