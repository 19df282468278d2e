"""Steps captured in a CUDA graph: the digits of steps that are not, and a step that goes wrong inside is done over outside."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.matrices import EigenvalueNormalized
from enrnn.recipes import recipe
from enrnn.recurrence import _op
from enrnn.spectrum import dominant
from enrnn.spectrum._device import squaring_on_device
from enrnn.training import (
    Config,
    ModelSettings,
    Network,
    NotFiniteError,
    OptimizerSettings,
    RunFolder,
    StoppedError,
    Watch,
    train,
)
from enrnn.training import _loop as loop_module
from enrnn.training._distributed import Processes
from enrnn.training._graph import OneByOne, Replayed, captured
from enrnn.training._keep import Kept
from enrnn.training._step import Step
from tests._record import Recorder
from tests.spectrum.test_solvers import UNIT, relative_gap
from tests.training._runs import ADDING, COPYING, differences, outcome, same_bits, text_task, tiny

pytestmark = pytest.mark.gpu

ENRNN = ModelSettings(hidden_size=16, short_size=8)
OPTIMIZERS = ["adam", "adagrad", "rmsprop_tf", "rmsprop"]


def step_of(task: Any = ADDING, model: ModelSettings = ENRNN, **optimizer: Any) -> Step:
    torch.manual_seed(3)
    data = task.load("cuda")
    step = Step(Network(model, data).cuda(), data, OptimizerSettings(**{"lr": 1e-2, **optimizer}), Processes())
    step.start_epoch(0, 0)
    return step


def different(one: Step, other: Step) -> list[str]:
    return [name for name, tensor in one.tensors.items() if not same_bits(tensor, other.tensors[name])]


def test_capturing_a_step_leaves_the_run_as_it_was() -> None:
    step, untouched = step_of(), step_of()
    captured(step)
    assert different(step, untouched) == []
    assert not step.stopped


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replayed_steps_are_plain_steps_to_the_bit(optimizer: str) -> None:
    settings = {"name": optimizer, "clip_norm": 1.0, "clip_value": 0.1}
    one, other = step_of(COPYING, **settings), step_of(COPYING, **settings)
    OneByOne(one).advance(3)
    Replayed(other, captured(other)).advance(3)
    assert different(one, other) == []


def test_a_captured_step_reads_the_rate_and_the_order_anew() -> None:
    one, other = step_of(lr_decay=0.5), step_of(lr_decay=0.5)
    plain, replayed = OneByOne(one), Replayed(other, captured(other))
    for epoch in range(3):
        one.start_epoch(epoch, 0)
        other.start_epoch(epoch, 0)
        plain.advance(4)
        replayed.advance(4)
        assert different(one, other) == []


def test_a_batch_that_is_late_changes_no_digit() -> None:
    expected, step = step_of(), step_of()
    OneByOne(expected).advance(4)
    batch = step.data.batch

    def late(*arguments: Any) -> Any:
        torch.cuda._sleep(3_000_000)
        result = batch(*arguments)
        torch.cuda._sleep(3_000_000)
        return result

    step.data.batch = late  # type: ignore[method-assign]
    Replayed(step, captured(step)).advance(4)
    assert different(step, expected) == []


def test_two_layers_whose_gradients_run_aside_change_no_digit() -> None:
    """The matrix of one layer is read for a long time after that of the other has its gradient."""
    model = ModelSettings(hidden_size=40, short_size=16, options={"num_layers": 2})
    expected, step = step_of(model=model), step_of(model=model)
    OneByOne(expected).advance(3)
    with mock.patch.object(_op, "engine_for", late(_op.engine_for)):
        replay = captured(step)
    Replayed(step, replay).advance(3)
    assert different(step, expected) == []


def late(engine_for: Any) -> Any:
    """The recurrence begins late, forwards and back."""

    def found(*arguments: Any) -> Any:
        torch.cuda._sleep(3_000_000)
        return engine_for(*arguments)

    return found


def doubtful(step: Step, at: list[int]) -> None:
    """While captured, the eigenvalue solver is unsure of itself at these steps."""
    places = torch.tensor(at, device="cuda")

    def unsure(matrix: EigenvalueNormalized, *_: object) -> None:
        if torch.cuda.is_current_stream_capturing():
            matrix.uncertified.logical_or_((step._ledger.done + 1 == places).any())

    for module in step.model.modules():
        if isinstance(module, EigenvalueNormalized):
            module.register_forward_hook(unsure)


@pytest.mark.parametrize("at", [[1], [3], [2, 3, 7], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_uncertified_steps_are_done_over_and_leave_no_trace(at: list[int]) -> None:
    expected = step_of()
    OneByOne(expected).advance(8)
    step = step_of()
    doubtful(step, at)
    runner = Replayed(step, captured(step))
    runner.advance(5)
    runner.advance(3)
    assert different(step, expected) == []


def test_a_flagged_step_changes_nothing_nor_does_any_after_it() -> None:
    step = step_of()
    doubtful(step, [3])
    replay = captured(step)
    replay()
    replay()
    before = {name: tensor.clone() for name, tensor in step.tensors.items()}
    for _ in range(4):
        replay()
    assert step.stopped
    assert step.done == 2
    assert [name for name, tensor in step.tensors.items() if not same_bits(tensor, before[name])] == []


def test_a_loss_that_is_not_finite_is_named_at_the_next_look() -> None:
    step = step_of()
    loss = step.data.loss
    step.data.loss = lambda outputs, batch: loss(outputs, batch) * torch.where(step._ledger.done + 1 == 4, torch.nan, 1.0)  # type: ignore[method-assign]
    with pytest.raises(NotFiniteError, match=r"^step 4: the loss is nan"):
        Replayed(step, captured(step)).advance(10)
    assert step.done == 3


def configs(folder: Path) -> dict[str, Config]:
    text = text_task(folder)
    return {
        "adding": tiny(model=ENRNN, device="cuda", look_every=3),
        "copying": tiny(COPYING, ENRNN, OptimizerSettings("adam", lr=1e-2), device="cuda", look_every=3),
        "text": tiny(
            text,
            ModelSettings(hidden_size=16, short_size=10, nonlinearity="relu", embedding=True),
            OptimizerSettings("adam", lr=1e-2, long_name="rmsprop_tf"),
            device="cuda",
            look_every=3,
        ),
    }


@pytest.mark.parametrize("name", ["adding", "copying", "text"])
def test_a_run_with_a_graph_is_the_run_without(name: str, tmp_path: Path) -> None:
    config = configs(tmp_path)[name]
    eager = dataclasses.replace(config, run=dataclasses.replace(config.run, graph=False))
    train(config, tmp_path)
    train(eager, tmp_path)
    one, other = outcome(tmp_path / config.folder_name), outcome(tmp_path / eager.folder_name)
    assert one["metrics"] == other["metrics"]
    assert [key for key, tensor in one["tensors"].items() if not same_bits(tensor, other["tensors"][key])] == []


@pytest.mark.parametrize("name", ["adding", "copying", "text"])
def test_a_stopped_run_goes_on_to_the_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.faults.test_kills import StopAfter

    monkeypatch.setattr(loop_module, "BETWEEN_LOOKS", 0.0)
    config = configs(tmp_path)[name]
    train(config, tmp_path / "alone")
    stops = 0
    while RunFolder(tmp_path / "stopped" / config.folder_name).result is None:
        try:
            train(config, tmp_path / "stopped", StopAfter(5))
        except StoppedError:
            stops += 1
    assert stops >= 3
    one, other = (outcome(tmp_path / which / config.folder_name) for which in ("alone", "stopped"))
    assert differences(one, other) == []


@pytest.mark.parametrize("network", sorted(enrnn.networks()))
def test_every_network_is_captured_and_gives_the_digits_of_plain_steps(network: str, tmp_path: Path) -> None:
    """To the bit, but for cuDNN's own networks, which do not promise that."""
    options: dict[str, dict[str, Any]] = {"clockwork": {"periods": [1, 5]}, "fsrnn": {"fast": 2}}
    model = ModelSettings(network, hidden_size=12, options=options.get(network, {}))
    task = text_task(tmp_path)
    one, other = step_of(task, model, name="adam"), step_of(task, model, name="adam")
    OneByOne(one).advance(5)
    Replayed(other, captured(other)).advance(5)
    if network in ("rnn", "lstm", "gru"):
        for name, tensor in one.tensors.items():
            torch.testing.assert_close(other.tensors[name], tensor, rtol=1e-4, atol=1e-5)
    else:
        assert different(one, other) == []


def test_a_network_that_no_graph_can_hold_trains_step_by_step_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = EigenvalueNormalized.forward

    def looking(matrix: EigenvalueNormalized, original: Tensor) -> Tensor:
        assert torch.isfinite(original).all()
        return forward(matrix, original)

    monkeypatch.setattr(EigenvalueNormalized, "forward", looking)
    said: list[str] = []

    class Listening(Watch):
        def said(self, text: str) -> None:
            said.append(text)

    result = train(tiny(model=ENRNN, device="cuda"), tmp_path, Listening())
    assert result["steps"] == 25
    assert any("a CUDA graph cannot hold them" in text for text in said)


@pytest.mark.parametrize("offset", [0, 1])
def test_what_was_kept_comes_back_to_the_byte_and_only_if_something_was_wrong(offset: int) -> None:
    """Tensors of every kind and odd sizes; with an offset, some that do not begin at a multiple of 16 bytes."""
    kinds = (torch.float32, torch.float64, torch.int64, torch.bool)
    tensors = [torch.ones(n + offset, device="cuda").to(kind)[offset:] for n in (1, 3, 17, 70_001) for kind in kinds]
    tensors.append(torch.empty(0, device="cuda"))
    kept = Kept(tensors)
    for fine in (True, False):
        for tensor in tensors:
            tensor.fill_(1)
        kept.keep()
        for tensor in tensors:
            tensor.zero_()
        kept.restore_unless(torch.tensor(fine, device="cuda"))
        assert all(bool((tensor == (0 if fine else 1)).all()) for tensor in tensors)


def test_over_an_epoch_of_characters_the_radius_is_the_dense_one(full: bool, record: Recorder) -> None:
    """char-PTB at the paper's size, captured, with a dense look every 100 steps; other text where there is no PTB."""
    config = recipe("characters/enrnn")
    there = (Path(os.environ.get("ENRNN_DATA", "")) / "ptb").is_dir()
    data = config.override({"task.corpus": "ptb" if there and full else "python"}).task.load("cuda")
    torch.manual_seed(0)
    step = Step(Network(config.model, data).cuda(), data, config.optimizer, Processes())
    step.start_epoch(0, 0)
    steps = Replayed(step, captured(step))
    free = next(p for name, p in step.model.named_parameters() if name.endswith("weight_short_l0.original")).detach()
    for _ in range(len(step.order) // 100 if full else 3):
        steps.advance(100)
        matrix = free.double()
        found, dense = squaring_on_device(matrix), dominant(matrix.cpu())
        if not found.certified:
            record(cases_uncertified=1)
            continue
        rounding = 50 * UNIT * dense.condition * torch.linalg.matrix_norm(matrix).cpu() / dense.radius
        error = abs(found.pair.radius.item() / dense.radius.item() - 1)
        C = dense.derivative()
        derivative = (torch.linalg.matrix_norm(found.pair.derivative().cpu() - C) / torch.linalg.matrix_norm(C)).item()
        record(cases=1, worst_radius_error=error, worst_derivative_error=derivative)
        assert error <= max(1e-6, rounding.item())
        assert derivative <= max(1e-4, rounding.item() / relative_gap(matrix.cpu()))
    spectrum = step.spectrum()
    record(cases_fallback=spectrum["fallbacks"])
    assert spectrum["switched_at"] is not None
