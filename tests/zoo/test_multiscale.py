"""Networks of several time scales, against step loops written down once more in numpy: Clockwork, HM-RNN, Fast-Slow."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import enrnn
from enrnn import FSLSTM, FSRNN, HMRNN, BlockTriangular, ClockworkRNN, ENRNNCell, LayerNormLSTMCell
from tests.zoo._zoo import train

F64 = torch.float64
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "clockwork": lambda **options: ClockworkRNN(3, 10, modules=3, **options),
    "clockwork, odd periods": lambda **options: ClockworkRNN(3, 10, 2, periods=(2, 3, 7), nonlinearity="modrelu", **options),
    "hmrnn": lambda **options: HMRNN(3, 10, **options),
    "hmrnn, normalised, top": lambda **options: HMRNN(3, 10, layer_norm=True, output="top", **options),
    "hmrnn, one layer": lambda **options: HMRNN(3, 10, num_layers=1, **options),
    "fs-lstm-2": lambda **options: FSLSTM(3, 10, slow_size=6, **options),
    "fs-lstm-4": lambda **options: FSLSTM(3, 10, fast=4, slow_size=6, **options),
}

each_layer = pytest.mark.parametrize("name", LAYERS)


def layer_of(name: str, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return LAYERS[name](**options)


def scattered(layer: Any, scale: float = 0.5) -> Any:
    """Away from the start, where biases are zero."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return layer


def arrays(layer: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy().copy() for name, parameter in layer.named_parameters()}


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def slopes_agree(layer: nn.Module, loss: Tensor, value: Callable[[], float], step: float = 1e-6, tolerance: float = 1e-6) -> None:
    """The gradient of `loss` in every parameter, along random directions, against central differences of `value`."""
    gradients = torch.autograd.grad(loss, list(layer.parameters()))
    generator = torch.Generator().manual_seed(1)
    for (name, parameter), gradient in zip(layer.named_parameters(), gradients, strict=True):
        if not parameter.numel():
            continue
        direction = torch.randn(parameter.shape, dtype=F64, generator=generator)
        values = []
        with torch.no_grad():
            for move in (step, -2 * step, step):
                parameter.add_(direction, alpha=move)
                values.append(value())
        slope = (values[0] - values[1]) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=tolerance, abs=tolerance), name


def flat(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [tensor for part in state for tensor in flat(part)]


# Clockwork


def clockwork_loop(layer: ClockworkRNN, x: Tensor, start: int = 0) -> np.ndarray:
    """Module by module, block by block."""
    ends = np.cumsum([0, *layer.sizes])
    blocks = [slice(*pair) for pair in pairwise(ends)]
    W, U, b = (p.detach().numpy() for p in (layer.recurrent_weight(), layer.weight_ih_l0, layer.bias_l0))
    states = []
    for sequence in x.numpy().transpose(1, 0, 2):
        h, kept = np.zeros(layer.hidden_size), []
        for t, value in enumerate(sequence, start):
            new = h.copy()
            for i, period in enumerate(layer.periods):
                if t % period == 0:
                    heard = sum(W[blocks[i], blocks[j]] @ h[blocks[j]] for j in range(i, len(blocks)))
                    new[blocks[i]] = np.tanh(heard + U[blocks[i]] @ value + b[blocks[i]])
            h = new
            kept.append(h)
        states.append(kept)
    return np.array(states).transpose(1, 0, 2)


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("options", [{"modules": 3}, {"periods": (1, 3, 4, 9)}, {"periods": (2, 5)}, {"modules": 1}, {}])
def test_clockwork_modules_are_updated_when_they_are_due(options: dict[str, Any], start: int) -> None:
    torch.manual_seed(0)
    layer = scattered(ClockworkRNN(3, 10, dtype=F64, **options))
    x = torch.randn(20, 2, 3, dtype=F64)
    output, final = layer(x, start=start)
    assert np.abs(output.detach().numpy() - clockwork_loop(layer, x, start)).max() <= 1e-14
    assert torch.equal(final[0], output[-1])
    assert torch.equal(layer.final_state(x, start=start), final)
    for t in range(1, 20):
        parts = zip(*(output[at].split(layer.sizes, 1) for at in (t - 1, t)), strict=True)
        for period, (before, now) in zip(layer.periods, parts, strict=True):
            assert torch.equal(before, now) == ((start + t) % period != 0)


def test_clocks_of_two_calls_at_once_are_two() -> None:
    """The second call begins while the first is at its third step, as another thread's may."""
    torch.manual_seed(0)
    x, seen = torch.randn(9, 2, 3, dtype=F64), []

    def tanh(z: Tensor) -> Tensor:
        seen.append(z)
        if len(seen) == 3:
            others.append(layer(x, start=1)[0])
        return torch.tanh(z)

    others: list[Tensor] = []
    layer = ClockworkRNN(3, 10, modules=3, nonlinearity=tanh, dtype=F64)
    first = layer(x, start=6)[0]
    seen.extend([x] * 3)
    assert torch.equal(first, layer(x, start=6)[0])
    assert torch.equal(others[0], layer(x, start=1)[0])
    assert not torch.equal(others[0], first)


def test_clockwork_with_one_module_is_torchs_rnn() -> None:
    torch.manual_seed(0)
    layer = scattered(ClockworkRNN(3, 10, 2, modules=1, bidirectional=True, dtype=F64))
    twin = nn.RNN(3, 10, 2, bidirectional=True, dtype=F64)
    with torch.no_grad():
        for k in range(2):
            for direction, end in enumerate(("", "_reverse")):
                getattr(twin, f"weight_hh_l{k}{end}").copy_(layer.recurrent_weight(k, direction))
                getattr(twin, f"weight_ih_l{k}{end}").copy_(getattr(layer, f"weight_ih_l{k}{end}"))
                getattr(twin, f"bias_ih_l{k}{end}").copy_(getattr(layer, f"bias_l{k}{end}"))
                getattr(twin, f"bias_hh_l{k}{end}").zero_()
    x, hx = torch.randn(7, 4, 3, dtype=F64), torch.randn(4, 4, 10, dtype=F64)
    packed = pack_padded_sequence(x, torch.tensor([7, 5, 5, 1]))
    for ours, torchs in zip((*layer(x, hx), layer(packed, hx)[0].data), (*twin(x, hx), twin(packed, hx)[0].data), strict=True):
        assert (ours - torchs).abs().max() <= 1e-13


def test_the_backward_clock_starts_where_the_sequence_ends() -> None:
    torch.manual_seed(0)
    both = scattered(ClockworkRNN(3, 10, modules=3, bidirectional=True, dtype=F64))
    one = ClockworkRNN(3, 10, modules=3, dtype=F64)
    with torch.no_grad():
        one.weight_hh_l0 = both.weight_hh_l0_reverse
        one.weight_ih_l0.copy_(both.weight_ih_l0_reverse)
        one.bias_l0.copy_(both.bias_l0_reverse)
    x = torch.randn(6, 2, 3, dtype=F64)
    assert torch.equal(both(x)[0][..., 10:], one(x.flip(0))[0].flip(0))
    output, _ = pad_packed_sequence(both(pack_padded_sequence(x, torch.tensor([6, 4])))[0])
    assert (output[:4, 1, 10:] - one(x[:4, 1:].flip(0))[0].flip(0)[:, 0]).abs().max() <= 1e-15


@pytest.mark.parametrize(("n", "g"), [(12, 3), (12, 4), (12, 1), (12, 12), (350, 7)])
def test_clockworks_matrix_has_the_numbers_of_its_formula(n: int, g: int) -> None:
    m = 5
    layer = ClockworkRNN(m, n, modules=g)
    matrix = n * n * (g + 1) // (2 * g)
    assert layer.num_free_parameters() == matrix + m * n + n
    assert sum(parameter.numel() for parameter in layer.parameters()) == matrix + m * n + n
    assert BlockTriangular(g).free_parameters(n) == matrix
    assert int((layer.recurrent_weight() != 0).sum()) == matrix


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("n", [12, 11])
def test_clockworks_matrix_keeps_its_blocks_in_training(n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = ClockworkRNN(3, n, modules=3, dtype=dtype)
    start = layer.recurrent_weight().detach().clone()
    losses = train(layer, 50)
    W = layer.recurrent_weight().detach()
    block = np.repeat(np.arange(3), layer.sizes)
    below = torch.from_numpy(block[:, None] > block)
    assert layer.constraint_error() == 0
    assert not W[below].any()
    assert ((W - start)[~below] != 0).all()
    assert losses[-1] < losses[0]


def test_a_block_triangle_can_be_assigned_and_its_error_is_what_is_below() -> None:
    M = torch.randn(7, 7, dtype=F64)
    matrix = BlockTriangular(3)
    rows = matrix.right_inverse(M)
    assert [tuple(row.shape) for row in rows] == [(3, 7), (2, 4), (2, 2)]
    W = matrix(*rows)
    assert (matrix.constraint_error(W), matrix.constraint_error(M)) == (0, max(M[3:, :3].abs().max(), M[5:, :5].abs().max()))
    assert torch.equal(W[:3], M[:3])
    with pytest.raises(ValueError, match="8 blocks"):
        BlockTriangular(8).right_inverse(M)


def test_clockwork_starts_normal_and_is_not_baked() -> None:
    torch.manual_seed(0)
    layer = ClockworkRNN(50, 400, modules=8)
    for weight in (layer.weight_ih_l0, layer.recurrent_weight()[layer.recurrent_weight() != 0]):
        assert weight.std().item() == pytest.approx(0.1, rel=0.03)
    assert layer.periods == (1, 2, 4, 8, 16, 32, 64, 128)
    assert ClockworkRNN(3, 100).periods[-1] == 64
    with pytest.raises(ValueError, match="clock"):
        layer.bake()


# HM-RNN


def normal(v: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    n = len(gain)
    centred = v - v.mean()
    assert len(v) == n
    return gain * centred / np.sqrt((centred**2).mean() + 1e-3) + shift


def hm_loop(
    layer: HMRNN, x: Tensor, offsets: dict[Any, float] | None = None
) -> tuple[np.ndarray, dict[Any, tuple[float, float]]]:
    """Outputs [T, B, n], and every boundary with its soft value. With `offsets`, z is the soft value plus a constant, and the
    operations are interpolated: what straight-through gradients are the gradients of."""
    p, n, L = arrays(layer), layer.hidden_size, layer.num_layers
    a = float(layer.slope)
    outputs, found = [], {}
    for index, sequence in enumerate(x.numpy().transpose(1, 0, 2)):
        h, c, z = np.zeros((L, n)), np.zeros((L, n)), np.zeros(L)
        kept = []
        for t, value in enumerate(sequence):
            before_h, before_c, before_z = h.copy(), c.copy(), z.copy()
            for k in range(L):
                top = k == L - 1
                z_below, h_below = (1.0, value) if k == 0 else (z[k - 1], h[k - 1])
                s = p[f"weight_hh_l{k}"] @ before_h[k] + z_below * (p[f"weight_ih_l{k}"] @ h_below) + p[f"bias_l{k}"]
                if not top:
                    s = s + before_z[k] * (p[f"weight_top_l{k}"] @ before_h[k + 1])
                parts = [s[j * n : (j + 1) * n] for j in range(4)]
                if layer.layer_norm:
                    gains, shifts = p[f"gate_gain_l{k}"].reshape(4, n), p[f"gate_shift_l{k}"].reshape(4, n)
                    parts = [normal(*triple) for triple in zip(parts, gains, shifts, strict=True)]
                f, i, o, g = sigmoid(parts[0]), sigmoid(parts[1]), sigmoid(parts[2]), np.tanh(parts[3])

                def shown(cell: np.ndarray, o: np.ndarray = o, k: int = k) -> np.ndarray:
                    if layer.layer_norm:
                        cell = normal(cell, p[f"cell_gain_l{k}"], p[f"cell_shift_l{k}"])
                    return o * np.tanh(cell)

                ended = 0.0 if top else before_z[k]
                if offsets is None:
                    if ended == 1:
                        c[k] = i * g
                        h[k] = shown(c[k])
                    elif z_below == 1:
                        c[k] = f * before_c[k] + i * g
                        h[k] = shown(c[k])
                else:
                    update = z_below * (f * before_c[k] + i * g) + (1 - z_below) * before_c[k]
                    c[k] = ended * i * g + (1 - ended) * update
                    copies = (1 - ended) * (1 - z_below)
                    h[k] = (1 - copies) * shown(c[k]) + copies * before_h[k]
                if not top:
                    soft = min(max((a * s[4 * n] + 1) / 2, 0.0), 1.0)
                    z[k] = float(soft > 0.5) if offsets is None else soft + offsets[t, index, k]
                    found[t, index, k] = (z[k], soft)
            gates = sigmoid(p["weight_gate"] @ h.ravel()) if layer.output == "gated" else None
            embedded = None if gates is None else p["weight_output"] @ (gates[:, None] * h).ravel()
            kept.append(h[-1].copy() if embedded is None else np.maximum(embedded, 0))
        outputs.append(kept)
    return np.array(outputs).transpose(1, 0, 2), found


HM = [
    {"num_layers": 3},
    {"num_layers": 2, "output": "top"},
    {"num_layers": 4, "layer_norm": True},
    {"num_layers": 1, "output": "top", "layer_norm": True},
]


@pytest.mark.parametrize("options", HM)
def test_hmrnn_flushes_updates_and_copies(options: dict[str, Any]) -> None:
    torch.manual_seed(2)
    layer = scattered(HMRNN(3, 6, dtype=F64, **options), 0.4)
    for _ in range(30):
        layer.after_epoch()
    x = 2 * torch.randn(25, 6, 3, dtype=F64)
    expected, boundaries = hm_loop(layer, x)
    output, (h, _, z) = layer(x)
    assert np.abs(output.detach().numpy() - expected).max() <= 1e-13
    assert h.shape == (layer.num_layers, 6, 6)
    assert layer.boundaries.shape == (25, 6, layer.num_layers - 1)
    for (t, index, k), (hard, _) in boundaries.items():
        assert layer.boundaries[t, index, k] == hard
    assert torch.equal(z[:-1, :, 0].T, layer.boundaries[-1])
    if layer.num_layers > 2:  # all three operations occur
        ended, below = layer.boundaries[:-1, :, 1], layer.boundaries[1:, :, 0]
        assert {(float(e), float(b)) for e, b in zip(ended.flatten(), below.flatten(), strict=True)} >= {(1, 0), (0, 1), (0, 0)}


@pytest.mark.parametrize("options", HM)
def test_hmrnns_gradient_is_the_straight_through_one(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = scattered(HMRNN(3, 4, dtype=F64, **options), 0.25)
    layer.slope.fill_(1.3)
    x, weights = torch.randn(7, 2, 3, dtype=F64), torch.randn(7, 2, 4, dtype=F64)
    offsets = {place: hard - soft for place, (hard, soft) in hm_loop(layer, x)[1].items()}
    loss = (layer(x)[0] * weights).sum()
    slopes_agree(layer, loss, lambda: float((hm_loop(layer, x, offsets)[0] * weights.numpy()).sum()))


def test_hmrnn_copies_to_the_bit() -> None:
    torch.manual_seed(0)
    layer = HMRNN(3, 8, output="top")
    with torch.no_grad():
        for k in range(2):
            getattr(layer, f"bias_l{k}")[-1] = -100.0
    x, state = torch.randn(9, 4, 3), tuple(torch.randn(3, 4, n) for n in (8, 8, 1))
    state[2].zero_()
    output, (h, c, z) = layer(x, state)
    assert torch.equal(h[1:], state[0][1:])
    assert torch.equal(c[1:], state[1][1:])
    assert not torch.equal(h[0], state[0][0])
    assert not z.any()
    assert torch.equal(output[3], state[0][2])


def test_hmrnns_weights_need_not_be_parameters() -> None:
    torch.manual_seed(0)
    layer, x = HMRNN(3, 4, dtype=F64), torch.randn(5, 2, 3, dtype=F64)
    wanted = layer(x)[0]
    detached = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    assert torch.equal(torch.func.functional_call(layer, detached, (x,))[0], wanted)
    for name in ("weight_ih_l0", "weight_hh_l1"):
        nn.utils.parametrizations.weight_norm(layer, name)
    assert torch.allclose(layer(x)[0], wanted)
    layer(x)[0].sum().backward()
    assert layer.parametrizations.weight_ih_l0.original0.grad is not None


def test_hmrnn_with_one_layer_is_torchs_lstm() -> None:
    torch.manual_seed(0)
    layer = scattered(HMRNN(3, 8, 1, output="top", dtype=F64))
    twin = nn.LSTM(3, 8, dtype=F64)
    with torch.no_grad():
        twin.bias_hh_l0.zero_()
        for ours, torchs in (("weight_ih", "weight_ih"), ("weight_hh", "weight_hh"), ("bias", "bias_ih")):
            f, i, o, g = getattr(layer, f"{ours}_l0").chunk(4)
            getattr(twin, f"{torchs}_l0").copy_(torch.cat([i, f, g, o]))
    x = torch.randn(9, 4, 3, dtype=F64)
    output, (h, c, _) = layer(x)
    expected, (h_n, c_n) = twin(x)
    for ours, torchs in ((output, expected), (h, h_n), (c, c_n)):
        assert (ours - torchs).abs().max() <= 1e-14


def test_the_slope_rises_with_the_epochs_and_is_saved() -> None:
    layer = HMRNN(3, 4)
    slopes = []
    for _ in range(120):
        slopes.append(float(layer.slope))
        layer.after_epoch()
    assert slopes == pytest.approx([min(5.0, 1 + 0.04 * epoch) for epoch in range(120)], rel=1e-6)
    other = HMRNN(3, 4, slope_rate=0.5, max_slope=2.0)
    other.load_state_dict(HMRNN(3, 4).state_dict() | {"epochs": torch.tensor(1), "slope": torch.tensor(1.5)})
    other.after_epoch()
    assert (int(other.epochs), float(other.slope)) == (2, 2.0)
    other.reset_parameters()
    assert (int(other.epochs), float(other.slope)) == (0, 1.0)


def test_hmrnn_has_the_numbers_of_its_equations() -> None:
    m, n = 128, 512
    layer = HMRNN(m, n)
    bottom, middle, top = (4 * n + 1) * (m + 2 * n + 1), (4 * n + 1) * (3 * n + 1), 4 * n * (2 * n + 1)
    assert sum(p.numel() for p in layer.parameters()) == bottom + middle + top + 3 * 3 * n + 3 * n * n


# Fast-Slow


def ln_lstm(
    p: dict[str, np.ndarray], prefix: str, x: np.ndarray, state: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    h, c = state
    n = len(h)
    sums = p[f"{prefix}weight_ih"] @ x + p[f"{prefix}weight_hh"] @ h + p[f"{prefix}bias"]
    gains, shifts = p[f"{prefix}gate_gain"].reshape(4, n), p[f"{prefix}gate_shift"].reshape(4, n)
    i, f, g, o = (normal(*parts) for parts in zip(sums.reshape(4, n), gains, shifts, strict=True))
    c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(normal(c, p[f"{prefix}cell_gain"], p[f"{prefix}cell_shift"])), c


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize(("zoneout", "cell_zoneout"), [(0.0, 0.0), (0.1, 0.5)])
def test_fs_lstm_is_the_papers(k: int, zoneout: float, cell_zoneout: float) -> None:
    torch.manual_seed(0)
    layer = enrnn.build("fsrnn", 3, 7, fast=k, slow_size=5, zoneout=zoneout, cell_zoneout=cell_zoneout, dropout=0.4, dtype=F64)
    scattered(layer).eval()
    x = torch.randn(8, 2, 3, dtype=F64)
    p = arrays(layer)

    def through(prefix: str, value: np.ndarray, state: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        h, c = ln_lstm(p, prefix, value, state)
        return (1 - zoneout) * h + zoneout * state[0], (1 - cell_zoneout) * c + cell_zoneout * state[1]

    expected = []
    for sequence in x.numpy().transpose(1, 0, 2):
        fast, slow = (np.zeros(7), np.zeros(7)), (np.zeros(5), np.zeros(5))
        kept = []
        for value in sequence:
            fast = through("fast.0.", value, fast)
            slow = through("slow.", fast[0], slow)
            fast = through("fast.1.", slow[0], fast)
            for index in range(2, k):
                fast = through(f"fast.{index}.", np.zeros(0), fast)
            kept.append(fast[0])
        expected.append(kept)
    output, (fast_state, slow_state) = layer(x)
    assert np.abs(output.detach().numpy() - np.array(expected).transpose(1, 0, 2)).max() <= 1e-13
    assert torch.equal(fast_state[0], output[-1])
    assert np.abs(slow_state[1][-1].detach().numpy() - slow[1]).max() <= 1e-13


def test_any_cells_will_do() -> None:
    """Here torch's GRU and an ENRNN, with a third cell that hears nothing, against the equations."""
    torch.manual_seed(0)
    cells = [nn.GRUCell(3, 8, dtype=F64), nn.GRUCell(6, 8, dtype=F64), ENRNNCell(1, 8, dtype=F64)]
    slow = nn.LSTMCell(8, 6, dtype=F64)
    layer = FSRNN(cells, slow)
    assert (layer.input_size, layer.hidden_size, layer.slow_size) == (3, 8, 6)
    x = torch.randn(5, 4, 3, dtype=F64)
    h, slow_state = torch.zeros(4, 8, dtype=F64), None
    expected = []
    for now in x:
        h = cells[0](now, h)
        slow_state = slow(h, slow_state)
        h = cells[1](slow_state[0], h)
        h = cells[2](torch.zeros(4, 1, dtype=F64), h)
        expected.append(h)
    output, (fast_n, slow_n) = layer(x)
    assert (output - torch.stack(expected)).abs().max() <= 1e-14
    assert torch.equal(fast_n, output[-1])
    assert (slow_n[1] - slow_state[1]).abs().max() <= 1e-14
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert {"helfrich2020eigenvalue", "mujika2017fast"} <= {
        line.split("{")[1][:-1] for line in enrnn.citation(layer).split("\n") if "@" in line
    }


def test_fs_lstm_has_as_many_parameters_as_published() -> None:
    def weights(layer: nn.Module) -> int:
        return sum(parameter.numel() for parameter in layer.parameters())

    m, n, s = 128, 700, 400
    two = FSLSTM(m, n, fast=2, slow_size=s, device="meta")

    def norms(units: int) -> int:
        return 4 * units + 2 * 4 * units + 2 * units  # the bias, then gain and shift of the gates and of the cell

    assert weights(two) == 4 * n * (m + n) + 4 * n * (s + n) + 4 * s * (n + s) + 2 * norms(n) + norms(s)
    assert weights(two) / 1e6 == pytest.approx(7.2, abs=0.05)
    four = FSLSTM(m, n, fast=4, slow_size=s, device="meta")
    assert weights(four) - weights(two) == 2 * (4 * n * n + norms(n))


def test_the_normalised_cell_starts_orthogonal_and_remembers() -> None:
    torch.manual_seed(0)
    cell = LayerNormLSTMCell(20, 30, dtype=F64)
    for weight in (cell.weight_ih, cell.weight_hh):
        assert (weight.T @ weight - torch.eye(weight.shape[1], dtype=F64)).abs().max() <= 1e-13
    x, state = torch.randn(2, 20, dtype=F64), (torch.randn(2, 30, dtype=F64), torch.randn(2, 30, dtype=F64))
    p = arrays(scattered(cell))
    for index in range(2):
        expected = ln_lstm(p, "", x[index].numpy(), (state[0][index].numpy(), state[1][index].numpy()))
        for ours, theirs, alone in zip(cell(x, state), expected, cell(x[index], tuple(s[index] for s in state)), strict=True):
            assert np.abs(ours[index].detach().numpy() - theirs).max() <= 1e-13
            assert (ours[index] - alone).abs().max() <= 1e-13
    keeping = LayerNormLSTMCell(20, 30, forget_bias=100.0, dtype=F64)
    with torch.no_grad():
        keeping.gate_gain[:30], keeping.gate_shift[:30] = 0.0, -100.0
    assert (keeping(x, state)[1] - state[1]).abs().max() <= 1e-14


def test_zoneout_keeps_units_in_training_and_averages_afterwards() -> None:
    torch.manual_seed(0)
    layer = FSRNN([nn.LSTMCell(3, 400), nn.LSTMCell(5, 400)], nn.LSTMCell(400, 5), zoneout=0.1, cell_zoneout=0.5)
    plain = FSRNN(layer.fast, layer.slow)
    x = torch.randn(50, 3)
    state = ((torch.randn(50, 400), torch.randn(50, 400)), (torch.randn(50, 5), torch.randn(50, 5)))
    new, zoned = plain._through(layer.fast[0], x, state[0]), layer._through(layer.fast[0], x, state[0])
    for after, cell, before, rate in zip(zoned, new, state[0], (0.1, 0.5), strict=True):
        kept = after == before
        assert ((after == cell) | kept).all()
        assert kept.float().mean().item() == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / kept.numel()))
    frozen = FSRNN(layer.fast, layer.slow, zoneout=1.0, cell_zoneout=1.0)
    for ours, given in zip(flat(frozen(x.unsqueeze(0), state)[1]), flat(state), strict=True):
        assert torch.equal(ours, given)
    torch.manual_seed(1)
    first = layer(x.unsqueeze(0), state)[0]
    assert not torch.equal(layer(x.unsqueeze(0), state)[0], first)
    layer.eval()
    assert torch.equal(layer(x.unsqueeze(0), state)[0], layer(x.unsqueeze(0), state)[0])


def test_dropout_of_everything_leaves_the_state_alone() -> None:
    torch.manual_seed(0)
    layer = FSLSTM(3, 6, slow_size=4, dropout=1.0)
    x = torch.randn(5, 2, 3)
    output, (fast, _) = layer(x)
    assert not output.any()
    silent = FSLSTM(3, 6, slow_size=4)
    silent.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for cell in (*silent.fast, silent.slow):
            cell.weight_ih.zero_()
    assert torch.equal(silent(x)[1][0][0], fast[0])
    assert layer.eval()(x)[0].any()


# What all of them promise


@each_layer
def test_a_sequence_in_two_halves_is_the_whole(name: str) -> None:
    layer = layer_of(name, dtype=F64)
    x = torch.randn(11, 4, 3, dtype=F64)
    whole, final = layer(x)
    first, state = layer(x[:5])
    second, last = layer(x[5:], state, 5) if isinstance(layer, ClockworkRNN) else layer(x[5:], state)
    assert torch.equal(torch.cat([first, second]), whole)
    for ours, theirs in zip(flat(last), flat(final), strict=True):
        assert torch.equal(ours, theirs)


@each_layer
def test_packed_sequences_end_where_they_end(name: str) -> None:
    layer = layer_of(name, dtype=F64)
    lengths = torch.tensor([3, 7, 1, 7])
    x = torch.randn(7, 4, 3, dtype=F64)
    _, state = layer(torch.randn(2, 4, 3, dtype=F64))
    packed, final = layer(pack_padded_sequence(x, lengths, enforce_sorted=False), state)
    output, found = pad_packed_sequence(packed)
    assert torch.equal(found, lengths)
    boundaries = getattr(layer, "boundaries", None)
    batch = 1 if not isinstance(layer, FSRNN) else 0
    for index, length in enumerate(lengths.tolist()):
        own = [part.narrow(batch, index, 1) for part in flat(state)]
        own_state = own[0] if len(own) == 1 else tuple(own) if len(own) == 3 else (tuple(own[:2]), tuple(own[2:]))
        alone, last = layer(x[:length, index : index + 1], own_state)
        assert (output[:length, index] - alone[:, 0]).abs().max() <= 1e-13
        for ours, theirs in zip(flat(final), flat(last), strict=True):
            assert (ours.narrow(batch, index, 1) - theirs).abs().max() <= 1e-13
        if boundaries is not None:
            assert torch.equal(boundaries[:length, index], layer.boundaries[:, 0])
            assert not boundaries[length:, index].any()


@each_layer
def test_shapes_are_those_of_torch(name: str) -> None:
    layer, batch_first = layer_of(name, dtype=F64), layer_of(name, batch_first=True, dtype=F64)
    x = torch.randn(6, 2, 3, dtype=F64)
    output, state = layer(x)
    assert output.shape == (6, 2, 10)
    assert torch.equal(batch_first(x.transpose(0, 1))[0].transpose(0, 1), output)
    if isinstance(layer, HMRNN):
        assert torch.equal(batch_first.boundaries.transpose(0, 1), layer.boundaries)
    alone, final = layer(x[:, 1])
    assert (alone - output[:, 1]).abs().max() <= 1e-13
    again, _ = layer(x[:, 1], final)
    assert again.shape == (6, 10)
    for ours, theirs in zip(flat(final), flat(state), strict=True):
        assert ours.dim() == theirs.dim() - 1


@pytest.mark.parametrize("name", [name for name in LAYERS if "hmrnn" not in name])
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    layer = scattered(layer_of(name, dtype=F64), 0.2)
    x, weights = torch.randn(9, 2, 3, dtype=F64), torch.randn(9, 2, 10, dtype=F64)

    def loss() -> Tensor:
        return (layer(x)[0] * weights).sum()

    slopes_agree(layer, loss(), lambda: float(loss()))


@each_layer
def test_a_state_dict_and_a_copy_are_the_same_network(name: str) -> None:
    layer = layer_of(name)
    losses = train(layer, 20, lr=0.01)
    assert losses[-1] < 0.95 * losses[0]
    x = torch.randn(6, 2, 3)
    other = layer_of(name, seed=1)
    assert not torch.equal(other(x)[0], layer(x)[0])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x)[0], layer(x)[0])
    twin = copy.deepcopy(layer)
    train(twin, 2)
    assert torch.equal(other(x)[0], layer(x)[0])
    assert not torch.equal(twin(x)[0], layer(x)[0])
    empty = layer_of(name, device="meta").to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(x)[0], layer(x)[0])


@each_layer
def test_half_precision_and_autocast(name: str) -> None:
    layer = layer_of(name)
    x = torch.randn(4, 2, 3)
    full = layer(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert (layer(x)[0].float() - full).abs().max() <= 0.1 or isinstance(layer, HMRNN)  # whose boundaries may tip over
    output, state = layer.to(torch.bfloat16)(x.bfloat16())
    assert {output.dtype} | {part.dtype for part in flat(state)} == {torch.bfloat16}
    layer(x.bfloat16(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_layer
def test_it_can_be_made_in_half_precision(name: str, dtype: torch.dtype) -> None:
    layer = layer_of(name, dtype=dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert layer(torch.randn(4, 2, 3, dtype=dtype))[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_lstm_cell_in_half_precision_starts_orthonormal(dtype: torch.dtype) -> None:
    weight = LayerNormLSTMCell(3, 4, dtype=dtype).weight_hh.detach().double()
    assert (weight.mT @ weight - torch.eye(4)).abs().max() <= 8 * torch.finfo(dtype).eps


@each_layer
def test_an_empty_batch_has_empty_outputs(name: str) -> None:
    layer = layer_of(name)
    output, state = layer(torch.zeros(5, 0, 3))
    assert output.shape == (5, 0, 10)
    assert all(part.numel() == 0 for part in flat(state))
    again, _ = layer(torch.zeros(2, 0, 3), state)
    assert again.shape == (2, 0, 10)


def test_an_lstm_cell_takes_an_empty_batch() -> None:
    h, c = LayerNormLSTMCell(3, 4)(torch.zeros(0, 3))
    assert h.shape == c.shape == (0, 4)


def wrong(*arguments: Any, kind: type = HMRNN, **options: Any) -> Callable[[], object]:
    return lambda: kind(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (wrong(3, 10, kind=ClockworkRNN, modules=11), "11 modules need as many units"),
        (wrong(3, 10, kind=ClockworkRNN, modules=0), "modules must be greater than zero"),
        (wrong(3, 10, kind=ClockworkRNN, modules=2, periods=(1, 2)), "modules or periods, not both"),
        (wrong(3, 10, kind=ClockworkRNN, periods=(1, 4, 2)), r"periods must rise .* \(1, 4, 2\)"),
        (wrong(3, 10, kind=ClockworkRNN, periods=(0, 1)), r"periods\[0\] must be greater than zero"),
        (wrong(3, 10, kind=ClockworkRNN, periods=4), "periods should be a list or tuple of ints"),
        (wrong(3, 10, kind=ClockworkRNN, backend="cuda"), "'reference', got: backend='cuda'"),
        (wrong(3, 10, kind=ClockworkRNN, clock=2), "no argument 'clock'"),
        (lambda: ClockworkRNN(3, 10)(torch.zeros(2, 1, 3), None, -1), "start must be .* got: -1"),
        (lambda: ClockworkRNN(3, 10)(torch.zeros(2, 1, 4)), "Expected 3, got 4"),
        (wrong(3, 0), "hidden_size must be greater than zero"),
        (wrong(3, 4, output="all"), "Unknown output 'all'"),
        (wrong(3, 4, max_slope=0.5), "max_slope"),
        (wrong(3, 4, layer_norm=1), "layer_norm should be of type bool"),
        (lambda: HMRNN(3, 4)(torch.zeros(2, 1, 4)), "Expected 3, got 4"),
        (lambda: HMRNN(3, 4)(torch.zeros(0, 1, 3)), "length 0"),
        (lambda: HMRNN(3, 4)(torch.zeros(2, 1, 3, dtype=F64)), "does not match weight dtype"),
        (lambda: HMRNN(3, 4)([1.0]), "input must be a Tensor"),
        (lambda: HMRNN(3, 4)(torch.zeros(2, 1, 3), torch.zeros(3, 1, 4)), "c of hx|three tensors"),
        (lambda: HMRNN(3, 4)(torch.zeros(2, 1, 3), (torch.zeros(3, 1, 4),) * 2), "three tensors"),
        (lambda: HMRNN(3, 4)(torch.zeros(2, 1, 3), (torch.zeros(3, 1, 4),) * 3), r"z of hx .* \[3, 1, 1\], got \[3, 1, 4\]"),
        (wrong([nn.RNNCell(3, 4)], nn.RNNCell(4, 2), kind=FSRNN), "two cells or more"),
        (wrong([nn.RNNCell(3, 4), nn.RNNCell(2, 5)], nn.RNNCell(4, 2), kind=FSRNN), r"fast\[1\].hidden_size is 5"),
        (wrong([nn.RNNCell(3, 4), nn.RNNCell(2, 4)], nn.RNNCell(5, 2), kind=FSRNN), "slow hears the fast state of 4 units"),
        (wrong([nn.RNNCell(3, 4), nn.RNNCell(3, 4)], nn.RNNCell(4, 2), kind=FSRNN), r"fast\[1\] hears the slow state of 2 units"),
        (wrong([nn.RNNCell(3, 4), nn.Linear(2, 4)], nn.RNNCell(4, 2), kind=FSRNN), r"fast\[1\] should be a cell"),
        (wrong(3, 4, kind=FSLSTM, fast=1), "fast must be 2 or more"),
        (wrong(3, 4, kind=FSLSTM, zoneout=1.5), "zoneout"),
        (lambda: FSLSTM(3, 4)(torch.zeros(2, 1, 3), torch.zeros(1, 4)), "the pair of the fast and the slow"),
        (lambda: FSLSTM(3, 4)(torch.zeros(2, 1, 3), (None, None)), "fast state of hx must be .*, got: NoneType"),
        (lambda: FSLSTM(3, 4)(torch.zeros(2, 3), (None, None)), "hx must be .*, got: NoneType"),
        (
            lambda: FSLSTM(3, 4)(torch.zeros(2, 1, 3), ((None, None), None)),
            "fast state of hx .*, got: a tuple of NoneType, NoneType",
        ),
        (lambda: FSLSTM(3, 4)(torch.zeros(2, 1, 3), ((), ())), "fast state of hx .*, got: a tuple of nothing"),
        (lambda: FSLSTM(3, 4)(torch.zeros(2, 2, 3), (torch.zeros(2, 4),) * 2), r"fast state of hx .* \(h, c\) .*, got: Tensor"),
        (
            lambda: FSLSTM(3, 4)(torch.zeros(2, 2, 3), ((torch.zeros(2, 4),),) * 2),
            r"fast state .* \(h, c\) .* a tuple of Tensor$",
        ),
        (
            lambda: FSRNN([nn.RNNCell(3, 4), nn.RNNCell(2, 4)], nn.LSTMCell(4, 2))(
                torch.zeros(2, 2, 3), (torch.zeros(2, 4), torch.zeros(2, 2))
            ),
            r"slow state of hx .* \(h, c\) .*, got: Tensor",
        ),
        (
            lambda: FSRNN([nn.RNNCell(3, 4), nn.RNNCell(2, 4)], ENRNNCell(4, 2))(
                torch.zeros(2, 2, 3), (torch.zeros(2, 4), (torch.zeros(2, 2),) * 2)
            ),
            "slow state of hx must be a Tensor, got: a tuple of Tensor, Tensor",
        ),
        (lambda: LayerNormLSTMCell(3, 4)(torch.zeros(2, 3), torch.zeros(2, 4)), r"hx must be the pair \(h, c\), got: Tensor"),
        (
            lambda: FSLSTM(3, 4)(torch.zeros(2, 1, 3), ((torch.zeros(2, 4),) * 2,) * 2),
            r"fast state of hx .* \[1, 4\], got \[2, 4\]",
        ),
        (lambda: LayerNormLSTMCell(3, 4)(torch.zeros(1, 3), (torch.zeros(1, 4), torch.zeros(1, 5))), r"Expected c .* \[1, 5\]"),
        (wrong("lstm", 3, 4, kind=enrnn.build, init="glorot"), "Unknown init 'glorot'"),
    ],
)
def test_what_is_wrong_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


# torch's own, as the papers compare with them


def test_torchs_networks_start_as_in_the_papers() -> None:
    torch.manual_seed(0)
    m, n = 40, 68
    for name, gates in (("rnn", 1), ("lstm", 4), ("gru", 3)):
        network = enrnn.build(name, m, n, num_layers=2, init="tensorflow")
        for k, inputs in enumerate((m, n)):
            bound = math.sqrt(6 / (inputs + n + gates * n))
            for kind in ("ih", "hh"):
                assert 0.95 * bound < getattr(network, f"weight_{kind}_l{k}").abs().max() <= bound
                assert not getattr(network, f"bias_{kind}_l{k}").any()
        normal_start = enrnn.build(name, m, n, init="xavier_normal")
        assert normal_start.weight_hh_l0.std().item() == pytest.approx(math.sqrt(2 / (n + gates * n)), rel=0.05)
        assert normal_start.weight_ih_l0.std().item() == pytest.approx(math.sqrt(2 / (m + gates * n)), rel=0.05)
        assert normal_start.bias_ih_l0.any()
    for forget_bias in (-4.0, 0.0, 1.0):
        lstm = enrnn.build("lstm", 10, n, init="tensorflow", forget_bias=forget_bias)
        total = lstm.bias_ih_l0 + lstm.bias_hh_l0
        assert total[n : 2 * n].tolist() == [forget_bias] * n
        assert not total[:n].any()
    # 4n(n + m + 1) with one bias to a gate; torch has two
    assert sum(p.numel() for p in lstm.parameters()) == 4 * n * (n + 10 + 1) + 4 * n
