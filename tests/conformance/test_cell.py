"""ENRNNCell: one step of ENRNN, with torch.nn.RNNCell's interface."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from enrnn import ENRNN, ENRNNCell
from tests._record import Recorder
from tests.conformance._layers import relative_error, rounding, scatter_

STEPS, BATCH, INPUTS, HIDDEN = 7, 4, 3, 6
SHORT = [0, 2, HIDDEN]

every_nonlinearity = pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh", "identity"])
bias_or_not = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
every_split = pytest.mark.parametrize("short_size", SHORT)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cell_and_layer(nonlinearity: str, bias: bool, short_size: int) -> tuple[ENRNNCell, ENRNN]:
    """A cell and a layer with the same parameters, which each lists in the same order."""
    cell = ENRNNCell(INPUTS, HIDDEN, bias, nonlinearity, short_size=short_size, dtype=torch.float64)
    layer = ENRNN(INPUTS, HIDDEN, 1, nonlinearity, bias, short_size=short_size, dtype=torch.float64)
    scatter_(cell)
    scatter_(layer)
    pairs = list(zip(cell.parameters(), layer.parameters(), strict=True))
    assert all(torch.equal(*pair) for pair in pairs)
    return cell, layer


@every_split
@bias_or_not
@every_nonlinearity
def test_streaming_step_by_step_equals_the_whole_sequence(
    nonlinearity: str, bias: bool, short_size: int, record: Recorder
) -> None:
    cell, layer = cell_and_layer(nonlinearity, bias, short_size)
    x, hx = normal(STEPS, BATCH, INPUTS), normal(1, BATCH, HIDDEN, seed=2)
    for start in (None, hx):
        h = None if start is None else start[0]
        states = []
        for x_t in x:
            h = cell(x_t, h)
            states.append(h)
        expected, final = layer(x, start)
        error = max(relative_error(torch.stack(states), expected), relative_error(states[-1], final[0]))
        record(cases=1, worst_relative_error=error)
        assert error <= rounding(STEPS, INPUTS + HIDDEN)


@every_nonlinearity
def test_streaming_gives_the_gradients_of_the_whole_sequence(nonlinearity: str, record: Recorder) -> None:
    cell, layer = cell_and_layer(nonlinearity, True, 2)
    x, weights = normal(STEPS, BATCH, INPUTS), normal(STEPS, BATCH, HIDDEN, seed=2)
    h, loss = None, torch.zeros((), dtype=torch.float64)
    for x_t, weight in zip(x, weights, strict=True):
        h = cell(x_t, h)
        loss = loss + (h * weight).sum()
    loss.backward()
    (layer(x)[0] * weights).sum().backward()
    for ours, expected in zip(cell.parameters(), layer.parameters(), strict=True):
        assert ours.grad is not None
        assert expected.grad is not None
        error = relative_error(ours.grad, expected.grad)
        record(cases=1, worst_relative_error=error)
        # Forwards, back, and once more through the matrices' own derivatives.
        assert error <= rounding(3 * STEPS, INPUTS + 2 * HIDDEN)


@every_nonlinearity
@pytest.mark.parametrize("given_hx", [False, True], ids=["no hx", "hx"])
def test_one_vector_is_a_batch_of_one(nonlinearity: str, given_hx: bool) -> None:
    cell, _ = cell_and_layer(nonlinearity, True, 2)
    x, h = normal(INPUTS), normal(HIDDEN, seed=2) if given_hx else None
    alone = cell(x, h)
    assert alone.shape == (HIDDEN,)
    assert torch.equal(alone, cell(x.unsqueeze(0), None if h is None else h.unsqueeze(0))[0])


@every_nonlinearity
def test_no_hx_is_the_zero_state(nonlinearity: str) -> None:
    cell, _ = cell_and_layer(nonlinearity, True, 2)
    x = normal(BATCH, INPUTS)
    assert torch.equal(cell(x), cell(x, torch.zeros(BATCH, HIDDEN, dtype=torch.float64)))


def test_an_empty_batch_has_empty_states() -> None:
    cell, _ = cell_and_layer("modrelu", True, 2)
    assert cell(normal(0, INPUTS)).shape == (0, HIDDEN)
    assert cell(normal(0, INPUTS), normal(0, HIDDEN)).shape == (0, HIDDEN)


@every_split
@bias_or_not
@pytest.mark.parametrize("given_hx", [False, True], ids=["no hx", "hx"])
@pytest.mark.parametrize("batched", [False, True], ids=["1-D", "2-D"])
@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_a_cell_equals_nn_rnn_cell(
    nonlinearity: str, batched: bool, given_hx: bool, bias: bool, short_size: int, record: Recorder
) -> None:
    cell, _ = cell_and_layer(nonlinearity, bias, short_size)
    theirs = nn.RNNCell(INPUTS, HIDDEN, bias, nonlinearity, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_hh.copy_(cell.recurrent_weight())
        theirs.weight_ih.copy_(cell.weight_ih)
        if bias:
            theirs.bias_ih.copy_(bias_of(cell))
            theirs.bias_hh.zero_()
    x = normal(*([BATCH] if batched else []), INPUTS).requires_grad_()
    h = normal(*([BATCH] if batched else []), HIDDEN, seed=2).requires_grad_() if given_hx else None

    ours, expected = cell(x, h), theirs(x, h)
    pairs = [(ours, expected)]
    sources = [x] if h is None else [x, h]
    weights = normal(*expected.shape, seed=3)
    pairs += zip(
        torch.autograd.grad((ours * weights).sum(), sources, retain_graph=True),
        torch.autograd.grad((expected * weights).sum(), sources, retain_graph=True),
        strict=True,
    )
    (ours * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs.append((cell.weight_ih.grad, theirs.weight_ih.grad))
    if bias:
        pairs.append((bias_of(cell).grad, theirs.bias_ih.grad))
    error = max(relative_error(*pair) for pair in pairs)
    record(cases=1, worst_relative_error=error)
    assert error <= rounding(2, INPUTS + HIDDEN)


def bias_of(cell: ENRNNCell) -> nn.Parameter:
    (bias,) = [parameter for parameter in cell.parameters() if parameter.dim() == 1]
    return bias
