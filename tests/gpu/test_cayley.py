"""The scaled Cayley transform on a GPU: elimination without pivoting is as good as LAPACK with it, at every size and scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn import _nvrtc
from enrnn.matrices._inverse import shifted_skew_inverse
from tests._record import Recorder

pytestmark = pytest.mark.gpu

SIZES = [1, 2, 3, 31, 32, 33, 63, 64, 65, 96, 100, 172, 310, 374, 401]


@pytest.fixture(autouse=True)
def kernels() -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)


def skew(size: int, scale: float) -> Tensor:
    square = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    return scale * (square - square.mT) / max(size, 1) ** 0.5


@pytest.mark.parametrize("size", SIZES)
def test_inverse(size: int, record: Recorder) -> None:
    """Norms of A up to 10⁵: the error is that of rounding, κ(I + A) taken into account."""
    worst = 0.0
    for scale in (0.0, 1e-3, 1.0, 30.0, 1e3, 5e4):
        A = skew(size, scale)
        shifted = torch.eye(size, dtype=torch.float64) + A
        found = shifted_skew_inverse(A.cuda()).cpu()
        exact = torch.linalg.inv(shifted)
        condition = float(torch.linalg.cond(shifted))
        error = float((found - exact).norm() / exact.norm()) / (torch.finfo(torch.float64).eps * condition)
        worst = max(worst, error)
    record(cases=6, worst_error_in_roundings_times_condition=worst)
    assert worst < 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_and_gradient(dtype: torch.dtype, record: Recorder) -> None:
    """Orthogonal to rounding, and the gradient that the CPU gives."""
    worst = 0.0
    for size in SIZES:
        cayley = enrnn.Cayley()
        P = (3 * skew(size, 1.0)).to(dtype)
        G = torch.randn(size, size, dtype=dtype, generator=torch.Generator().manual_seed(1))
        answers = []
        for device in ("cpu", "cuda"):
            original = P.to(device).requires_grad_()
            W = cayley(original)
            answers.append((W.detach().cpu(), torch.autograd.grad(W, original, G.to(device))[0].cpu()))
            worst = max(worst, float(cayley.constraint_error(W)) / torch.finfo(dtype).eps)
        tolerance = 1e3 * torch.finfo(dtype).eps
        for there, here in zip(*answers, strict=True):
            torch.testing.assert_close(there, here, rtol=tolerance, atol=tolerance * float(here.abs().max().clamp_min(1)))
    record(cases=2 * len(SIZES), worst_orthogonality_in_roundings=worst)
    assert worst < 100


def test_in_a_graph_and_twice_differentiable() -> None:
    cayley, P = enrnn.Cayley(), skew(70, 1.0).float().cuda().requires_grad_()
    G = torch.randn(70, 70, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        W = cayley(P)
        return W.detach(), torch.autograd.grad(W, P, G)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
    with torch.no_grad():
        P.mul_(1.5)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))
    small = skew(4, 1.0).cuda().requires_grad_()
    assert torch.autograd.gradgradcheck(cayley, small)
