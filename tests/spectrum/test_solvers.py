"""Every method finds the same dominant eigenvalue, to the accuracy its condition allows, and says so when it does not."""

from __future__ import annotations

import itertools

import mpmath
import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.spectrum import dominant
from tests._record import Recorder
from tests.spectrum._matrices import EXTREMES, FAMILIES

UNIT = 2.0**-53
SIZES = (1, 2, 3, 5, 16, 17, 31, 33, 40, 64, 97)


def derivative(result: enrnn.SpectralRadius) -> Tensor:
    """∂ρ/∂T = C/ρ, Proposition 3.2's C, from λ, u and v as they were returned."""
    overlap = (result.left.conj() * result.right).sum()
    phase = result.eigenvalue.conj() / result.eigenvalue.abs()
    return (phase * torch.outer(result.left.conj(), result.right) / overlap).real


def relative_gap(matrix: Tensor) -> float:
    """The distance from λ to the next eigenvalue that is not its conjugate, relative to ρ."""
    values = torch.linalg.eigvals(matrix)
    top = values[values.abs().argmax()]
    others = torch.minimum((values - top).abs(), (values - top.conj()).abs()) / top.abs()
    apart = torch.sort(others).values[1 if top.imag == 0 else 2 :]
    modulus = torch.sort(values.abs() / top.abs(), descending=True).values[1 if top.imag == 0 else 2 :]
    return min(apart.min().item(), 1 - modulus.max().item()) if apart.numel() else 1.0


def check_against_dense(matrix: Tensor, result: enrnn.SpectralRadius, record: Recorder) -> None:
    """The bars: ρ to 1e-12 or 50·u·condition·‖T‖/ρ, C to 1e-9 or that over the gap."""
    truth = dominant(matrix)
    rounding = 50 * UNIT * truth.condition.item() * (torch.linalg.matrix_norm(matrix) / truth.radius).item()
    error = (result.value / truth.radius - 1).abs().item()
    assert error <= max(1e-12, rounding)
    exact = truth.derivative()
    off = (torch.linalg.matrix_norm(derivative(result) - exact) / torch.linalg.matrix_norm(exact)).item()
    gap = relative_gap(matrix)
    # Within rounding of a tie either eigenvalue is the right answer, and C belongs to the one that was chosen.
    assert gap < 100 * rounding or off <= max(1e-9, rounding / gap)
    assert result.upper_bound.item() >= truth.radius.item() * (1 - rounding)
    record(cases=1, worst_error=error)


@pytest.mark.parametrize("method", ["auto", "squaring"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_certified_equals_the_dense_solution(name: str, method: str, record: Recorder, full: bool) -> None:
    generator = torch.Generator().manual_seed(7)
    repeats = 40 if full else 1
    certified = 0
    cases = list(itertools.product(SIZES, range(repeats)))
    for size, _ in cases:
        matrix = FAMILIES[name](size, generator)
        result = enrnn.spectral_radius(matrix, method)
        if result.certified:
            certified += 1
            check_against_dense(matrix, result, record)
    record(cases_certified=certified)
    assert certified == len(cases) if method == "auto" else certified >= 0.9 * len(cases)


@pytest.mark.parametrize("name", ["gaussian", "trained", "near_tie", "near_tie_of_pairs"])
def test_certified_in_float32_equals_the_dense_solution_of_the_same_matrix(name: str, full: bool) -> None:
    generator = torch.Generator().manual_seed(8)
    for size in (3, 40, 130) * (20 if full else 1):
        matrix = FAMILIES[name](size, generator).float()
        result = enrnn.spectral_radius(matrix)
        assert result.value.dtype == torch.float32
        assert result.right.dtype == torch.complex64
        truth = dominant(matrix.double())
        assert abs(result.value.item() / truth.radius.item() - 1) <= 1e-6
        off = torch.linalg.matrix_norm(derivative(result) - truth.derivative().float())
        assert off <= 1e-4 * torch.linalg.matrix_norm(truth.derivative())


@pytest.mark.parametrize("method", ["dense", "squaring"])
def test_small_matrices_against_a_hundred_digits(method: str, record: Recorder, full: bool) -> None:
    generator = torch.Generator().manual_seed(9)
    for size, name in itertools.product((1, 2, 3, 7, 12), ("gaussian", "near_tie", "near_tie_of_pairs", "scaled")):
        for _ in range(5 if full else 1):
            matrix = FAMILIES[name](size, generator)
            with mpmath.workdps(100):
                values = mpmath.eig(mpmath.matrix(matrix.tolist()))[0]
                truth = max(abs(value) for value in values)
                result = enrnn.spectral_radius(matrix, method)
                error = float(abs(mpmath.mpf(result.value.item()) / truth - 1))
                bound_holds = mpmath.mpf(result.upper_bound.item()) >= truth
            norm = torch.linalg.matrix_norm(matrix).item()
            assert error <= max(1e-12, 50 * UNIT * result.condition.item() * norm / result.value.item())
            assert bound_holds
            record(cases=1, worst_error=error)


RADIUS = {"rotation": 1.0, "identity": 1.0, "zero": 0.0, "nilpotent": 0.0, "hidden_nilpotent": 0.0, "jordan": 1.0}


@pytest.mark.parametrize("method", ["auto", "dense", "squaring", "power"])
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_ties_defective_and_nilpotent_matrices_have_a_bound_and_no_nan(name: str, method: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(10)
    for size in (1, 2, 3, 20, 45, 140):
        matrix = EXTREMES[name](size, generator) * scale
        result = enrnn.spectral_radius(matrix, method, max_iterations=50)
        for field in result:
            assert not torch.isnan(torch.view_as_real(field) if field.is_complex() else field).any()
        assert result.upper_bound.item() >= RADIUS[name] * scale * (1 - 100 * size * UNIT)
        if name in ("rotation", "identity") and method in ("auto", "dense"):
            assert abs(result.value.item() / scale - 1) < 1e-12
        if result.certified and name != "hidden_nilpotent":  # which rounding makes another matrix
            assert abs(result.value.item() - RADIUS[name] * scale) <= 1e-6 * scale


def test_exact_ties_are_solved_densely_by_auto_and_left_uncertified_by_squaring() -> None:
    matrix = EXTREMES["rotation"](140, torch.Generator().manual_seed(11))
    assert enrnn.spectral_radius(matrix, "auto").certified
    assert not enrnn.spectral_radius(matrix, "squaring").certified


def test_matrices_in_a_batch_are_solved_one_by_one() -> None:
    matrices = torch.randn(2, 3, 21, 21, dtype=torch.float64, generator=torch.Generator().manual_seed(12))
    together = enrnn.spectral_radius(matrices)
    assert together.right.shape == (2, 3, 21)
    for index in itertools.product(range(2), range(3)):
        alone = enrnn.spectral_radius(matrices[index])
        for field, single in zip(together, alone, strict=True):
            torch.testing.assert_close(field[index], single)
    assert enrnn.spectral_radius(matrices[:0]).value.shape == (0, 3)


def test_eigenvectors_are_what_they_are_called() -> None:
    matrix = torch.randn(50, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(13))
    for method in ("dense", "squaring"):
        result = enrnn.spectral_radius(matrix, method)
        wide = matrix.to(torch.complex128)
        torch.testing.assert_close(wide @ result.right, result.eigenvalue * result.right)
        torch.testing.assert_close(result.left.conj() @ wide, result.eigenvalue * result.left.conj())
        torch.testing.assert_close(result.right.norm(), torch.ones((), dtype=torch.float64))
        torch.testing.assert_close(result.left.norm(), torch.ones((), dtype=torch.float64))
        overlap = (result.left.conj() * result.right).sum().abs()
        torch.testing.assert_close(result.condition, 1 / overlap)
        assert result.eigenvalue.imag >= 0


@pytest.mark.parametrize("method", ["dense", "squaring", "power"])
def test_the_value_can_be_differentiated(method: str) -> None:
    generator = torch.Generator().manual_seed(14)
    matrix = torch.diag(torch.tensor([3.0, -1.0, 0.5, 0.2, 1.0], dtype=torch.float64))
    matrix = (matrix + 0.1 * torch.randn(5, 5, dtype=torch.float64, generator=generator)).requires_grad_()
    value = lambda T: enrnn.spectral_radius(T, method).value  # noqa: E731
    assert torch.autograd.gradcheck(value, (matrix,))
    assert torch.autograd.gradgradcheck(value, (matrix,))


def test_power_iterations_are_uneven_and_never_certified(record: Recorder) -> None:
    generator = torch.Generator().manual_seed(15)
    steps = []
    for _ in range(12):
        matrix = torch.randn(15, 15, dtype=torch.float64, generator=generator)
        result = enrnn.spectral_radius(matrix, "power", max_iterations=2000, tolerance=1e-8)
        assert not result.certified
        steps.append(int(result.iterations))
    record(least_steps=min(steps), worst_steps=max(steps))
    assert max(steps) > 10 * min(steps)


def test_bad_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"square.*\[2, 3\]"):
        enrnn.spectral_radius(torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"floating point.*int64"):
        enrnn.spectral_radius(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"Unknown method 'qr'"):
        enrnn.spectral_radius(torch.zeros(2, 2), "qr")
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not finite"):
            enrnn.spectral_radius(torch.full((2, 2), bad))
