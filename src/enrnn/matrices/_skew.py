"""Skew-symmetric matrices, their exponentials, and the way back."""

import math

import torch
from torch import Tensor

from .._operators import seen
from .._precision import recording
from ._normal import normal_basis, scaled_rotations, skew_of

_RADIUS = 0.34
"""Up to this norm, the Taylor polynomial of degree 12 is exact to rounding: 0.34¹³/13! < 2⁻⁵³."""

_GPU_SQUARINGS = 12
"""On a GPU nobody looks at the norm, so that a CUDA graph gives the same digits; this many are right up to 0.34 · 2¹² ≈ 1400."""

_UNPOLISHED = 12
"""Each squaring doubles the rounding. After this many it is at 2¹² roundings, below that of float32; from the next one on, it is
taken out every time."""


def skew_symmetric(original: Tensor) -> Tensor:
    """`A = triu(P, 1) − triu(P, 1)ᵀ`: the part above the diagonal is read."""
    upper = original.triu(1)
    return upper - upper.mT


def exponential(skew: Tensor) -> Tensor:
    """`exp(A)`, by a Taylor polynomial and repeated squaring.

    torch has `matrix_exp`, whose gradient exponentiates a matrix of twice the size, ten times the work of the forward pass;
    through these products autograd needs two times. While a graph is recorded, torch's is taken, since the number of squarings
    cannot be known.

    It is orthogonal to rounding for every `A` whose square is finite, though from 10¹⁶ on `A` no longer says which matrix: its
    rounding is a turn by ‖A‖·eps. On a GPU and in a recorded graph the range is smaller, see `Exponential`.
    """
    if recording(skew):
        recorded: Tensor = torch.linalg.matrix_exp(skew)
        return recorded
    square = skew @ skew
    squarings = _GPU_SQUARINGS if skew.is_cuda else _squarings(square)
    X, X2 = skew * 0.5**squarings, square * 0.25**squarings
    X3, X4 = X2 @ X, X2 @ X2
    identity = torch.eye(skew.shape[0], dtype=skew.dtype, device=skew.device)

    def cubic(first: int) -> Tensor:
        """`Σ X^k/(first + k)!`, k from 0 to 3."""
        c = [1 / math.factorial(first + k) for k in range(4)]
        return c[3] * X3 + c[2] * X2 + c[1] * X + c[0] * identity

    power = (X4 / math.factorial(12) + cubic(8)) @ X4 + cubic(4)
    power = power @ X4 + cubic(0)
    for done in range(squarings):
        power = power @ power
        if done >= _UNPOLISHED:
            power = 1.5 * power - 0.5 * power @ (power.mT @ power)  # a step towards the polar factor, as in `polished`
    return power


def _squarings(square: Tensor) -> int:
    """How often `A` must be halved; ‖A‖₂² = ‖A²‖₂ ≤ ‖A²‖₁, which is much nearer to it than ‖A‖₁² is."""
    norm = math.sqrt(seen(torch.linalg.matrix_norm(square.detach(), 1)).max()) if square.numel() else 0.0
    return max(0, math.ceil(math.log2(norm / _RADIUS))) if _RADIUS < norm < math.inf else 0


def logarithm(rotation: Tensor) -> Tensor:
    """The skew-symmetric `A` with `exp(A) = W` and angles in [−π, π], for an orthogonal `W` of determinant 1 in float64.

    In an orthogonal basis, `W` is rotations of planes; `A` turns these planes by their angles. An eigenvalue −1 comes in pairs,
    each of them a turn by π.
    """
    Q = normal_basis(rotation)
    cosine, sine = scaled_rotations(Q.mT @ rotation @ Q)
    skew = skew_of(Q, torch.atan2(sine, cosine))
    rounding = 100 * rotation.shape[0] * torch.finfo(rotation.dtype).eps
    if (exponential(skew) - rotation).abs().max() > rounding:
        raise ValueError("there is no skew-symmetric logarithm: the matrix is not orthogonal, or its determinant is −1")
    return skew
