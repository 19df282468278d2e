"""Products of small matrices whose numbers are spread over the lanes of a warp: `mma.sync`.

Tensor cores cut off where they add. Here a sum of floats is exact, and is cut off once, to the 24 bits of a float: so a state
that they carry along shrinks here as well, if less than on a GPU. Sums of doubles are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.emulator._memory import Array

Multiply = Callable[[Sequence[Array], Sequence[Array], Sequence[Array]], list[Array]]
"""From the registers of A, B and C, each [warps, 32], those of A B + C."""


def product(shape: str, types: tuple[str, ...]) -> tuple[Multiply, str, str]:
    """How it is formed, and the types of registers of its factors and of its sums."""
    if shape == "m16n8k16":
        return _of_halves({"f16": _halves, "bf16": _bfloats}[types[1]]), "b32", "f32"
    if shape == "m8n8k4":
        return _of_doubles(1, 1), "f64", "f64"
    if shape == "m16n8k8" and types[0] == "f64":
        return _of_doubles(2, 2), "f64", "f64"
    raise KeyError(shape)


def _halves(words: Array) -> Array:
    """Words of two numbers each, and these in another dimension."""
    return words.view(np.float16).reshape(*words.shape, 2).astype(np.float64)


def _bfloats(words: Array) -> Array:
    both = np.stack((words << np.uint32(16), words & np.uint32(0xFFFF0000)), -1)
    return both.view(np.float32).astype(np.float64)


def _of_halves(numbers: Callable[[Array], Array]) -> Multiply:
    def multiply(a: Sequence[Array], b: Sequence[Array], c: Sequence[Array]) -> list[Array]:
        warps = len(a[0])
        # Lane 4 g + m has, in register 2 c + r of A, numbers 8 c + 2 m and the next of row 8 r + g; in register c of B, numbers
        # 8 c + 2 m and the next of column g.
        left = numbers(np.stack(a)).reshape(2, 2, warps, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, 16)
        right = numbers(np.stack(b)).reshape(2, warps, 8, 4, 2).transpose(1, 0, 3, 4, 2).reshape(warps, 16, 8)
        return _registers(_cut_off(left @ right + _sums(c)))

    return multiply


def _of_doubles(down: int, along: int) -> Multiply:
    """8 rows or twice as many, a sum over 4 or twice as many."""

    def multiply(a: Sequence[Array], b: Sequence[Array], c: Sequence[Array]) -> list[Array]:
        warps = len(a[0])
        left = np.stack(a).reshape(along, down, warps, 8, 4).transpose(2, 1, 3, 0, 4).reshape(warps, 8 * down, 4 * along)
        right = np.stack(b).reshape(along, warps, 8, 4).transpose(1, 0, 3, 2).reshape(warps, 4 * along, 8)
        return _registers(left @ right + _sums(c))

    return multiply


def _sums(c: Sequence[Array]) -> Array:
    """[warps, 8 or 16, 8]: lane 4 g + m has, in register 2 r + e, column 2 m + e of row 8 r + g."""
    down, warps = len(c) // 2, len(c[0])
    return np.stack(c).reshape(down, 2, warps, 8, 4).transpose(2, 0, 3, 4, 1).reshape(warps, 8 * down, 8)


def _registers(found: Array) -> list[Array]:
    """`_sums` the other way round."""
    warps, down = len(found), found.shape[1] // 8
    return list(found.reshape(warps, down, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(2 * down, warps, 32))


def _cut_off(exact: Array) -> Array:
    """Towards zero, to a float's 24 bits."""
    bits = exact.view(np.uint64) & np.where(np.isfinite(exact), np.uint64(2**64 - 2**29), np.uint64(2**64 - 1))
    return bits.view(np.float64).astype(np.float32)
