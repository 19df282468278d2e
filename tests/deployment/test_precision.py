"""Below float32, parameters and activations are rounded; the recurrent matrices and the states are not."""

from __future__ import annotations

import copy

import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from enrnn import ENRNN, ENRNNCell
from enrnn.functional import long_short_recurrence
from tests._record import Recorder
from tests.conformance._layers import scatter_, short_matrices

FLOAT32 = torch.finfo(torch.float32)
LOW = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
STEPS, BATCH, INPUTS, HIDDEN, SHORT = 6, 4, 3, 40, 16


def sequence(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(STEPS, BATCH, INPUTS, generator=torch.Generator().manual_seed(1)).to(dtype)


def layer_of(nonlinearity: str = "modrelu", dtype: torch.dtype = torch.float32) -> ENRNN:
    layer = ENRNN(INPUTS, HIDDEN, nonlinearity=nonlinearity, short_size=SHORT, dtype=dtype)
    scatter_(layer)
    return layer


def layer_that_lets_no_error_grow(nonlinearity: str) -> ENRNN:
    """‖W‖ = 1 and σ is 1-Lipschitz, as modReLU is where its bias is not positive (it jumps at zero otherwise)."""
    layer = ENRNN(INPUTS, HIDDEN, nonlinearity=nonlinearity, short_size=SHORT, coupling=False)
    scatter_(layer)
    with torch.no_grad():
        layer.bias_l0.copy_(-layer.bias_l0.abs())
        for T in short_matrices(layer):
            T.copy_(2 * torch.linalg.qr(T).Q)
    assert torch.linalg.matrix_norm(layer.recurrent_weight(), 2) < 1 + 100 * FLOAT32.eps
    return layer


def states_in_float32(layer: ENRNN, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`U x` (and the bias added to it) in `dtype`, and everything after that in float32."""
    threshold, added = (layer.bias_l0.float(), None) if layer.nonlinearity == "modrelu" else (None, layer.bias_l0.to(dtype))
    inputs = F.linear(x.to(dtype), layer.weight_ih_l0.to(dtype), added).float()
    q = layer.long_size
    W = layer.recurrent_weight()
    initial = torch.zeros(x.shape[1], layer.hidden_size)
    blocks = (W[:q, :q], W[:q, q:], W[q:, q:])
    return long_short_recurrence(inputs, *blocks, threshold, initial, layer.nonlinearity)


def orthogonality_error(matrix: Tensor) -> float:
    exact = matrix.detach().double()
    return float((exact.mT @ exact - torch.eye(exact.shape[0])).abs().max())


def excess_of_radius(matrix: Tensor) -> tuple[float, float]:
    """ρ − 1, and how far a rounding of every entry of the matrix to float32 can move ρ, to first order."""
    exact = matrix.detach().double().numpy()
    eigenvalues, left, right = scipy.linalg.eig(exact, left=True)
    k = abs(eigenvalues).argmax()
    u, v = right[:, k], left[:, k]
    sensitivity = abs(v) @ abs(exact) @ abs(u) / abs(v.conj() @ u)
    return float(abs(eigenvalues[k]) - 1), float(sensitivity * FLOAT32.eps)


def assert_matrices_are_float32(layer: ENRNN, whole: Tensor, record: Recorder) -> None:
    assert whole.dtype == torch.float32
    W_L, W_S = whole[: layer.long_size, : layer.long_size], whole[layer.long_size :, layer.long_size :]
    error = orthogonality_error(W_L)
    # Each entry is off by half a rounding of its own, and each column of |W| has length 1.
    assert error <= 1.01 * FLOAT32.eps
    excess, allowed = excess_of_radius(W_S)
    assert abs(excess) <= allowed
    record(cases=1, worst_orthogonality_error=error)


@LOW
@pytest.mark.parametrize("made", ["cast", "built"])
def test_a_low_precision_layer_forms_its_matrices_in_float32(dtype: torch.dtype, made: str, record: Recorder) -> None:
    layer = layer_of(dtype=dtype) if made == "built" else layer_of().to(dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert layer.weight_long_l0.dtype == dtype  # as an attribute it is what the other weights are
    assert_matrices_are_float32(layer, layer.recurrent_weight(), record)


def rounding_of_inputs(layer: ENRNN, x: Tensor, roundings: int, dtype: torch.dtype) -> float:
    """How far states may move when every product in `U x` is rounded `roundings` times: errors add up over the steps."""
    unit = torch.finfo(dtype).eps / 2
    projected = x.double().abs() @ layer.weight_ih_l0.detach().double().abs().mT
    if layer.nonlinearity != "modrelu":
        projected = projected + layer.bias_l0.detach().double().abs()  # it is added in the same product
    return float(len(x) * ((1 + unit) ** roundings - 1) * torch.linalg.vector_norm(projected, dim=-1).max())


@LOW
@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh"])
def test_it_rounds_the_products_with_the_input_and_what_it_hands_out(dtype: torch.dtype, nonlinearity: str) -> None:
    layer = layer_of(nonlinearity).to(dtype)
    x = sequence(dtype)
    output, final = layer(x)
    expected = states_in_float32(layer, x, dtype)
    assert torch.equal(output, expected.to(dtype))
    assert torch.equal(final[0], expected[-1].to(dtype))
    output.float().square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == dtype
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@LOW
@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh"])
def test_its_states_are_near_those_of_float32(dtype: torch.dtype, nonlinearity: str, record: Recorder) -> None:
    layer = layer_that_lets_no_error_grow(nonlinearity).to(dtype)
    exact = copy.deepcopy(layer).float()  # the same rounded parameters
    x = sequence(dtype)
    expected, _ = exact(x.float())
    error = torch.linalg.vector_norm(layer(x)[0].double() - expected.double(), dim=-1).max().item()
    # U x is rounded once, and the states once more when they are handed out.
    allowed = rounding_of_inputs(exact, x, 1, dtype) + torch.finfo(dtype).eps / 2 * expected.norm(dim=-1).max().item()
    record(cases=1, worst_fraction_of_bound=error / allowed)
    assert 0 < error <= allowed


@LOW
def test_a_low_precision_cell_works_likewise(dtype: torch.dtype) -> None:
    cell = ENRNNCell(INPUTS, HIDDEN, short_size=SHORT).to(dtype)
    h = cell(sequence(dtype)[0])
    assert h.dtype == dtype
    assert cell(sequence(dtype)[1], h).dtype == dtype
    assert cell.recurrent_weight().dtype == torch.float32
    assert orthogonality_error(cell.recurrent_weight()[: HIDDEN - SHORT, : HIDDEN - SHORT]) <= 1.01 * FLOAT32.eps


def test_a_float64_layer_forms_its_matrices_in_float64(record: Recorder) -> None:
    layer = layer_of(dtype=torch.float64)
    whole = layer.recurrent_weight()
    assert whole.dtype == torch.float64
    error = orthogonality_error(whole[: layer.long_size, : layer.long_size])
    record(cases=1, worst_orthogonality_error_in_float64=error)
    assert error <= 8 * layer.long_size * torch.finfo(torch.float64).eps


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_autocast_leaves_the_matrices_in_float32(record: Recorder) -> None:
    layer = layer_of()
    expected = layer.recurrent_weight()
    with autocast():
        whole = layer.recurrent_weight()
    assert_matrices_are_float32(layer, whole, record)
    assert torch.equal(whole, expected)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh"])
def test_under_autocast_only_the_products_with_the_input_are_rounded(nonlinearity: str) -> None:
    layer = layer_of(nonlinearity)
    with autocast():
        output, final = layer(sequence())
    assert output.dtype == final.dtype == torch.float32
    assert torch.equal(output, states_in_float32(layer, sequence(), torch.bfloat16))
    assert torch.equal(final[0], output[-1])


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh"])
def test_states_under_autocast_are_near_those_of_float32(nonlinearity: str, record: Recorder) -> None:
    layer = layer_that_lets_no_error_grow(nonlinearity)
    x = sequence()
    expected, _ = layer(x)
    with autocast():
        output, _ = layer(x)
    error = torch.linalg.vector_norm(output.double() - expected.double(), dim=-1).max().item()
    # U, x and their product are each rounded to bfloat16.
    allowed = rounding_of_inputs(layer, x, 3, torch.bfloat16)
    record(cases=1, worst_fraction_of_bound=error / allowed)
    assert 0 < error <= allowed


def test_gradients_under_autocast_are_those_of_float32_up_to_bfloat16(record: Recorder) -> None:
    layer = layer_of("tanh")
    gradients = []
    for context in (autocast(), torch.autocast("cpu", enabled=False)):
        layer.zero_grad()
        with context:
            output, _ = layer(sequence())
            loss = output.square().sum()
        loss.backward()
        assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
        gradients.append(torch.cat([parameter.grad.flatten().double() for parameter in layer.parameters()]))
    rounded, exact = gradients
    error = ((rounded - exact).norm() / exact.norm()).item()
    record(worst_relative_error_of_gradient=error)
    # A gradient is a product of dz and h: each carries the roundings of U, x and U x, one step after the other.
    assert 0 < error <= 2 * 3 * STEPS * torch.finfo(torch.bfloat16).eps / 2


def test_autocast_takes_input_of_either_dtype_in_every_layer_of_a_stack() -> None:
    layer = ENRNN(INPUTS, HIDDEN, num_layers=2, dropout=0.5, bidirectional=True)
    for dtype in (torch.float32, torch.bfloat16):
        with autocast():
            output, final = layer(sequence(dtype), torch.zeros(4, BATCH, HIDDEN, dtype=dtype))
        assert output.dtype == final.dtype == torch.float32
        output.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_the_identity_input_is_not_rounded_by_autocast() -> None:
    layer = ENRNN(8, 8, input_weight="identity")
    x = torch.randn(5, 4, 8)
    with autocast():
        output, _ = layer(x)
    assert torch.equal(output, layer(x)[0])


def test_a_cell_under_autocast_keeps_float32_states() -> None:
    cell = ENRNNCell(INPUTS, HIDDEN)
    with autocast():
        h = cell(sequence()[0])
        again = cell(sequence()[1], h)
    assert h.dtype == again.dtype == torch.float32


def test_a_stack_with_torch_layers_runs_under_autocast() -> None:
    first, second = nn.Linear(INPUTS, 8), ENRNN(8, 8)
    with autocast():
        output, _ = second(first(sequence()))
    output.sum().backward()
    assert first.weight.grad is not None
    assert first.weight.grad.isfinite().all()
