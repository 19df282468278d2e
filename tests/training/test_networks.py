"""Every network of the zoo in a run: it trains, carries its state, keeps to its constraint, and goes on to the bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import enrnn
from enrnn.tasks import Task
from enrnn.training import Config, ModelSettings, Network, OptimizerSettings, Watch, load_model, resume, train
from enrnn.training._contract import matrices_of
from enrnn.training._distributed import Processes
from enrnn.training._step import Step
from tests.training._runs import ADDING, differences, outcome, same_bits, text_task, tiny

NETWORKS = sorted(enrnn.networks())
OPTIONS: dict[str, dict[str, Any]] = {"clockwork": {"periods": [1, 5]}, "nnrnn": {"gamma_penalty": 0.5}, "fsrnn": {"fast": 3}}
SLOW = ("enrnn", "scornn", "exprnn", "ornn", "vorontsov", "nnrnn", "scurnn", "full_capacity_urnn", "cgrnn")


def settings(network: str, **others: Any) -> ModelSettings:
    return ModelSettings(network, hidden_size=6, options=OPTIONS.get(network, {}), **others)


def task_of(name: str, folder: Path) -> Task:
    return ADDING if name == "adding" else text_task(folder)


@pytest.mark.parametrize("task", ["adding", "characters"])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_trains(network: str, task: str, tmp_path: Path) -> None:
    config = tiny(task_of(task, tmp_path), settings(network), OptimizerSettings("adam", lr=1e-2), steps=5, evaluate_every=5)
    result = train(config, tmp_path / "runs")
    assert math.isfinite(result["last"]["test"][result["metric"]])
    assert result["parameters"] <= sum(
        parameter.numel() for parameter in load_model(tmp_path / "runs" / config.folder_name).parameters()
    )
    assert Config.from_dict(config.as_dict()) == config


@pytest.mark.parametrize("network", NETWORKS)
def test_a_guarded_step_is_a_plain_one_for_every_network(network: str, tmp_path: Path) -> None:
    """What is captured on a GPU: the same digits, all matrices within their constraints, and nothing that is not in `tensors`."""
    data = text_task(tmp_path).load()
    steps = []
    for _ in range(2):
        torch.manual_seed(0)
        steps.append(Step(Network(settings(network), data), data, OptimizerSettings("adam", lr=1e-2), Processes()))
    plain, guarded = steps
    before = {name: tensor.clone() for name, tensor in plain.tensors.items()}
    for _ in range(4):
        plain.plain()
        guarded.guarded()
    assert not guarded.stopped
    assert [name for name, tensor in plain.tensors.items() if not same_bits(tensor, guarded.tensors[name])] == []
    moved = {name for name, tensor in plain.tensors.items() if not same_bits(tensor, before[name])}
    assert {"model/head.weight", "carried/0"} <= moved
    for matrix, originals in matrices_of(plain.model):
        assert matrix.constraint_error(matrix(*originals)) < 1e-5


@pytest.mark.parametrize("network", NETWORKS)
def test_a_carried_state_splits_a_sequence_without_a_trace(network: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = text_task(tmp_path).load()
    model = Network(ModelSettings(network, hidden_size=6, options={"periods": [1]} if network == "clockwork" else {}), data)
    batch = data.batch("train", data.order("train")[0])
    whole, final = model(batch.inputs, model.first_state(4))
    assert [state.shape for state in final] == [state.shape for state in model.first_state(4)]
    assert all(state.shape[1] == 4 for state in final)
    first, state = model(batch.inputs[:2])
    second, last = model(batch.inputs[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(last, final)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_slow_rate_is_for_the_orthogonal_matrix_of_every_network_that_has_one(network: str) -> None:
    torch.manual_seed(0)
    data = ADDING.load()
    optimizer = OptimizerSettings("adam", lr=1e-2, long_lr=0.0)
    if network not in SLOW:
        with pytest.raises(ValueError, match=r"optimizer\.long_lr has no effect"):
            Step(Network(settings(network), data), data, optimizer, Processes())
        return
    step = Step(Network(settings(network), data), data, optimizer, Processes())
    before = {name: parameter.detach().clone() for name, parameter in step.model.named_parameters()}
    step.plain()
    # oRNN's reflections are normalised after each step, and so may turn by a bit.
    still = [name for name, parameter in step.model.named_parameters() if (parameter - before[name]).abs().max() < 1e-6]
    slow = [
        originals[place] for matrix, originals in matrices_of(step.model) for place in matrix.slow if "short" not in matrix.name
    ]
    names = {id(parameter): name for name, parameter in step.model.named_parameters()}
    assert sorted(still) == sorted(names[id(original)] for original in slow)


class Killed(BaseException):
    pass


class KilledAt(Watch):
    def __init__(self, step: int) -> None:
        self.step = step

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["step"] == self.step:
            raise Killed


@pytest.mark.parametrize(
    ("network", "options", "task"),
    [
        ("full_capacity_urnn", {"polish_every": 3}, "adding"),
        ("vorontsov", {"polish_every": 3}, "characters"),
        ("exprnn", {"rebase_every": 3, "polish_every": 2}, "adding"),  # dtriv
        ("ornn", {}, "characters"),
        ("hmrnn", {"num_layers": 2, "slope_rate": 0.5}, "characters"),
        ("fsrnn", {"slow_size": 3}, "characters"),
    ],
)
def test_a_killed_run_goes_on_to_the_bit(network: str, options: dict[str, Any], task: str, tmp_path: Path) -> None:
    """Killed after step 8, so that it goes on from 7, in the middle of an epoch."""
    model = ModelSettings(network, hidden_size=6, options=options)
    config = tiny(task_of(task, tmp_path), model, OptimizerSettings("adam", lr=1e-2), steps=14)
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KilledAt(8))
    resume(config.folder_name, tmp_path / "killed")
    assert differences(*(outcome(tmp_path / name / config.folder_name) for name in ("whole", "killed"))) == []


def test_an_hmrnns_slope_grows_with_the_epochs_and_is_not_raised_twice(tmp_path: Path) -> None:
    config = tiny(ADDING, ModelSettings("hmrnn", hidden_size=2, options={"num_layers": 2, "slope_rate": 0.5}), steps=21)
    with pytest.raises(Killed):
        train(config, tmp_path, KilledAt(12))
    resume(config.folder_name, tmp_path)
    layer = load_model(tmp_path / config.folder_name).layer
    assert isinstance(layer, enrnn.HMRNN)
    assert (int(layer.epochs), float(layer.slope)) == (2, 2.0)  # of 10 steps each


def test_an_epoch_starts_from_what_the_network_has_learned_to_start_from(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = text_task(tmp_path).load()
    model = Network(settings("ornn"), data)
    layer = model.layer
    assert isinstance(layer, enrnn.ORNN)
    assert layer.initial_state is not None
    (first,) = model.first_state(4)
    assert torch.equal(first[:, 2], layer.initial_state)
    step = Step(model, data, OptimizerSettings("adam", lr=1e-2), Processes())
    before = layer.initial_state.detach().clone()
    step.plain()
    assert not torch.equal(layer.initial_state, before)
    assert layer.initial_state.grad is not None
    step.plain()
    assert not layer.initial_state.grad.any(), "the second batch goes on from the first"


def test_a_clock_that_would_start_anew_is_refused(tmp_path: Path) -> None:
    model = ModelSettings("clockwork", hidden_size=6, options={"periods": [1, 2]})
    with pytest.raises(ValueError, match=r"periods that divide task\.length = 5, got: 2"):
        train(tiny(text_task(tmp_path), model), tmp_path)


@pytest.mark.parametrize(
    ("network", "options", "count"),
    [
        ("urnn", {}, 3 * 4 + 4 * 4 + 2 * 2 * 4 + 4 + 2 * 4),
        ("full_capacity_urnn", {}, 4 * 4 + 2 * 2 * 4 + 4 + 2 * 4),
        ("scurnn", {}, 4 * 4 + 4 + 2 * 2 * 4 + 4 + 2 * 4),
        ("eurnn", {"capacity": 2}, 2 * 3 + 4 + 2 * 2 * 4 + 4),
        ("goru", {"style": "fft"}, 2 * 64 + 3 * 2 * 8 + 3 * 8 + 4 * 3),
        ("irnn", {}, 64 + 16 + 8),
    ],
)
def test_parameters_are_counted_as_in_the_papers(network: str, options: dict[str, Any], count: int) -> None:
    """Four complex units, or eight real ones, two inputs and one output."""
    model = Network(ModelSettings(network, hidden_size=8, options=options), ADDING.load())
    assert model.num_parameters() == count + 8 + 1
