"""Products of large matrices, as precise as in float32, by a GPU's tensor cores: `product.cu`, where that pays."""

import functools
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._nvrtc import Kernel
from .._precision import lower_precision
from . import _cuda
from ._cuda import in_rows

SOURCE = Path(__file__).with_name("product.cu")
DEPTH, GROUP = 32, 128
"""The columns of a round and the threads of a group, as in the source."""

LEAST_SIDE, LEAST_WORK = 64, 2**26
"""The least extent of any of the matrices, and the fewest multiplications, for which `product` is meant."""

SIZES = {(2, 4): 3, (2, 5): 2, (2, 6): 2}
"""The tiles that a warp may have, down and across, and for how many groups of such warps a multiprocessor has registers."""

START, ADDING, LONELY = 2000, 4500, 1.6
"""Reckoned, in cycles: to begin and to end a block; a second kernel. And what a round takes when no other group fills the gaps,
over what it takes among others, which is `_unit`."""


class Plan(NamedTuple):
    """How a product is laid out."""

    rows: int
    columns: int
    """Of a warp, in tiles of 16 and 8."""
    groups: int
    """In a block."""
    share: int
    """Columns of the first matrix that a block takes; if not all, there is a second kernel, to add up."""

    def tiles(self, m: int, n: int) -> int:
        return -(-m // (32 * self.rows)) * -(-n // (16 * self.columns))

    @property
    def sums(self) -> int:
        """Of a thread."""
        return 4 * self.rows * self.columns

    @property
    def shared_bytes(self) -> int:
        """Two of the kernel's `Stage` for each group."""
        lines = 32 * self.rows + 16 * self.columns
        return self.groups * 2 * lines * (2 * DEPTH * 2 + 4)


def pays(a: Tensor, b: Tensor) -> bool:
    """Whether `product` is meant for these; where a lower precision is allowed, cuBLAS is."""
    (m, k), n = a.shape, b.shape[1]
    if lower_precision():
        return False
    return a.is_cuda and a.dtype == b.dtype == torch.float32 and min(m, k, n) >= LEAST_SIDE and m * k * n >= LEAST_WORK


def product(a: Tensor, b: Tensor, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`added + a b` of CUDA matrices [m, k] and [k, n] in float32: `product.cu` or, where that cannot be had, cuBLAS."""
    (m, k), n = a.shape, b.shape[1]
    if out is None:
        out = a.new_empty(m, n)
    if min(m, n) == 0:
        return out
    if k == 0:
        return out.zero_() if added is None else out.copy_(added)
    if n > 1 and out.stride(1) != 1:
        return out.copy_(product(a, b, added))
    added = None if added is None else in_rows(added.expand(m, n))
    a, a_along, a_stride = _lines(a)
    columns, b_along, b_stride = _lines(b.mT)
    width = _floats_at_once((a, a_along, a_stride), (columns, b_along, b_stride))
    chip = _chip(a.device)
    plan = None if chip is None else planned(m, n, k, *chip)
    kernels = None if plan is None else _kernels(plan, a_along, b_along, width, a.device)
    if plan is None or kernels is None:
        return torch.mm(a, b, out=out) if added is None else torch.addmm(added, a, b, out=out)
    added_row, tiles, count = 0 if added is None else added.stride(0), plan.tiles(m, n), -(-k // plan.share)
    shares = a.new_empty(count, tiles, plan.sums, GROUP) if count > 1 else None
    operands = a, a_stride, columns, b_stride, added, added_row, out, out.stride(0)
    kernels[0]((tiles, count), plan.groups * GROUP, *operands, shares, m, n, k, plan.share)
    if shares is not None:
        kernels[1]((plan.sums // 2, tiles), GROUP, shares, count, added, added_row, out, out.stride(0), m, n)
    return out


@functools.lru_cache(4096)
def planned(m: int, n: int, k: int, processors: int, room: int) -> Plan:
    """What should take the least time on so many multiprocessors, a block having so many bytes of shared memory at most."""
    best, found = float("inf"), None
    depth = -(-k // DEPTH)
    for (rows, columns), most in SIZES.items():
        for groups in {1, most}:
            plan = Plan(rows, columns, groups, k)
            if plan.shared_bytes > room:
                continue
            tiles, seen = plan.tiles(m, n), set()
            for count in range(1, min(depth, 4 * processors // tiles + 1) + 1):
                rounds = -(-depth // count)
                if rounds in seen:
                    continue
                seen.add(rounds)
                time = _time(plan, tiles, -(-depth // rounds), rounds, most, processors)
                if time < best:
                    best, found = time, plan._replace(share=rounds * DEPTH)
    assert found is not None, "no chip has so little shared memory"
    return found


def _time(plan: Plan, tiles: int, count: int, rounds: int, most: int, processors: int) -> float:
    """Cycles, reckoned: the busiest multiprocessor's blocks, as many at once as there is room for, and adding up the shares."""
    unit, at_once, blocks = _unit(plan), most // plan.groups, -(-tiles * count // processors)
    time = 0.0
    while blocks > 0:
        working = min(blocks, at_once)
        time += START + -(-rounds // plan.groups) * max(LONELY, working * plan.groups) * unit
        blocks -= working
    if count > 1:
        time += ADDING + 2 * 4 * tiles * count * plan.sums * GROUP / (24 * processors)  # some 24 bytes a cycle and multiprocessor
    return time


def _unit(plan: Plan) -> int:
    """Cycles of a round, reckoned: multiplying goes with a tile's area, splitting with its circumference."""
    return 60 * plan.rows * plan.columns + 20 * (2 * plan.rows + plan.columns)


def defines(plan: Plan, a_along: bool, b_along: bool, width: int) -> dict[str, int]:
    """What the compiler has to be told; `a_along` and `b_along` say whether neighbours in memory are neighbours in k."""
    given = {"ROWS": plan.rows, "COLUMNS": plan.columns, "GROUPS": plan.groups}
    given |= {"BLOCKS": SIZES[plan.rows, plan.columns] // plan.groups, "A_ALONG": int(a_along), "B_ALONG": int(b_along)}
    return given | {"WIDTH": width, "SHARED_BYTES": plan.shared_bytes}


_loaded: dict[tuple[tuple[int, ...], torch.device], list[Kernel]] = {}


def _kernels(plan: Plan, a_along: bool, b_along: bool, width: int, device: torch.device) -> list[Kernel] | None:
    given = defines(plan, a_along, b_along, width)
    key = tuple(given.values()), device
    if key not in _loaded:
        if torch.cuda.is_current_stream_capturing():
            return None
        source = SOURCE.read_text(encoding="utf-8")
        _loaded[key] = _nvrtc.load(source, {"product": plan.shared_bytes, "collect": 0}, device, **given)
    return _loaded[key]


_chips: dict[torch.device, tuple[int, int]] = {}


def _chip(device: torch.device) -> tuple[int, int] | None:
    """A GPU's multiprocessors, and the bytes of shared memory that a block may have; None if there is no compiling for it now."""
    if device not in _chips:
        if torch.cuda.is_current_stream_capturing() or _cuda.unavailable(device) is not None:
            return None
        _chips[device] = torch.cuda.get_device_properties(device).multi_processor_count, _nvrtc.room_of(device)[1]
    return _chips[device]


def _lines(matrix: Tensor) -> tuple[Tensor, bool, int]:
    """A matrix [lines, k], whether neighbours in memory are neighbours in k, and the stride of the other direction."""
    lines, k = matrix.shape
    if k == 1 or matrix.stride(1) == 1:
        return matrix, True, matrix.stride(0)
    if lines == 1 or matrix.stride(0) == 1:
        return matrix, False, matrix.stride(1)
    matrix = matrix.contiguous()
    return matrix, True, matrix.stride(0)


def _floats_at_once(*matrices: tuple[Tensor, bool, int]) -> int:
    """How many floats, 4, 2 or 1, can be read at once from all of these: no line and no column ends within so many."""
    for width in (4, 2):
        if all(
            each.data_ptr() % (4 * width) == 0 and stride % width == 0 and each.shape[int(along)] % width == 0
            for each, along, stride in matrices
        ):
            return width
    return 1
