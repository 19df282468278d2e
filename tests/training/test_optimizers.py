"""The optimisers against their formulas, computed by themselves in float64."""

from __future__ import annotations

import ctypes
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from enrnn.tasks import Adding
from enrnn.training import Adagrad, ModelSettings, Network, OptimizerSettings, RMSPropTF, _fused
from enrnn.training._optimizers import Adam, build_optimizers, parameter_groups, set_rates, state_tensors
from tests._record import Recorder

SHAPES = [(3, 4), (5,), ()]


def problem(seed: int, steps: int, dtype: torch.dtype = torch.float64) -> tuple[list[nn.Parameter], list[list[Tensor]]]:
    """Parameters, and for each step their gradients, over several orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> list[Tensor]:
        scale = 10 ** (4 * torch.rand((), generator=generator, dtype=torch.float64) - 3)
        return [(scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype) for shape in SHAPES]

    return [nn.Parameter(value) for value in draw()], [draw() for _ in range(steps)]


def run(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: list[list[Tensor]]) -> list[float]:
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).tolist()


def flat(tensors: list[Tensor]) -> list[float]:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 20),
    lr=st.floats(1e-5, 1e-1),
    decay=st.floats(0.0, 0.99),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_rmsprop_is_tensorflows(record: Recorder, seed: int, steps: int, lr: float, decay: float, momentum: float) -> None:
    parameters, gradients = problem(seed, steps)
    expected = []
    for index, value in enumerate(flat(list(parameters))):
        square, velocity = 1.0, 0.0
        for g in (flat(step)[index] for step in gradients):
            square = decay * square + (1 - decay) * g * g
            velocity = momentum * velocity + lr * g / math.sqrt(square + 1e-10)
            value -= velocity
        expected.append(value)
    got = run(RMSPropTF(parameters, lr, decay, momentum), parameters, gradients)
    error = max(abs(a - b) / (abs(b) + lr * steps) for a, b in zip(got, expected, strict=True))
    record(cases=1, worst_error=error)
    assert error <= 64 * steps * torch.finfo(torch.float64).eps


def test_rmsprops_first_step_is_shrunk_by_the_accumulator_that_starts_at_one() -> None:
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.full_like(parameter, 0.1)
    RMSPropTF([parameter], lr=1.0).step()
    assert parameter.item() == pytest.approx(-0.1 / math.sqrt(0.9 + 0.1 * 0.01 + 1e-10), rel=1e-14)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 10), start=st.sampled_from([0.0, 0.1]))
def test_adagrad_is_torchs(seed: int, steps: int, start: float) -> None:
    ours, gradients = problem(seed, steps, torch.float32)
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    reference = torch.optim.Adagrad(theirs, lr=0.1, initial_accumulator_value=start)
    torch.testing.assert_close(
        run(Adagrad(ours, lr=0.1, accumulator=start), ours, gradients), run(reference, theirs, gradients), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("torchs_first", [True, False])
def test_adam_is_torchs_and_its_hooks_are_called_once(torchs_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch has not wrapped its own `step` yet, which it does when the first of its class is made."""
    plain = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", plain.__wrapped__ if hasattr(plain, "hooked") else plain)
    ours, gradients = problem(2, 5, torch.float32)
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    if torchs_first:
        reference: torch.optim.Optimizer = torch.optim.Adam(theirs, lr=0.1)
        optimizer: torch.optim.Optimizer = Adam(ours, lr=0.1)
    else:
        optimizer = Adam(ours, lr=0.1)
        reference = torch.optim.Adam(theirs, lr=0.1)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    assert run(optimizer, ours, gradients) == run(reference, theirs, gradients)
    assert called == ["before", "after"] * len(gradients)
    assert torch.is_grad_enabled()


def test_the_kernels_table_is_as_in_their_source() -> None:
    source = _fused.SOURCE.read_text(encoding="utf-8")
    for name in ("TENSORS", "THREADS", "EACH"):
        assert re.findall(rf"\b{name} = (\d+)[,;]", source) == [str(getattr(_fused, name))]
    assert ctypes.sizeof(_fused.Table) == _fused.TENSORS * 64 + 16  # within the 4 KiB of a kernel's arguments
    parameters = [torch.zeros(size) for size in (1, 0, 1024, 1025)]
    rate, count = torch.tensor(0.1), torch.tensor(3.0)
    updates = [_fused.Updated(each, torch.ones_like(each), each.clone(), None, count, rate) for each in parameters]
    table, blocks = _fused._table(updates, (0.5, 0.25, 2.0))
    assert blocks == 1 + 1 + 1 + 2
    assert list(table.options) == [0.5, 0.25, 2.0, 0.0]
    for row, each, block in zip(table.rows, updates, (0, 1, 2, 3), strict=False):
        assert each.first is not None
        addresses = [each.parameter.data_ptr(), each.gradient.data_ptr(), each.first.data_ptr(), 0]
        assert list(row) == [*addresses, count.data_ptr(), rate.data_ptr(), each.parameter.numel(), block]
    assert all(list(row) == [0] * 7 + [blocks] for row in list(table.rows)[4:])


def test_a_rate_may_be_a_tensor_that_changes_between_steps() -> None:
    numbers, gradients = problem(1, 4)
    tensors = [nn.Parameter(parameter.detach().clone()) for parameter in numbers]
    rate = torch.tensor(0.5, dtype=torch.float64)
    one, other = RMSPropTF(numbers, lr=0.5), RMSPropTF(tensors, lr=rate)
    assert run(one, numbers, gradients[:2]) == run(other, tensors, gradients[:2])
    one.param_groups[0]["lr"] = 0.25
    rate.fill_(0.25)
    assert run(one, numbers, gradients[2:]) == run(other, tensors, gradients[2:])


def test_a_closure_is_refused() -> None:
    with pytest.raises(TypeError, match="takes no closure"):
        RMSPropTF([nn.Parameter(torch.zeros(1))]).step(lambda: 0.0)


def network(**settings: object) -> Network:
    return Network(ModelSettings(hidden_size=6, **settings), Adding(length=5, train_size=50).load())  # type: ignore[arg-type]


def test_the_long_matrix_has_a_rate_of_its_own_and_every_parameter_one_rate() -> None:
    model = network()
    others, long = parameter_groups(model, 1e-3, 1e-5)
    assert (others["lr"], long["lr"]) == (1e-3, 1e-5)
    assert long["params"] == [model.layer.parametrizations.weight_long_l0.original]  # type: ignore[union-attr, index]
    assert sorted(map(id, others["params"] + long["params"])) == sorted(map(id, model.parameters()))


def test_networks_without_a_long_matrix_have_one_rate_and_leave_what_is_fixed() -> None:
    model = network(network="lstm")
    (group,) = parameter_groups(model, 1e-3, 1e-5)
    assert len(group["params"]) == len(list(model.parameters())) - 1


@pytest.mark.parametrize("name", ["adam", "adagrad", "rmsprop_tf", "rmsprop"])
def test_an_optimizer_has_all_its_state_from_the_start_and_the_first_step_is_the_same(name: str) -> None:
    torch.manual_seed(0)
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    (optimizer,) = build_optimizers(model, OptimizerSettings(name=name, lr=1e-2))
    names: dict[Tensor, str] = {parameter: key for key, parameter in model.named_parameters()}
    prepared = state_tensors(optimizer, names)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert state_tensors(optimizer, names).keys() == prepared.keys()
    assert {key.split("/")[0] for key in prepared} == set(names.values())
    if name == "adam":
        moved = (model.head.bias - before["head.bias"]).item()
        assert moved == pytest.approx(-1e-2, rel=1e-5)  # Adam's first step has the size of the rate
        assert all(value == 1 for key, value in prepared.items() if key.endswith("/step"))


def test_rates_fall_from_their_first_value() -> None:
    (optimizer,) = build_optimizers(network(), OptimizerSettings(lr=1.0, long_lr=0.5))
    for factor in (0.1, 0.2):
        set_rates(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [factor, 0.5 * factor]


def test_the_long_matrix_may_have_an_optimizer_of_its_own() -> None:
    model = network()
    others, long = build_optimizers(model, OptimizerSettings("adam", lr=1e-3, long_name="rmsprop_tf", long_lr=1e-4))
    assert isinstance(others, torch.optim.Adam)
    assert isinstance(long, RMSPropTF)
    assert [group["lr"] for group in (*others.param_groups, *long.param_groups)] == [1e-3, 1e-4]


@pytest.mark.parametrize("setting", [{"long_name": "rmsprop_tf"}, {"long_lr": 1e-4}])
def test_an_optimizer_of_its_own_for_a_matrix_that_is_not_there_is_a_mistake(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"optimizer.{next(iter(setting))} has no effect"):
        build_optimizers(network(network="lstm"), OptimizerSettings("adam", **setting))
