"""Orthogonal matrices by the scaled Cayley transform (scoRNN; ENRNN's long-term matrix)."""

import torch
from torch import Tensor

from .._checks import count_within, square_matrix
from .._precision import working_dtype
from ._cayley_transform import cayley, signs
from ._contract import Matrix, rotation_angles
from ._orthogonal import orthogonality_error


class Cayley(Matrix):
    """`W = (I + A)⁻¹(I − A)D`, with `A` skew-symmetric and `D = diag(1, …, 1, −1, …, −1)`.

    `W` is orthogonal for every `A`; the number of −1s in `D` fixes its determinant, `(−1)^negative_ones`, and every
    orthogonal matrix can be written with some `D` (Helfrich, Willmott & Ye, 2018). The free matrix `P` is square and only
    its part above the diagonal is read: `A = triu(P, 1) − triu(P, 1)ᵀ`, so an elementwise optimiser acting on `P` sees the
    gradient of scoRNN, `∂L/∂A = Vᵀ − V` with `V = (I + A)⁻ᵀ G (D + Wᵀ)`.

    Arguments:
        negative_ones: how many −1s stand at the end of `D`; None takes 30 % of the size, rounded.
    """

    def __init__(self, *, negative_ones: int | None = None) -> None:
        super().__init__()
        if negative_ones is not None:
            count_within("negative_ones", negative_ones, 0.0, 1 << 62, "the size", fraction=False)
        self.negative_ones = negative_ones

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of Cayley", original)
        orthogonal: Tensor = cayley(original, self._count(original))[0]
        return orthogonal

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """`A = (I − WD)(I + WD)⁻¹`.

        What is not orthogonal is replaced by the nearest orthogonal matrix with determinant `(−1)^negative_ones`. An
        orthogonal matrix that this `D` cannot write (wrong determinant, or −1 an eigenvalue of `WD`) is a `ValueError`.
        """
        square_matrix("the matrix assigned to a Cayley parametrization", matrix)
        signs = self._signs(matrix)
        if matrix.is_meta:
            return torch.empty_like(matrix)
        with torch.no_grad():
            target = matrix.to(signs.dtype)
            if not torch.isfinite(target).all():
                raise ValueError("the matrix assigned to a Cayley parametrization has entries that are not finite")
            left, values, right = torch.linalg.svd(target)
            nearest = left @ right
            rounding = 100 * matrix.shape[0] * torch.finfo(matrix.dtype).eps
            if torch.linalg.det(nearest) * signs.prod() < 0:
                if (values - 1).abs().max() < rounding:
                    raise ValueError(
                        f"the orthogonal matrix assigned has determinant {-signs.prod():+.0f}, but {self._count(matrix)} "
                        f"negative ones fix it to {signs.prod():+.0f}"
                    )
                left[:, -1].neg_()
                nearest = left @ right
            rotation = nearest * signs
            identity = torch.eye(rotation.shape[0], dtype=rotation.dtype, device=rotation.device)
            # (I − Z)(I + Z)⁻¹ = (I + Z)⁻¹(I − Z): both are polynomials in Z.
            skew: Tensor = torch.linalg.solve_ex(identity + rotation, identity - rotation)[0]
            original = ((skew - skew.mT) / 2).triu(1).to(matrix.dtype)
            reached = torch.allclose(self(original).to(signs.dtype), nearest, rtol=0, atol=max(rounding, 1e-5))
            if not reached or original.abs().max() > torch.finfo(matrix.dtype).eps ** -0.5:
                raise ValueError(
                    f"no skew-symmetric A gives the matrix assigned: with {self._count(matrix)} negative ones, WD has an "
                    "eigenvalue at (or too near) −1. Choose another number of negative ones."
                )
            return original

    def initialize_(self, *originals: Tensor) -> None:
        """2×2 blocks `tan(t/2)·[[0, 1], [−1, 0]]`, t ∼ U[0, π/2): `W D` starts as rotations by the angles `t`."""
        (original,) = originals
        angles = rotation_angles(original.shape[0], original)
        with torch.no_grad():
            original.zero_()
            original.diagonal(1)[::2][: angles.shape[0]] = torch.tan(angles / 2)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """The largest entry of `|WᵀW − I|`."""
        return orthogonality_error(matrix)

    def free_parameters(self, size: int) -> int:
        return size * (size - 1) // 2

    def extra_repr(self) -> str:
        return "" if self.negative_ones is None else f"negative_ones={self.negative_ones}"

    def _count(self, matrix: Tensor) -> int:
        return count_within("negative_ones", self.negative_ones, 0.3, matrix.shape[0], "the size", fraction=False)

    def _signs(self, matrix: Tensor) -> Tensor:
        """The diagonal of `D`, in the precision the transform is computed in."""
        return signs(matrix, self._count(matrix)).to(working_dtype(matrix))
