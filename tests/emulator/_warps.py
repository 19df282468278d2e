"""Instructions that the threads of a warp take together: exchanges, votes, and products of the tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator import _tensor_cores
from tests.emulator._machine import At, Grid, Step
from tests.emulator._memory import Array
from tests.emulator._operands import UnknownError, parts, read, read_each, write
from tests.emulator._ptx import Instruction, Number

ALL = Number(0xFFFFFFFF)
"""All lanes, as bits."""


def sync(instruction: Instruction) -> Step:
    """`bar.warp.sync`."""
    members = read_each(instruction.operands[0], "u32")

    def run(grid: Grid, at: At) -> None:
        grid.onlooker.met(grid.ids[at], grid.ids[at] // 32 << 32 | members(grid, at).astype(np.int64))

    return Step(run, together=members)


def shfl(instruction: Instruction) -> Step:
    how, (target, given, by, bounds, members) = instruction.opcode[2], instruction.operands
    to, *valid = parts(target)
    put, tell = write(to, "b32"), write(valid[0], "pred") if valid else None
    values, numbers, limits = read_each(given, "b32"), read_each(by, "u32"), read_each(bounds, "u32")
    lane_of = LANES[how]

    def run(grid: Grid, at: At) -> None:
        ids = grid.ids[at]
        lanes, n, limit = ids % 32, numbers(grid, at).astype(np.int64), limits(grid, at).astype(np.int64)
        segment, clamp = limit >> 8 & 31, limit & 31
        first, most = lanes & segment, lanes & segment | clamp & ~segment
        lane = lane_of(lanes, n, first, segment)
        inside = lane >= most if how == "up" else lane <= most
        everything = values(grid, slice(0, grid.threads))
        put(grid, at, everything[ids - lanes + np.where(inside, lane, lanes)])
        if tell is not None:
            tell(grid, at, inside)

    return Step(run, together=read_each(members, "u32"))


LANES: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "bfly": lambda lanes, n, first, segment: lanes ^ n,
    "idx": lambda lanes, n, first, segment: first | n & ~segment & 31,
    "down": lambda lanes, n, first, segment: lanes + n,
    "up": lambda lanes, n, first, segment: lanes - n,
}
"""Whose value a lane gets, if it is within bounds."""


def vote(instruction: Instruction) -> Step:
    _, _, how, kind = instruction.opcode
    target, given, members = instruction.operands
    truths, put, (nothing, reduce) = read(given, "pred"), write(target, kind), VOTES[how]
    return Step(
        lambda grid, at: put(grid, at, _over_warps(grid, at, truths(grid, at), nothing, reduce)),
        together=read_each(members, "u32"),
    )


VOTES: dict[str, tuple[bool, Callable[..., Any]]] = {
    "all": (True, np.all),
    "any": (False, np.any),
    "ballot": (False, lambda votes, axis: (votes.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis, np.uint32)),
}


def redux(instruction: Instruction) -> Step:
    if instruction.opcode[2:] != ("max", "u32"):
        raise UnknownError
    target, given, members = instruction.operands
    values, put = read(given, "u32"), write(target, "u32")
    return Step(
        lambda grid, at: put(grid, at, _over_warps(grid, at, values(grid, at), 0, np.max)), together=read_each(members, "u32")
    )


def _over_warps(grid: Grid, at: At, values: Any, nothing: Any, reduce: Callable[..., Any]) -> Array:
    """What the threads of a warp that are there come to, for each of them."""
    everything = np.full(grid.threads, nothing, values.dtype)
    everything[at] = values
    found: Array = reduce(everything.reshape(-1, 32), 1)[grid.ids[at] // 32]
    return found


def mma(instruction: Instruction) -> Step:
    multiply, given, sums = _tensor_cores.product(instruction.opcode[3], instruction.opcode[6:])
    target, *sources = (parts(each) for each in instruction.operands)
    kinds = given, given, sums
    reads = [[read_each(each, kind) for each in source] for source, kind in zip(sources, kinds, strict=True)]
    writes = [write(each, sums) for each in target]

    def run(grid: Grid, at: At) -> None:
        a, b, c = ([each(grid, at).reshape(-1, 32) for each in source] for source in reads)
        for put, found in zip(writes, multiply(a, b, c), strict=True):
            put(grid, at, found.reshape(-1))

    return Step(run, together=read_each(ALL, "u32"))
