"""The dominant eigenvalue with both eigenvectors by a dense decomposition: the specification of this folder."""

from typing import NamedTuple

import torch
from torch import Tensor


def accuracy_for(dtype: torch.dtype) -> float:
    """The relative error of ρ that a fast solver may leave, by its own estimate.

    A matrix given in float32 is itself no more exact than 6e-8; 1e-10 leaves Prop. 3.2's C exact to 1e-4 where the runner-up is
    a millionth away.
    """
    return 1e-12 if dtype == torch.float64 else 1e-10


class Dominant(NamedTuple):
    """An eigenvalue `λ` of largest modulus with `T u = λ u`, `v* T = λ v*`, and what follows from them."""

    radius: Tensor
    """ρ(T) = |λ|, real."""
    eigenvalue: Tensor
    """λ, complex, with non-negative imaginary part."""
    right: Tensor
    """u, complex, of unit length."""
    left: Tensor
    """v, complex, of unit length."""
    condition: Tensor
    """‖u‖‖v‖/|v*u|: how far λ moves under a perturbation of T; infinite when λ is defective."""

    def derivative(self) -> Tensor:
        """`∂ρ/∂T = C/ρ`, with Proposition 3.2's `C = α Re S + β Im S = Re(λ̄ S)`, `S = v̄ uᵀ/(v*u)`.

        It is zero where ρ has no derivative: at ρ = 0, and where `v*u` vanishes to rounding.
        """
        overlap = (self.left.conj_physical() * self.right).sum(-1)
        smooth = (self.condition < 1 / torch.finfo(torch.float64).eps) & (self.radius > 0)
        phase = torch.polar(torch.ones_like(self.radius), -torch.angle(self.eigenvalue))  # λ̄/|λ|, subnormal or not
        factor = torch.where(smooth, phase / torch.where(smooth, overlap, 1), 0)
        outer = self.left.conj_physical().unsqueeze(-1) * self.right.unsqueeze(-2)
        return (factor[..., None, None] * outer).real.contiguous()


def dominant(matrix: Tensor) -> Dominant:
    """Decompose `matrix` ([..., m, m], float64, finite).

    LAPACK's `geev` gives every eigenvalue and the right vectors. The left vector of the largest comes from two steps of
    inverse iteration on `(T − λ)*`, not from a second decomposition (whose eigenvalues would have to be matched, hopeless
    under near ties) nor from inverting the matrix of right vectors (ruined by a defective pair anywhere in the spectrum).
    The matrix is scaled by a power of two first, so that no entry over- or underflows and no digit is lost.
    """
    scale = power_of_two_above(matrix.abs().amax((-2, -1)))
    scaled = matrix / scale[..., None, None]

    eigenvalues, vectors = torch.linalg.eig(scaled)
    index = eigenvalues.abs().argmax(-1, keepdim=True)
    eigenvalue = eigenvalues.gather(-1, index).squeeze(-1)
    right = vectors.gather(-1, index.unsqueeze(-2).expand(*vectors.shape[:-1], 1)).squeeze(-1)

    lower = eigenvalue.imag < 0
    eigenvalue = torch.where(lower, eigenvalue.conj_physical(), eigenvalue)
    right = torch.where(lower.unsqueeze(-1), right.conj_physical(), right)
    right = right / torch.linalg.vector_norm(right, dim=-1, keepdim=True)
    left = _left_vector(scaled, eigenvalue, right)
    # A long Jordan chain makes the iteration overflow: v*u is zero to any precision then, and any v will do.
    lost = ~torch.isfinite(torch.view_as_real(left)).all(-1).all(-1)
    left = torch.where(lost.unsqueeze(-1), right, left)

    overlap = (left.conj_physical() * right).sum(-1).abs()
    condition = torch.where(lost, torch.inf, 1 / overlap)
    return Dominant(eigenvalue.abs() * scale, eigenvalue * scale, right, left, condition)


def power_of_two_above(value: Tensor) -> Tensor:
    """The power of two just above a non-negative float64 `value` (1 for zero), written bit by bit: `torch.ldexp` and
    `exp2` go through float32 or are off by a rounding for large exponents."""
    _, exponent = torch.frexp(value)
    return (exponent.to(torch.int64).clamp(-1000, 1000) + 1023).bitwise_left_shift(52).view(torch.float64)


def _left_vector(matrix: Tensor, eigenvalue: Tensor, start: Tensor) -> Tensor:
    """Inverse iteration on `(T − λ)* v = start`.

    `T − λ` is singular to rounding, which is what makes the iteration converge in one or two steps; pivots that come out
    as zero are replaced by rounding-level ones. Starting from `u` keeps `v*u` away from zero for a semisimple multiple
    eigenvalue (for the identity it gives `v = u`).
    """
    size = matrix.shape[-1]
    identity = torch.eye(size, dtype=eigenvalue.dtype, device=matrix.device)
    shifted = matrix - eigenvalue[..., None, None] * identity
    factors, pivots, _ = torch.linalg.lu_factor_ex(shifted)
    norm = matrix.abs().sum(-1).amax(-1)
    floor = torch.finfo(matrix.dtype).eps * torch.where(norm == 0, torch.ones_like(norm), norm)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(torch.where(diagonal.abs() < floor[..., None], floor[..., None].to(diagonal.dtype), diagonal))
    vector = start.unsqueeze(-1)
    for _ in range(2):
        vector = torch.linalg.lu_solve(factors, pivots, vector, adjoint=True)
        vector = vector / vector.abs().amax(-2, keepdim=True)
        vector = vector / torch.linalg.vector_norm(vector, dim=-2, keepdim=True)
    return vector.squeeze(-1)
