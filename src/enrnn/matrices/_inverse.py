"""`(I + A)⁻¹` for a skew-symmetric `A`, as an operator: fast on a GPU and inside a CUDA graph.

The symmetric part of `I + A` is the identity, and it stays at least that in every Schur complement: elimination without
pivoting never meets a pivot block with a singular value below one. Entries may grow to `‖A‖²` on the way, though, and what
is lost by that, one step of a Newton iteration of third order makes good: `X ← X + X(R + R²)` with `R = I − (I + A)X` cubes the
relative error, which is at most about `q·‖A‖²` roundings before. So up to norms of 10⁵ the result is as exact as with pivoting.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _nvrtc
from .._launch import Kernel
from .._operators import Operator
from .._precision import capturing
from ._normal import normal_basis, scaled_rotations, skew_of

SOURCE = Path(__file__).with_name("inverse.cu")
SIDE, THREADS = 32, 256
"""As in the source: the block that is eliminated at once, which is also the tile that a thread block makes."""

LARGE = 1e5
"""From this entry on, the inverse is formed from the spectrum of `A` where it may be looked at, on a CPU."""


@Operator
def shifted_skew_inverse(skew: Tensor) -> Tensor:
    """`(I + A)⁻¹`, [q, q]. `A` must be skew-symmetric: nothing is pivoted."""
    identity = torch.eye(skew.shape[0], dtype=skew.dtype, device=skew.device)
    kernel = elimination(skew)
    if kernel is None:
        if skew.is_cpu and skew.numel() and LARGE < float(skew.abs().max()) < math.inf:
            return _by_planes(skew)
        solved: Tensor = torch.linalg.solve_ex(identity + skew, identity)[0]
        return solved.contiguous()
    return eliminated(identity + skew, identity, kernel)


@shifted_skew_inverse.register_fake
def _(skew: Tensor) -> Tensor:
    return skew.new_empty(skew.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    """`dX = −X dA X`, in operations that can be differentiated again."""
    inverse: Tensor = ctx.saved_tensors[0]
    return -(inverse.mT @ gradient @ inverse.mT)


shifted_skew_inverse.register_autograd(_backward, setup_context=_setup_context)


@shifted_skew_inverse.register_tangent
def _(arguments: tuple[Tensor], inverse: Tensor, tangents: tuple[Tensor]) -> Tensor:
    return -(inverse @ tangents[0] @ inverse)


def _by_planes(skew: Tensor) -> Tensor:
    """The inverse in an orthogonal basis where `A` turns planes: a block `t·[[0, −1], [1, 0]]` of `A` becomes
    `(I − t·[[0, −1], [1, 0]])/(1 + t²)`, and the zero that an odd size leaves becomes one.

    A solve would lose ‖A‖·eps of the latter, and `2(I + A)⁻¹ − I` its orthogonality; this one keeps it for every `A`.
    """
    Q = normal_basis(skew)
    turns = scaled_rotations(Q.mT @ skew @ Q)[1]
    scale = 1 / (1 + turns.square())
    spectrum = F.pad(scale.repeat_interleave(2), (0, len(skew) % 2), value=1.0)
    return (Q * spectrum) @ Q.mT - skew_of(Q, turns * scale)


def eliminated(shifted: Tensor, identity: Tensor, kernel: Kernel) -> Tensor:
    """The inverse of `shifted`, by the kernel. `identity` is written over.

    (Kernels that begin before the one in front has ended, as those of the spectral radius do, made it slower: with W formed from
    it, 195 µs instead of 166 at q = 374, 114 instead of 109 at 310, on an H200.)
    """
    size = shifted.shape[0]
    tiles = -(-size // SIDE)
    matrix, spare = shifted, torch.empty_like(shifted)
    for step in range(tiles):
        kernel((tiles, tiles), THREADS, matrix, spare, size, step)
        matrix, spare = spare, matrix if step else torch.empty_like(shifted)
    residual = identity.addmm_(shifted, matrix, alpha=-1)
    return torch.addmm(matrix, matrix, torch.addmm(residual, residual, residual))


_kernels: dict[torch.device, Kernel] = {}


def elimination(matrix: Tensor) -> Kernel | None:
    """The kernel for one step of the elimination, if the matrix is in float64 on a GPU that can run it."""
    if not matrix.is_cuda or matrix.dtype != torch.float64 or matrix.shape[0] == 0 or _nvrtc.unavailable() is not None:
        return None
    if matrix.device not in _kernels:
        if capturing(matrix):
            return None  # loading a kernel is not allowed while a graph is captured
        (_kernels[matrix.device],) = _nvrtc.load(_nvrtc.text(SOURCE), {"eliminate": 0}, matrix.device)
    return _kernels[matrix.device]
