"""Products of large matrices, as precise as in float32, by a GPU's tensor cores: `product.cu`, where that pays."""

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel, address, filled
from .._precision import lower_precision
from ._cuda import HALVES_SOURCE, in_rows
from ._trust import Noise, Trusted

SOURCE = Path(__file__).with_name("product.cu")
DEPTH, A_PART, B_PART, SPLITTERS = 32, 132, 66, 4
"""As in the source: the columns of a round; what a part of either matrix takes for these, in words of 16 bytes; and the warps of
a block that takes matrices to pieces."""

LEAST_SIDE, LEAST_WORK = 48, 2**26
"""The least extent of any of the matrices, and the fewest multiplications, for which `product` is meant."""

MOST_PIECES = 2**30
"""The bytes that the pieces of both matrices may take; beyond, k is gone through in several goes."""

SIZES = (
    (2, 3, 1, 2, 4),
    (2, 4, 1, 2, 4),
    (2, 3, 2, 2, 2),
    (2, 4, 2, 2, 2),
    (2, 5, 2, 2, 2),
    (2, 4, 2, 4, 1),
    (2, 5, 2, 4, 1),
    (2, 4, 4, 2, 1),
    (3, 4, 2, 4, 1),
    (4, 3, 2, 4, 1),
    (4, 4, 2, 4, 1),
    (5, 5, 2, 4, 1),
)
"""The layouts of a block's eight warps: tiles of a warp, 16 high and 8 wide, down and across; warps of a group, down and across;
groups."""

MOST_STAGES = 6

START, END, TENSOR, CACHE = 700, 11, 9, 30
"""Reckoned, in cycles: to begin a block; to end it, for each sum of a thread and each group; a product of 16 x 8 x 16. And the
bytes a cycle that a multiprocessor writes and reads where shares are added up. Fitted to 2,600 times on an H200, of 16 products
in 51 layouts: what is chosen by it, of the layouts above, took 0.8 % longer than the best of all, 3.8 % at most."""


class Plan(NamedTuple):
    """How a product is laid out."""

    rows: int
    columns: int
    """Of a warp, in tiles of 16 and 8."""
    down: int
    across: int
    """The warps of a group."""
    groups: int
    """In a block."""
    stages: int
    """Rounds for which a group has room in shared memory."""
    share: int
    """Rounds that a block takes; if not all, there is one more kernel, to add up."""

    @property
    def tall(self) -> int:
        return 16 * self.rows * self.down

    @property
    def broad(self) -> int:
        return 8 * self.columns * self.across

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.tall) * -(-n // self.broad)

    def parts(self, m: int, n: int) -> tuple[int, int]:
        """Of both matrices, in whole tiles."""
        return -(-m // self.tall) * self.rows * self.down, -(-n // self.broad) * self.columns * self.across

    @property
    def group(self) -> int:
        """Threads."""
        return 32 * self.down * self.across

    @property
    def sums(self) -> int:
        """Of a thread."""
        return 4 * self.rows * self.columns

    @property
    def stage_bytes(self) -> int:
        return 16 * (self.rows * self.down * A_PART + self.columns * self.across * B_PART)

    @property
    def shared_bytes(self) -> int:
        return self.groups * self.stages * self.stage_bytes


class Operand(ctypes.Structure):
    """A matrix [lines, k] for `split`, as in the source."""

    _fields_ = (
        ("start", ctypes.c_void_p * 2),
        ("line", ctypes.c_longlong * 2),
        ("column", ctypes.c_longlong * 2),
        ("first", ctypes.c_longlong),
        ("lines", ctypes.c_longlong),
        ("to", ctypes.c_void_p),
        ("parts", ctypes.c_longlong),
        ("along", ctypes.c_longlong),
    )


class Work(ctypes.Structure):
    """The argument of `split`, as in the source."""

    _fields_ = (
        ("operand", Operand * 2),
        ("before", ctypes.c_longlong),
        ("columns", ctypes.c_longlong),
        ("units", ctypes.c_longlong),
    )


class Output(ctypes.Structure):
    """Where the sums go, as in the source."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("out_row", ctypes.c_longlong),
        ("added", ctypes.c_void_p),
        ("added_row", ctypes.c_longlong),
        ("early", ctypes.c_void_p),
        ("early_row", ctypes.c_longlong),
        ("first", ctypes.c_longlong),
        ("m", ctypes.c_longlong),
        ("n", ctypes.c_longlong),
    )


def pays(a: Tensor, b: Tensor) -> bool:
    """Whether `product` is meant for these."""
    (m, k), n = a.shape, b.shape[1]
    return allowed(a, b) and min(m, k, n) >= LEAST_SIDE and m * k * n >= LEAST_WORK


def allowed(a: Tensor, b: Tensor) -> bool:
    """Whether `product` can multiply these, and less precise products are not wished for."""
    return a.is_cuda and a.dtype == b.dtype == torch.float32 and not lower_precision()


def product(
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
    out: Tensor | None = None,
    *,
    first: Tensor | None = None,
    out_first: Tensor | None = None,
    before: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`added + a b` of CUDA matrices [r, k] and [k, n] in float32: `product.cu` or, where that cannot be had, cuBLAS.

    Rows of the first matrix are those of `first` [f, k], then those of `a`, then zeros; rows of the product go to `out_first`
    [g, n], without anything added, then to `out`, which has as many as are left if it is not given. `before`, [r, j] and [j, n],
    are columns of the first matrix and rows of the second that come before those of `a` and `b`; not together with `first`.
    """
    k, n = b.shape
    assert first is None or before is None
    assert before is None or before[0].shape[0] == a.shape[0]
    g, f = (0 if each is None else each.shape[0] for each in (out_first, first))
    rows = f + a.shape[0]
    if out is None:
        out = a.new_empty(rows - g, n)
    m = g + out.shape[0]
    assert rows <= m
    if min(m, n) == 0:
        return out
    if n > 1 and any(each is not None and each.stride(1) != 1 for each in (out, out_first)):
        return _apart(product(a, b, out=a.new_empty(m, n), first=first, before=before), added, out, out_first)
    j = 0 if before is None else before[0].shape[1]
    rounds = -(-j // DEPTH) + -(-k // DEPTH)
    chip = _chip(a.device) if rounds else None
    plan = None if chip is None else planned(m, n, rounds, *chip)
    kernels = None if plan is None else _kernels(plan, a.device)
    if plan is None or kernels is None:
        return _by_torch(a, b, added, out, first, out_first, before)
    sizes = _sizes(plan, m, n, rounds)
    if 16 * (sizes.a_words + sizes.b_words) > MOST_PIECES and k > DEPTH:
        half = -(-k // (2 * DEPTH)) * DEPTH
        of_first = (None, None) if first is None else (first[:, :half], first[:, half:])
        found = product(a[:, :half], b[:half], out=a.new_empty(m, n), first=of_first[0], before=before)
        return _apart(product(a[:, half:], b[half:], found, found, first=of_first[1]), added, out, out_first)

    added = None if added is None else in_rows(added.expand(m - g, n))
    pieces = a.new_empty(4 * (sizes.a_words + sizes.b_words))
    shares = a.new_empty(sizes.many, sizes.tiles, plan.sums, plan.group) if sizes.many > 1 else None
    of_a = address(pieces)
    of_b = of_a + 16 * sizes.a_words
    above, left = (first, None) if before is None else before
    work = filled(
        Work,
        *_operand(above, a, False, f, rows, of_a, sizes.a_parts),
        *_operand(left, b, True, 0, n, of_b, sizes.b_parts),
        *(j, k, sizes.a_units),
    )
    output = filled(
        Output,
        *(address(out), out.stride(0)),
        *((0, 0) if added is None or added.shape[0] == 0 else (address(added), added.stride(0))),
        *((0, 0) if out_first is None else (address(out_first), out_first.stride(0))),
        *(g, m, n),
    )
    kernels[0](-(-sizes.units // SPLITTERS), 32 * SPLITTERS, work)
    kernels[1](
        *((sizes.tiles, sizes.many), plan.groups * plan.group),
        *(of_a, sizes.a_parts, of_b, sizes.b_parts, rounds, plan.share, shares, output),
        early=True,
    )
    if shares is not None:
        kernels[2]((plan.sums // 2, sizes.tiles), plan.group, shares, sizes.many, output, early=True)
    return out


class Sizes(NamedTuple):
    """Of a product in a layout."""

    a_parts: int
    b_parts: int
    a_words: int
    b_words: int
    """Of 16 bytes, that the pieces of the matrices take."""
    a_units: int
    units: int
    """Of the work of `split`: for the first matrix, and for both."""
    tiles: int
    many: int
    """Shares of the rounds."""


@functools.lru_cache(4096)
def _sizes(plan: Plan, m: int, n: int, rounds: int) -> Sizes:
    a_parts, b_parts = plan.parts(m, n)
    units = -(-a_parts // 2) * rounds
    return Sizes(
        *(a_parts, b_parts, rounds * a_parts * A_PART, rounds * b_parts * B_PART),
        *(units, units + -(-b_parts // 4) * rounds, plan.tiles(m, n), -(-rounds // plan.share)),
    )


def _operand(
    earlier: Tensor | None, matrix: Tensor, flipped: bool, first: int, lines: int, to: int, parts: int
) -> tuple[int, ...]:
    """The fields of an `Operand`, for a matrix or its transpose. Lanes read along the smaller stride."""
    line, column = matrix.stride()
    start, (early_line, early_column) = address(matrix), (line, column) if earlier is None else earlier.stride()
    early_start = start if earlier is None else address(earlier)
    if flipped:
        line, column, early_line, early_column = column, line, early_column, early_line
    return early_start, start, early_line, line, early_column, column, first, lines, to, parts, int(column <= line)


def _by_torch(
    a: Tensor,
    b: Tensor,
    added: Tensor | None,
    out: Tensor,
    first: Tensor | None,
    out_first: Tensor | None,
    before: tuple[Tensor, Tensor] | None,
) -> Tensor:
    rows = a if first is None else torch.cat((first, a))
    if before is None and out_first is None and len(rows) == len(out):
        return torch.mm(rows, b, out=out) if added is None else torch.addmm(added, rows, b, out=out)
    found = rows @ b if before is None else torch.addmm(rows @ b, *before)
    m = len(out) + (0 if out_first is None else len(out_first))
    return _apart(torch.nn.functional.pad(found, (0, 0, 0, m - len(found))), added, out, out_first)


def _apart(found: Tensor, added: Tensor | None, out: Tensor, out_first: Tensor | None) -> Tensor:
    """All rows of a product to where they belong."""
    if out_first is not None:
        out_first.copy_(found[: len(out_first)])
        found = found[len(out_first) :]
    return out.copy_(found if added is None else found + added)


def with_stages(size: tuple[int, int, int, int, int], room: int) -> Plan | None:
    """A layout with as many stages as there is room for, if there is for two."""
    plan = Plan(*size, 1, 1)
    stages = min(MOST_STAGES, room // plan.shared_bytes)
    return plan._replace(stages=stages) if stages >= 2 else None


@functools.lru_cache(4096)
def planned(m: int, n: int, rounds: int, processors: int, room: int) -> Plan:
    """What should take the least time on so many multiprocessors, a block having so many bytes of shared memory at most."""
    best, found = float("inf"), None
    for size in SIZES:
        plan = with_stages(size, room)
        if plan is None:
            continue
        tiles = plan.tiles(m, n)
        for share in sorted({-(-rounds // count) for count in range(1, min(rounds, 4 * processors // tiles + 1) + 1)}):
            time = _time(plan._replace(share=share), m, n, rounds, processors)
            if time < best:
                best, found = time, plan._replace(share=share)
    assert found is not None, "no chip has so little shared memory"
    return found


def _time(plan: Plan, m: int, n: int, rounds: int, processors: int) -> float:
    """Cycles, reckoned: the busiest multiprocessor's blocks, one at a time, and adding up the shares."""
    tiles, count = plan.tiles(m, n), -(-rounds // plan.share)
    waves = -(-tiles * count // processors)
    time = waves * (START + END * plan.sums * plan.groups + plan.share * _round(plan))
    if count > 1:
        time += 2 * 4 * tiles * count * plan.sums * plan.group / (CACHE * processors)
    return time


def _round(plan: Plan) -> float:
    """Cycles of a round: the tensor cores', or the shared memory's."""
    tensor = 6 * TENSOR * plan.rows * plan.columns * plan.down * plan.across / 4
    loads = 4 * (4 * plan.rows + 2 * plan.columns) + 2 * (plan.rows + plan.columns)
    return max(tensor, loads * plan.down * plan.across + plan.stage_bytes / 128)


def source() -> str:
    """The text of the kernels."""
    return _nvrtc.text(HALVES_SOURCE, SOURCE)


def defines(plan: Plan) -> dict[str, int]:
    """What the compiler has to be told."""
    given = {"ROWS": plan.rows, "COLUMNS": plan.columns, "DOWN": plan.down, "ACROSS": plan.across, "GROUPS": plan.groups}
    return given | {"STAGES": plan.stages, "SHARED_BYTES": plan.shared_bytes}


_loaded: dict[tuple[tuple[int, ...], torch.device], list[Kernel]] = {}


def _kernels(plan: Plan, device: torch.device) -> list[Kernel] | None:
    key = plan[:-1], device  # the share of a block is no part of what is compiled
    if key not in _loaded:
        if torch.cuda.is_current_stream_capturing():
            return None
        names = {"split": 0, "product": plan.shared_bytes, "collect": 0}
        _loaded[key] = _nvrtc.load(source(), names, device, **defines(plan))
    return _loaded[key]


_chips: dict[torch.device, tuple[int, int]] = {}


def _chip(device: torch.device) -> tuple[int, int] | None:
    """A GPU's multiprocessors, and the bytes of shared memory that a block may have; None if there are no kernels for it now."""
    if not _trusted(device):
        return None
    if device not in _chips:
        _chips[device] = torch.cuda.get_device_properties(device).multi_processor_count, _nvrtc.room_of(device)[1]
    return _chips[device]


def _tried(noise: Noise) -> list[tuple[Tensor, Tensor]]:
    """Few rounds and many, either matrix lying either way, rows and columns that come before."""
    a, b, added = noise(230, 500), noise(500, 170), noise(230, 170)
    x, y, out_first = a.float(), b.float(), added[:20].float()
    rows = product(x[30:], y, added[20:].float(), first=x[:30], out_first=out_first)
    tall, wide = noise(4000, 90), noise(4000, 110)
    z, h = tall.float(), wide.float()
    columns = product(z[32:].mT, h[32:], before=(z[:32].mT, h[:32]))
    whole = torch.cat((torch.zeros_like(added[:20]), added[20:])) + a @ b
    return [(whole, torch.cat((out_first, rows))), (tall.mT @ wide, columns)]


_trusted = Trusted("product.cu", _tried)
