"""What every family of matrices promises: its constraint, its gradient, the way back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from enrnn import NNRNN, SVD, Exponential, Householder, Schur, SoftMargin
from enrnn.matrices import Matrix, _inverse
from enrnn.matrices._normal import skew_of
from enrnn.matrices._skew import exponential
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


def turned(angles: list[float], rest: list[float], moduli: list[float] | None = None) -> Tensor:
    """Rotations of planes by these angles, scaled if `moduli` are given, and real eigenvalues, in a random orthogonal basis."""
    blocks = [torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]], dtype=torch.float64) for t in angles]
    scaled = [r * block for r, block in zip(moduli or [1.0] * len(angles), blocks, strict=True)]
    middle = torch.block_diag(*scaled, *(torch.tensor([[value]], dtype=torch.float64) for value in rest))
    Q = torch.linalg.qr(torch.randn(len(middle), len(middle), dtype=torch.float64))[0]
    return Q @ middle @ Q.mT


NEAR = [0.0, 1e-15, 1e-12, 1e-9, 1e-5, 0.1]


def with_repeated_eigenvalues(size: int) -> list[Tensor]:
    """Orthogonal matrices: any number of −1, permutations, equal pairs, pairs of all distances from the real line."""
    identity = torch.eye(size, dtype=torch.float64)
    found = [identity, -identity, *(identity[torch.randperm(size)] for _ in range(4))]
    found += [turned([], [-1.0] * k + [1.0] * (size - k)) for k in range(size + 1)]
    for pairs in range(1, size // 2 + 1):
        rest = [(-1.0) ** k for k in range(size - 2 * pairs)]
        found += [turned([around + near] * pairs, rest) for around in (0.0, 1.0, math.pi) for near in NEAR]
        found.append(turned([math.pi - NEAR[k % len(NEAR)] for k in range(pairs)], rest))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", range(1, 10))
def test_however_eigenvalues_repeat_an_orthogonal_matrix_is_kept(record: Recorder, size: int, dtype: str) -> None:
    """By `Schur`, unless 1 and −1 are left over of an even size; by `Exponential`, if it is a rotation."""
    torch.manual_seed(size)
    eps = torch.finfo(DTYPES[dtype]).eps
    for exact in with_repeated_eigenvalues(size):
        W, rotation = exact.to(DTYPES[dtype]), bool(torch.linalg.det(exact) > 0)
        for matrix in [Schur()] * (rotation or size % 2) + [Exponential()] * rotation:
            error = (matrix(*free(matrix, W)) - W).abs().max()
            record(cases=1, worst_error_in_eps=error / eps)
            assert error <= 16 * size * eps


def test_two_eigenvalues_that_look_alike_from_one_side_are_told_apart() -> None:
    """e^{iθ} for θ = −½ and −3/2 have the same `Re e^{iφ}λ` for φ = 1, where `normal_basis` begins; and so on."""
    torch.manual_seed(0)
    for seen in (1.0, 2.0, 0.5):
        W = turned([seen - 0.5, seen + 0.5, 0.3, 3.0], [1.0])
        for matrix in (Schur(), Exponential()):
            assert (matrix(*free(matrix, W)) - W).abs().max() <= 16 * 9 * 2.0**-52


def test_many_eigenvalues_are_told_apart_to_rounding(record: Recorder) -> None:
    """Of 200, some two are seen from each side at a distance of 10⁻⁵: without a Newton step, that many digits are lost."""
    torch.manual_seed(0)
    W = turned((torch.rand(100) * 2 * math.pi).tolist(), [])
    for matrix in (Schur(), Exponential()):
        error = (matrix(*free(matrix, W)) - W).abs().max()
        record(cases=1, worst_error=error)
        assert error <= 200 * 2.0**-52


def test_normal_matrices_with_repeated_eigenvalues_have_a_schur_form() -> None:
    torch.manual_seed(0)
    for W in (
        turned([], [0.3, 2.0, 0.3, -1.0, -1.0]),  # the odd one is in the middle
        turned([1.0] * 3, [0.0], [0.5, 0.5, 2.0]),
        turned([1.0, 2.0, 2.0 + 1e-9], [3.0, 3.0 + 1e-15], [1e-9, 1.0, 1.0]),
        torch.zeros(5, 5, dtype=torch.float64),
    ):
        matrix = Schur()
        assert (matrix(*free(matrix, W)) - W).abs().max() <= 1e-14 * (1 + W.abs().max()) * len(W)


def test_one_and_minus_one_left_over_cost_one_block_of_the_schur_form() -> None:
    torch.manual_seed(0)
    W, matrix = turned([2.0], [1.0, 1.0, 1.0, -1.0]), Schur()
    moduli = torch.linalg.eigvals(matrix(*free(matrix, W))).abs().sort().values
    assert torch.allclose(moduli, torch.tensor([0.0] * 2 + [1.0] * 4, dtype=torch.float64), atol=1e-7)


def test_what_is_not_normal_has_a_schur_form_where_its_blocks_are_scaled_rotations() -> None:
    """Real eigenvalues in equal pairs with eigenvectors far from orthogonal, and an odd one that rounding must not pair up."""
    torch.manual_seed(0)
    middle = torch.diag(torch.tensor([2.0, 2.0, -1.0, -1.0, 0.5], dtype=torch.float64))
    middle[2:, :2], middle[4, 2:4] = 1.0, -2.0
    Q = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    W, matrix = Q @ middle @ Q.mT, Schur()
    assert (matrix(*free(matrix, W)) - W).abs().max() <= 1e-12


def test_an_orthogonal_matrix_assigned_to_a_layer_is_kept() -> None:
    torch.manual_seed(0)
    layer = NNRNN(2, 3, dtype=torch.float64)
    for _ in range(20):
        W = turned([], [-1.0, -1.0, 1.0])
        layer.weight_hh_l0 = W
        assert (layer.weight_hh_l0 - W).abs().max() <= 16 * 3 * 2.0**-52


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


LARGE = [1e3, 1e4, 2e5, 1e7, 1e9, 1e15, 1e30]


@pytest.mark.parametrize("scale", LARGE)
@pytest.mark.parametrize("family", ["cayley", "exponential", "dtriv_inf"])
def test_orthogonality_does_not_depend_on_how_large_the_free_matrix_is(record: Recorder, family: str, scale: float) -> None:
    """As the docstrings have it: below 10⁻¹² (Exponential), below 3·10⁻¹¹ (Cayley of an odd size, at 10⁵)."""
    for size in (2, 3, 8, 9):
        matrix = ORTHOGONAL[family]()
        (original,) = scattered(matrix, size, seed=size)
        original.mul_(scale).requires_grad_()
        W = matrix(original)
        error = orthogonality(W)
        record(cases=1, worst_error=error)
        assert error <= (3e-16 * min(scale, 1e5) + 1e-14 if family == "cayley" else 1e-12)
        (gradient,) = torch.autograd.grad(W.square().sum() + W.sum(), original)
        assert torch.isfinite(gradient).all()


def test_turns_by_large_angles_are_turns_by_what_is_left_of_them() -> None:
    """`exp(A)` for ‖A‖ where rounding is taken out between squarings; the angles themselves are known up to ‖A‖·eps."""
    torch.manual_seed(0)
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    turns = torch.tensor([1e4, 2.5e3, 17.0], dtype=torch.float64)
    blocks = [torch.stack([t.cos(), -t.sin(), t.sin(), t.cos()]).view(2, 2) for t in turns]
    expected = Q @ torch.block_diag(*blocks) @ Q.mT
    A = skew_of(Q, turns)
    assert (exponential(A) - expected).abs().max() <= 64 * 1e4 * 2.0**-52
    P = A.triu(1).requires_grad_()
    assert torch.autograd.gradcheck(Exponential(), P, eps=1e-5, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_the_inverse_by_planes_is_the_inverse(size: int) -> None:
    torch.manual_seed(size)
    A = torch.randn(size, size, dtype=torch.float64).triu(1)
    A = A - A.mT
    X = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + A)
    assert (_inverse._by_planes(A) - X).abs().max() <= 16 * size * 2.0**-52


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
