"""A compiled layer is the layer: one graph, the same outputs, gradients and buffers, at any sequence length."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from enrnn import ENRNN, ENRNNCell
from tests._record import Recorder
from tests.conformance._layers import relative_error, rounding, scatter_, short_matrices

STEPS, BATCH, INPUTS, HIDDEN = 5, 4, 3, 8

COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
inductor = pytest.param(
    "inductor", marks=pytest.mark.skipif(COMPILER is None, reason="inductor needs a C++ compiler, and none is on PATH")
)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sequence(steps: int = STEPS, seed: int = 1) -> Tensor:
    return torch.randn(steps, BATCH, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer_of(radius: float = 1.5, **settings: Any) -> ENRNN:
    layer = ENRNN(INPUTS, HIDDEN, dtype=torch.float64, **settings)
    scatter_(layer, radius=radius)
    return layer


def outcome(module: nn.Module, run: Any, x: Tensor, hx: Tensor | None = None) -> dict[str, Tensor]:
    """Outputs, all gradients and all buffers of one pass of `run` (which works on the tensors of `module`) and back."""
    leaves = {"x": x.clone().requires_grad_()}
    if hx is not None:
        leaves["hx"] = hx.clone().requires_grad_()
    module.zero_grad()
    output, final = run(*leaves.values())
    (output.square().sum() + final.sum()).backward()
    gradients = {f"grad {name}": leaf.grad for name, leaf in [*leaves.items(), *module.named_parameters()]}
    buffers = {f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()}
    return {"output": output, "final": final, **gradients, **buffers}


def worst_error(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert ours.keys() == expected.keys()
    buffers = [name for name in expected if name.startswith("buffer")]
    assert all(torch.equal(ours[name], expected[name]) for name in buffers)
    return max(relative_error(ours[name], expected[name]) for name in expected if name not in buffers)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", inductor])
def test_a_compiled_layer_does_what_the_layer_does(backend: str, record: Recorder) -> None:
    """Two passes, since the first one turns the switch on and the second finds it so."""
    layer = layer_of()
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for seed in (1, 2):
        error = worst_error(outcome(layer, compiled, sequence(seed=seed)), outcome(plain, plain, sequence(seed=seed)))
        record(cases=1, worst_relative_error=error)
        assert error <= rounding(2 * STEPS, INPUTS + 2 * HIDDEN)
        assert layer.normalizing.all()


SETTINGS = [
    pytest.param({"num_layers": 2, "bidirectional": True, "batch_first": True}, id="stacked both ways"),
    pytest.param({"short_size": 0}, id="long only", marks=pytest.mark.slow),
    pytest.param({"short_size": HIDDEN, "nonlinearity": "tanh"}, id="short only, tanh", marks=pytest.mark.slow),
    pytest.param({"coupling": False, "bias": False, "epsilon": 0.1, "nonlinearity": "relu"}, id="bare, relu"),
    pytest.param({"backend": "reference"}, id="reference"),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_kind_of_layer_compiles_in_one_graph(settings: dict[str, Any], record: Recorder) -> None:
    layer = layer_of(**settings)
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    batch = STEPS if layer.batch_first else BATCH
    directions = layer.num_layers * (2 if layer.bidirectional else 1)
    hx = torch.randn(directions, batch, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    error = worst_error(outcome(layer, compiled, sequence(), hx), outcome(plain, plain, sequence(), hx))
    record(cases=1, worst_relative_error=error)
    assert error <= rounding(2 * layer.num_layers * STEPS, INPUTS + 2 * HIDDEN)


def test_a_complex_dominant_eigenvalue_has_the_same_gradient_when_compiled(record: Recorder) -> None:
    """A conjugate view inside an operator would be dropped under compilation, and the gradient be silently wrong."""
    layer = layer_of(short_size=HIDDEN)
    (T,) = short_matrices(layer)
    with torch.no_grad():
        T[:2] = T[:, :2] = 0
        T[:2, :2] = 3 * torch.tensor([[0.6, -0.8], [0.8, 0.6]])  # a rotation, three times as long
        T.add_(0.05 * torch.randn(T.shape, dtype=T.dtype, generator=torch.Generator().manual_seed(5)))
    eigenvalues = torch.linalg.eigvals(T.detach())
    assert eigenvalues[eigenvalues.abs().argmax()].imag.abs() > 1
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    error = worst_error(outcome(layer, compiled, sequence()), outcome(plain, plain, sequence()))
    record(cases=1, worst_relative_error=error)
    assert error <= rounding(2 * STEPS, INPUTS + 2 * HIDDEN)


def test_the_switch_stays_off_below_one_and_turns_on_above_it_when_compiled() -> None:
    layer = layer_of(radius=0.8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    compiled(sequence())
    assert not layer.normalizing.any()
    assert abs(layer.spectral_radius.item() - 0.8) < 1e-6
    with torch.no_grad():
        short_matrices(layer)[0].mul_(2)
    compiled(sequence())
    assert layer.normalizing.all()
    assert abs(layer.spectral_radius.item() - 1.6) < 1e-6


def test_a_compiled_layer_counts_defective_steps_and_writes_nothing_in_evaluation() -> None:
    layer = layer_of(short_size=2)
    (T,) = short_matrices(layer)
    with torch.no_grad():
        T.copy_(torch.tensor([[2.0, 1.0], [0.0, 2.0]]))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    layer.eval()
    compiled(sequence())
    assert not layer.normalizing.any()
    assert layer.nearly_defective.item() == 0
    layer.train()
    for steps in (1, 2):
        compiled(sequence())
        assert layer.nearly_defective.item() == steps


def test_training_a_compiled_layer_goes_the_way_of_the_layer(record: Recorder) -> None:
    layer = layer_of(radius=0.99)
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    switched = []
    steps = 8
    for module, run in ((layer, compiled), (plain, plain)):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.02)
        for step in range(steps):
            optimiser.zero_grad()
            output, _ = run(sequence(seed=step))
            (-output.square().mean()).backward()  # louder states want a larger ρ(T)
            optimiser.step()
            switched.append(module.normalizing.item())
    assert switched[:steps] == switched[steps:]
    assert not switched[0]
    assert switched[-1]
    for ours, expected in zip(layer.parameters(), plain.parameters(), strict=True):
        error = relative_error(ours, expected)
        record(cases=1, worst_relative_error=error)
        assert error <= rounding(steps * 2 * STEPS, INPUTS + 2 * HIDDEN)


def lengths_and_compilations(layer: ENRNN, lengths: list[int], mark: bool) -> list[int]:
    """How often the layer had been compiled after each length."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    counts = []
    for steps in lengths:
        x = sequence(steps)
        if mark:
            torch._dynamo.mark_dynamic(x, 0)
        assert relative_error(compiled(x)[0], layer(x)[0]) <= rounding(steps, INPUTS + HIDDEN)
        counts.append(counter.frame_count)
    return counts


def test_one_graph_serves_every_length_marked_as_dynamic() -> None:
    assert lengths_and_compilations(layer_of(), [6, 5, 9, 3, 30, 17], mark=True) == [1] * 6


def test_unmarked_lengths_are_compiled_for_a_bounded_number_of_times() -> None:
    """The first length, then any length; and one each for the lengths 1 and 2, which torch may take apart."""
    counts = lengths_and_compilations(layer_of(), [5, 7, 9, 30, 17, 1, 2, 11, 1, 2, 40], mark=False)
    assert counts[:5] == [1, 2, 2, 2, 2]
    assert counts[-1] == counts[6] <= 4


@pytest.mark.parametrize(
    ("backend", "value", "training"),
    [
        pytest.param("eager", float("inf"), True, id="eager, training"),
        pytest.param("aot_eager", float("nan"), True, id="aot_eager, training"),
        pytest.param("aot_eager", float("nan"), False, id="aot_eager, evaluation"),
    ],
)
def test_a_matrix_that_is_not_finite_is_flagged_for_check(backend: str, value: float, training: bool) -> None:
    """Nobody can look at a value inside a graph, so the run goes on and `check()` says so afterwards."""
    layer = layer_of().train(training)
    with torch.no_grad():
        short_matrices(layer)[0][0, 1] = value
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    layer.check()
    output, _ = compiled(sequence())
    output.sum().backward()
    with pytest.raises(ValueError, match="T has entries that are not finite"):
        layer.check()
    assert not layer.normalizing.any()
    layer.reset_parameters()
    compiled(sequence())
    layer.check()


# torch's: the compiler asks a state, which is no leaf, for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")
def test_a_compiled_cell_does_what_the_cell_does(record: Recorder) -> None:
    cell = ENRNNCell(INPUTS, HIDDEN, dtype=torch.float64)
    scatter_(cell)
    plain = copy.deepcopy(cell)
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager")
    x = sequence()
    h = expected = None
    for x_t in x:
        h, expected = compiled(x_t, h), plain(x_t, expected)
    assert h is not None
    assert expected is not None
    h.square().sum().backward()
    expected.square().sum().backward()
    errors = [relative_error(h, expected)]
    errors += [relative_error(p.grad, q.grad) for p, q in zip(cell.parameters(), plain.parameters(), strict=True)]
    record(cases=1, worst_relative_error=max(errors))
    assert max(errors) <= rounding(2 * STEPS, INPUTS + 2 * HIDDEN)
    assert all(torch.equal(*pair) for pair in zip(cell.buffers(), plain.buffers(), strict=True))


@pytest.mark.parametrize("low", ["bfloat16 layer", "autocast"])
def test_low_precision_compiles_to_the_same_states(low: str) -> None:
    layer = ENRNN(INPUTS, HIDDEN)
    scatter_(layer)
    x = sequence().float()
    if low == "bfloat16 layer":
        layer, x = layer.bfloat16(), x.bfloat16()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low == "autocast"):
        output, _ = compiled(x)
        expected, _ = layer(x)
    assert output.dtype == expected.dtype
    assert torch.equal(output, expected)
