"""Instructions that make one number of others, each thread for itself.

Floating point is IEEE's, but for this: `fma` of floats is one of doubles, rounded twice; `fma` of doubles is rounded after the
product too, but to a long double's bits, if the platform has such; what is approximate on a GPU is as exact as numpy has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator._machine import At, Grid, Step
from tests.emulator._memory import GENERIC_SHARED
from tests.emulator._operands import UnknownError, dtype, read, read_each, size_of, write
from tests.emulator._ptx import Instruction, Number, Vector

Function = Callable[..., Any]


def apply(instruction: Instruction, function: Function, to: str, *kinds: str) -> Step:
    """A function of operands of these types, for a result of that type."""
    target, *given = instruction.operands
    put, reads = write(target, to), [read(operand, kind) for operand, kind in zip(given, kinds, strict=True)]
    if len(reads) == 1:
        (first,) = reads
        return Step(lambda grid, at: put(grid, at, function(first(grid, at))))
    if len(reads) == 2:
        first, second = reads
        return Step(lambda grid, at: put(grid, at, function(first(grid, at), second(grid, at))))
    first, second, third = reads
    return Step(lambda grid, at: put(grid, at, function(first(grid, at), second(grid, at), third(grid, at))))


def plain(function: Function) -> Callable[[Instruction], Step]:
    """All operands have the type that the opcode ends in."""

    def build(instruction: Instruction) -> Step:
        if {"cc", "sat"} & set(instruction.opcode):
            raise UnknownError
        kind = instruction.opcode[-1]
        return apply(instruction, function, kind, *[kind] * (len(instruction.operands) - 1))

    return build


def logical(of_bits: Function, of_truths: Function) -> Callable[[Instruction], Step]:
    return lambda instruction: plain(of_truths if instruction.opcode[-1] == "pred" else of_bits)(instruction)


def extreme(of_numbers: Function, strict: Function) -> Callable[[Instruction], Step]:
    """max and min: of a number and NaN the number, unless NaN is asked for."""
    return lambda instruction: plain(strict if "NaN" in instruction.opcode else of_numbers)(instruction)


def mul(instruction: Instruction) -> Step:
    kind = instruction.opcode[-1]
    if kind[0] == "f" or "lo" in instruction.opcode:
        return apply(instruction, np.multiply, kind, kind, kind)
    bits = 8 * size_of(kind)
    if bits == 64:
        return apply(instruction, _high_of_64, kind, kind, kind)
    wide = f"{kind[0]}{2 * bits}"
    double = dtype(wide)
    if "wide" in instruction.opcode:
        return apply(instruction, lambda a, b: np.multiply(a, b, dtype=double), wide, kind, kind)
    return apply(instruction, lambda a, b: np.multiply(a, b, dtype=double) >> double(bits), kind, kind, kind)


def _high_of_64(a: Any, b: Any) -> Any:
    """The upper half of a product of 128 bits, from the products of the factors' halves."""
    kind, half, mask = a.dtype.type, a.dtype.type(32), a.dtype.type(0xFFFFFFFF)
    (a1, a0), (b1, b0) = ((each >> half, each & mask) for each in (a, b))
    carried = (a0.astype(np.uint64) * b0.astype(np.uint64) >> np.uint64(32)).astype(kind)
    middle = a1 * b0 + carried
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> half) + (other >> half)


def mad(instruction: Instruction) -> Step:
    if "lo" not in instruction.opcode:
        raise UnknownError
    return plain(lambda a, b, c: a * b + c)(instruction)


def fma(instruction: Instruction) -> Step:
    kind = instruction.opcode[-1]
    wide, narrow = np.float64 if kind == "f32" else np.longdouble, dtype(kind)

    def fused(a: Any, b: Any, c: Any) -> Any:
        return np.multiply(a, b, dtype=wide) + c

    def downwards(a: Any, b: Any, c: Any) -> Any:
        exact = fused(a, b, c)
        rounded = exact.astype(narrow)
        return np.where(rounded > exact, np.nextafter(rounded, narrow(-np.inf)), rounded)

    return plain({"rn": fused, "rm": downwards}[instruction.opcode[1]])(instruction)


def div(instruction: Instruction) -> Step:
    return plain(np.divide if instruction.opcode[-1][0] == "f" else _quotient)(instruction)


def _quotient(a: Any, b: Any) -> Any:
    """Towards zero; by zero, all bits are one."""
    by = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~b, (a - np.fmod(a, by)) // by)


def shift(instruction: Instruction) -> Step:
    kind, left = instruction.opcode[-1], instruction.opcode[0] == "shl"
    bits = 8 * size_of(kind)

    def shifted(a: Any, by: Any) -> Any:
        most = np.minimum(by, bits - 1).astype(a.dtype)
        if kind[0] == "s":
            return a >> most
        return np.where(by < bits, a << most if left else a >> most, a.dtype.type(0))

    return apply(instruction, shifted, kind, kind, "u32")


def bfi(instruction: Instruction) -> Step:
    """Some bits of a number in the place of others' in another."""
    target, value, into, place, many = instruction.operands
    if not isinstance(place, Number) or not isinstance(many, Number):
        raise UnknownError
    kind = instruction.opcode[-1]
    bits = dtype(kind)
    mask, by = bits(((1 << many.bits) - 1) << place.bits & 256 ** size_of(kind) - 1), bits(place.bits)
    first, second, put = read(value, kind), read(into, kind), write(target, kind)
    return Step(lambda grid, at: put(grid, at, first(grid, at) << by & mask | second(grid, at) & ~mask))


COMPARED: dict[str, Function] = {
    "eq": np.equal,
    "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}
"""Where one of the two is NaN, those with a `u` are true, and those without are not."""


def setp(instruction: Instruction) -> Step:
    if len(instruction.opcode) != 3:
        raise UnknownError
    _, how, kind = instruction.opcode
    return apply(instruction, COMPARED[how], "pred", kind, kind)


def selp(instruction: Instruction) -> Step:
    kind = instruction.opcode[-1]
    return apply(instruction, lambda a, b, which: np.where(which, a, b), kind, kind, kind, "pred")


def mov(instruction: Instruction) -> Step:
    """Also of the parts of a register, or to them."""
    kind, (target, given) = instruction.opcode[-1], instruction.operands
    whole = kind if kind == "pred" else f"b{8 * size_of(kind)}"
    if isinstance(target, Vector):
        part = f"b{8 * size_of(kind) // len(target.parts)}"
        values, writes = read_each(given, whole), [write(each, part) for each in target.parts]

        def unpack(grid: Grid, at: At) -> None:
            pieces = np.ascontiguousarray(values(grid, at)).view(dtype(part)).reshape(-1, len(writes))
            for put, piece in zip(writes, pieces.T, strict=True):
                put(grid, at, piece)

        return Step(unpack)
    if isinstance(given, Vector):
        part = f"b{8 * size_of(kind) // len(given.parts)}"
        reads, to = [read_each(each, part) for each in given.parts], write(target, whole)
        return Step(lambda grid, at: to(grid, at, np.stack([each(grid, at) for each in reads], 1).view(dtype(whole))[:, 0]))
    return apply(instruction, lambda value: value, whole, whole)


def cvt(instruction: Instruction) -> Step:
    *how, to, given = instruction.opcode[1:]
    if to in ("f16x2", "bf16x2"):
        half = _half if to == "f16x2" else _bfloat
        both = lambda high, low: half(high).astype(np.uint32) << np.uint32(16) | half(low)  # noqa: E731
        return apply(instruction, both, "b32", given, given)
    target = dtype(to)

    def convert(value: Any) -> Any:
        if how and how[0] in ROUNDED:
            value = ROUNDED[how[0]](value)
        if "sat" in how:
            value = np.clip(np.nan_to_num(value, nan=0.0), 0, 1)
        if given[0] == "f" and to[0] != "f":
            most = np.iinfo(target).max  # which a float may not have, but the power of two after it
            inside = np.nan_to_num(value, nan=0.0).clip(float(np.iinfo(target).min), float(most))
            return np.where(inside >= float(most), most, inside.astype(target))
        return value.astype(target)

    return apply(instruction, convert, to, given)


ROUNDED: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _half(value: Any) -> Any:
    return value.astype(np.float16).view(np.uint16)


def _bfloat(value: Any) -> Any:
    """The nearest number of 8 bits, as the upper half of a float; of two the even one."""
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)


def cvta(instruction: Instruction) -> Step:
    """Addresses of any kind are those of global memory, and shared memory is far from them."""
    if instruction.opcode[1] == "shared":
        return apply(instruction, lambda value: value + np.uint64(GENERIC_SHARED), "u64", "u64")
    if instruction.opcode[1:3] == ("to", "global"):
        return apply(instruction, lambda value: value, "u64", "u64")
    raise UnknownError
