"""The gradient through the scaled Cayley transform is scoRNN's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers
from torch.autograd import gradcheck, gradgradcheck

from enrnn import Cayley
from tests._record import Recorder

SEEDS = integers(0, 2**32 - 1)


@given(size=integers(1, 33), share=floats(0, 1), scale=floats(0.01, 10), seed=SEEDS)
def test_the_gradient_is_the_explicit_formula(record: Recorder, size: int, share: float, scale: float, seed: int) -> None:
    """V = (I + A)⁻ᵀ G (D + Wᵀ), ∂L/∂A = Vᵀ − V (Helfrich, Willmott & Ye, 2018), above the diagonal."""
    generator = torch.Generator().manual_seed(seed)
    negative_ones = round(share * size)
    P = scale * torch.randn(size, size, dtype=torch.float64, generator=generator)
    G = torch.randn(size, size, dtype=torch.float64, generator=generator)
    P.requires_grad_()
    W = Cayley(negative_ones=negative_ones)(P)
    (gradient,) = torch.autograd.grad(W, P, G)

    with torch.no_grad():
        A = P.triu(1) - P.triu(1).mT
        D = torch.diag(torch.tensor([1.0] * (size - negative_ones) + [-1.0] * negative_ones, dtype=P.dtype))
        inverse = torch.linalg.inv(torch.eye(size, dtype=P.dtype) + A)
        V = inverse.mT @ G @ (D + W.mT)
        expected = (V.mT - V).triu(1)
        # Two solves with I + A, each with relative error eps·size·κ(I + A), and κ(I + A) ≤ 1 + ‖A‖ since ‖(I + A)⁻¹‖ ≤ 1.
        condition = 1 + torch.linalg.matrix_norm(A, 2)
        bound = 16 * size * torch.finfo(P.dtype).eps * condition * torch.linalg.norm(G)
    error = (gradient - expected).abs().max()
    record(cases=1, worst_error_over_norm=error / torch.linalg.norm(G))
    assert error <= bound
    assert torch.equal(gradient.tril(), torch.zeros_like(gradient))


def test_the_formula_without_its_antisymmetric_part_is_not_the_gradient() -> None:
    """What the comparison above would say to −V alone, or to the other sign of A."""
    P = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    G = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    W = Cayley(negative_ones=2)(P)
    (gradient,) = torch.autograd.grad(W, P, G)
    with torch.no_grad():
        A = P.triu(1) - P.triu(1).mT
        D = torch.diag(torch.tensor([1.0] * 4 + [-1.0] * 2, dtype=P.dtype))
        V = torch.linalg.inv(torch.eye(6, dtype=P.dtype) + A).mT @ G @ (D + W.mT)
    for wrong in (-V.triu(1), V.mT.triu(1), (V - V.mT).triu(1)):
        assert (gradient - wrong).abs().max() > 0.1


@pytest.mark.parametrize("negative_ones", [0, 1, 3, None])
def test_gradcheck_and_gradgradcheck(full: bool, negative_ones: int | None) -> None:
    for seed in range(20 if full else 2):
        size = 3 + seed % 4
        P = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        matrix = Cayley(negative_ones=negative_ones)
        # The transform is analytic with ‖(I + A)⁻¹‖ ≤ 1: truncation 1e-12, rounding eps/1e-6 = 1e-10 times κ(I + A).
        assert gradcheck(matrix, P, eps=1e-6, atol=1e-7, rtol=1e-7)
        assert gradgradcheck(matrix, P, eps=1e-6, atol=1e-7, rtol=1e-7)
