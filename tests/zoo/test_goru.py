"""GORU, a step of its own: the paper's equations, torch.nn.GRU's interface, its start, its constraint, its copies."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import enrnn
from enrnn import GORU
from tests._record import Recorder
from tests.zoo._zoo import DTYPES, orthogonality, train


def drawn(**options: object) -> GORU:
    torch.manual_seed(0)
    layer = GORU(3, 8, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "original" not in name:
                parameter.normal_().mul_(0.5)
    return layer


def plain(layer: GORU, x: Tensor, h: Tensor, suffix: str = "_l0") -> Tensor:
    """The equations, a gate at a time."""
    U_r, U_z, U_c = getattr(layer, f"weight_ih{suffix}").chunk(3)
    W_r, W_z = getattr(layer, f"weight_gates{suffix}").chunk(2)
    b_r, b_z, b_c = getattr(layer, f"bias{suffix}").chunk(3)
    Q = getattr(layer, f"weight_hh{suffix}")
    states = []
    for t in range(len(x)):
        r = 1 / (1 + torch.exp(-(h @ W_r.T + x[t] @ U_r.T + b_r)))
        z = 1 / (1 + torch.exp(-(h @ W_z.T + x[t] @ U_z.T + b_z)))
        turned = x[t] @ U_c.T + r * (h @ Q.T)
        c = turned.sign() * torch.relu(turned.abs() + b_c)
        h = z * h + (1 - z) * c
        states.append(h)
    return torch.stack(states)


@pytest.mark.parametrize("options", [{}, {"capacity": 5}, {"style": "fft"}], ids=str)
def test_a_step_is_that_of_the_paper(options: dict[str, object]) -> None:
    layer = drawn(**options)
    x, h = torch.randn(7, 4, 3, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    output, final = layer(x, h.unsqueeze(0))
    expected = plain(layer, x, h)
    assert (output - expected).abs().max() <= 1e-13
    assert torch.equal(final[0], output[-1])
    weights = torch.randn_like(expected)
    parameters = list(layer.parameters())
    ours, theirs = (torch.autograd.grad((states * weights).sum(), parameters) for states in (output, expected))
    for mine, papers in zip(ours, theirs, strict=True):
        assert (mine - papers).abs().max() <= 1e-12


def test_the_gradient_is_that_of_finite_differences() -> None:
    layer = drawn(capacity=3)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(*values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(run, parameters, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_layers_directions_and_packing() -> None:
    layer = drawn(num_layers=2, bidirectional=True)
    lengths = [6, 4, 1]
    x = torch.randn(6, 3, 3, dtype=torch.float64)
    hx = torch.randn(4, 3, 8, dtype=torch.float64)
    output, final = layer(pack_padded_sequence(x, torch.tensor(lengths)), hx)
    padded, _ = pad_packed_sequence(output)
    for i, length in enumerate(lengths):
        h = x[:length, i : i + 1]
        for k in range(2):
            forwards = plain(layer, h, hx[2 * k, i : i + 1], f"_l{k}")
            backwards = plain(layer, h.flip(0), hx[2 * k + 1, i : i + 1], f"_l{k}_reverse")
            assert (final[2 * k, i] - forwards[-1, 0]).abs().max() <= 1e-13
            assert (final[2 * k + 1, i] - backwards[-1, 0]).abs().max() <= 1e-13
            h = torch.cat([forwards, backwards.flip(0)], dim=-1)
        assert (padded[:length, i] - h[:, 0]).abs().max() <= 1e-13
    first = drawn(num_layers=2, batch_first=True)
    assert first(torch.randn(3, 5, 3, dtype=torch.float64))[0].shape == (3, 5, 8)
    assert first(torch.randn(5, 3, dtype=torch.float64))[1].shape == (2, 8)


def test_the_shapes_and_errors_are_those_of_torchs_gru() -> None:
    ours, torchs = GORU(3, 8, 2, bidirectional=True), nn.GRU(3, 8, 2, bidirectional=True)
    x = torch.randn(5, 4, 3)
    for mine, theirs in zip(ours(x), torchs(x), strict=True):
        assert mine.shape == theirs.shape
    for wrong in ((torch.randn(5, 4, 2),), (x, torch.zeros(1, 4, 8)), (torch.randn(5),)):
        for layer in (ours, torchs):
            with pytest.raises((ValueError, RuntimeError)):
                layer(*wrong)


@pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu", torch.sin])
def test_without_bias_and_with_another_nonlinearity(nonlinearity: object) -> None:
    layer = drawn(bias=False, nonlinearity=nonlinearity)
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    function = {"tanh": torch.tanh, "modrelu": lambda z: z}.get(nonlinearity, nonlinearity)
    h = torch.zeros(2, 8, dtype=torch.float64)
    for t in range(3):
        U_r, U_z, U_c = (x[t] @ U.T for U in layer.weight_ih_l0.chunk(3))
        W_r, W_z = (h @ W.T for W in layer.weight_gates_l0.chunk(2))
        z = torch.sigmoid(W_z + U_z)
        h = z * h + (1 - z) * function(U_c + torch.sigmoid(W_r + U_r) * (h @ layer.weight_hh_l0.T))
    assert (layer(x)[0][-1] - h).abs().max() <= 1e-13
    biased = drawn(nonlinearity="relu")
    with torch.no_grad():
        biased.bias_l0[16:] = 5.0
    assert (biased(x)[0][0] - (1 - torch.sigmoid(x[0] @ biased.weight_ih_l0[8:16].T + biased.bias_l0[8:16])) * torch.relu(
        x[0] @ biased.weight_ih_l0[16:].T + 5.0
    )).abs().max() <= 1e-13  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"capacity": 8}, {"style": "fft"}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_matrix_stays_orthogonal_over_fifty_steps(record: Recorder, dtype: str, options: dict[str, object]) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    torch.manual_seed(0)
    layer = GORU(3, 8, dtype=DTYPES[dtype], **options)
    start = layer.recurrent_weight().detach().clone()
    assert layer.constraint_error() <= 8 * 8 * eps
    losses = train(layer, 50)
    record(cases=1, worst_error_in_eps=layer.constraint_error() / eps)
    assert orthogonality(layer.recurrent_weight()) <= 8 * 8 * eps
    assert (layer.recurrent_weight() - start).abs().max() > 0.05
    assert losses[-1] < 0.95 * losses[0]


def test_the_counts_of_the_paper() -> None:
    for n, k in ((4, 2), (16, 4)):
        for m in (1, 5):
            rest = 2 * n * n + 3 * m * n + 3 * n
            assert GORU(m, n, style="fft").num_free_parameters() == rest + n // 2 * k
            assert GORU(m, n, capacity=6).num_free_parameters() == rest + 3 * (n - 1)


def test_where_it_starts() -> None:
    torch.manual_seed(0)
    n = 400
    layer = GORU(2, n)
    reset, update, candidate = layer.bias_l0.detach().chunk(3)
    assert (reset == 2).all()
    assert (candidate == 0.01).all()
    assert 0.9 * math.sqrt(3 / n) < update.abs().max() <= math.sqrt(3 / n)
    for weight in (layer.weight_ih_l0, layer.weight_gates_l0):
        assert 0.0095 < weight.abs().max() <= 0.01
    (angles,) = layer._originals("weight_hh_l0")
    assert 0.97 * math.pi < angles.abs().max() <= math.pi


def test_a_state_dict_a_copy_and_half_precision() -> None:
    layer = enrnn.build("goru", 3, 8)
    train(layer, 3)
    x = torch.randn(4, 2, 3)
    other = GORU(3, 8)
    other.load_state_dict(layer.state_dict())
    twin = copy.deepcopy(layer)
    for same in (other, twin):
        assert torch.equal(same(x)[0], layer(x)[0])
    train(twin, 2)
    assert torch.equal(other(x)[0], layer(x)[0])
    assert layer.to(torch.bfloat16)(x.bfloat16())[0].dtype == torch.bfloat16
    assert layer.constraint_error() <= 80 * torch.finfo(torch.float32).eps
    assert layer.backend_used == "gated"


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="hidden_size must be a power of two for style='fft', got: 12"):
        GORU(2, 12, style="fft")
    with pytest.raises(ValueError, match="GORU has a step of its own: backend must be 'auto' or 'reference', got: 'cuda'"):
        GORU(2, 8, backend="cuda")
    with pytest.raises(ValueError, match="capacity has no effect"):
        GORU(2, 8, style="fft", capacity=3)
    with pytest.raises(TypeError, match="has no argument 'input_weight'"):
        GORU(2, 8, input_weight="identity")
    with pytest.raises(TypeError, match="hidden_size should be of type int"):
        GORU(2, 8.5, style="fft")
