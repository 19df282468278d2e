"""`torch.nn.utils.parametrize.cached()` forms the matrices once for many steps of a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from enrnn import ENRNN, ENRNNCell
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


def formations(module: ENRNN | ENRNNCell, work: Callable[[], Any]) -> dict[str, int]:
    """How often each matrix was formed during `work`, by the name of its weight."""
    counts: Counter[str] = Counter()

    def counting(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda *_: counts.update([name])

    handles = [matrix.register_forward_hook(counting(name)) for name, matrix in module.matrices().items()]
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
