"""What the instructions of PTX do; one that is not known fails when it is run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.emulator import _access, _arithmetic, _control, _copies, _warps
from tests.emulator._arithmetic import apply, extreme, logical, plain
from tests.emulator._machine import At, Grid, Program, Step
from tests.emulator._memory import ThreadError
from tests.emulator._operands import UnknownError
from tests.emulator._ptx import Instruction, Kernel

MEANINGS: dict[str, Callable[[Instruction], Step]] = {
    "abs": plain(np.abs),
    "add": plain(np.add),
    "and": logical(np.bitwise_and, np.logical_and),
    "atom": _access.atom,
    "bar": _control.bar,
    "barrier": _control.barrier,
    "bfi": _arithmetic.bfi,
    "bra": _control.bra,
    "copysign": plain(lambda sign, size: np.copysign(size, sign)),
    "cp": _copies.cp,
    "cvt": _arithmetic.cvt,
    "cvta": _arithmetic.cvta,
    "div": _arithmetic.div,
    "ex2": plain(np.exp2),
    "fence": _control.fence,
    "fma": _arithmetic.fma,
    "griddepcontrol": _control.griddepcontrol,
    "ld": _access.ld,
    "mad": _arithmetic.mad,
    "mapa": lambda instruction: apply(instruction, _copies.mapped, "u32", "u32", "u32"),
    "max": extreme(np.fmax, np.maximum),
    "mbarrier": _copies.mbarrier,
    "membar": _control.fence,
    "min": extreme(np.fmin, np.minimum),
    "mma": _warps.mma,
    "mov": _arithmetic.mov,
    "mul": _arithmetic.mul,
    "neg": plain(np.negative),
    "not": logical(np.bitwise_not, np.logical_not),
    "or": logical(np.bitwise_or, np.logical_or),
    "popc": lambda instruction: apply(instruction, np.bitwise_count, "u32", instruction.opcode[-1]),
    "rcp": plain(np.reciprocal),
    "redux": _warps.redux,
    "rem": plain(np.fmod),
    "ret": _control.ret,
    "rsqrt": plain(lambda value: 1 / np.sqrt(value)),
    "selp": _arithmetic.selp,
    "setp": _arithmetic.setp,
    "shfl": _warps.shfl,
    "shl": _arithmetic.shift,
    "shr": _arithmetic.shift,
    "sqrt": plain(np.sqrt),
    "st": _access.st,
    "sub": plain(np.subtract),
    "vote": _warps.vote,
    "xor": logical(np.bitwise_xor, np.logical_xor),
}


def program(kernel: Kernel) -> Program:
    leads = [False] * (len(kernel.instructions) + 1)
    for place in kernel.labels.values():
        leads[place] = True
    return Program(kernel, [_step(each) for each in kernel.instructions], leads)


def _step(instruction: Instruction) -> Step:
    try:
        step = MEANINGS[instruction.opcode[0]](instruction)
        return step if instruction.guard is None or instruction.opcode[0] == "bra" else _guarded(step, instruction)
    except (UnknownError, KeyError):
        return Step(_not_known)


def _not_known(grid: Grid, at: At) -> None:
    raise ThreadError(int(grid.ids[at][0]), "comes to an instruction that is not emulated")


def _guarded(step: Step, instruction: Instruction) -> Step:
    guard, unless = instruction.guard, instruction.unless
    if guard is None or step.ends or step.together:
        raise UnknownError

    def run(grid: Grid, at: At) -> None:
        which = grid.u[guard.index][at] != unless
        if which.any():
            step.run(grid, grid.chosen(at, which))

    return Step(run, polls=step.polls)
