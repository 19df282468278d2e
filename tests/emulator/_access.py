"""Instructions that read and write memory at once: loads, stores and atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator import _copies
from tests.emulator._machine import At, Grid, Step
from tests.emulator._memory import Array, refuse
from tests.emulator._onlooker import CHANGES, READS, WRITES
from tests.emulator._operands import UnknownError, address, dtype, parts, read, read_each, size_of, write
from tests.emulator._ptx import Instruction, Operand

Words = Callable[[Grid, At], tuple[Array, Array, Array]]
"""Memory, in words of some size; of each thread the first of the words that it is to have; and where that is among all memory."""


def ld(instruction: Instruction) -> Step:
    opcode, (target, source) = instruction.opcode, instruction.operands
    kind, wanted = opcode[-1], parts(target)
    words, writes = _words(source, instruction, len(wanted), READS), [write(each, kind) for each in wanted]

    def run(grid: Grid, at: At) -> None:
        memory, places, _ = words(grid, at)
        for i, put in enumerate(writes):
            put(grid, at, memory[places + i].view(dtype(kind)))

    return Step(run, polls=bool({"volatile", "relaxed", "acquire"} & set(opcode)))


def st(instruction: Instruction) -> Step:
    opcode, (target, given, *_) = instruction.opcode, instruction.operands
    if opcode[1] == "async":
        return _copies.st_async(instruction)
    words = _words(target, instruction, len(parts(given)), WRITES)
    reads = [read(each, f"b{8 * size_of(opcode[-1])}") for each in parts(given)]

    def run(grid: Grid, at: At) -> None:
        memory, places, _ = words(grid, at)
        for i, value in enumerate(reads):
            given = value(grid, at)
            memory[places + i] = given
            told = lambda _: "writes to where another one writes something else in the same instruction"  # noqa: E731
            refuse(memory[places + i] != given, grid.ids[at], told)
        grid.changes += 1

    return Step(run)


def atom(instruction: Instruction) -> Step:
    opcode, (target, place, given) = instruction.opcode, instruction.operands
    kind, change = opcode[-1], ATOMICS[opcode[-2]]
    words, values, put = _words(place, instruction, 1, CHANGES), read_each(given, kind), write(target, kind)

    def run(grid: Grid, at: At) -> None:
        memory, places, where = words(grid, at)
        ids = grid.ids[at]
        wanted, before = values(grid, at), np.empty(len(places), memory.dtype)
        for i in grid.schedule.order(list(range(len(places)))):
            before[i] = memory[places[i]]
            memory[places[i]] = change(before[i], wanted[i])
            grid.onlooker.changed(instruction, ids[i : i + 1], where[i : i + 1])
        put(grid, at, before)
        grid.changes += 1

    return Step(run)


ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, given: old + given,
    "exch": lambda old, given: given,
    "inc": lambda old, given: 0 if old >= given else old + 1,
    "or": lambda old, given: old | given,
}


def _words(operand: Operand, instruction: Instruction, many: int, what: str) -> Words:
    """At addresses in the space that the opcode names, for an access of so many words."""
    opcode = instruction.opcode
    size, spaces = size_of(opcode[-1]), {"param", "shared", "shared::cta", "shared::cluster", "local"} & set(opcode)
    bytes_ = size * many
    if not spaces:  # global memory, or any: shared memory's addresses are then none that a tensor has
        of_host = address(operand, "u64")

        def in_host(grid: Grid, at: At) -> tuple[Array, Array, Array]:
            addresses = of_host(grid, at)
            grid.allocations.check(addresses, bytes_, grid.ids[at], what)
            where = addresses.view(np.int64)
            grid.onlooker.accessed(instruction, what, grid.ids[at], where, bytes_)
            return grid.host.words[size], grid.host.places(addresses, size), where

        return in_host
    if spaces == {"param"} and opcode[0] == "ld":
        of_parameter = address(operand, "u64")

        def in_parameters(grid: Grid, at: At) -> tuple[Array, Array, Array]:
            whole = grid.parameters[: len(grid.parameters) // size * size]
            where = of_parameter(grid, at).astype(np.int64)
            return whole.view(f"u{size}"), where // size, where

        return in_parameters
    if not spaces <= {"shared", "shared::cta", "shared::cluster"}:
        raise UnknownError
    of_shared, far = address(operand, "u32"), spaces == {"shared::cluster"}

    def in_shared(grid: Grid, at: At) -> tuple[Array, Array, Array]:
        blocks, offsets = grid.block[at], of_shared(grid, at)
        if far:
            blocks, offsets = _copies.in_cluster(grid, at, offsets)
            grid.asynchronous.check_running(blocks, int(grid.ids[at][0]))
        places = grid.shared.places(blocks, offsets.astype(np.int64), bytes_, grid.ids[at], what)
        where = grid.shared.first + places
        grid.onlooker.accessed(instruction, what, grid.ids[at], where, bytes_)
        return grid.shared.words[size], places // size, where

    return in_shared
