"""A run that goes wrong numerically stops where it does, and its last checkpoint is good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.tasks.adding import AddingData
from enrnn.training import NotFiniteError, _container, train
from tests.training._runs import differences, outcome, tiny


def test_a_run_stops_at_the_step_keeps_the_last_checkpoint_and_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(), tmp_path / "alone")
    calls = 0
    loss = AddingData.loss

    def poisoned(data: AddingData, outputs: Tensor, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return loss(data, outputs, batch) * (float("inf") if calls == 18 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(AddingData, "loss", poisoned)
        with pytest.raises(NotFiniteError, match=r"^step 18: the loss is inf; no parameter was updated$"):
            train(tiny(), tmp_path / "poisoned")
    folder = tmp_path / "poisoned" / tiny().folder_name
    newest = max((folder / "checkpoints").glob("*.ckpt"))
    assert newest.name == "step-000000000014.ckpt"
    assert all(torch.isfinite(tensor).all() for tensor in _container.read(newest)[1].values())
    train(tiny(), tmp_path / "poisoned")
    assert differences(outcome(tmp_path / "alone" / tiny().folder_name), outcome(folder)) == []


def test_an_evaluation_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddingData, "metrics", lambda data, sums: {"mse": float("nan")})
    with pytest.raises(NotFiniteError, match=r"after step 4: mse on test is nan"):
        train(tiny(), tmp_path)


def test_a_rate_that_is_too_large_ends_with_the_step_and_not_with_a_traceback_from_deep_inside(tmp_path: Path) -> None:
    config = tiny().override({"optimizer.lr": 1e30, "optimizer.name": "adam"})
    with pytest.raises(NotFiniteError, match=r"^(after )?step \d+: "):
        train(config, tmp_path)
