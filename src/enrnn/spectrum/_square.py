"""Squarings of a large matrix on a GPU, one launch each: `square.cu`, for powers `T^(2^count)` that are kept in range.

A launch divides its product by the squared norm of the matrix that it was given, which the launch before it has left as one
sum for each thread block. So a chain of squarings needs no norms between the products, and no look at any value.

On an H200 a squaring of 720 rows takes 17.2 µs with all that, where cuBLAS takes 23.3 for the product alone, and 11.2 are
arithmetic. (Tiles of 96 × 48: 25 µs. Slabs of 16, six of them, with four warps instead of eight: 17.8.)
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel

SOURCE = Path(__file__).with_name("square.cu")

TILE_M, TILE_N, TILE_K = 64, 64, 32
"""Rows and columns of the product that a thread block computes, and how much of the inner index it holds at a time."""

STAGES = 3
"""Slabs of the inner index in shared memory, all but one of them on their way."""

WARPS_M, WARPS_N, WARPS_K = 2, 2, 2
"""Warps that share out the rows, the columns and the inner index."""

EDGE, EDGE_HIGH, EDGE_WIDE = 16, 2, 5
"""Rows or columns beyond the last full tile that get thread blocks of their own shape, and a warp's tiles of 16 × 8 in these."""

PARTS = WARPS_M * WARPS_N
THREADS = 32 * PARTS * WARPS_K
EDGE_ROWS, EDGE_COLUMNS = 16 * EDGE_HIGH * PARTS, 8 * EDGE_WIDE * PARTS
"""The length of a tile at the right edge, and of one at the lower edge."""


class Kernels(NamedTuple):
    even: Kernel
    odd: Kernel


def grid(size: int) -> int:
    """Thread blocks for a matrix of so many rows."""
    down, aside = size // TILE_M + (size % TILE_M > EDGE), size // TILE_N + (size % TILE_N > EDGE)
    rows, columns = min(size, down * TILE_M), min(size, aside * TILE_N)
    right = -(-rows // EDGE_ROWS) if columns < size else 0
    lower = -(-size // EDGE_COLUMNS) if rows < size else 0
    return down * aside + right + lower


def defines(size_is_even: bool) -> dict[str, int]:
    """The macros of the source. Rows of an even length are copied two numbers at a time."""
    return {
        "TILE_M": TILE_M,
        "TILE_N": TILE_N,
        "TILE_K": TILE_K,
        "STAGES": STAGES,
        "WARPS_M": WARPS_M,
        "WARPS_N": WARPS_N,
        "WARPS_K": WARPS_K,
        "EDGE": EDGE,
        "EDGE_HIGH": EDGE_HIGH,
        "EDGE_WIDE": EDGE_WIDE,
        "ALIGNED": int(size_is_even),
    }


def shared_bytes() -> int:
    """Shared memory of a thread block: what the largest of its shapes needs for its slabs, padded as in the source."""
    shapes = [(TILE_M, TILE_N), (EDGE_ROWS, EDGE), (EDGE, EDGE_COLUMNS)]
    return 8 * STAGES * max(rows * (TILE_K + 4) + TILE_K * (columns + 4) for rows, columns in shapes)


def kernels_for(device: torch.device) -> Kernels | None:
    """The kernels, where the chip has room for them; loading them is not allowed while a graph is captured."""
    if _nvrtc.room_of(device)[1] < shared_bytes():
        return None
    source, shared = _nvrtc.text(SOURCE), {"square": shared_bytes()}
    (even,), (odd,) = (_nvrtc.load(source, shared, device, **defines(is_even)) for is_even in (True, False))
    return Kernels(even, odd)


def squared(matrix: Tensor, count: int, kernels: Kernels) -> Tensor:
    """`matrix` [m, m], in float64, squared `count` times, but for a positive factor; no entry of it should be beyond 1.

    Before every squaring but the first the power is divided by its norm. A norm that is zero or not finite makes what follows
    not finite, or not a number.
    """
    size, blocks = matrix.shape[-1], grid(matrix.shape[-1])
    power = matrix.contiguous()
    buffers, sums = [[power.new_empty(*shape) for _ in range(2)] for shape in ((size, size), (blocks,))]
    kernel = kernels.even if size % 2 == 0 and power.data_ptr() % 16 == 0 else kernels.odd
    for step in range(count):
        left, to_leave = sums[step % 2] if step > 0 else None, sums[1 - step % 2]
        kernel(blocks, THREADS, power, buffers[step % 2], size, left, to_leave, early=True)
        power = buffers[step % 2]
    return power
