"""How parameters start: §4 of the paper, and the authors' code where the paper is silent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from enrnn import ENRNN, Cayley, EigenvalueNormalized, ENRNNCell
from tests._record import Recorder
from tests.laws._training import exact, original

DTYPES = {"float32": torch.float32, "float64": torch.float64}
SEEDS = integers(0, 2**32 - 1)
# A fixed seed makes the outcome certain; a correct sampler fails at this level for one seed in a thousand.
SIGNIFICANCE = 1e-3


def is_uniform(sample: np.ndarray, low: float, high: float) -> float:
    return float(scipy.stats.kstest(sample, scipy.stats.uniform(low, high - low).cdf).pvalue)


def initialized(matrix: Cayley | EigenvalueNormalized, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    free = torch.full((size, size), math.nan, dtype=dtype)
    matrix.initialize_(free)
    return free


def block_mask(size: int) -> np.ndarray:
    blocks = [np.ones((2, 2))] * (size // 2) + [np.ones((1, 1))] * (size % 2)
    return scipy.linalg.block_diag(*blocks).astype(bool)


@given(size=integers(1, 33), dtype=sampled_from(sorted(DTYPES)), seed=SEEDS)
def test_T_is_made_of_scaled_rotations(record: Recorder, size: int, dtype: str, seed: int) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    T = exact(initialized(EigenvalueNormalized(), size, DTYPES[dtype], seed))
    assert not T[~block_mask(size)].any()
    expected = []
    for j in range(0, size - 1, 2):
        (a, minus_b), (b, d) = T[j : j + 2, j : j + 2]
        assert a == d
        assert minus_b == -b
        gamma, t = math.copysign(math.hypot(a, b), a), math.atan2(abs(b), abs(a))
        assert abs(gamma) <= 1 + 2 * eps
        assert 0 <= t <= math.pi / 2
        # With t in the first quadrant the sine has the sign of γ.
        assert a * b >= 0
        expected += [gamma * np.exp(1j * t), gamma * np.exp(-1j * t)]
    if size % 2:
        assert abs(T[-1, -1]) <= 1
        expected.append(T[-1, -1])
    values = np.linalg.eigvals(T)
    distance = np.abs(values[:, None] - np.array(expected)).min(axis=1).max()
    record(cases=1)
    # A normal matrix: eigenvalues have condition 1. Both sides are computed in float64 from the same T.
    assert distance <= 8 * size * np.finfo(np.float64).eps


def test_moduli_and_angles_of_T_are_uniform(record: Recorder) -> None:
    T = exact(initialized(EigenvalueNormalized(), 4001, torch.float64, 0))
    a, b = np.diag(T)[:-1:2], np.diag(T, -1)[::2]
    gamma, t = np.copysign(np.hypot(a, b), a), np.arctan2(np.abs(b), np.abs(a))
    record(p_moduli=is_uniform(gamma, -1, 1), p_angles=is_uniform(t, 0, math.pi / 2))
    assert is_uniform(gamma, -1, 1) > SIGNIFICANCE
    assert is_uniform(t, 0, math.pi / 2) > SIGNIFICANCE
    assert abs(scipy.stats.spearmanr(gamma, t).statistic) < 4 / math.sqrt(len(t))
    # The test can tell: a uniform distribution on the disc, which the paper speaks of, has |γ|² uniform and not |γ|.
    assert is_uniform(np.abs(gamma), 0, 1) > SIGNIFICANCE
    assert is_uniform(gamma**2, 0, 1) < 1e-12


def test_the_single_block_of_an_odd_size_is_uniform() -> None:
    last = [exact(initialized(EigenvalueNormalized(), 3, torch.float64, seed))[-1, -1] for seed in range(400)]
    assert is_uniform(np.array(last), -1, 1) > SIGNIFICANCE


@given(size=integers(1, 33), dtype=sampled_from(sorted(DTYPES)), seed=SEEDS)
def test_A_gives_rotations_by_angles_in_the_first_quadrant(record: Recorder, size: int, dtype: str, seed: int) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    negative_ones = seed % (size + 1)
    matrix = Cayley(negative_ones=negative_ones)
    P = initialized(matrix, size, DTYPES[dtype], seed)
    W = exact(matrix(P))
    D = np.array([1.0] * (size - negative_ones) + [-1.0] * negative_ones)
    rotation = W * D
    assert not rotation[~block_mask(size)].any()
    for j in range(0, size - 1, 2):
        t = 2 * math.atan(float(P[j, j + 1]))
        assert 0 <= t <= math.pi / 2 + 2 * eps
        turned = np.array([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])
        error = np.abs(rotation[j : j + 2, j : j + 2] - turned).max()
        record(cases=1, worst_error_in_eps=error / eps)
        assert error <= 4 * eps
    if size % 2:
        assert rotation[-1, -1] == 1


def test_the_angles_of_A_are_uniform() -> None:
    P = exact(initialized(Cayley(), 4001, torch.float64, 0))
    upper = np.diag(P, 1)
    assert not upper[1::2].any()
    assert is_uniform(2 * np.arctan(upper[::2]), 0, math.pi / 2) > SIGNIFICANCE


def test_the_cayley_transform_of_one_block_is_the_rotation_of_the_paper() -> None:
    for t in np.linspace(0, math.pi / 2, 50):
        A = torch.tensor([[0.0, math.tan(t / 2)], [-math.tan(t / 2), 0.0]], dtype=torch.float64)
        expected = np.array([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])
        assert np.abs(exact(Cayley(negative_ones=0)(A)) - expected).max() <= 4 * np.finfo(np.float64).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_input_weight_is_small_and_the_bias_zero(dtype: str) -> None:
    torch.manual_seed(0)
    layer = ENRNN(20, 200, num_layers=2, bidirectional=True, dtype=DTYPES[dtype])
    for suffix in ("l0", "l0_reverse", "l1", "l1_reverse"):
        U = exact(getattr(layer, f"weight_ih_{suffix}")).ravel()
        assert np.abs(U).max() <= 0.01
        assert is_uniform(U, -0.01, 0.01) > SIGNIFICANCE
        assert not getattr(layer, f"bias_{suffix}").any()


def test_an_identity_input_weight_is_the_identity_and_not_trained() -> None:
    layer = ENRNN(6, 6, input_weight="identity")
    assert torch.equal(layer.weight_ih_l0, torch.eye(6))
    assert "weight_ih_l0" not in dict(layer.named_parameters())


@pytest.mark.parametrize(("q", "s"), [(96, 64), (30, 70), (1, 50)])
def test_the_coupling_is_glorot_uniform(q: int, s: int) -> None:
    torch.manual_seed(0)
    layer = ENRNN(2, q + s, short_size=s, dtype=torch.float64)
    W_C = exact(layer.weight_coupling_l0)
    bound = math.sqrt(6 / (q + s))
    assert W_C.shape == (q, s)
    assert np.abs(W_C).max() <= bound
    assert is_uniform(W_C.ravel(), -bound, bound) > SIGNIFICANCE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q", "s"), [(31, 72), (72, 31), (9, 9), (1, 5), (5, 1)])
def test_a_truncated_orthogonal_coupling_has_orthonormal_rows_or_columns(q: int, s: int, dtype: str) -> None:
    torch.manual_seed(0)
    layer = ENRNN(2, q + s, short_size=s, coupling_init="truncated_orthogonal", dtype=DTYPES[dtype])
    W_C = exact(layer.weight_coupling_l0)
    gram = W_C @ W_C.T if q <= s else W_C.T @ W_C
    assert np.abs(gram - np.eye(min(q, s))).max() <= 8 * max(q, s) * torch.finfo(DTYPES[dtype]).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_truncated_orthogonal_coupling_can_be_drawn_in_half_precision(dtype: torch.dtype) -> None:
    layer = ENRNN(2, 12, short_size=5, coupling_init="truncated_orthogonal", dtype=dtype)
    W_C = layer.weight_coupling_l0.detach().double()
    assert layer.weight_coupling_l0.dtype == dtype
    assert (W_C.mT @ W_C - torch.eye(5)).abs().max() <= 8 * torch.finfo(dtype).eps


def test_two_draws_differ_and_one_seed_gives_one_layer() -> None:
    torch.manual_seed(3)
    first, second = ENRNN(2, 10), ENRNN(2, 10)
    torch.manual_seed(3)
    again = ENRNN(2, 10)
    for name in ("weight_ih_l0", "weight_long_l0", "weight_short_l0", "weight_coupling_l0"):
        assert not torch.equal(getattr(first, name), getattr(second, name))
        assert torch.equal(getattr(first, name), getattr(again, name))
    before = {name: p.detach().clone() for name, p in first.named_parameters()}
    first.reset_parameters()
    assert all("bias" in name or not torch.equal(before[name], p) for name, p in first.named_parameters())


def test_a_cell_starts_as_a_layer_does() -> None:
    torch.manual_seed(0)
    cell = ENRNNCell(3, 20)
    torch.manual_seed(0)
    layer = ENRNN(3, 20)
    assert torch.equal(cell.recurrent_weight(), layer.recurrent_weight())
    assert torch.equal(cell.weight_ih, layer.weight_ih_l0)


def test_the_state_starts_at_zero() -> None:
    torch.manual_seed(0)
    layer = ENRNN(2, 8)
    x = torch.randn(3, 2, 2)
    assert torch.equal(layer(x)[0], layer(x, torch.zeros(1, 2, 8))[0])
    assert "h0" not in " ".join(dict(layer.named_parameters()))
    assert original(layer, "weight_long_l0").requires_grad
