"""A matrix by its Schur form: rotations that are scaled, and what is not normal beside them (nnRNN)."""

from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import non_negative, square_matrix
from .._precision import working_dtype
from ._contract import Matrix, rotation_angles
from ._orthogonal import finite_matrix
from ._skew import exponential, logarithm, skew_symmetric


class Schur(Matrix):
    """`W = P Θ Pᵀ`, `P = exp(A)` orthogonal, `Θ = blockdiag(γ_j R(θ_j)) + T`, `T` strictly below the blocks (Kerg et al., 2019).

    The eigenvalues of `W` are `γ_j e^{±iθ_j}`, whatever `T` is; `T` is how far `W` is from normal. Free tensors: a square matrix
    whose part above the diagonal is `A`'s; the angles θ (⌊n/2⌋); the moduli γ (⌈n/2⌉: of an odd size the last one is an
    eigenvalue on its own); and a square matrix whose part below the blocks is `T`.

    In the authors' code `T` reaches into the blocks, so that γ are not quite the moduli, and `P` starts from memory that was
    never filled; we follow the paper.

    Arguments:
        gamma_penalty: δ in `penalty`, `δ·Σ(γ_j − 1)²`, to be added to the loss.
    """

    def __init__(self, *, gamma_penalty: float = 1e-4) -> None:
        super().__init__()
        self.gamma_penalty = non_negative("gamma_penalty", gamma_penalty)

    def forward(self, skew: Tensor, angles: Tensor, moduli: Tensor, lower: Tensor) -> Tensor:
        square_matrix("the first free tensor of Schur", skew)
        exact = _Parts(*(part.to(working_dtype(skew)) for part in (skew, angles, moduli, lower)))
        P = exponential(skew_symmetric(exact.skew))
        return (P @ _middle(exact) @ P.mT).to(skew.dtype)

    def penalty(self, *originals: Tensor) -> Tensor:
        """`δ·Σ(γ_j − 1)²` over the eigenvalues: each pair counts once, as in the paper."""
        return self.gamma_penalty * (_Parts(*originals).moduli - 1).square().sum()

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """From eigenvectors, pair by pair: exact for normal matrices, orthogonal ones among them, whose real eigenvalues pair up.
        Of others, the blocks need not come out as scaled rotations in this order; the nearest ones then take their place."""
        square_matrix("the matrix assigned to a Schur parametrization", matrix)
        if matrix.is_meta:
            return tuple(matrix.new_empty(part.shape) for part in self.originals(matrix.shape[0], matrix))
        exact = finite_matrix(matrix)
        P = _invariant_basis(exact)
        middle = P.mT @ exact @ P
        a, b, c, d = (middle[i::2, j::2] for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)))
        pairs = exact.shape[0] // 2
        cosine = (a.diagonal()[:pairs] + d.diagonal()) / 2
        sine = (c.diagonal()[:pairs] - b.diagonal()[:pairs]) / 2
        moduli = torch.cat([torch.hypot(cosine, sine), a.diagonal()[pairs:]])
        parts = logarithm(P).triu(1), torch.atan2(sine, cosine), moduli, _below_blocks(middle)
        return tuple(part.to(matrix.dtype) for part in parts)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        angles, moduli = like.new_zeros(size // 2), like.new_zeros((size + 1) // 2)
        return like.new_zeros(size, size), angles, moduli, like.new_zeros(size, size)

    def initialize_(self, *originals: Tensor) -> None:
        """θ ∼ U(0, 2π), γ = 1, `T = 0`, and `A` of 2×2 blocks with entries uniform in (−π, π) (Henaff et al.)."""
        parts = _Parts(*originals)
        size = parts.skew.shape[0]
        with torch.no_grad():
            parts.skew.zero_().diagonal(1)[::2][: size // 2] = (rotation_angles(size, parts.skew) - torch.pi / 4) * 4
            parts.angles.uniform_(0.0, 2 * torch.pi)
            parts.moduli.fill_(1.0)
            parts.lower.zero_()

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """Zero: this family is given by what it leaves free (γ and `T`), and bounds nothing."""
        return matrix.new_zeros(())

    def free_parameters(self, size: int) -> int:
        """`P` has n(n − 1)/2, `T` as many less one in each block, γ and θ have n."""
        return size * (size - 1) - size // 2 + size

    def extra_repr(self) -> str:
        return f"gamma_penalty={self.gamma_penalty}"


class _Parts(NamedTuple):
    skew: Tensor
    angles: Tensor
    moduli: Tensor
    lower: Tensor


def _middle(parts: _Parts) -> Tensor:
    """Θ."""
    size = parts.skew.shape[0]
    paired = parts.moduli[: size // 2]
    cosine, sine = paired * torch.cos(parts.angles), paired * torch.sin(parts.angles)
    diagonal = torch.cat([cosine.repeat_interleave(2), parts.moduli[size // 2 :]])
    beside = torch.stack([sine, torch.zeros_like(sine)], dim=1).flatten()[: size - 1]
    return torch.diag(diagonal) + torch.diag(beside, -1) - torch.diag(beside, 1) + _below_blocks(parts.lower)


def _below_blocks(matrix: Tensor) -> Tensor:
    """What stands strictly below the 2×2 blocks on the diagonal."""
    block = torch.arange(matrix.shape[0], device=matrix.device) // 2
    return torch.where(block.unsqueeze(1) > block, matrix, 0)


def _invariant_basis(matrix: Tensor) -> Tensor:
    """A rotation whose last 2, 4, … columns (after the last one alone, if the size is odd) span invariant subspaces."""
    size = matrix.shape[0]
    values, vectors = torch.linalg.eig(matrix)
    real = sorted((values.imag == 0).nonzero().flatten().tolist(), key=lambda k: float(values[k].real))
    upper = (values.imag > 0).nonzero().flatten().tolist()
    alone = [real.pop(0 if len(real) < 2 or values[real[0]] != values[real[1]] else -1)] if size % 2 else []
    pairs = [part for k in upper for part in (vectors[:, k].real, vectors[:, k].imag)]
    columns = [vectors[:, k].real for k in alone] + pairs + [vectors[:, k].real for k in real]
    Q: Tensor = torch.linalg.qr(torch.stack(columns, dim=1))[0].flip(1)
    if torch.linalg.det(Q) < 0:
        Q[:, 0].neg_()
    return Q
