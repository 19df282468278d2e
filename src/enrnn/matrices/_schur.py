"""A matrix by its Schur form: rotations that are scaled, and what is not normal beside them (nnRNN)."""

from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import non_negative, square_matrix
from .._precision import working_dtype
from ._contract import Matrix, rotation_angles
from ._normal import normal_basis, paired, scaled_rotations
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
        A, *middle = (part.to(working_dtype(skew)) for part in (skew, angles, moduli, lower))
        P = exponential(skew_symmetric(A))
        return (P @ _middle(*middle) @ P.mT).to(skew.dtype)

    def penalty(self, *originals: Tensor) -> Tensor:
        """`δ·Σ(γ_j − 1)²` over the eigenvalues: each pair counts once, as in the paper."""
        return self.gamma_penalty * (_Parts(*originals).moduli - 1).square().sum()

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """From eigenvectors, pair by pair: exact for normal matrices whose real eigenvalues pair up, equal with equal, which may
        leave one over if the size is odd. Orthogonal matrices are among them, but those of even size and determinant −1.
        Of others, the blocks need not come out as scaled rotations in this order; the nearest ones then take their place."""
        square_matrix("the matrix assigned to a Schur parametrization", matrix)
        if matrix.is_meta:
            return tuple(matrix.new_empty(part.shape) for part in self.originals(matrix.shape[0], matrix))
        exact = finite_matrix(matrix)
        fits = [_fit(exact, basis) for basis in (normal_basis(exact), _invariant_basis(exact))]
        P, angles, moduli, lower, _ = min(fits, key=lambda fit: fit.distance)
        parts = logarithm(P).triu(1), angles, moduli, lower
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


class _Fit(NamedTuple):
    P: Tensor
    angles: Tensor
    moduli: Tensor
    lower: Tensor
    distance: float
    """Between `PΘPᵀ` and the matrix that it is to be."""


def _middle(angles: Tensor, moduli: Tensor, lower: Tensor) -> Tensor:
    """Θ."""
    size = lower.shape[0]
    scales = moduli[: size // 2]
    cosine, sine = scales * torch.cos(angles), scales * torch.sin(angles)
    diagonal = torch.cat([cosine.repeat_interleave(2), moduli[size // 2 :]])
    beside = torch.stack([sine, torch.zeros_like(sine)], dim=1).flatten()[: size - 1]
    return torch.diag(diagonal) + torch.diag(beside, -1) - torch.diag(beside, 1) + _below_blocks(lower)


def _below_blocks(matrix: Tensor) -> Tensor:
    """What stands strictly below the 2×2 blocks on the diagonal."""
    block = torch.arange(matrix.shape[0], device=matrix.device) // 2
    return torch.where(block.unsqueeze(1) > block, matrix, 0)


def _fit(matrix: Tensor, basis: Tensor) -> _Fit:
    """The blocks of a matrix in an orthogonal basis, which becomes a rotation, as scaled rotations."""
    P = basis.clone()
    if torch.linalg.det(P) < 0:
        P[:, 0].neg_()
    middle = P.mT @ matrix @ P
    cosine, sine = scaled_rotations(middle)
    angles, moduli = torch.atan2(sine, cosine), torch.cat([torch.hypot(cosine, sine), middle.diagonal()[2 * len(cosine) :]])
    lower = _below_blocks(middle)
    return _Fit(P, angles, moduli, lower, float(torch.linalg.norm(_middle(angles, moduli, lower) - middle)))


def _invariant_basis(matrix: Tensor) -> Tensor:
    """An orthogonal basis whose last 2, 4, … columns (after the last one alone, if the size is odd) span invariant subspaces of a
    matrix that need not be normal."""
    values, vectors = torch.linalg.eig(matrix)
    real = (values.imag == 0).nonzero().flatten()
    real = real[values.real[real].argsort()]
    real = real[paired(values.real[real])]
    in_pairs, alone = vectors.real[:, real].split([len(real) // 2 * 2, len(real) % 2], dim=1)
    upper = torch.view_as_real(vectors[:, values.imag > 0]).flatten(1)
    Q: Tensor = torch.linalg.qr(torch.cat([alone, upper, in_pairs], dim=1))[0].flip(1)
    return Q
