"""The power method, as spectral normalisation uses it for singular values: here to be compared with, not to be trusted."""

import torch
from torch import Tensor

from ._dense import Dominant, power_of_two_above


def power(matrix: Tensor, max_iterations: int, tolerance: float) -> tuple[Dominant, int]:
    """Iterate `x ← Tx/‖Tx‖` on both sides until the residual falls below `tolerance·ρ`; the pair, and how many steps it took.

    A dominant complex pair makes x turn for ever, so λ comes from the plane of two successive iterates: the roots of the
    quadratic `z² = a z + b` fitted to `T²x ≈ a Tx + b x`. The number of steps is about log(tolerance)/log|λ₂/λ₁|, which is as
    uneven as the gaps are; and a converged iteration proves nothing about larger eigenvalues that x missed.
    """
    scale = power_of_two_above(matrix.abs().max())
    scaled = matrix / scale
    right = _iterate(scaled, max_iterations, tolerance)
    left = _iterate(scaled.mT, max_iterations, tolerance)
    u, v = right[1], left[1].conj_physical()
    overlap = (v.conj_physical() * u).sum().abs()
    return Dominant(right[0].abs() * scale, right[0] * scale, u, v, 1 / overlap), max(right[2], left[2])


def _iterate(matrix: Tensor, max_iterations: int, tolerance: float) -> tuple[Tensor, Tensor, int]:
    size = matrix.shape[-1]
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, dtype=matrix.dtype, generator=generator).to(matrix.device)
    x = x / torch.linalg.vector_norm(x)
    eigenvalue = torch.zeros((), dtype=torch.complex128, device=matrix.device)
    vector = x.to(torch.complex128)
    for step in range(1, max_iterations + 1):
        once = matrix @ x
        twice = matrix @ once
        eigenvalue, vector = _pair_in_plane(x, once, twice)
        image = torch.complex(matrix @ vector.real, matrix @ vector.imag)
        if torch.linalg.vector_norm(image - eigenvalue * vector) <= tolerance * eigenvalue.abs():
            return eigenvalue, vector, step
        norm = torch.linalg.vector_norm(once)
        if norm == 0:
            break
        x = once / norm
    return eigenvalue, vector, max_iterations


def _pair_in_plane(x: Tensor, once: Tensor, twice: Tensor) -> tuple[Tensor, Tensor]:
    """The larger Ritz value on span{x, Tx}, with non-negative imaginary part, and its Ritz vector of unit length."""
    if x.shape[0] == 1:
        return (once / x).squeeze(0).to(torch.complex128), torch.ones(1, dtype=torch.complex128, device=x.device)
    basis, triangle = torch.linalg.qr(torch.stack([x, once], dim=1))
    if triangle[1, 1].abs() <= 1e-14 * triangle[0, 1].abs() or triangle[1, 1] == 0:  # x is an eigenvector already
        return torch.dot(x, once).to(torch.complex128), x.to(torch.complex128)
    images = torch.stack([once, twice], dim=1)
    small = torch.linalg.solve_triangular(triangle, basis.mT @ images, upper=True, left=False)
    values, vectors = torch.linalg.eig(small)
    top = int((values.abs() + 1e-12 * values.imag.sign()).argmax())
    vector = torch.complex(basis @ vectors[:, top].real, basis @ vectors[:, top].imag)
    return values[top], vector / torch.linalg.vector_norm(vector)
