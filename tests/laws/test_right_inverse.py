"""Assigning a matrix to a constrained weight: a member is kept, anything else replaced by the nearest one or refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from enrnn import ENRNN, Cayley, EigenvalueNormalized
from tests._record import Recorder
from tests.laws._training import exact

SEEDS = integers(0, 2**32 - 1)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def normal(size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(size=integers(1, 33), share=floats(0, 1), scale=floats(0, 5), dtype=sampled_from(sorted(DTYPES)), seed=SEEDS)
def test_an_orthogonal_matrix_comes_back(record: Recorder, size: int, share: float, scale: float, dtype: str, seed: int) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    matrix = Cayley(negative_ones=round(share * size))
    P = (scale * normal(size, seed)).to(DTYPES[dtype])
    W = matrix(P)
    free = matrix.right_inverse(W)
    error = float((matrix(free) - W).abs().max())
    record(cases=1, worst_error_in_eps=error / eps)
    # W was rounded to the dtype, A too: dW = −(I + A)⁻¹ dA (D + W), with ‖dA‖ ≤ size·eps·‖A‖ and ‖(I + A)⁻¹‖ ≤ 1.
    upper = exact(P.triu(1))
    norm = 1 + np.linalg.norm(upper - upper.T, 2)
    assert error <= 8 * size * eps * norm
    assert torch.equal(free, free.triu(1))


@given(size=integers(1, 20), share=floats(0, 1), scale=floats(0, 2), seed=SEEDS)
def test_the_free_matrix_itself_comes_back(record: Recorder, size: int, share: float, scale: float, seed: int) -> None:
    """The transform is one-to-one: not only W, A too is recovered."""
    matrix = Cayley(negative_ones=round(share * size))
    P = (scale * normal(size, seed)).triu(1)
    error = float((matrix.right_inverse(matrix(P)) - P).abs().max())
    norm = 1 + float(torch.linalg.matrix_norm(P - P.mT, 2))
    record(cases=1, worst_error_of_A=error)
    # dA = −(I + A) dW D (I + A)/2.
    assert error <= 8 * size * torch.finfo(torch.float64).eps * norm**2 * norm


@given(size=integers(1, 20), share=floats(0, 1), seed=SEEDS)
def test_what_is_not_orthogonal_is_replaced_by_the_nearest_one(record: Recorder, size: int, share: float, seed: int) -> None:
    """Nearest among those with the determinant that the negative ones fix: the polar factor, with the direction of the
    smallest singular value turned round where the determinant asks for it."""
    negative_ones = round(share * size)
    matrix = Cayley(negative_ones=negative_ones)
    M = normal(size, seed)
    left, values, right = np.linalg.svd(exact(M))
    signs = np.array([1.0] * (size - negative_ones) + [-1.0] * negative_ones)
    agrees = np.linalg.det(left @ right) * signs.prod() > 0
    expected = left @ np.diag([1.0] * (size - 1) + [1.0 if agrees else -1.0]) @ right
    if agrees:
        assert np.abs(expected - scipy.linalg.polar(exact(M))[0]).max() <= 1e-8
    # Too near the eigenvalue −1 is another law, and a turned direction is fixed by the gap to the next singular value.
    distance = np.linalg.svd(np.eye(size) + expected * signs, compute_uv=False).min()
    gap = values[-1] if agrees else (values[-2] - values[-1] if size > 1 else 1.0)
    assume(distance > 1e-3 and gap > 1e-3)
    W = exact(matrix(matrix.right_inverse(M)))
    error = np.abs(W - expected).max()
    record(cases=1, worst_error_of_projection=error)
    assert error <= 64 * size * np.finfo(np.float64).eps * (values[0] / gap + 2 / distance)

    # And no other member is nearer.
    for k in range(5):
        other = scipy.stats.ortho_group.rvs(size, random_state=seed % 2**31 + k) if size > 1 else np.eye(1)
        if np.linalg.det(other) * signs.prod() < 0:
            other[0] *= -1
        assert np.linalg.norm(exact(M) - W) <= np.linalg.norm(exact(M) - other) + 1e-8


@pytest.mark.parametrize("dtype", DTYPES)
@given(size=integers(1, 12), negative_ones=integers(0, 12), seed=SEEDS)
def test_an_orthogonal_matrix_with_the_wrong_determinant_is_refused(dtype: str, size: int, negative_ones: int, seed: int) -> None:
    negative_ones %= size + 1
    W, _ = torch.linalg.qr(normal(size, seed))
    if torch.linalg.det(W) * (-1) ** negative_ones > 0:
        W[:, 0] *= -1
    with pytest.raises(ValueError, match="determinant"):
        Cayley(negative_ones=negative_ones).right_inverse(W.to(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
@given(size=integers(2, 12), negative_ones=integers(0, 12), seed=SEEDS)
def test_an_eigenvalue_of_minus_one_is_refused(dtype: str, size: int, negative_ones: int, seed: int) -> None:
    """W D = Q diag(−1, −1, …) Qᵀ has the right determinant, but no A."""
    negative_ones %= size + 1
    Q, _ = torch.linalg.qr(normal(size, seed))
    half_turn = Q @ torch.diag(torch.tensor([-1.0] * 2 + [1.0] * (size - 2), dtype=Q.dtype)) @ Q.mT
    half_turn[:, size - negative_ones :] *= -1
    with pytest.raises(ValueError, match="eigenvalue"):
        Cayley(negative_ones=negative_ones).right_inverse(half_turn.to(DTYPES[dtype]))


def test_near_an_eigenvalue_of_minus_one_it_is_accurate_or_refused() -> None:
    """A rotation by π − δ needs |A| = 2/δ. Whatever is accepted comes back up to the rounding that costs."""
    accepted = []
    for exponent in range(0, 17):
        delta = 10.0**-exponent
        angle = np.pi - delta
        Q, _ = torch.linalg.qr(normal(4, exponent))
        turn = torch.eye(4, dtype=torch.float64)
        turn[:2, :2] = torch.tensor([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        W = Q @ turn @ Q.mT
        matrix = Cayley(negative_ones=0)
        try:
            free = matrix.right_inverse(W)
        except ValueError:
            continue
        accepted.append(exponent)
        error = float((matrix(free) - W).abs().max())
        assert error <= 64 * 4 * torch.finfo(torch.float64).eps / delta, exponent
    assert accepted[:5] == [0, 1, 2, 3, 4]
    assert len(accepted) < 17


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Cayley().right_inverse(torch.full((3, 3), float("nan")))


@given(size=integers(1, 12), epsilon=sampled_from([0.0, 0.3]), radius=floats(0.0, 3.0), seed=SEEDS)
def test_while_not_normalising_T_is_W(size: int, epsilon: float, radius: float, seed: int) -> None:
    W = radius * normal(size, seed)
    assert torch.equal(EigenvalueNormalized(epsilon).right_inverse(W), W)


@given(size=integers(1, 12), radius=floats(0.01, 10.0), seed=SEEDS)
def test_while_normalising_without_epsilon_a_matrix_comes_back_with_spectral_radius_one(
    size: int, radius: float, seed: int
) -> None:
    M = normal(size, seed)
    member = M / torch.linalg.eigvals(M).abs().max()
    matrix = EigenvalueNormalized(normalizing=True)
    _, vectors = np.linalg.eig(exact(member))
    slack = 16 * size * torch.finfo(torch.float64).eps * np.linalg.cond(vectors) * np.linalg.norm(exact(member))
    W = matrix(matrix.right_inverse(radius * member))
    assert float((W - member).abs().max()) <= slack * float(member.abs().max())


@given(
    size=integers(1, 12),
    epsilon=sampled_from([1e-3, 0.3, 10.0]),
    radius=floats(0.0, 0.99),
    dtype=sampled_from(sorted(DTYPES)),
    seed=SEEDS,
)
def test_while_normalising_with_epsilon_every_matrix_below_one_comes_back(
    record: Recorder, size: int, epsilon: float, radius: float, dtype: str, seed: int
) -> None:
    M = normal(size, seed)
    W = (radius * M / torch.linalg.eigvals(M).abs().max()).to(DTYPES[dtype])
    matrix = EigenvalueNormalized(epsilon, normalizing=True)
    back = matrix(matrix.right_inverse(W))
    error = float((back - W).abs().max())
    # W/(1 + (ρ' − ρ)), ρ' found for T = cW anew: both rounded to the dtype, and off by the condition of the spectrum.
    _, vectors = np.linalg.eig(exact(M))
    eps = torch.finfo(DTYPES[dtype]).eps
    relative = 8 * eps + 16 * size * eps * np.linalg.cond(vectors) * float(torch.linalg.norm(W))
    record(cases=1, worst_error_in_eps=error / eps)
    # T itself may underflow, W then comes back from what is left of it.
    smallest = torch.finfo(DTYPES[dtype]).tiny * eps
    assert error <= relative * float(W.abs().max()) + 2 * smallest * (1 + 1 / epsilon)


def test_while_normalising_with_epsilon_a_radius_of_one_or_more_is_scaled_below() -> None:
    W = 2 * torch.eye(3)
    matrix = EigenvalueNormalized(0.5, normalizing=True)
    assert torch.allclose(matrix(matrix.right_inverse(W)), W / 2.5)


def test_assigning_to_the_weights_of_a_layer() -> None:
    torch.manual_seed(0)
    layer, other = ENRNN(2, 12, dtype=torch.float64), ENRNN(2, 12, dtype=torch.float64)
    layer.weight_long_l0 = other.weight_long_l0.detach()
    layer.weight_short_l0 = other.weight_short_l0.detach()
    layer.weight_coupling_l0 = other.weight_coupling_l0
    assert torch.allclose(layer.recurrent_weight(), other.recurrent_weight(), rtol=0, atol=1e-14)
    assert isinstance(layer.parametrizations["weight_long_l0"].original, torch.nn.Parameter)
    with pytest.raises(ValueError, match="determinant"):
        layer.weight_long_l0 = torch.eye(7, dtype=torch.float64) * torch.tensor([-1.0] + [1.0] * 6)
