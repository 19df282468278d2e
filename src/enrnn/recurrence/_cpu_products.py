"""Products of matrices on a CPU: by our tiles, where torch's library does not use all that the processor has.

On AMD's processors MKL computes with vectors of 256 bits, also where these have 512. On a Zen 5 our tiles take half as long: with
one thread, 13.3 ms for 1600 × 1030 × 1030 in float32 and MKL 30.1; 6.0 for 720 × 720 × 720 in float64 and MKL 11.5
(`python benchmarks/products_cpu.py`). Elsewhere, and for what is small, it is torch's product.
"""

import functools

import torch
from torch import Tensor

from .._operators import transforms_are_active
from .._precision import recording
from . import _cpu, _gram, _team

LEAST_WORK, LEAST_TALL = 2**21, 2**19
"""Multiply-adds that are worth a call of compiled code: 22 µs before it begins, and 10 for tall matrices, which are read as they
lie."""

IN_CACHE, MOST_PIECES = 98_304, 16
"""Entries of two tall matrices that stay in cache, and shares of their rows, whatever the number of threads."""


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """`left @ right + bias` of two matrices. Not to be differentiated. What does not fit together is torch's to refuse."""
    fits = left.shape[1] == right.shape[0] and (bias is None or (bias.shape == right.shape[1:] and _alike(left, bias)))
    by_columns = left.stride(0) == 1 and (left.stride(1) > 1 or left.shape[1] > left.shape[0])
    tall = by_columns and bias is None and (right.stride(1) == 1 or right.numel() <= left.numel())  # which may be copied
    if not fits or not _pays(left, right, left.shape[0] * right.numel(), LEAST_TALL if tall else LEAST_WORK):
        return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)
    out = left.new_empty(left.shape[0], right.shape[1])
    if tall:
        right = _cpu.readable(right)
        _weigh(left.mT, right, right[:0], out)
    else:
        _cpu.one_step(left, right, bias, out)
    return out


def weight_gradient(grad_z: Tensor, initial: Tensor, states: Tensor, out: Tensor) -> None:
    """`Σ_t dz_t h_{t−1}ᵀ`, to `out`."""
    dz, h, first = (each.flatten(0, -2) for each in (grad_z, states, initial))
    if _pays(dz, h, dz.numel() * h.shape[1], LEAST_TALL):
        _weigh(_cpu.readable(dz), _cpu.readable(h), _cpu.readable(first), out)
    else:
        _gram.weight_gradient(grad_z, initial, states, out)


def _weigh(a: Tensor, b: Tensor, first: Tensor, out: Tensor) -> None:
    """`aᵀ b` of two matrices with many rows, those of b coming after `first`, to `out`."""
    from ._cpu_kernels import machine_code, weigh

    (K, q), n = a.shape, b.shape[1]
    threads, stretch = torch.get_num_threads(), min(256, max(64, IN_CACHE // (q + n)))
    pieces = max(1, min(MOST_PIECES, K // stretch, K * (q + n) // (16 * q * n)))  # their sums are small beside what is summed
    parts = min(-(-n // 16), -(-2 * threads // pieces))
    whole = pieces == 1 and out.is_contiguous()
    sums = out.zero_() if whole else a.new_zeros(pieces, q, n)
    nothing = a.new_zeros(n)
    given = *_cpu.rows_of(a), *_cpu.rows_of(b), *_cpu.rows_of(first), first.shape[0]
    told = pieces, K, q, n, *given, sums.data_ptr(), parts, stretch, nothing.data_ptr()
    _team.run(machine_code(weigh, a.dtype), told, threads)
    if not whole:
        out.copy_(sums.sum(0))


def _pays(left: Tensor, right: Tensor, work: int, least: int) -> bool:
    """Whether so many multiply-adds with these are better done here than by torch."""
    if work < least or left.device.type != "cpu" or not _alike(left, right):
        return False
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return False
    return possible(left)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def possible(like: Tensor) -> bool:
    """Whether products of such tensors on a CPU can be done here, and should be if they are large."""
    if like.dtype not in (torch.float32, torch.float64) or recording(like) or transforms_are_active():
        return False
    return library_is_slow()


@functools.cache
def library_is_slow() -> bool:
    from ._engines import OVERRIDE

    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not mkl or _cpu.unavailable() is not None or OVERRIDE in ("reference", "torch"):
        return False
    import llvmlite.binding

    from ._cpu_kernels import VECTOR_BYTES

    return VECTOR_BYTES == 64 and llvmlite.binding.get_host_cpu_name().startswith("znver")
