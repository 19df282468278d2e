"""`torch.nn.utils.parametrize.cached()` forms the matrices once for many steps of a cell; `final_state` and `FSRNN` form them
once without it, and nobody else is given what they have formed."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import enrnn
from enrnn import ENRNN, FSRNN, ENRNNCell
from enrnn.layers import _base
from enrnn.layers._base import STRETCH, RecurrentLayer
from tests.conformance._layers import relative_error, rounding, scatter_

STEPS, BATCH, INPUTS, HIDDEN = 6, 4, 3, 8


def sequence() -> Tensor:
    return torch.randn(STEPS, BATCH, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def cell_of(**settings: Any) -> ENRNNCell:
    cell = ENRNNCell(INPUTS, HIDDEN, dtype=torch.float64, **settings)
    scatter_(cell)
    return cell


def streamed(cell: ENRNNCell) -> Tensor:
    h, states = None, []
    for x in sequence():
        h = cell(x, h)
        states.append(h)
    return torch.stack(states)


def formations(module: nn.Module, work: Callable[[], Any]) -> dict[str, int]:
    """How often each matrix was formed during `work`, by the name of its weight."""
    counts: Counter[str] = Counter()

    def counting(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda *_: counts.update([name])

    matrices = {name: chain[0] for name, chain in module.parametrizations.items()}
    handles = [matrix.register_forward_hook(counting(name)) for name, matrix in matrices.items()]
    try:
        work()
    finally:
        for handle in handles:
            handle.remove()
    return dict(counts)


def test_a_cell_forms_its_matrices_at_every_step_and_once_when_cached() -> None:
    cell = cell_of()
    assert formations(cell, lambda: streamed(cell)) == {"weight_long": STEPS, "weight_short": STEPS}
    with parametrize.cached():
        assert formations(cell, lambda: streamed(cell)) == {"weight_long": 1, "weight_short": 1}


@pytest.mark.parametrize("short_size", [0, 3, HIDDEN])
def test_the_states_are_the_same(short_size: int) -> None:
    cell = cell_of(short_size=short_size)
    expected = streamed(cell)
    with parametrize.cached():
        assert torch.equal(streamed(cell), expected)


def test_gradients_flow_through_the_matrices_formed_once() -> None:
    cell = cell_of()
    streamed(cell).square().sum().backward()
    expected = [parameter.grad for parameter in cell.parameters()]
    cell.zero_grad()
    with parametrize.cached():
        streamed(cell).square().sum().backward()
    for parameter, wanted in zip(cell.parameters(), expected, strict=True):
        assert relative_error(parameter.grad, wanted) <= rounding(3 * STEPS, INPUTS + 2 * HIDDEN)


def test_a_changed_parameter_is_seen_in_the_next_block() -> None:
    cell = cell_of()
    with parametrize.cached():
        before = streamed(cell)
    scatter_(cell, seed=1)
    with parametrize.cached():
        after = streamed(cell)
    assert not torch.equal(before, after)
    assert torch.equal(after, streamed(cell))


def test_a_layer_forms_each_matrix_once_for_a_whole_sequence() -> None:
    layer = ENRNN(INPUTS, HIDDEN, num_layers=2, bidirectional=True, dtype=torch.float64)
    counts = formations(layer, lambda: layer(sequence()))
    assert counts == dict.fromkeys(layer.matrices(), 1)
    assert len(counts) == 8


LAYERS: dict[str, Callable[[], Any]] = {
    "enrnn": lambda: ENRNN(INPUTS, HIDDEN, num_layers=2),
    "scornn": lambda: enrnn.build("scornn", INPUTS, HIDDEN),
    "eurnn": lambda: enrnn.build("eurnn", INPUTS, HIDDEN),
    "goru": lambda: enrnn.build("goru", INPUTS, HIDDEN),
    "cgrnn": lambda: enrnn.build("cgrnn", INPUTS, HIDDEN),
    "clockwork": lambda: enrnn.build("clockwork", INPUTS, HIDDEN),
    "bfloat16": lambda: ENRNN(INPUTS, HIDDEN, dtype=torch.bfloat16),
    "nothing to form": lambda: enrnn.build("irnn", INPUTS, HIDDEN),
    "no parameter but the matrix": lambda: ENRNN(INPUTS, INPUTS, short_size=0, bias=False, input_weight="identity"),
}
CELLS: dict[str, Callable[[], nn.Module]] = {
    "ours": lambda: ENRNNCell(HIDDEN, 6),
    "ours in bfloat16": lambda: ENRNNCell(HIDDEN, 6).bfloat16(),
    "torch's": lambda: enrnn.orthogonal(nn.RNNCell(HIDDEN, 6), "weight_hh"),
    "with a layer in it": lambda: Wrapped(),
}

each_layer = pytest.mark.parametrize("name", LAYERS)
each_cell = pytest.mark.parametrize("name", CELLS)


class Wrapped(nn.Module):
    """A user's cell, with what is parametrized further down."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size, self.hidden_size = HIDDEN, 6
        self.step = nn.ModuleDict({"recurrent": enrnn.orthogonal(nn.Linear(6, 6)), "input": nn.Linear(HIDDEN, 6)})

    def forward(self, x: Tensor, h: Tensor | None) -> Tensor:
        new: Tensor = self.step["input"](x)
        return torch.tanh(new if h is None else new + self.step["recurrent"](h))


def input_of(module: nn.Module, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(steps, 2, INPUTS, generator=generator).to(next(module.parameters()).dtype)


def fast_slow(name: str) -> FSRNN:
    torch.manual_seed(0)
    slow = CELLS[name]()
    cells = [nn.GRUCell(INPUTS, HIDDEN), nn.GRUCell(6, HIDDEN)]
    return FSRNN(cells, slow).to(next(slow.parameters()).dtype)


def constrained(module: nn.Module) -> nn.Module:
    """The part of it that has a parametrized weight."""
    return next(part for part in module.modules() if parametrize.is_parametrized(part))


def gradients_elsewhere(module: nn.Module, meanwhile: nn.Module, work: Callable[[], Any]) -> list[Tensor | None]:
    """The gradients that another thread gets of `module` while `work` is in the middle: after a first call of `meanwhile`."""
    found: list[list[Tensor | None]] = []

    def train() -> None:
        with torch.enable_grad():
            loss = module(input_of(module, 3))[0].square().sum()
        found.append(list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)))

    def in_the_middle(*_: object) -> None:
        if not found:
            handle.remove()
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()

    handle = meanwhile.register_forward_hook(in_the_middle)
    work()
    return found[0]


@each_layer
def test_final_state_forms_each_matrix_once(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().eval()
    x = input_of(layer, 2 * STRETCH + 5)
    wanted, tolerance = layer(x)[1], 1e-5 if x.dtype == torch.float32 else 0.02  # between stretches states are rounded to it
    if name != "nothing to form":
        counts = formations(layer, lambda: layer.final_state(x))
        assert counts == dict.fromkeys(layer.matrices(), 1)
    for batch_first in (False, True):
        layer.batch_first = batch_first
        assert torch.allclose(layer.final_state(x.transpose(0, 1) if batch_first else x), wanted, atol=tolerance)


@each_layer
def test_final_state_of_many_sequences_is_found_by_fewer_steps_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().eval()
    x = input_of(layer, 14)
    wanted, tolerance = layer(x)[1], 1e-5 if x.dtype == torch.float32 else 0.02
    monkeypatch.setattr(_base, "AT_ONCE", 1)
    seen: set[int] = set()
    layer.register_forward_pre_hook(lambda module, given: seen.add(given[0].shape[1 if module.batch_first else 0]))
    for batch_first in (False, True):
        layer.batch_first = batch_first
        assert torch.allclose(layer.final_state(x.transpose(0, 1) if batch_first else x), wanted, atol=tolerance)
    assert seen == ({14} if layer.bidirectional else {4, 2}) or type(layer).final_state is not RecurrentLayer.final_state


@each_layer
def test_final_state_takes_no_gradient_from_those_who_cache(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    twin, x = copy.deepcopy(layer), input_of(layer, 5)
    with parametrize.cached():
        output, _ = layer(x, layer.final_state(x))
    output.square().sum().backward()
    twin(x, twin.final_state(x))[0].square().sum().backward()
    for parameter, wanted in zip(layer.parameters(), twin.parameters(), strict=True):
        assert (parameter.grad is None) == (wanted.grad is None)
        assert parameter.grad is None or torch.allclose(parameter.grad, wanted.grad, atol=1e-6)


@each_layer
def test_another_thread_has_its_gradients_during_final_state(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    gradients = gradients_elsewhere(layer, layer, lambda: layer.final_state(input_of(layer, 2 * STRETCH)))
    assert all(gradient is not None for gradient in gradients) or name == "clockwork"  # not all of whose modules were heard


def test_final_state_runs_hooks_and_what_is_pruned() -> None:
    layer = ENRNN(INPUTS, HIDDEN)
    nn.init.uniform_(layer.bias_l0)
    x = input_of(layer, 4)
    prune.random_unstructured(layer, "weight_ih_l0", 0.5)
    nn.utils.parametrizations.weight_norm(layer, "bias_l0", dim=None)
    with torch.no_grad():
        layer.weight_ih_l0_orig.mul_(2)  # from which the weight is made before every call
        layer.parametrizations.bias_l0.original0.add_(1)
    first = layer.final_state(x)
    assert torch.equal(first, layer(x)[1])


@each_cell
def test_fast_slow_networks_form_each_matrix_once(name: str) -> None:
    layer = fast_slow(name)
    part, x = constrained(layer), input_of(layer, STEPS)
    assert set(formations(part, lambda: layer(x)).values()) == {1}
    output, state = layer(x)
    state = None
    for t, step in enumerate(x):
        one, state = layer(step.unsqueeze(0), state)
        assert torch.allclose(one[0], output[t], atol=1e-6)
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert not [name for name, value in vars(part).items() if isinstance(value, Tensor) and value.numel()]


@each_cell
def test_another_thread_has_its_gradients_during_a_fast_slow_networks_evaluation(name: str) -> None:
    layer = fast_slow(name)
    with torch.no_grad():
        gradients = gradients_elsewhere(layer, constrained(layer), lambda: layer(input_of(layer, STEPS)))
    assert all(gradient is not None for gradient in gradients)
