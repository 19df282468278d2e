"""Constrained matrices: what their kernels compute, in float32 and in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn import _replay
from enrnn._graphs import Graphs
from enrnn.matrices import _cayley_transform, _inverse, _normalization
from enrnn.matrices._eigenvalue_normalized import normalize_spectrum, normalize_spectrum_backward
from tests.emulator._chip import Emulated
from tests.recurrence._replayed import at_first, programs

pytestmark = pytest.mark.usefixtures("in_any_order_too")

DTYPES = [torch.float32, torch.float64]


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, exact: Tensor, roundings: float) -> None:
    tolerance = roundings * torch.finfo(found.dtype).eps
    torch.testing.assert_close(
        found.to(exact.dtype), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max().clamp_min(1))
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 70])
def test_the_cayley_transform(size: int, dtype: torch.dtype, emulated: Emulated) -> None:
    P, G = (noise(size, size, seed=seed).to(dtype).double() for seed in range(2))
    A, signs = P.triu(1) - P.triu(1).mT, torch.ones(size, dtype=torch.float64)
    signs[-2:] = -1
    identity = torch.eye(size, dtype=torch.float64)
    X = torch.linalg.inv(identity + A)
    V = X.mT @ (2 * G * signs) @ X.mT
    W, inverse = _cayley_transform.cayley(P.to(dtype), 2)
    near(W, (2 * X - identity) * signs, 1e3)
    near(inverse, X, 1e3)
    near(_cayley_transform.cayley_backward(G.to(dtype), inverse, 2), (V.mT - V).triu(1), 1e4)
    forward = ["shift", *["eliminate"] * -(-size // 32), *["product"] * 3, "finish"]
    assert emulated.launched == [*forward, "widen", *["product"] * 2, "narrow"]


@pytest.mark.parametrize(
    "family", [enrnn.Cayley(), enrnn.EigenvalueNormalized(normalizing=True)], ids=lambda each: type(each).__name__
)
def test_calls_that_are_replayed(family: torch.nn.Module, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, one by one and as graphs."""

    def answers(seed: int) -> list[Tensor]:
        P = noise(33, 33, seed=seed).float().requires_grad_()
        W = family(P)
        return [W.detach(), *torch.autograd.grad(W, P, noise(33, 40, seed=seed + 1).float()[:, 7:])]  # a part of a larger one

    for seed in range(5):
        found = answers(seed)
    monkeypatch.setattr(Graphs, "run", at_first)
    again = answers(seed)
    assert [type(each) for each in programs()] == [_replay.Program] * 2
    assert emulated.graphs_launched == 2  # with a copy before some of them, which on a GPU is in the graph, too
    monkeypatch.setattr(_replay, "replayable", lambda like: False)
    for one, two, three in zip(found, again, answers(seed), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("size", [1, 31, 32, 70])
def test_products_around_an_inverse(size: int, emulated: Emulated) -> None:
    """Of any strides, and with something added."""
    kernels = _inverse.kernels_for(noise(size, size))
    assert kernels is not None
    A, B, D = (noise(size, size, seed=seed) for seed in range(3))
    wide = torch.full((size, 2 * size + 3), float("nan"), dtype=torch.float64)
    wide[:, 1:-2:2] = B
    for a, b in ((A, B), (A.mT, B), (A, B.mT), (A.mT, wide[:, 1:-2:2])):
        near(_inverse.product(a, b, kernels), a @ b, 100)
        near(_inverse.product(a, b, kernels, D, -1), D - a @ b, 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 40])
def test_a_matrix_divided_by_its_spectral_radius(size: int, dtype: torch.dtype, emulated: Emulated) -> None:
    T, G = (noise(size, size, seed=seed).to(dtype) for seed in range(2))
    exact = T.double().requires_grad_()
    radius = torch.linalg.eigvals(exact).abs().max()
    wanted = exact / (radius + 0.3)
    derivative, gradient = (
        torch.autograd.grad(radius, exact, retain_graph=True)[0],
        torch.autograd.grad(wanted, exact, G.double())[0],
    )
    W, found, by_T, switched, applied, simple, fell_back, certified, finite = normalize_spectrum(
        T, torch.tensor(False), 0.3, "auto"
    )
    for ours, right in ((W, wanted), (found, radius), (by_T, derivative)):
        near(ours, right.detach(), 1e4)
    assert [bool(each) for each in (switched, applied, simple, certified, finite)] == [True] * 5
    assert not fell_back
    near(normalize_spectrum_backward(G, W, by_T, found, applied, 0.3), gradient, 1e4)
    assert emulated.launched == ["largest", "spectral_radius", "normalize", "share", "pull_back"]


def test_what_a_step_notes(emulated: Emulated) -> None:
    kernels = _normalization.kernels_for(torch.ones(1))
    assert kernels is not None
    radius, flags = torch.tensor(1.5), [torch.tensor(each) for each in (True, True, True, True, False, True)]
    not_finite, uncertified, normalizing = (torch.tensor(False) for _ in range(3))
    defective, fallbacks, kept = torch.tensor(3), torch.tensor(4), torch.zeros(1)
    kernels.note(1, 1, *flags, radius, not_finite, uncertified, normalizing, defective, fallbacks, kept, 1)
    assert [bool(each) for each in (not_finite, uncertified, normalizing)] == [False, False, True]
    assert [each.item() for each in (defective, fallbacks, kept)] == [4, 5, 1.5]
