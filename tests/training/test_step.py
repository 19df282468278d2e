"""A guarded step is a plain one; where something is wrong it changes nothing, and neither does any step after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.matrices import EigenvalueNormalized
from enrnn.tasks import Task
from enrnn.training import ModelSettings, Network, NotFiniteError, OptimizerSettings
from enrnn.training._distributed import Processes
from enrnn.training._graph import OneByOne, Replayed
from enrnn.training._step import Step
from tests.training._runs import ADDING, COPYING, text_task


def step_of(task: Task = ADDING, model: ModelSettings | None = None, **optimizer: Any) -> Step:
    torch.manual_seed(3)
    data = task.load()
    settings = OptimizerSettings(**{"lr": 0.05, **optimizer})
    network = Network(model or ModelSettings(hidden_size=6, short_size=4, backend="torch"), data)
    step = Step(network, data, settings, Processes())
    step.start_epoch(0, 0)
    return step


def snapshot(step: Step) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in step.tensors.items()}


def changed(step: Step, before: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in step.tensors.items() if not torch.equal(tensor, before[name])}


MODELS = {
    "enrnn": ModelSettings(hidden_size=6, short_size=4, backend="torch"),
    "scornn": ModelSettings(hidden_size=6, short_size=0, backend="torch"),
    "lstm": ModelSettings("lstm", hidden_size=5),
    "gru": ModelSettings("gru", hidden_size=5),
    "rnn": ModelSettings("rnn", hidden_size=5, nonlinearity="tanh"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rmsprop_tf", "rmsprop"])
def test_guarded_steps_are_plain_steps_to_the_bit(name: str, optimizer: str) -> None:
    one, other = (step_of(COPYING, MODELS[name], name=optimizer, clip_norm=1.0, clip_value=0.1) for _ in range(2))
    OneByOne(one).advance(3)
    Replayed(other, other.guarded).advance(3)
    assert changed(one, snapshot(other)) == set()
    assert one.done == 3
    assert one.mean_loss() > 0


def test_a_carried_state_goes_on_and_starts_at_zero_in_each_epoch(tmp_path: Path) -> None:
    step = step_of(text_task(tmp_path))
    step.plain()
    first = step.tensors["carried/0"].clone()
    assert first.abs().max() > 0
    step.plain()
    step.start_epoch(0, 0)
    step.tensors["carried/0"].fill_(float("nan"))
    step.plain()
    assert torch.isfinite(step.tensors["carried/0"]).all()


def test_all_that_a_step_changes_is_in_its_tensors() -> None:
    step = step_of()
    names = changed_by(step)
    assert {name for name in names if name.startswith("model/")} == {
        f"model/{name}" for name, parameter in step.model.named_parameters() if parameter.requires_grad
    } | {"model/layer.parametrizations.weight_short_l0.0.radius"} | {n for n in names if n.endswith("normalizing")}
    assert {"loop/done", "loop/place", "loop/losses"} <= names


def changed_by(step: Step) -> set[str]:
    before = snapshot(step)
    step.plain()
    return changed(step, before)


class Doubtful:
    """Makes the eigenvalue solver of a step unsure of itself, as it can be inside a CUDA graph, at the steps given."""

    def __init__(self, step: Step, at: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.sure = False
        self.step, self.at = step, at
        forward = EigenvalueNormalized.forward

        def doubtful(matrix: EigenvalueNormalized, original: Tensor) -> Tensor:
            result = forward(matrix, original)
            if not self.sure and step.done + 1 in at:
                matrix.uncertified.fill_(True)
            return result

        monkeypatch.setattr(EigenvalueNormalized, "forward", doubtful)
        plain = step.plain

        def surely() -> None:
            self.sure = True
            plain()
            self.sure = False

        monkeypatch.setattr(step, "plain", surely)


def test_a_step_with_an_uncertified_eigenvalue_changes_nothing_nor_does_any_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of()
    Doubtful(step, {3}, monkeypatch)
    step.guarded()
    step.guarded()
    assert not step.stopped
    before = snapshot(step)
    for _ in range(4):
        step.guarded()
        assert step.stopped
        assert changed(step, before) == set()
    assert step.done == 2


@pytest.mark.parametrize("at", [{1}, {3}, {2, 3, 7}, set(range(1, 9))])
def test_uncertified_steps_are_done_over_and_leave_no_trace(at: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = step_of()
    OneByOne(expected).advance(8)
    step = step_of()
    Doubtful(step, at, monkeypatch)
    runner = Replayed(step, step.guarded)
    runner.advance(5)
    runner.advance(3)
    assert step.done == 8
    assert changed(step, snapshot(expected)) == set()


def poisoned(step: Step, at: int) -> Step:
    """A step whose loss is NaN at step `at`."""
    loss = step.data.loss

    def poison(outputs: Tensor, batch: Any) -> Tensor:
        return loss(outputs, batch) * (float("nan") if step.done + 1 == at else 1.0)

    step.data.loss = poison  # type: ignore[method-assign]
    return step


def test_a_loss_that_is_not_finite_stops_the_run_before_the_update_and_names_the_step() -> None:
    step = poisoned(step_of(), at=3)
    OneByOne(step).advance(2)
    before = {name: tensor for name, tensor in snapshot(step).items() if "radius" not in name}
    with pytest.raises(NotFiniteError, match=r"^step 3: the loss is nan; no parameter was updated$"):
        step.plain()
    assert {name for name in changed(step, {**snapshot(step), **before})} == set()


def test_a_loss_that_is_not_finite_inside_a_graph_is_found_at_the_next_look() -> None:
    step = poisoned(step_of(), at=4)
    with pytest.raises(NotFiniteError, match=r"^step 4: the loss is nan"):
        Replayed(step, step.guarded).advance(10)
    assert step.done == 3


def test_a_gradient_that_is_not_finite_is_named() -> None:
    step = step_of()
    step.model.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NotFiniteError, match=r"step 1: the gradient of head\.weight is not finite"):
        step.plain()


def test_a_matrix_that_is_not_finite_is_named() -> None:
    step = step_of()
    with torch.no_grad():
        step.model.layer.parametrizations.weight_short_l0.original[0, 0] = float("nan")  # type: ignore[union-attr, index]
    with pytest.raises(NotFiniteError, match="step 1: weight_short_l0: the free matrix T has entries that are not finite"):
        step.plain()


def test_a_mistake_that_has_nothing_to_do_with_numbers_keeps_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of()

    def mistaken(*_: object) -> Tensor:
        raise ValueError("something else")

    monkeypatch.setattr(step.data, "loss", mistaken)
    with pytest.raises(ValueError, match="something else"):
        step.plain()


def test_the_switch_is_logged_with_its_step() -> None:
    step = step_of()
    assert step.spectrum()["switched_at"] is None
    OneByOne(step).advance(2)
    with torch.no_grad():
        step.model.layer.parametrizations.weight_short_l0.original.mul_(10)  # type: ignore[union-attr, operator, index]
    OneByOne(step).advance(2)
    spectrum = step.spectrum()
    assert spectrum["switched_at"] == 3
    assert spectrum["spectral_radius"] > 1


def test_gradients_are_clipped_by_value_and_then_by_norm() -> None:
    step = step_of(name="adagrad", lr=0.0, clip_value=1e-3, clip_norm=1e-3)
    step.plain()
    gradients = torch.cat([p.grad.flatten() for p in step.model.parameters() if p.grad is not None])
    assert gradients.norm() <= 1e-3 * (1 + 1e-5)
    step = step_of(name="adagrad", lr=0.0, clip_value=1e-3)
    step.plain()
    assert max(p.grad.abs().max() for p in step.model.parameters() if p.grad is not None) == pytest.approx(1e-3)


def test_a_penalty_of_a_matrix_is_trained_and_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, penalised = step_of(lr=0.0), step_of(lr=0.0)
    plain.plain()
    monkeypatch.setattr(EigenvalueNormalized, "penalty", lambda matrix, original: 3 * original.sum())
    penalised.plain()
    assert plain.mean_loss() == penalised.mean_loss()
    name = "layer.parametrizations.weight_short_l0.original"
    one, other = (dict(step.model.named_parameters())[name].grad for step in (plain, penalised))
    assert one is not None
    assert other is not None
    torch.testing.assert_close(other - one, torch.full_like(one, 3.0))
