"""What the constraints promise of the recurrent matrix, at the start and wherever training takes the parameters."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from numpy.typing import NDArray

from enrnn import ENRNN, Cayley
from tests._record import Recorder
from tests.laws._training import exact, original, train

DTYPES = {"float32": torch.float32, "float64": torch.float64}
SIZES = range(1, 34)
SAMPLE = (1, 2, 3, 6, 13, 33)
SEEDS = integers(0, 2**32 - 1)
EPS = float(np.finfo(np.float64).eps)


def layers(full: bool, dtype: torch.dtype, when: str) -> list[ENRNN]:
    """Both parts of every size, with another number of negative ones each; `when`: at the start, or after 20 steps."""
    found = []
    for size in SIZES if full else SAMPLE:
        torch.manual_seed(size)
        layer = ENRNN(3, 2 * size, short_size=size, negative_ones=(7 * size) % (size + 1), dtype=dtype)
        if when == "trained":
            train(layer, 20, 0.1, size, torch.optim.Adam if size % 2 else torch.optim.RMSprop)
        found.append(layer)
    return found


def skew(layer: ENRNN) -> NDArray[np.float64]:
    upper = np.triu(exact(original(layer, "weight_long_l0")), 1)
    return upper - upper.T


@pytest.mark.parametrize("when", ["start", "trained"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_long_term_matrix_is_orthogonal(record: Recorder, full: bool, dtype: str, when: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for layer in layers(full, DTYPES[dtype], when):
        W = exact(layer.weight_long_l0)
        size = len(W)
        error = np.abs(W.T @ W - np.eye(size)).max()
        # Solved in float64 with condition κ(I + A) ≤ 1 + ‖A‖, then rounded once: two entries a product, ‖column‖ = 1.
        bound = 2 * eps + 8 * size * EPS * (1 + np.linalg.norm(skew(layer), 2))
        record(cases=1, worst_error_in_eps=error / eps)
        assert error <= bound
        assert layer.matrices()["weight_long_l0"].constraint_error(layer.weight_long_l0).item() == pytest.approx(error)


def test_an_orthogonal_start_alone_does_not_last(full: bool) -> None:
    """The parametrization has work to do: a free matrix is far from orthogonal after the same steps."""
    for layer in layers(full, torch.float64, "start"):
        torch.nn.utils.parametrize.remove_parametrizations(layer, "weight_long_l0")
        train(layer, 20, 0.1, 0)
        W = exact(layer.weight_long_l0)
        assert np.abs(W.T @ W - np.eye(len(W))).max() > 1e-3


@pytest.mark.parametrize("when", ["start", "trained"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_short_term_matrix_has_spectral_radius_at_most_one(record: Recorder, full: bool, dtype: str, when: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    normalised = 0
    found = layers(full, DTYPES[dtype], when)
    for layer in found:
        W = exact(layer.weight_short_l0)
        values, lefts, rights = scipy.linalg.eig(W, left=True, right=True)
        # LAPACK's vectors have unit length, so 1/|v*u| is the condition of each eigenvalue.
        conditions = 1 / np.abs(np.sum(lefts.conj() * rights, axis=0))
        # W is rounded to the dtype, and λ found, here and there, with a backward error of about size·eps(float64).
        perturbation = (eps + 4 * len(W) * EPS) * np.linalg.norm(W)
        bound = 1 + np.max(2 * conditions * perturbation - np.maximum(0, 1 - np.abs(values)), initial=0.0)
        radius = np.abs(values).max()
        record(cases=1, worst_excess_in_eps=max(0.0, radius - 1) / eps, worst_bound_in_eps=(bound - 1) / eps)
        assert radius <= bound
        if layer.normalizing:
            normalised += 1
            assert radius >= 2 - bound
    # Otherwise this says nothing about normalisation.
    assert normalised >= (len(found) // 2 if when == "trained" else 0)


@pytest.mark.parametrize("coupling", [True, False])
@pytest.mark.parametrize("when", ["start", "trained"])
def test_the_whole_matrix_has_the_eigenvalues_of_both_parts(record: Recorder, full: bool, when: str, coupling: bool) -> None:
    """det(z − W) = det(z − W_L)·det(z − W_S) at more points than the polynomial has coefficients, all on |z| = 3/2, where
    it is well conditioned (which single eigenvalues need not be)."""
    for layer in layers(full, torch.float64, when):
        if not coupling:
            layer.weight_coupling_l0.data.zero_()
        W, long, short = (exact(m) for m in (layer.recurrent_weight(), layer.weight_long_l0, layer.weight_short_l0))
        q, n = len(long), len(W)
        assert np.array_equal(W[:q, :q], long)
        assert np.array_equal(W[:q, q:], exact(layer.weight_coupling_l0))
        assert np.array_equal(W[q:, q:], short)
        assert not W[q:, :q].any()
        z = 1.5 * np.exp(2j * np.pi * np.arange(n + 1) / (n + 1))[:, None, None]
        sign, size = np.linalg.slogdet(z * np.eye(n) - W)
        parts = [np.linalg.slogdet(z * np.eye(len(M)) - M) for M in (long, short)]
        # log det moves by tr((z − W)⁻¹E), the backward error E of an LU being about n·eps·‖z − W‖.
        resolvent = np.linalg.norm(np.linalg.inv(z * np.eye(n) - W), axis=(1, 2))
        bound = 8 * n * EPS * (1.5 * np.sqrt(n) + np.linalg.norm(W)) * resolvent.max()
        error = max(np.abs(size - parts[0][1] - parts[1][1]).max(), np.abs(sign - parts[0][0] * parts[1][0]).max())
        record(cases=1, worst_error_of_log_determinant=error)
        assert error <= bound < 1e-6

        # A coupling back from h_L to h_S would not have that property, as the paper says.
        dense = W.copy()
        dense[q:, :q] = 0.1
        moved = np.abs(np.linalg.slogdet(z * np.eye(n) - dense)[1] - size).max()
        assert moved > 1e3 * bound or not coupling


@given(size=integers(1, 33), dtype=sampled_from(sorted(DTYPES)), scale=floats(0.0, 10.0), seed=SEEDS)
def test_the_negative_ones_decide_the_determinant(record: Recorder, size: int, dtype: str, scale: float, seed: int) -> None:
    """For every number of them; and W D is a rotation without the eigenvalue −1, whatever A."""
    P = scale * torch.randn(size, size, dtype=DTYPES[dtype], generator=torch.Generator().manual_seed(seed))
    upper = np.triu(exact(P), 1)
    norm = np.linalg.norm(np.eye(size) + upper - upper.T, 2)
    rounding = size * (torch.finfo(P.dtype).eps + 16 * EPS * norm)
    for negative_ones in range(size + 1):
        W = exact(Cayley(negative_ones=negative_ones)(P))
        assert abs(np.linalg.det(W) - (-1) ** negative_ones) <= size * rounding
        rotation = W * np.array([1.0] * (size - negative_ones) + [-1.0] * negative_ones)
        # I + WD = 2(I + A)⁻¹, whose smallest singular value is 2/‖I + A‖: the distance of WD from having −1.
        distance = np.linalg.svd(np.eye(size) + rotation, compute_uv=False).min()
        assert abs(distance - 2 / norm) <= rounding
        record(cases=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_with_A_zero_the_matrix_is_D(size: int, dtype: str) -> None:
    for negative_ones in range(size + 1):
        W = Cayley(negative_ones=negative_ones)(torch.zeros(size, size, dtype=DTYPES[dtype]))
        diagonal = torch.tensor([1.0] * (size - negative_ones) + [-1.0] * negative_ones, dtype=DTYPES[dtype])
        assert torch.equal(W, torch.diag(diagonal))


def test_only_the_part_above_the_diagonal_is_read() -> None:
    P = torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W = Cayley(negative_ones=3)(P)
    assert torch.equal(Cayley(negative_ones=3)(P + 100 * torch.ones(7, 7, dtype=P.dtype).tril()), W)
    assert not torch.equal(Cayley(negative_ones=3)(P + 1e-3 * torch.ones(7, 7, dtype=P.dtype).triu(1)), W)


@given(size=integers(1, 20), exponent=integers(0, 12), seed=SEEDS)
def test_a_huge_A_costs_digits_in_proportion_and_no_more(record: Recorder, size: int, exponent: int, seed: int) -> None:
    P = 10.0**exponent * torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    W = exact(Cayley()(P))
    error = np.abs(W.T @ W - np.eye(size)).max()
    upper = np.triu(exact(P), 1)
    norm = 1 + np.linalg.norm(upper - upper.T, 2)
    record(cases=1, worst_error_over_norm_in_eps=error / norm / EPS)
    assert error <= 8 * size * EPS * norm


def test_the_layer_reports_its_own_error() -> None:
    torch.manual_seed(0)
    layer = ENRNN(3, 20, dtype=torch.float64)
    train(layer, 20, 0.1, 0)
    W, S = exact(layer.weight_long_l0), exact(layer.weight_short_l0)
    orthogonality = np.abs(W.T @ W - np.eye(12)).max()
    excess = max(0.0, np.abs(np.linalg.eigvals(S)).max() - 1)
    assert layer.constraint_error() == pytest.approx(max(orthogonality, excess), abs=1e-14)
    # It does not say "zero" whatever happens.
    with torch.no_grad():
        assert layer.matrices()["weight_long_l0"].constraint_error(2 * layer.weight_long_l0).item() == pytest.approx(3)
        assert layer.matrices()["weight_short_l0"].constraint_error(torch.eye(8) * 1.5).item() == pytest.approx(0.5)
