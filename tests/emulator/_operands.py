"""What instructions are given: registers of threads, numbers and addresses, as arrays with a number for every thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator._machine import At, Grid
from tests.emulator._ptx import SIZES_OF_TYPES, Address, Nothing, Number, Operand, Register, Special, Vector

Reader = Callable[[Grid, At], Any]
"""An array, or one number for all threads."""

Writer = Callable[[Grid, At, Any], None]


class UnknownError(Exception):
    """An instruction that is not emulated."""


def size_of(kind: str) -> int:
    """Bytes of a type."""
    return SIZES_OF_TYPES[kind]


def dtype(kind: str) -> Any:
    """numpy's for a type; bits are an unsigned integer."""
    return np.dtype(bool if kind == "pred" else f"{dict(b='u', s='i').get(kind[0], kind[0])}{size_of(kind)}").type


def read(operand: Operand, kind: str) -> Reader:
    if isinstance(operand, Number):
        value = _constant(operand, kind)
        return lambda grid, at: value
    if isinstance(operand, Special):
        name = operand.name
        return lambda grid, at: grid.special[name][at]
    if not isinstance(operand, Register):
        raise UnknownError
    index = operand.index
    if operand.size > size_of(kind):
        narrow = dtype(kind)
        return lambda grid, at: grid.u[index][at].astype(narrow)
    if kind[0] == "f":
        return lambda grid, at: grid.f[index][at]
    if kind[0] == "s":
        return lambda grid, at: grid.s[index][at]
    return lambda grid, at: grid.u[index][at]


def read_each(operand: Operand, kind: str) -> Reader:
    """The same, but always an array."""
    values = read(operand, kind)
    if isinstance(operand, Number):
        return lambda grid, at: np.full(len(grid.ids[at]), values(grid, at))
    return values


def write(operand: Operand, kind: str) -> Writer:
    """To a register, which may have more bits than the numbers: integers keep their value then."""
    if isinstance(operand, Nothing):
        return lambda grid, at, value: None
    if not isinstance(operand, Register):
        raise UnknownError
    index = operand.index

    def as_float(grid: Grid, at: At, value: Any) -> None:
        grid.f[index][at] = value

    def as_integer(grid: Grid, at: At, value: Any) -> None:
        grid.s[index][at] = value

    def as_bits(grid: Grid, at: At, value: Any) -> None:
        grid.u[index][at] = value

    return {"f": as_float, "s": as_integer}.get(kind[0], as_bits)


def address(operand: Operand, kind: str) -> Reader:
    """Always an array."""
    if not isinstance(operand, Address):
        raise UnknownError
    base, offset = read_each(operand.base, kind), _constant(Number(operand.offset), kind)
    return lambda grid, at: base(grid, at) + offset


def parts(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Vector) else (operand,)


def _constant(number: Number, kind: str) -> Any:
    size = size_of(kind)
    if kind == "pred":
        return np.bool_(number.bits != 0)
    return np.frombuffer((number.bits % 256**size).to_bytes(size, "little"), dtype(kind))[0]
