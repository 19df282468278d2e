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

MANY = 8192
"""Rows from which tiles are large."""


def weight_gradient(grad_z: Tensor, initial: Tensor, states: Tensor, out: Tensor) -> None:
    """`Σ_t dz_t h_{t−1}ᵀ`, to `out`."""
    every, h, sequences = grad_z.flatten(0, 1), states[:-1].flatten(0, 1), initial.shape[0]
    (rows, m), n = every.shape, h.shape[1]
    possible, z, first = every.is_cuda and every.dtype == torch.float32, every[sequences:], grad_z[0].mT
    if possible and max(m, n) <= NARROW:
        gram(every, h, initial, out=out)
    elif sequences >= FEWEST and _product.pays(z.mT, h):
        _product.product(z.mT, h, out=out, before=(first, initial))
    elif possible and rows * m * n <= LITTLE:
        gram(every, h, initial, out=out)
    else:
        torch.mm(z.mT, h, out=out)
        torch.addmm(out, first, initial, out=out)


FEWEST = 16
"""Sequences from which `product.cu` is taken. It has one exponent for 32 rows, which then belong to two or three steps; with one
sequence they would be 32 steps, and where states grow as gradients shrink, or the other way round, what counts would be lost."""

NARROW, LITTLE = 192, 2**28
"""Up to so many columns `gram` is faster than two products of cuBLAS's, or as fast: on an H200, in µs, 10 beside 13 for 3,200
rows of 96, 50 beside 79 for 37,450 of 160. And up to so many multiply-adds, where there is no other kernel of ours, a call that
launches nothing but such kernels is worth more than a few microseconds (`_replay.py`)."""


def pays(z: Tensor, h: Tensor) -> bool:
    """Whether `gram` is meant for these, where one product of cuBLAS's is all that is otherwise needed."""
    return z.is_cuda and z.dtype == torch.float32 and fits(z.shape[0], z.shape[1], h.shape[1])


def fits(rows: int, m: int, n: int) -> bool:
    return rows >= 8192 and max(m, n) <= NARROW


def gram(z: Tensor, h: Tensor, first: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """`zᵀ h` of two tall CUDA matrices [K, m] and [K, n] in float32: `gram.cu` or, where that cannot be had, cuBLAS. With `first`
    given, these are the rows of h that come before `h`. To `out`, if that is given."""
    z, *given = (in_rows(each) for each in (z, h, first) if each is not None)
    h, early = given[0], given[1:]
    (K, m), n = z.shape, h.shape[1]
    to = z.new_empty(m, n) if out is None or not out.is_contiguous() else out
    if min(K, m, n) == 0:
        to.zero_()
    elif (kernels := _kernels(told := defines(K, m, n, _floats_at_once(z, *given)), z.device)) is None:
        torch.mm(z.mT, torch.cat((*early, h)) if early else h, out=to)
    else:
        tiles = -(-m // (SIDE * told["ROWS"])) * -(-n // (SIDE * told["COLUMNS"]))
        at_once = told["BLOCKS"] * torch.cuda.get_device_properties(z.device).multi_processor_count
        share = max(LEAST, -(-K // max(1, at_once // tiles)))
        sums, threads = told["ROWS"] * told["COLUMNS"], SIDE**2
        many = -(-K // share)
        shares = z.new_empty(many, tiles, sums, threads)
        begins = (early[0], early[0].shape[0], early[0].stride(0)) if early else (None, 0, 0)
        kernels[0]((tiles, many), threads, z, h, *begins, shares, K, share, m, n, z.stride(0), h.stride(0))
        kernels[1]((sums, tiles), LINES * threads, shares, to, many, m, n)
    return to if out is None or to is out else out.copy_(to)


_loaded: dict[tuple[tuple[int, ...], torch.device], list[Kernel]] = {}


def defines(K: int, m: int, n: int, width: int) -> dict[str, int]:
    """What the compiler has to be told for an output of m x n: tiles of one size, as large as registers allow, or smaller where
    few rows would leave most multiprocessors without one."""
    most = 192 if K >= MANY else 96
    rows, columns = (-(-size // (SIDE * -(-size // most))) for size in (m, n))
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
    found = [(z.mT @ h, gram(z.float(), h.float())) for z, h in sizes]
    return found + [(z.mT @ h, gram(z.float(), h.float()[70:], h.float()[:70])) for z, h in sizes]


_trusted = Trusted("gram.cu", _tried)
