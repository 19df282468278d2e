"""Orthogonal matrices by the scaled Cayley transform (scoRNN; ENRNN's long-term matrix)."""

import math

import torch
from torch import Tensor

from .._checks import count_within, square_matrix
from .._precision import state_dtype, working_dtype
from ._cayley_transform import cayley, signs
from ._contract import Matrix, rotation_angles
from ._normal import normal_basis, scaled_rotations, skew_of
from ._orthogonal import orthogonality_error
from ._skew import skew_symmetric


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

        An orthogonal matrix (up to the rounding of its dtype) that this `D` cannot write is a `ValueError`: its determinant is
        wrong, or −1 is an eigenvalue of `WD`. What is not orthogonal is replaced by the nearest orthogonal matrix with the
        determinant `(−1)^negative_ones`; but no eigenvalue of `WD` comes nearer to −1 than 2√eps, for `A` has to be rounded.
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
            orthogonal = bool((values - 1).abs().max() < _rounding(matrix))
            if torch.linalg.det(left @ right) * signs.prod() < 0:
                if orthogonal:
                    raise ValueError(
                        f"the orthogonal matrix assigned has determinant {-signs.prod():+.0f}, but {self._count(matrix)} "
                        f"negative ones fix it to {signs.prod():+.0f}"
                    )
                left[:, -1].neg_()
            nearest = left @ right
            largest = torch.finfo(matrix.dtype).eps ** -0.5
            skew = _skew_of_rotation(nearest * signs, math.inf if orthogonal else largest)
            original = skew.triu(1).to(matrix.dtype)
            if orthogonal and (original.abs().max() > largest or not self._reaches(nearest, original)):
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
        """The largest entry of `|WᵀW − I|`: zero up to rounding for every finite `A` on a CPU, up to |A| ≈ 10⁵ on a GPU.

        Of an odd size, rounding grows with |A|, up to 3·10⁻¹¹ at 10⁵; from there on a CPU takes the way that costs more.
        """
        return orthogonality_error(matrix)

    def free_parameters(self, size: int) -> int:
        return size * (size - 1) // 2

    def extra_repr(self) -> str:
        return "" if self.negative_ones is None else f"negative_ones={self.negative_ones}"

    def _count(self, matrix: Tensor) -> int:
        if type(self.negative_ones) is int and 0 <= self.negative_ones <= matrix.shape[0]:
            return self.negative_ones
        return count_within("negative_ones", self.negative_ones, 0.3, matrix.shape[0], "the size", fraction=False)

    def _signs(self, matrix: Tensor) -> Tensor:
        """The diagonal of `D`, in the precision the transform is computed in."""
        return signs(matrix, self._count(matrix)).to(working_dtype(matrix))

    def _reaches(self, wanted: Tensor, original: Tensor) -> bool:
        """Whether `A` gives what is wanted. As `dW = −(I + A)⁻¹ dA (D + W)`, rounding `A` costs at most eps·‖A‖."""
        cost = torch.finfo(original.dtype).eps * float(torch.linalg.norm(skew_symmetric(original.to(wanted))))
        return bool((self(original).to(wanted) - wanted).abs().max() <= max(_rounding(original), 1e-5) + cost)


def _rounding(matrix: Tensor) -> float:
    """How far from one the singular values of an orthogonal matrix may be: they are moved by √n·eps/2 at most as its entries are
    rounded to the dtype, and what was rounded had been computed, in float32 if the dtype is a shorter one."""
    size = matrix.shape[0]
    return math.sqrt(size) * torch.finfo(matrix.dtype).eps + 100 * size * torch.finfo(state_dtype(matrix.dtype)).eps


def _skew_of_rotation(rotation: Tensor, largest: float) -> Tensor:
    """`(I − Z)(I + Z)⁻¹`: where `Z` turns a plane by θ, it is `−tan(θ/2)·[[0, −1], [1, 0]]`; of that, as much as is allowed."""
    Q = normal_basis(rotation)
    cosine, sine = scaled_rotations(Q.mT @ rotation @ Q)
    return skew_of(Q, -torch.tan(torch.atan2(sine, cosine) / 2).clamp(-largest, largest))
