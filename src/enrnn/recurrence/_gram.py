"""The gradient of the weights: a product of two tall matrices, on a GPU by `gram.cu` or `product.cu`, where these pay."""

from pathlib import Path

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from . import _product
from ._cuda import in_rows
from ._trust import Noise, Trusted

SOURCE = Path(__file__).with_name("gram.cu")
SIDE, CHUNK, LINES, STAGES = 16, 16, 4, 4
"""The threads of a block each way; the rows fetched at once; the threads that add up one sum's shares (as in the source); and the
chunks of rows that there is room for in shared memory."""

LEAST = 64
"""The fewest rows in a share: beyond so many shares adding them up costs more than another block saves."""


def weight_gradient(grad_z: Tensor, initial: Tensor, states: Tensor, out: Tensor) -> None:
    """`Σ_t dz_t h_{t−1}ᵀ`, to `out`."""
    z, h, first = grad_z[1:].flatten(0, 1), states[:-1].flatten(0, 1), grad_z[0].mT
    if pays(z, h):
        torch.addmm(gram(z, h), first, initial, out=out)
    elif initial.shape[0] >= FEWEST and _product.pays(z.mT, h):
        _product.product(z.mT, h, out=out, before=(first, initial))
    else:
        torch.mm(z.mT, h, out=out)
        torch.addmm(out, first, initial, out=out)


FEWEST = 16
"""Sequences from which `product.cu` is taken. It has one exponent for 32 rows, which then belong to two or three steps; with one
sequence they would be 32 steps, and where states grow as gradients shrink, or the other way round, what counts would be lost."""


def pays(z: Tensor, h: Tensor) -> bool:
    """Whether `gram` is meant for these. (Up to 192 columns it was faster than cuBLAS; at 256, and at 4,100 rows, as fast.)"""
    return z.is_cuda and z.dtype == torch.float32 and fits(z.shape[0], z.shape[1], h.shape[1])


def fits(rows: int, m: int, n: int) -> bool:
    return rows >= 8192 and max(m, n) <= 192


def gram(z: Tensor, h: Tensor) -> Tensor:
    """`zᵀ h` of two tall CUDA matrices [K, m] and [K, n] in float32: `gram.cu` or, where that cannot be had, cuBLAS."""
    z, h = in_rows(z), in_rows(h)
    (K, m), n = z.shape, h.shape[1]
    if min(K, m, n) == 0:
        return z.new_zeros(m, n)
    given = defines(m, n, _floats_at_once(z, h))
    kernels = _kernels(given, z.device)
    if kernels is None:
        return z.mT @ h
    tiles = -(-m // (SIDE * given["ROWS"])) * -(-n // (SIDE * given["COLUMNS"]))
    at_once = given["BLOCKS"] * torch.cuda.get_device_properties(z.device).multi_processor_count
    share = max(LEAST, -(-K // max(1, at_once // tiles)))
    sums, threads = given["ROWS"] * given["COLUMNS"], SIDE**2
    many = -(-K // share)
    shares, out = z.new_empty(many, tiles, sums, threads), z.new_empty(m, n)
    kernels[0]((tiles, many), threads, z, h, shares, K, share, m, n, z.stride(0), h.stride(0))
    kernels[1]((sums, tiles), LINES * threads, shares, out, many, m, n)
    return out


_loaded: dict[tuple[tuple[int, ...], torch.device], list[Kernel]] = {}


def defines(m: int, n: int, width: int) -> dict[str, int]:
    """What the compiler has to be told for an output of m x n: tiles as large as registers allow, and all of one size."""
    rows, columns = (-(-size // (SIDE * -(-size // 192))) for size in (m, n))
    blocks = 2 if rows * columns <= 64 else 1
    return {"ROWS": rows, "COLUMNS": columns, "WIDTH": width, "STAGES": STAGES, "BLOCKS": blocks}


def _kernels(given: dict[str, int], device: torch.device) -> list[Kernel] | None:
    key = tuple(given.values()), device
    if not _trusted(device):
        return None
    if key not in _loaded:
        if torch.cuda.is_current_stream_capturing():
            return None
        shared = 4 * STAGES * CHUNK * SIDE * (given["ROWS"] + given["COLUMNS"])
        _loaded[key] = _nvrtc.load(_nvrtc.text(SOURCE), {"gram": shared, "collect": 0}, device, **given)
    return _loaded[key]


def _floats_at_once(*matrices: Tensor) -> int:
    """How many floats, 4, 2 or 1, can be read at once from anywhere in a row of all of these."""
    for width in (4, 2):
        if all(each.data_ptr() % (4 * width) == 0 and each.stride(0) % width == 0 for each in matrices):
            return width
    return 1


def _tried(noise: Noise) -> list[tuple[Tensor, Tensor]]:
    sizes = [(noise(1000, m), noise(1000, n)) for m, n in ((33, 20), (150, 192))]
    return [(z.mT @ h, gram(z.float(), h.float())) for z, h in sizes]


_trusted = Trusted("gram.cu", _tried)
