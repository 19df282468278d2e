"""The fast solver for large matrices on a GPU: as in `_device.py`, but most of the squarings are of a matrix of size 64.

After a few squarings, `T^k` has few eigenvalues left that are not zero to rounding: its columns lie in the span of a thin
orthonormal `X` [m, 64], so that `T^k = X R` with `R = XᵀT^k`, and every further power is one of the small matrix `C = R X`:

    T^(k(i+1)) = X C^i R.

A right eigenvector is then `X c` with c in the line or plane that `C^i` leaves, a left one `Rᵀ d`; `T^k` is applied once more
to both, which takes away what `X R` has missed. The rest is as in `_device.py`: λ is read from a plane that holds u.

`X` comes from `Z = T^k Ω`, Ω without a pattern. The columns of Z are nearly dependent, their Gram matrix singular to rounding;
three rounds of a Cholesky factorisation with a small shift (Fukaya et al., 2020) make them orthonormal all the same: each
multiplies the lengths of what is weak by up to 10⁶. Directions that are left out are zero to rounding in `T^k`.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from .._precision import capturing
from .._streams import there_is_room
from . import _square

SOURCE = Path(__file__).with_name("compressed.cu")
WIDTH = 64
"""As in the source: the columns of X."""

LEAST = 12
"""Squarings before the compression, at least."""

CROWDED = 3
"""Squarings more than a Gaussian matrix needs."""


SHARES = 64
"""As in the source, and in `normalize.cu`: thread blocks that look for the largest entry."""

SQUARES = (WIDTH // 8) ** 2
"""Thread blocks that make a matrix of inner products, a square of 8 × 8 each."""

MEASURING = 32
"""Thread blocks that measure what was missed."""


class Kernels(NamedTuple):
    largest: Kernel
    scaled: Kernel
    scaled_single: Kernel
    inner: Kernel
    apply: Kernel
    orthonormalizer: Kernel
    missed: Kernel
    products: Kernel
    plane: Kernel
    finish: Kernel
    core_power: Kernel
    squares: _square.Kernels | None


_kernels: dict[torch.device, Kernels] = {}
_probes: dict[tuple[int, torch.device], Tensor] = {}


def squarings_before(size: int) -> int:
    """So many that `T^k` keeps fewer than 64 eigenvalues.

    In a Gaussian matrix, where m(1 − r²) of them have a modulus above rρ, the logarithm would do. Trained matrices are more
    crowded at the rim: with k = 1024 the 64th of 720 was still 1e-8 to 1e-6 of the first late in a run, and uncertified; and
    later yet with k = 2048.
    """
    return max(LEAST, math.ceil(math.log2(0.6 * size)) + CROWDED)


def kernels_for(matrix: Tensor, core_source: str, core_shared: int) -> Kernels | None:
    """The kernels, if they can be had; loading them is not allowed while a graph is captured."""
    device = matrix.device
    if device not in _kernels:
        if capturing(matrix):
            return None
        source = _nvrtc.text(SOURCE)
        names = [name for name in Kernels._fields if name not in ("core_power", "squares")]
        first = _nvrtc.load(source, dict.fromkeys(names, 0), device)
        core = _nvrtc.load(core_source, {"core_power": core_shared}, device, TILES=2, BLOCKS=1)
        _kernels[device] = Kernels._make([*first, *core, _square.kernels_for(device)])
    return _kernels[device]


def probes_for(matrix: Tensor) -> Tensor | None:
    """Ω; making it is not allowed while a graph is captured."""
    key = matrix.shape[-1], matrix.device
    if key not in _probes:
        if capturing(matrix):
            return None
        generator = torch.Generator().manual_seed(matrix.shape[-1])
        numbers = torch.randn(matrix.shape[-1], WIDTH, dtype=torch.float64, generator=generator)
        _probes[key] = numbers.to(matrix.device)
    return _probes[key]


def parts(accuracy: float) -> int:
    """One in so many: as the kernels, which take integers, are told it."""
    return round(1 / accuracy)


def compressed(
    matrix: Tensor, probes: Tensor, kernels: Kernels, squarings: int, accuracy: float, largest: Tensor | None = None
) -> Tensor:
    """The numbers that `spectral_radius.cu` gives for a small matrix: ρ, condition, λ, certified, unused, u and v.

    The matrix is in float64 or, if its `largest` entries are given, which `normalize.cu` finds, in float32. `probes` are Ω.
    """
    given, m = matrix.contiguous(), matrix.shape[-1]
    matrix = torch.empty(m, m, dtype=torch.float64, device=given.device)
    scaled, scale, most = matrix, matrix.new_empty(()), matrix.new_empty(SHARES)
    missed = matrix.new_empty(MEASURING)  # made now: it is written while the kernel before is running
    if largest is None:
        kernels.largest(SHARES, 512, given, most, m * m)
        kernels.scaled(4 * SHARES, 512, given, most, scaled, scale, m * m, early=True)
    else:
        kernels.scaled_single(4 * SHARES, 512, given, largest, scaled, scale, m * m)
    before, squares = squarings_before(m), kernels.squares
    power = _plainly_squared(scaled, before) if squares is None else _square.squared(scaled, before, squares)
    there_is_room()

    X = torch.mm(power, probes, out=torch.empty_like(probes))
    M, inner, K = matrix.new_empty(3, WIDTH, WIDTH)
    for last in (False, False, True):
        kernels.inner(SQUARES, 512, X, WIDTH, 1, X, WIDTH, 1, inner, m, early=True)
        kernels.orthonormalizer(1, 256, inner, M, int(last), early=True)
        Z, X = X, torch.empty_like(X)
        kernels.apply(-(-m // 8), 256, Z, M, X, m, early=True)
    R = torch.mm(X.mT, power, out=power.new_empty(WIDTH, m))
    right, left, exponent = matrix.new_empty(2, WIDTH), matrix.new_empty(2, WIDTH), matrix.new_empty(())
    kernels.inner(SQUARES, 512, R, 1, m, X, WIDTH, 1, inner, m)  # not early: R is there, then, for the one after the next
    kernels.core_power(1, 512, inner, K, right, left, exponent, squarings - before, early=True)
    kernels.missed(MEASURING, 256, power, X, R, missed, m, early=True)

    v = matrix.new_empty(19, m)  # as `plane` reads and writes them; then q's images, the start, and the squares of T's rows
    start, row_squares, from_power = v[14:18], v[18], matrix.new_empty(2)
    _products(kernels, X, right, start[0], None, R, left, start[2], 2)
    _products(kernels, power, start[0], v[0], None, power, start[2], v[2], 2)
    _products(kernels, scaled, v[0], v[4], row_squares, scaled, v[2], v[5], 1)
    kernels.plane(2, 512, v, from_power, m, early=True)
    in_basis = matrix.new_empty(2, WIDTH)  # of x and q, which are v[6] and v[10]
    _products(kernels, scaled, v[10], v[12], None, scaled, v[11], v[13], 1, (X, v[6], 4 * m, in_basis))
    out = matrix.new_empty(6 + 4 * m)
    tensors = (v[6], from_power, in_basis, K, start[0], v[0], row_squares, missed, exponent, scale, out)
    kernels.finish(1, 512, *tensors, m, MEASURING, parts(accuracy), 2**before, early=True)
    return out


def _plainly_squared(power: Tensor, count: int) -> Tensor:
    """As `_square.squared`, by library products."""
    for step in range(1, count + 1):
        power = power @ power
        if step % 5 == 0 or step == count:  # a norm of 1 falls to no less than (ρ/‖T‖)^32
            power = power / torch.linalg.vector_norm(power)
    return power


def _products(
    kernels: Kernels,
    A: Tensor,
    x: Tensor,
    y: Tensor,
    squares: Tensor | None,
    B: Tensor,
    w: Tensor,
    z: Tensor,
    count: int,
    basis: tuple[Tensor, Tensor, int, Tensor] | None = None,
) -> None:
    """`y = A x` and `z = Bᵀ w`, for so many vectors that follow each other in memory.

    And for two vectors `Xᵀp`, if there is a `basis`: X, the first vector, how far it is to the second, where the products go.
    """
    blocks = -(-A.shape[0] // 8) + -(-B.shape[1] // 8) + (WIDTH // 8 if basis else 0)
    others = basis or (None, None, 0, None)
    kernels.products(blocks, 256, A, x, y, squares, *A.shape, B, w, z, *B.shape, count, *others, early=True)
