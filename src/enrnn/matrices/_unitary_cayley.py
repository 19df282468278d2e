"""Unitary matrices by the complex scaled Cayley transform (scuRNN)."""

import torch
from torch import Tensor

from .._precision import working_dtype
from ._complex import check_columns, check_real_form, complex_units, nearest_unitary, real_form, unitarity_error
from ._contract import Matrix
from ._inverse import shifted_skew_inverse


class UnitaryCayley(Matrix):
    """`W = (I + A)⁻¹(I − A)D`, with `A` skew-Hermitian and `D = diag(e^{iθ})`, as its real form of size 2n.

    Every unitary matrix can be written so, and θ is trained: there are no minus ones to choose (Maduranga, Helfrich & Ye, 2019).

    Free tensors: `[P; Q]`, 2n×n, and θ. What is above the diagonal of `P` and of `Q`, and the diagonal of `Q`, is read:
    `A = triu(P, 1) − triu(P, 1)ᵀ + i·(triu(Q) + triu(Q, 1)ᵀ)`. The paper's `∂L/∂A = Vᵀ − V̄`, `V = (I + A)⁻ᵀ G (D + Wᵀ)`, is half
    of what an optimiser sees here of the entries above the diagonal, and all of what it sees on it.
    """

    def forward(self, skew: Tensor, angles: Tensor) -> Tensor:
        check_columns("the first free tensor of UnitaryCayley", skew)
        P, Q = skew.to(working_dtype(skew)).chunk(2)
        theta = angles.to(P.dtype)
        A = real_form(torch.cat([P.triu(1) - P.triu(1).mT, Q.triu() + Q.triu(1).mT]))
        identity = torch.eye(*skew.shape, dtype=P.dtype, device=P.device)
        # (I + A)⁻¹(I − A) = 2(I + A)⁻¹ − I; its real form is orthogonal, and its first columns are all of it.
        real, imaginary = (2 * shifted_skew_inverse(A)[:, : skew.shape[1]] - identity).chunk(2)
        cosine, sine = torch.cos(theta), torch.sin(theta)
        columns = torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine])
        return real_form(columns.to(skew.dtype))

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """`D = e^{iφ}I` and `A = (I − WD*)(I + WD*)⁻¹` for the nearest unitary matrix; −e^{iφ} is put where `W` has the widest
        gap between eigenvalues."""
        check_real_form("the matrix assigned to a UnitaryCayley parametrization", matrix)
        if matrix.is_meta:
            return tuple(matrix.new_empty(part.shape) for part in self.originals(matrix.shape[0], matrix))
        W = nearest_unitary(matrix)
        phases = torch.linalg.eigvals(W).angle().sort().values
        gaps = torch.diff(phases, append=phases[:1] + 2 * torch.pi)
        widest = gaps.argmax()
        phi = phases[widest] + gaps[widest] / 2 - torch.pi
        Z = W * torch.polar(torch.ones_like(phi), -phi)
        identity = torch.eye(W.shape[0], dtype=W.dtype, device=W.device)
        A = torch.linalg.solve(identity + Z, identity - Z)
        columns = torch.cat([A.real.triu(1), A.imag.triu()])
        return columns.to(matrix.dtype), phi.repeat(W.shape[0]).to(matrix.dtype)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        n = complex_units("a complex matrix in real numbers", size)
        return like.new_zeros(size, n), like.new_zeros(n)

    def initialize_(self, *originals: Tensor) -> None:
        """`A` real, of 2×2 blocks `tan(t/2)·[[0, 1], [−1, 0]]`, t ∼ U[0, 2π), and θ ∼ U[0, 2π)."""
        skew, angles = originals
        with torch.no_grad():
            turns = angles.new_empty(angles.shape[0] // 2).uniform_(0.0, 2 * torch.pi)
            skew.zero_().diagonal(1)[::2][: turns.shape[0]] = torch.tan(turns / 2)
            angles.uniform_(0.0, 2 * torch.pi)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """How far from the real form of a unitary matrix."""
        return unitarity_error(matrix)

    def free_parameters(self, size: int) -> int:
        """`n² + n`, as the paper counts: n more than the dimension of the unitary matrices."""
        return (size // 2) ** 2 + size // 2
