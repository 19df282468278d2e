"""What every family of matrices promises: its constraint, its gradient, the way back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from enrnn import SVD, Exponential, Householder, Schur, SoftMargin
from enrnn.matrices import Matrix
from tests._record import Recorder
from tests.zoo._zoo import DTYPES, FAMILIES, ORTHOGONAL, orthogonality, scattered

SIZES = [3, 4, 9, 24]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ORTHOGONAL)
def test_orthogonal_families_are_orthogonal_to_rounding(record: Recorder, family: str, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for size in SIZES:
        matrix = ORTHOGONAL[family]()
        originals = scattered(matrix, size, seed=size, dtype=DTYPES[dtype])
        error = orthogonality(matrix(*originals))
        record(cases=1, worst_error_in_eps=error / eps)
        # Entries are rounded once, n of them to a product; squaring exp(A/2ˢ) doubles its rounding, as large as ‖A‖ in all.
        assert error <= 8 * size * eps
        assert float(matrix.constraint_error(matrix(*originals))) == pytest.approx(error, abs=eps * 1e-3)
        assert float(matrix.constraint_error(1.5 * matrix(*originals))) == pytest.approx(1.25, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_finite_differences(family: str) -> None:
    for size in (3, 4, 5):
        matrix = FAMILIES[family]()
        originals = tuple(original.requires_grad_() for original in scattered(matrix, size, seed=size))
        # All are analytic where they are; central differences of 1e-6 err by 1e-12 of the third derivative and eps/1e-6.
        assert torch.autograd.gradcheck(matrix, originals, eps=1e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_arrives_through_a_parametrization(family: str) -> None:
    """On a weight of torch's own, along one direction."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 6, bias=False, dtype=torch.float64)
    # Fewer reflections than units could not write the weight there is.
    matrix = {"householder of 3": Householder, "svd": lambda: SVD(6, margin=0.2)}.get(family, FAMILIES[family])()
    with torch.no_grad():
        linear.weight.copy_(torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0])
        linear.weight[:, 0] *= torch.linalg.det(linear.weight)
        if family == "spectral norm":  # of an orthogonal matrix it has no derivative
            linear.weight.normal_()
    parametrize.register_parametrization(linear, "weight", matrix)
    x = torch.randn(4, 6, dtype=torch.float64)
    loss = linear(x).sin().sum()
    loss.backward()
    parameters = list(linear.parameters())
    directions = [torch.randn_like(p) for p in parameters]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(parameters, directions, strict=True) if p.grad is not None)
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=step)
            values.append(float(linear(x).sin().sum()))
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-7)


ROUND_TRIPS = [name for name in FAMILIES if name not in ("svd", "schur", "cayley", "spectral norm")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ROUND_TRIPS)
def test_a_member_comes_back(family: str, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for size in SIZES:
        matrix = FAMILIES[family]()
        W = matrix(*scattered(matrix, size, seed=size, dtype=DTYPES[dtype])).clone()
        back = matrix(*free(matrix, W))
        assert back.dtype == W.dtype
        # An angle near π costs digits: A is as long as ‖A‖ ≤ π√n, and rounded to the dtype.
        assert (back - W).abs().max() <= 32 * size * eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_matrix_within_the_margin_has_as_many_reflections_as_units(dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for size in SIZES:
        matrix = SVD(size, margin=0.3)
        W = matrix(*scattered(matrix, size, dtype=DTYPES[dtype]))
        assert (matrix(*free(matrix, W)) - W).abs().max() <= 32 * size * eps


def test_singular_values_outside_the_margin_are_moved_to_its_edge() -> None:
    M = torch.diag(torch.tensor([3.0, 1.0, 1.05, 0.1], dtype=torch.float64))
    for matrix in (SVD(4, margin=0.1), SoftMargin(margin=0.1)):
        W = matrix(*free(matrix, M))
        assert torch.allclose(W.diagonal(), torch.tensor([1.1, 1.0, 1.05, 0.9], dtype=torch.float64), rtol=0, atol=1e-14)
        assert matrix.constraint_error(M) == pytest.approx(1.9)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_normal_matrices_have_a_schur_form(size: int) -> None:
    torch.manual_seed(size)
    turn = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0]
    if torch.linalg.det(turn) < 0:
        turn[:, 0] *= -1
    identity = torch.eye(size, dtype=torch.float64)
    matrix = Schur()
    for W in (turn, 0.7 * turn, identity, -2 * identity):
        # Distinct eigenvalues of a normal matrix are perfectly conditioned; their distance enters the eigenvectors.
        assert (matrix(*free(matrix, W)) - W).abs().max() <= 1e-12


@pytest.mark.parametrize("family", ["exponential", "householder", "dtriv_inf"])
def test_what_is_not_orthogonal_is_replaced_by_the_nearest_one(family: str) -> None:
    torch.manual_seed(0)
    M = torch.randn(6, 6, dtype=torch.float64)
    if torch.linalg.det(M) < 0:
        M[0] *= -1
    left, _, right = torch.linalg.svd(M)
    matrix = FAMILIES[family]()
    assert (matrix(*free(matrix, M)) - left @ right).abs().max() <= 1e-13


def test_what_cannot_be_written_is_refused() -> None:
    reflection = torch.diag(torch.tensor([-1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="determinant"):
        Exponential().right_inverse(reflection)
    based = Exponential(rebase_every=2)
    assert torch.equal(based(*free(based, reflection)), reflection)
    with pytest.raises(ValueError, match="2 reflections"):
        Householder(2).right_inverse(torch.linalg.qr(torch.randn(5, 5))[0])
    for name in ("exponential", "householder", "svd", "soft margin", "schur"):
        with pytest.raises(ValueError, match="not finite"):
            FAMILIES[name]().right_inverse(torch.full((3, 3), float("nan")))


def test_a_half_turn_has_a_logarithm() -> None:
    W = torch.diag(torch.tensor([-1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64))
    assert (Exponential()(Exponential().right_inverse(W)) - W).abs().max() <= 1e-14


@pytest.mark.parametrize("family", FAMILIES)
def test_the_meta_device_and_wrong_shapes(family: str) -> None:
    matrix = FAMILIES[family]()
    shapes = [original.shape for original in matrix.originals(5, torch.empty(0))]
    assert [original.shape for original in free(matrix, torch.empty(5, 5, device="meta"))] == shapes
    with pytest.raises(ValueError, match="square"):
        matrix.right_inverse(torch.zeros(3, 4))


def free(matrix: Matrix, W: Tensor) -> tuple[Tensor, ...]:
    found = matrix.right_inverse(W)
    return found if isinstance(found, tuple) else (found,)
