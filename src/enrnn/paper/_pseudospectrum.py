"""The pseudospectrum: how nearly z is an eigenvalue of W, `σ_min(zI − W) = 1/‖(zI − W)⁻¹‖`."""

import torch
from torch import Tensor

AT_ONCE = 32 * 2**20
"""Complex entries of matrices that are factored together."""
ITERATIONS = 30


@torch.no_grad()
def smallest_singular_values(matrix: Tensor, points: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """`σ_min(zI − W)` for complex `points`, in the shape of these.

    Lanczos on `((zI − W)*(zI − W))⁻¹`, for many z at once: one LU factorisation each, then `iterations` pairs of solves, with
    full reorthogonalisation. Exact once there are as many iterations as rows, and in practice long before: the largest eigenvalue
    of an inverse is the one that Lanczos finds first. Where z is an eigenvalue it is 0.
    """
    W = matrix.detach().to(torch.complex128)
    flat = points.reshape(-1).to(W)
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    chunk = max(1, AT_ONCE // len(W) ** 2)
    values = [_smallest(z[:, None, None] * eye - W, iterations) for z in torch.split(flat, chunk)]
    return torch.cat(values).view(points.shape)


def _smallest(A: Tensor, iterations: int) -> Tensor:
    """Of a batch `[k, n, n]`."""
    n = A.shape[-1]
    factors, pivots, _ = torch.linalg.lu_factor_ex(A)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(n, dtype=torch.complex128, generator=generator).to(A.device)
    v = (start / torch.linalg.vector_norm(start)).expand(len(A), n)
    basis = [v]
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for _ in range(min(iterations, n)):
        w = torch.linalg.lu_solve(factors, pivots, v.unsqueeze(-1), adjoint=True)
        w = torch.linalg.lu_solve(factors, pivots, w).squeeze(-1)  # (A*A)⁻¹ v
        alphas.append((v.conj() * w).sum(-1).real)
        span = torch.stack(basis, dim=1)  # [k, j, n]
        for _ in range(2):
            w = w - torch.einsum("kjn,kj->kn", span, torch.einsum("kjn,kn->kj", span.conj(), w))
        beta = torch.linalg.vector_norm(w, dim=-1)
        betas.append(beta)
        v = torch.where((beta > 0)[:, None], w / beta[:, None].clamp_min(torch.finfo(torch.float64).tiny), 0)
        basis.append(v)
    diagonal = torch.diag_embed(torch.stack(alphas, dim=-1))
    off = torch.diag_embed(torch.stack(betas, dim=-1)[:, :-1], offset=1) if len(betas) > 1 else torch.zeros_like(diagonal)
    tridiagonal = diagonal + off + off.mT
    finite = torch.isfinite(tridiagonal).all(-1).all(-1)
    largest = torch.linalg.eigvalsh(torch.where(finite[:, None, None], tridiagonal, 0))[:, -1]
    return torch.where(finite & (largest > 0), largest.clamp_min(torch.finfo(torch.float64).tiny).rsqrt(), 0)


def grid(radius: float, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Real parts `[points]`, imaginary parts from 0 up `[(points + 1)//2]` (a real matrix has the same below), and their z."""
    real = torch.linspace(-radius, radius, points, dtype=torch.float64)
    imaginary = torch.linspace(0, radius, (points + 1) // 2, dtype=torch.float64)
    return real, imaginary, torch.complex(real.expand(len(imaginary), -1), imaginary[:, None].expand(-1, points))


def kreiss_constant(points: Tensor, smallest: Tensor) -> float:
    """`max (|z| − 1)/σ_min(zI − W)` over the points outside the unit disc: a lower bound of `sup ‖W^k‖` (Kreiss)."""
    outside = points.abs() > 1
    if not bool(outside.any()):
        return 0.0
    return float(((points.abs() - 1) / smallest.clamp_min(1e-300))[outside].max())
