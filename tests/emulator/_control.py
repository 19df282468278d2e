"""Instructions that say where threads go on, and when: branches, barriers, and kernels that wait for others."""

from __future__ import annotations

from tests.emulator import _warps
from tests.emulator._machine import At, Grid, Step
from tests.emulator._operands import UnknownError, read_each
from tests.emulator._ptx import Instruction, Number


def bra(instruction: Instruction) -> Step:
    (to,), guard, unless = instruction.operands, instruction.guard, instruction.unless
    if not isinstance(to, Number):
        raise UnknownError

    def branch(grid: Grid, at: At, pc: int) -> None:
        if guard is None:
            grid.go(at, to.bits)
            return
        taken = grid.u[guard.index][at] != unless
        grid.go(grid.chosen(at, taken), to.bits)
        grid.go(grid.chosen(at, ~taken), pc + 1)

    return Step(branch, ends=True)


def ret(instruction: Instruction) -> Step:
    return Step(lambda grid, at, pc: grid.exit(at), ends=True)


def bar(instruction: Instruction) -> Step:
    how, operands = instruction.opcode[1], instruction.operands
    if how == "warp":
        return _warps.sync(instruction)
    if how == "red":
        number, vote = read_each(operands[1], "u32"), read_each(operands[2], "pred")
        return Step(lambda grid, at, pc: grid.at_barrier(at, pc, number(grid, at), None, vote(grid, at)), ends=True)
    if how != "sync":
        raise UnknownError
    number = read_each(operands[0], "u32")
    if len(operands) == 1:
        return Step(lambda grid, at, pc: grid.at_barrier(at, pc, number(grid, at), None), ends=True)
    expected = read_each(operands[1], "u32")
    return Step(lambda grid, at, pc: grid.at_barrier(at, pc, number(grid, at), expected(grid, at)), ends=True)


def barrier(instruction: Instruction) -> Step:
    """Of a cluster."""
    if instruction.opcode[1:3] == ("cluster", "arrive"):
        return Step(lambda grid, at: grid.arrive_at_cluster(at))
    if instruction.opcode[1:3] == ("cluster", "wait"):
        return Step(lambda grid, at, pc: grid.wait_for_cluster(at, pc), ends=True)
    raise UnknownError


def griddepcontrol(instruction: Instruction) -> Step:
    if instruction.opcode[1] == "wait":
        return Step(lambda grid, at, pc: grid.wait_for_the_one_before(at, pc), ends=True)
    return Step(lambda grid, at: grid.let(at))


def fence(instruction: Instruction) -> Step:
    """Memory here is one for all, at any time."""
    return Step(lambda grid, at: grid.onlooker.fenced(instruction, grid.ids[at]))
