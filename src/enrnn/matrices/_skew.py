"""Skew-symmetric matrices, their exponentials, and the way back."""

import math

import torch
from torch import Tensor

from .._precision import recording

_RADIUS = 0.34
"""Up to this norm, the Taylor polynomial of degree 12 is exact to rounding: 0.34¹³/13! < 2⁻⁵³."""

_GPU_SQUARINGS = 12
"""On a GPU nobody looks at the norm, so that a CUDA graph gives the same digits; this many are right up to 0.34 · 2¹² ≈ 1400."""


def skew_symmetric(original: Tensor) -> Tensor:
    """`A = triu(P, 1) − triu(P, 1)ᵀ`: the part above the diagonal is read."""
    upper = original.triu(1)
    return upper - upper.mT


def exponential(skew: Tensor) -> Tensor:
    """`exp(A)`, by a Taylor polynomial and repeated squaring.

    torch has `matrix_exp`, whose gradient exponentiates a matrix of twice the size, ten times the work of the forward pass;
    through these products autograd needs two times. While a graph is recorded, torch's is taken, since the number of squarings
    cannot be known.
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
    for _ in range(squarings):
        power = power @ power
    return power


def _squarings(square: Tensor) -> int:
    """How often `A` must be halved; ‖A‖₂² = ‖A²‖₂ ≤ ‖A²‖₁, which is much nearer to it than ‖A‖₁² is."""
    norm = math.sqrt(float(torch.linalg.matrix_norm(square.detach(), 1))) if square.numel() else 0.0
    return max(0, math.ceil(math.log2(norm / _RADIUS))) if _RADIUS < norm < math.inf else 0


def logarithm(rotation: Tensor) -> Tensor:
    """The skew-symmetric `A` with `exp(A) = W` and angles in [−π, π], for an orthogonal `W` of determinant 1 in float64.

    The square root of an orthogonal matrix without the eigenvalue −1 is the polar factor of `I + W`. After five of them the
    angles are below 0.1, and `log W = 2 artanh((W − I)(W + I)⁻¹)` is a short series. An eigenvalue −1 comes in pairs: each is
    taken out as a turn by π.
    """
    size = rotation.shape[0]
    identity = torch.eye(size, dtype=rotation.dtype, device=rotation.device)
    _, values, right = torch.linalg.svd(identity + rotation)
    half_turned = right[values < 100 * size * torch.finfo(rotation.dtype).eps]  # rows: the eigenspace of −1
    first, second = half_turned[0::2], half_turned[1::2]
    if first.shape != second.shape:
        raise ValueError("an orthogonal matrix of determinant −1 has no logarithm that is skew-symmetric")
    turn = torch.pi * (second.mT @ first - first.mT @ second)
    root = rotation + 2 * half_turned.mT @ half_turned
    for _ in range(5):
        left, _, right = torch.linalg.svd(identity + root)
        root = left @ right
    X: Tensor = torch.linalg.solve(root + identity, root - identity)
    X = (X - X.mT) / 2
    square = X @ X
    term, series = X, X
    for k in (3, 5, 7, 9, 11):  # the angles' tangents are below 0.05
        term = term @ square
        series = series + term / k
    skew: Tensor = 64 * series + turn
    return skew
