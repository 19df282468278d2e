"""Matrices as halves, laid out as the kernels want them that multiply them with letters: `pack.cu`."""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel, address, filled
from . import _cuda
from ._cuda import Block
from ._eights import TILES, Packed

SOURCE = _nvrtc.text(_cuda.BLOCKS_SOURCE, _cuda.HALVES_SOURCE, Path(__file__).with_name("pack.cu"))

DEFINES = {"TILES": TILES}
"""What the compiler has to be told."""

WARPS = 16
"""As in the source: of a thread block."""


class Plan(ctypes.Structure):
    """How a matrix is to be laid out, as in `pack.cu`."""

    _fields_ = (
        ("matrix", Block),
        *((name, ctypes.c_void_p) for name in ("words", "ones")),
        *((name, ctypes.c_int) for name in ("n", "columns", "team", "shares", "sources", "first")),
    )


class Plans(ctypes.Structure):
    _fields_ = (("of", Plan * 3),)


def pack(
    matrices: Sequence[tuple[Packed, Tensor, Tensor | int]], transposed: bool, cleared: int | None = None, words: int = 0
) -> None:
    """Up to three matrices as they are multiplied with letters, each with how and where it is to be laid out; and nothing is in
    so many words of 16 bytes at `cleared` then."""
    fields: list[int] = []
    blocks, device = 0, matrices[0][1].device
    for layout, matrix, to in matrices:
        (rows, columns), (down, right) = matrix.shape, matrix.stride()
        if transposed:
            rows, columns, down, right = columns, rows, right, down
        here, (size, shared_out, many) = to if isinstance(to, int) else address(to), _numbers(layout)
        fields += (address(matrix), down, right, here, here + size, rows, columns, *shared_out, blocks)
        blocks += many
    for _ in range(3 - len(matrices)):
        fields += (*[0] * 10, blocks)
    _kernel(device)(blocks, 32 * WARPS, filled(Plans, *fields), cleared, words)


@functools.lru_cache(maxsize=1024)
def _numbers(layout: Packed) -> tuple[int, tuple[int, int, int], int]:
    """The bytes of its words; how it is shared out; and the thread blocks that lay it out."""
    return 16 * layout.words, (layout.team, layout.shares, layout.sources), -(-layout.warps // WARPS)


_loaded: dict[torch.device, Kernel] = {}


def _kernel(device: torch.device) -> Kernel:
    if device not in _loaded:
        _cuda.forbid_loading()
        (_loaded[device],) = _nvrtc.load(SOURCE, {"pack": 0}, device, **DEFINES)
    return _loaded[device]
