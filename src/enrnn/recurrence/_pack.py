"""Matrices as halves, laid out as the kernels want them that multiply them with letters: `pack.cu`."""

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from . import _cuda
from ._cuda import Block, block_of
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


def pack(matrices: Sequence[tuple[Packed, Tensor, Tensor]], transposed: bool, cleared: Tensor | None = None) -> None:
    """Up to three matrices as they are multiplied with letters, each with how and where it is to be laid out; and nothing is in
    `cleared` then."""
    plans, blocks, device = Plans(), 0, matrices[0][1].device
    for plan, (layout, matrix, to) in zip(plans.of, matrices, strict=False):
        rows, columns = matrix.mT.shape if transposed else matrix.shape
        plan.matrix, plan.n, plan.columns, plan.first = block_of(matrix, transposed), rows, columns, blocks
        plan.team, plan.shares, plan.sources = layout.team, layout.shares, layout.sources
        plan.words, plan.ones = to.data_ptr(), to.data_ptr() + 16 * layout.words
        blocks += math.ceil(layout.warps / WARPS)
    for plan in plans.of[len(matrices) :]:
        plan.first = blocks
    words = 0 if cleared is None else cleared.numel() // 4
    _kernel(device)(blocks, 32 * WARPS, plans, cleared, words)


_loaded: dict[torch.device, Kernel] = {}


def _kernel(device: torch.device) -> Kernel:
    if device not in _loaded:
        _cuda.forbid_loading()
        (_loaded[device],) = _nvrtc.load(SOURCE, {"pack": 0}, device, **DEFINES)
    return _loaded[device]
