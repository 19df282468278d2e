"""Where Proposition 3.2 does not apply: nearly defective λ, ρ = 0, and the ends of the floating-point range."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from enrnn import ENRNN, EigenvalueNormalized
from tests._record import Recorder
from tests.gradient._spectra import Array, matrix_with_dominant, orthogonal, spectrum, true_radius

SEEDS = integers(0, 2**32 - 1)


def formed(matrix: EigenvalueNormalized, T: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """W, and the gradient at T for the gradient G at W."""
    original = T.clone().requires_grad_()
    W = matrix(original)
    (gradient,) = torch.autograd.grad(W, original, G)
    return W.detach(), gradient


def with_overlap(rng: np.random.Generator, size: int, delta: float) -> Array:
    """Dominant eigenvalues 1 ± δ in the block [[1, 1], [δ², 1]], with |v*u| = 2δ/(1 + δ²), turned by an orthogonal
    similarity, which leaves that as it is."""
    block = np.array([[1.0, 1.0], [delta**2, 1.0]])
    rest = np.diag(rng.uniform(-0.5, 0.5, size - 2))
    Q = orthogonal(rng, size)
    return Q @ scipy.linalg.block_diag(block, rest) @ Q.T


# δ² moves by the backward error, about 10 eps·‖T‖ = 4e-15, against δ² = 1.6e-13: under 2 % in δ.
@pytest.mark.parametrize(("delta", "nearly_defective"), [(4e-7, True), (6e-7, False)])
@given(size=integers(2, 8), epsilon=sampled_from([0.0, 0.3]), seed=SEEDS)
def test_below_an_overlap_of_1e_6_the_gradient_is_the_papers_remedy(
    delta: float, nearly_defective: bool, size: int, epsilon: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    T = torch.from_numpy(with_overlap(rng, size, delta))
    G = torch.from_numpy(rng.standard_normal((size, size)))
    matrix = EigenvalueNormalized(epsilon, normalizing=True)
    W, gradient = formed(matrix, T, G)
    assert matrix.nearly_defective == int(nearly_defective)
    divisor = matrix.double().radius.item() + epsilon
    remedy = G / divisor
    # The radius was rounded to float32 by the buffer.
    assert torch.allclose(W, T / divisor, rtol=torch.finfo(torch.float32).eps, atol=0)
    same = torch.allclose(gradient, remedy, rtol=torch.finfo(torch.float32).eps, atol=0)
    assert same == nearly_defective


@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize("eigenvalue", [2.0, -0.5])
def test_a_jordan_block_takes_the_remedy_and_is_counted(size: int, eigenvalue: float) -> None:
    T = eigenvalue * torch.eye(size, dtype=torch.float64) + torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)
    G = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    matrix = EigenvalueNormalized(normalizing=True)
    W, gradient = formed(matrix, T, G)
    # T is triangular: its eigenvalues are read off without any rounding.
    assert torch.equal(W, T / abs(eigenvalue))
    assert torch.equal(gradient, G / abs(eigenvalue))
    assert matrix.nearly_defective == 1


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no rule for vmap of complex conjugates
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-7, 4e-7])
def test_where_the_remedy_is_taken_second_derivatives_are_zero_in_every_mode(delta: float) -> None:
    """They are those of the remedy. Those of ρ, which are there unless δ is zero, are of the order of δ⁻³."""
    T = torch.tensor([[1.0, 1.0], [delta**2, 1.0]], dtype=torch.float64)
    G, direction = torch.randn(2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = EigenvalueNormalized(normalizing=True).eval()

    def loss(T: Tensor) -> Tensor:
        return (matrix(T) * G).sum()

    def slope(T: Tensor) -> Tensor:
        return torch.func.jvp(loss, (T,), (direction,))[1]

    assert not torch.func.hessian(loss)(T).any()
    assert not torch.func.jvp(torch.func.grad(loss), (T,), (direction,))[1].any()
    assert not torch.func.grad(slope)(T).any()
    leaf = T.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    assert not torch.autograd.grad((gradient * direction).sum(), leaf)[0].any()


def test_the_remedy_is_counted_in_training_mode_only_and_once_a_forming() -> None:
    T = torch.tensor([[2.0, 1.0], [0.0, 2.0]])
    matrix = EigenvalueNormalized(normalizing=True)
    for step in range(1, 4):
        matrix(T)
        assert matrix.nearly_defective == step
    matrix.eval()
    matrix(T)
    assert matrix.nearly_defective == 3


def test_without_normalisation_there_is_nothing_to_remedy() -> None:
    T = torch.tensor([[0.5, 1.0], [0.0, 0.5]])
    G = torch.ones(2, 2)
    matrix = EigenvalueNormalized()
    W, gradient = formed(matrix, T, G)
    assert torch.equal(W, T)
    assert torch.equal(gradient, G)
    assert matrix.nearly_defective == 0


def test_the_layer_shows_the_count() -> None:
    layer = ENRNN(2, 4, num_layers=2, short_size=2)
    with torch.no_grad():
        layer.parametrizations["weight_short_l1"].original.copy_(torch.tensor([[2.0, 1.0], [0.0, 2.0]]))
    layer(torch.zeros(3, 1, 2))
    assert layer.nearly_defective.tolist() == [0, 1]
    assert layer.normalizing.tolist() == [False, True]


NILPOTENT = {
    "zero": torch.zeros(3, 3),
    "one entry": torch.zeros(1, 1),
    "shift": torch.diag(torch.ones(4), 1),
    "strictly upper": torch.ones(5, 5).triu(1) * 3,
    "strictly lower": torch.ones(5, 5).tril(-1) * 1e-3,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", NILPOTENT)
def test_with_spectral_radius_zero_and_epsilon_zero_W_is_T(name: str, dtype: torch.dtype) -> None:
    T = NILPOTENT[name].to(dtype)
    G = torch.randn(T.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    matrix = EigenvalueNormalized(normalizing=True)
    W, gradient = formed(matrix, T, G)
    assert torch.equal(W, T)
    assert torch.equal(gradient, G)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", NILPOTENT)
def test_with_spectral_radius_zero_and_positive_epsilon_W_is_T_over_epsilon(name: str, dtype: torch.dtype) -> None:
    T = NILPOTENT[name].to(dtype)
    G = torch.randn(T.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    W, gradient = formed(EigenvalueNormalized(0.25, normalizing=True), T, G)
    # 1/4 is a power of two: nothing is rounded.
    assert torch.equal(W, 4 * T)
    assert torch.equal(gradient, 4 * G)


def test_a_nilpotent_matrix_in_any_basis_gives_no_nan(full: bool) -> None:
    """Its computed eigenvalues are not zero but of the order of eps^{1/m}, and hopelessly ill-conditioned."""
    for seed in range(500 if full else 50):
        rng = np.random.default_rng(seed)
        Q = orthogonal(rng, 2 + seed % 7)
        T = torch.from_numpy(Q @ np.triu(rng.standard_normal(Q.shape), 1) @ Q.T).to([torch.float32, torch.float64][seed % 2])
        W, gradient = formed(EigenvalueNormalized(normalizing=True), T, torch.ones_like(T))
        assert torch.isfinite(W).all()
        assert torch.isfinite(gradient).all()


SECOND = {
    "zero": (torch.zeros(2, 2), True),
    "nilpotent": (torch.diag(torch.ones(2), 1), True),
    "defective": (torch.tensor([[2.0, 1.0], [0.0, 2.0]]), True),
    "defective, not normalising": (torch.tensor([[0.5, 1.0], [0.0, 0.5]]), False),
    "multiple, not normalising": (0.5 * torch.eye(3), False),
    "zero, not normalising": (torch.zeros(2, 2), False),
}


@pytest.mark.parametrize("name", SECOND)
def test_where_the_first_derivative_is_that_of_a_linear_map_the_second_is_zero(name: str) -> None:
    """W = T, or the remedy, which holds ρ constant in T/(ρ + ε): no second derivative, and in particular no failure."""
    T, normalizing = SECOND[name]
    original = T.double().requires_grad_()
    W = EigenvalueNormalized(normalizing=normalizing)(original)
    G = torch.arange(1.0, T.numel() + 1, dtype=torch.float64).view_as(T).requires_grad_()
    (first,) = torch.autograd.grad(W, original, G, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), original, allow_unused=True, materialize_grads=True)
    assert torch.equal(second, torch.zeros_like(second))


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 100), (torch.float64, 990)], ids=["float32", "float64"])
@given(size=integers(1, 8), kind=sampled_from(["real", "complex"]), seed=SEEDS, fraction=sampled_from([-1, -0.5, 0.5, 1]))
def test_scaling_by_a_power_of_two_changes_no_digit(
    record: Recorder, dtype: torch.dtype, largest: int, size: int, kind: str, seed: int, fraction: float
) -> None:
    """From 1e-30 to 1e30 in float32, from 1e-300 to 1e300 in float64: W(cT) = W(T) and ∂W(cT) = ∂W(T)/c for ε = 0."""
    rng = np.random.default_rng(seed)
    T = torch.from_numpy(matrix_with_dominant(rng, max(size, 1 + (kind == "complex")), kind)).to(dtype)
    G = torch.from_numpy(rng.standard_normal(tuple(T.shape))).to(dtype)
    scale = 2.0 ** int(fraction * largest)
    W, gradient = formed(EigenvalueNormalized(normalizing=True), T, G)
    scaled_W, scaled_gradient = formed(EigenvalueNormalized(normalizing=True), T * scale, G)
    assert torch.equal(scaled_W, W)
    # A gradient that falls below the normal numbers is rounded to a multiple of the smallest one.
    info = torch.finfo(dtype)
    assert torch.allclose(scaled_gradient * scale, gradient, rtol=0, atol=4 * scale * info.tiny * info.eps)
    record(cases=1)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
@pytest.mark.parametrize(
    ("dtype", "exponents"),
    [(torch.float32, range(-30, 31, 5)), (torch.float64, range(-300, 301, 50))],
    ids=["float32", "float64"],
)
def test_no_scale_gives_nan(record: Recorder, full: bool, dtype: torch.dtype, exponents: range, epsilon: float) -> None:
    for exponent in exponents:
        for seed in range(40 if full else 3):
            rng = np.random.default_rng(seed)
            size = 1 + seed % 8
            T = torch.from_numpy(rng.standard_normal((size, size)) * 10.0**exponent).to(dtype)
            G = torch.from_numpy(rng.standard_normal((size, size))).to(dtype)
            W, gradient = formed(EigenvalueNormalized(epsilon, normalizing=True), T, G)
            assert torch.isfinite(W).all()
            assert torch.isfinite(gradient).all()
            radius = true_radius(W.double().numpy())  # by LAPACK on some machines, this was more in error than what it judges
            s = spectrum(T.double().numpy() / 10.0**exponent)
            slack = torch.finfo(dtype).eps * size * s.condition * float(np.linalg.norm(s.T)) / s.radius
            unscaled = true_radius(s.T)
            wanted = unscaled / (unscaled + epsilon / 10.0**exponent)
            assert abs(radius - wanted) <= 2 * slack
            record(cases=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_not_even_the_largest_and_smallest_numbers_give_nan(dtype: torch.dtype) -> None:
    """At the very ends ρ itself, or the gradient 1/ρ, may leave the range and come out infinite; but never as NaN."""
    info = torch.finfo(dtype)
    pattern = torch.tensor([[0.5, 1.0, 0.0], [0.25, 0.5, 0.0], [1.0, 0.0, 0.75]], dtype=dtype)
    G = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, 1.0], [-1.0, 1.0, 2.0]], dtype=dtype)
    for scale in (info.max, info.max / 2, info.tiny, info.tiny / 16, info.smallest_normal * info.eps * 8):
        T = pattern * scale
        W, gradient = formed(EigenvalueNormalized(normalizing=True), T, G)
        assert torch.isfinite(W).all(), scale
        assert W.any(), scale
        assert not gradient.isnan().any(), scale


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    for bad in (float("nan"), float("inf")):
        T = torch.eye(3)
        T[1, 2] = bad
        with pytest.raises(ValueError, match="not finite"):
            EigenvalueNormalized()(T)
