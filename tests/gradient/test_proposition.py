"""Proposition 3.2: the gradient of a loss through `W = T/(ρ(T) + ε)`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from enrnn import EigenvalueNormalized
from enrnn.spectrum import SOLVERS, dominant
from tests._record import Recorder
from tests.gradient._spectra import (
    EPS,
    Array,
    Spectrum,
    central_differences,
    error_of_proposition,
    matrix_with_dominant,
    proposition,
    spectrum,
)

SEEDS = integers(0, 2**32 - 1)
KINDS = ["real", "complex"]


def draw(size: int, kind: str, seed: int) -> tuple[Spectrum, Array]:
    """A matrix, and the gradient G of a loss at W."""
    rng = np.random.default_rng(seed)
    # One eigenvalue cannot be a pair.
    size = max(size, 2) if kind == "complex" else size
    found = spectrum(matrix_with_dominant(rng, size, kind))
    assert (abs(found.eigenvalue.imag) > 1e-8) == (kind == "complex")
    return found, rng.standard_normal((size, size))


def gradient(T: Array, G: Array, epsilon: float, solver: str = "auto") -> Array:
    original = torch.from_numpy(T).requires_grad_()
    W = EigenvalueNormalized(epsilon, normalizing=True, solver=solver)(original)
    W.backward(torch.from_numpy(G))
    assert original.grad is not None
    return original.grad.numpy()


def relative(error: float, s: Spectrum, G: Array, epsilon: float) -> float:
    """An error in ∂L/∂T in units of ‖G‖/(ρ + ε), what the gradient would be if ρ were a constant."""
    return error * (s.radius + epsilon) / float(np.linalg.norm(G))


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("kind", KINDS)
@given(size=integers(1, 12), seed=SEEDS)
def test_the_gradient_is_that_of_finite_differences(record: Recorder, kind: str, epsilon: float, size: int, seed: int) -> None:
    s, G = draw(size, kind, seed)
    expected, bound = central_differences(s, G, epsilon)
    error = np.abs(gradient(s.T, G, epsilon) - expected).max()
    bound += error_of_proposition(s, G, epsilon)
    record(
        cases=1,
        worst_error_of_differences=relative(error, s, G, epsilon),
        worst_bound_of_differences=relative(bound, s, G, epsilon),
    )
    assert relative(bound, s, G, epsilon) < 1e-6, "finite differences would see nothing here"
    assert error <= bound


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@given(size=integers(1, 12), seed=SEEDS)
def test_the_gradient_is_that_of_finite_differences_for_gaussian_matrices(
    record: Recorder, epsilon: float, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    s, G = spectrum(rng.standard_normal((size, size))), rng.standard_normal((size, size))
    assume(s.basis_condition < 300 and min(s.lead, s.distance) > 0.02 * s.radius)
    expected, bound = central_differences(s, G, epsilon)
    error = np.abs(gradient(s.T, G, epsilon) - expected).max()
    bound += error_of_proposition(s, G, epsilon)
    record(cases=1, worst_error_of_gaussian_differences=relative(error, s, G, epsilon))
    assert error <= bound


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
@given(size=integers(1, 33), epsilon=sampled_from([0.0, 1e-3, 0.3]), seed=SEEDS)
def test_the_gradient_is_the_corrected_formula(
    record: Recorder, kind: str, solver: str, size: int, epsilon: float, seed: int
) -> None:
    s, G = draw(size, kind, seed)
    error = np.abs(gradient(s.T, G, epsilon, solver) - proposition(s, G, epsilon)).max()
    record(cases=1, worst_error_of_formula=relative(error, s, G, epsilon))
    assert error <= error_of_proposition(s, G, epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_as_printed_is_wrong_for_positive_epsilon(record: Recorder, full: bool, kind: str) -> None:
    """What `EigenvalueNormalized` says about the paper, and proof that the comparisons above tell the two apart."""
    refuted, cases, deviations = 0, 2000 if full else 40, []
    for seed in range(cases):
        s, G = draw(1 + seed % 12, kind, seed)
        expected, bound = central_differences(s, G, 0.3)
        deviation = float(np.abs(proposition(s, G, 0.3, as_printed=True) - expected).max())
        refuted += deviation > 100 * bound
        deviations.append(relative(deviation, s, G, 0.3))
        # For ε = 0 the printed formula is the corrected one.
        assert np.array_equal(proposition(s, G, 0.0, as_printed=True), proposition(s, G, 0.0))
    record(cases=cases, share_refuted=refuted / cases, median_deviation=float(np.median(deviations)))
    # It is right by accident where ⟨G, W⟩ = 0, which random draws come close to now and then.
    assert refuted >= 0.99 * cases


@given(size=integers(2, 12), seed=SEEDS)
def test_an_eigenvalue_and_its_conjugate_give_the_same_gradient(record: Recorder, size: int, seed: int) -> None:
    s, _ = draw(size, "complex", seed)
    # Re(λ̄S) and its conjugate: the same products and sums up to sign, so equal but for how a machine fuses them.
    assert np.abs(s.C() - s.C(conjugate=True)).max() <= 8 * np.finfo(float).eps * np.abs(s.C()).max()

    pair = dominant(torch.from_numpy(s.T))
    mirrored = pair._replace(
        eigenvalue=pair.eigenvalue.conj_physical(),
        right=pair.right.conj_physical(),
        left=pair.left.conj_physical(),
    )
    torch.testing.assert_close(mirrored.derivative(), pair.derivative(), rtol=0, atol=1e-14 * float(pair.condition))
    error = np.abs(pair.radius.item() * pair.derivative().numpy() - s.C()).max()
    record(cases=1, worst_error_of_C=error / s.radius)
    assert error <= s.error_of_C()


def separated(seed: int, size: int, kind: str) -> Tensor:
    s, _ = draw(size, kind, seed)
    return torch.from_numpy(s.T).requires_grad_()


# gradcheck's step is 1e-6. Around these matrices an entry may move by about r = 0.01 (`central_differences`), so that
# truncation is of the order of (1e-6/r)²/r = 1e-6 and rounding of eps·κ/1e-6 = 1e-9; entries of the Jacobian are 1/ρ.
CHECK = {"eps": 1e-6, "atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(record: Recorder, full: bool, kind: str, epsilon: float) -> None:
    matrix = EigenvalueNormalized(epsilon, normalizing=True)
    cases = 60 if full else 4
    for seed in range(cases):
        assert gradcheck(matrix, separated(seed, 1 + seed % 5, kind), **CHECK)
    record(cases=cases)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradgradcheck(record: Recorder, full: bool, kind: str, epsilon: float) -> None:
    matrix = EigenvalueNormalized(epsilon, normalizing=True)
    cases = 60 if full else 4
    for seed in range(cases):
        # One derivative more costs another 1/r in the truncation.
        assert gradgradcheck(matrix, separated(seed, 1 + seed % 5, kind), eps=1e-6, atol=1e-4, rtol=1e-4)
    record(cases=cases)


def test_gradcheck_while_not_normalizing(full: bool) -> None:
    """The identity, and its derivatives those of the identity."""
    matrix = EigenvalueNormalized(0.3)
    for seed in range(20 if full else 3):
        T = separated(seed, 4, KINDS[seed % 2]).detach()
        T = (T * 0.9 / spectrum(T.numpy()).radius).requires_grad_()
        assert gradcheck(matrix, T, **CHECK)
        assert gradgradcheck(matrix, T, **CHECK)
    assert not matrix.normalizing


@given(size=integers(1, 12), kind=sampled_from(KINDS), exponent=integers(-40, 40), seed=SEEDS)
def test_the_second_derivative_does_not_depend_on_the_scale_of_T(
    record: Recorder, size: int, kind: str, exponent: int, seed: int
) -> None:
    """For ε = 0, W(cT) = W(T): its second derivative at cT is the one at T divided by c²."""
    s, G = draw(size, kind, seed)
    direction = torch.from_numpy(np.random.default_rng(seed + 1).standard_normal(G.shape))
    matrix = EigenvalueNormalized(normalizing=True)

    def second(scale: float) -> Tensor:
        T = torch.from_numpy(s.T * scale).requires_grad_()
        (first,) = torch.autograd.grad(matrix(T), T, torch.from_numpy(G), create_graph=True)
        (result,) = torch.autograd.grad(first, T, direction)
        return result

    scale = 2.0**exponent
    expected = second(1.0)
    error = float((second(scale) * scale**2 - expected).abs().max())
    # One more resolvent than in C, and products of norms; the scale is a power of two and costs nothing.
    resolvent = s.condition / s.radius + (s.basis_condition / s.distance if len(s.T) > 1 else 0.0)
    size_of_second = float(np.linalg.norm(G) * torch.linalg.norm(direction)) * s.condition**2 * resolvent / s.radius
    bound = 64 * len(s.T) * EPS * size_of_second * (1 + float(np.linalg.norm(s.T)) * s.condition * resolvent)
    record(cases=1, worst_error_of_second=error / size_of_second)
    assert error <= bound
