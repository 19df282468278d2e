"""`(I + A)⁻¹` for a skew-symmetric `A`, as an operator: fast on a GPU and inside a CUDA graph.

The symmetric part of `I + A` is the identity, and it stays at least that in every Schur complement: elimination without
pivoting never meets a pivot block with a singular value below one. Entries may grow to `‖A‖²` on the way, though, and what
is lost by that, one step of a Newton iteration of third order makes good: `X ← X + X(R + R²)` with `R = I − (I + A)X` cubes the
relative error, which is at most about `q·‖A‖²` roundings before. So up to norms of 10⁵ the result is as exact as with pivoting.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

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

SHARED_BYTES = 8 * 4 * SIDE * (36 + 40)
"""Of a product: of both factors STAGES chunks, with rows of LEFT and of RIGHT numbers."""

LARGE = 1e5
"""From this entry on, the inverse is formed from the spectrum of `A` where it may be looked at, on a CPU."""


@Operator
def shifted_skew_inverse(skew: Tensor) -> Tensor:
    """`(I + A)⁻¹`, [q, q]. `A` must be skew-symmetric: nothing is pivoted."""
    identity = torch.eye(skew.shape[0], dtype=skew.dtype, device=skew.device)
    kernels = kernels_for(skew)
    if kernels is None:
        if skew.is_cpu and skew.numel() and LARGE < float(skew.abs().max()) < math.inf:
            return _by_planes(skew)
        solved: Tensor = torch.linalg.solve_ex(identity + skew, identity)[0]
        return solved.contiguous()
    return eliminated(identity + skew, identity, kernels)


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


class Kernels(NamedTuple):
    """Of `inverse.cu`."""

    eliminate: Kernel
    product: Kernel


def eliminated(shifted: Tensor, identity: Tensor, kernels: Kernels) -> Tensor:
    """The inverse of `shifted`.

    (Kernels that begin before the one in front has ended, as those of the spectral radius do, made it slower: with W formed from
    it, 195 µs instead of 166 at q = 374, 114 instead of 109 at 310, on an H200.)
    """
    size = shifted.shape[0]
    tiles = -(-size // SIDE)
    matrix, spare = shifted, torch.empty_like(shifted)
    for step in range(tiles):
        kernels.eliminate((tiles, tiles), THREADS, matrix, spare, size, step)
        matrix, spare = spare, matrix if step else torch.empty_like(shifted)
    residual = product(shifted, matrix, kernels, identity, -1)
    return product(matrix, product(residual, residual, kernels, residual), kernels, matrix)


MOST = 192
"""Rows up to which products are made by our kernel, so that nothing but kernels of ours is launched (`_replay.py`). Beyond,
cuBLAS is faster: on an H200, W_L with its gradient takes 187 µs at 374 rows and 127 at 310; by our kernel, with two chunks in
shared memory instead of four, it took 217 and 140."""


def product(A: Tensor, B: Tensor, kernels: Kernels, added: Tensor | None = None, sign: int = 1) -> Tensor:
    """`added + sign·A B`, of square matrices in float64; without anything added, `A B`."""
    size = A.shape[0]
    out, tiles = A.new_empty(size, size), -(-size // SIDE)
    if size > MOST:
        return torch.mm(A, B, out=out) if added is None else torch.addmm(added, A, B, alpha=sign, out=out)
    kernels.product((tiles, tiles), THREADS, A, *A.stride(), B, *B.stride(), added, out, size, sign)
    return out


_kernels: dict[torch.device, Kernels] = {}


def kernels_for(matrix: Tensor) -> Kernels | None:
    """The kernels, if the matrix is in float64 on a GPU that can run them."""
    if not matrix.is_cuda or matrix.dtype != torch.float64 or matrix.shape[0] == 0 or _nvrtc.unavailable() is not None:
        return None
    if matrix.device not in _kernels:
        if capturing(matrix):
            return None  # loading a kernel is not allowed while a graph is captured
        names = {"eliminate": 0, "product": SHARED_BYTES}
        _kernels[matrix.device] = Kernels(*_nvrtc.load(_nvrtc.text(SOURCE), names, matrix.device))
    return _kernels[matrix.device]
