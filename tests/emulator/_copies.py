"""Instructions that ask for copies to shared memory, which are made later, and that wait for these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.emulator._asynchronous import Copy
from tests.emulator._machine import At, Grid, Step
from tests.emulator._memory import Array, Shared, check_aligned
from tests.emulator._onlooker import READS, WRITES, Asked
from tests.emulator._operands import UnknownError, address, parts, read_each, size_of, write
from tests.emulator._ptx import Address, Instruction, Number


def cp(instruction: Instruction) -> Step:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode[2] == "bulk":
        return _bulk(instruction)
    if opcode[2] == "commit_group":
        return Step(lambda grid, at: grid.asynchronous.commit(grid.ids[at]))
    if opcode[2] in ("wait_all", "wait_group"):
        but = operands[0] if operands else Number(-1)  # -1: what was not committed, too
        assert isinstance(but, Number)
        return Step(lambda grid, at: grid.asynchronous.wait(grid.ids[at], but.bits))
    to, start, size, *wanted = operands
    if not isinstance(size, Number):
        raise UnknownError
    many = size.bits
    target, source, reads = address(to, "u32"), address(start, "u64"), read_each(wanted[0] if wanted else size, "u32")

    def run(grid: Grid, at: At) -> None:
        threads, addresses, bytes_ = grid.ids[at], source(grid, at), reads(grid, at).astype(np.int64)
        places = grid.shared.places(grid.block[at], target(grid, at).astype(np.int64), many, threads, "copies to")
        some = bytes_ > 0
        grid.allocations.check(addresses[some], int(bytes_.max()), threads[some], "copies from")
        check_aligned(addresses[some], many, threads[some], "copies from")
        grid.asynchronous.copy(Copy(threads, places, addresses, many, bytes_, instruction, grid.onlooker.asked(threads)))

    return Step(run)


def in_cluster(grid: Grid, at: At, addresses: Array) -> tuple[Array, Array]:
    """The blocks and offsets that addresses in a cluster's shared memory stand for."""
    rank = (addresses >> np.uint32(Shared.RANK)).astype(np.int64)
    offsets = (addresses & np.uint32((1 << Shared.RANK) - 1)).astype(np.int64)
    return np.where(rank == 0, grid.block[at], grid.first_of_cluster[at] + rank - 1), offsets


def mapped(place: Array, rank: Array) -> Array:
    """`mapa`: the address, for all of a cluster, of what is there in that one of its blocks."""
    found: Array = place | rank + np.uint32(1) << np.uint32(Shared.RANK)
    return found


def _bulk(instruction: Instruction) -> Step:
    """A thread's own, of any size; to one block, or to the same place in several."""
    to, start, size, bell, *mask = instruction.operands
    target, source, barrier, bytes_ = address(to, "u32"), address(start, "u64"), address(bell, "u32"), read_each(size, "u32")
    receivers = read_each(mask[0], "b16") if mask else None

    def run(grid: Grid, at: At) -> None:
        threads, addresses, many = grid.ids[at], source(grid, at), bytes_(grid, at)
        (blocks, offsets), (bell_blocks, bells) = (in_cluster(grid, at, each(grid, at)) for each in (target, barrier))
        masks = None if receivers is None else receivers(grid, at)
        for checked in (many, addresses, offsets):
            check_aligned(checked, 16, threads, "copies by")
        asked = grid.onlooker.asked(threads)
        for i, thread in enumerate(threads.tolist()):
            by = asked.some(slice(i, i + 1))
            grid.allocations.check(addresses[i : i + 1], int(many[i]), threads[i : i + 1], "copies from")
            grid.shared.places(blocks[i : i + 1], offsets[i : i + 1], int(many[i]), threads[i : i + 1], "copies to")
            first = int(grid.first_of_cluster[thread])
            copies = [(int(blocks[i]), int(bell_blocks[i]))]
            if masks is not None:
                copies = [(first + rank, first + rank) for rank in range(16) if int(masks[i]) >> rank & 1]
            for block, bell_block in copies:
                given = int(addresses[i]), int(offsets[i]), int(bells[i]), int(many[i])
                grid.asynchronous.later(instruction, by, _bulk_copy(grid, instruction, by, block, bell_block, *given))

    return Step(run)


def _bulk_copy(
    grid: Grid,
    instruction: Instruction,
    by: Asked,
    block: int,
    bell_block: int,
    start: int,
    offset: int,
    bell: int,
    many: int,
) -> Callable[[], None]:
    thread, bells = int(by.threads[0]), np.array([grid.shared.place(bell_block, bell)])

    def work() -> None:
        grid.asynchronous.check_running(np.array([block]), thread)
        grid.onlooker.carried(instruction, READS, by, np.array([start]), many, bells)
        grid.onlooker.carried(instruction, WRITES, by, np.array([grid.shared.place(block, offset)]), many, bells)
        grid.onlooker.counted(instruction, by, bells)
        to, source = block * grid.shared.stride + offset, start - grid.host.FIRST
        grid.shared.words[1][to : to + many] = grid.host.words[1][source : source + many]
        grid.asynchronous.arrive(bell_block, bell, thread, arrivals=0, come=many)

    return work


def st_async(instruction: Instruction) -> Step:
    """A few words to another block of the cluster."""
    opcode, (place, given, bell) = instruction.opcode, instruction.operands
    size = size_of(opcode[-1])
    target, barrier, reads = address(place, "u32"), address(bell, "u32"), [read_each(each, opcode[-1]) for each in parts(given)]

    def run(grid: Grid, at: At) -> None:
        threads, values = grid.ids[at], [each(grid, at).copy() for each in reads]
        (blocks, offsets), (bell_blocks, bells) = (in_cluster(grid, at, each(grid, at)) for each in (target, barrier))
        all_bytes = size * len(values)
        places = grid.shared.places(blocks, offsets, all_bytes, threads, "sends to") // size
        asked, all_bells = grid.onlooker.asked(threads), grid.shared.first + bell_blocks * grid.shared.stride + bells

        def work() -> None:
            grid.asynchronous.check_running(blocks, int(threads[0]))
            grid.onlooker.carried(instruction, WRITES, asked, grid.shared.first + places * size, all_bytes, all_bells)
            grid.onlooker.counted(instruction, asked, all_bells)
            for i, value in enumerate(values):
                grid.shared.words[size][places + i] = value
            keys, counts = np.unique(bell_blocks << 32 | bells, return_counts=True)
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
                come = count * all_bytes
                grid.asynchronous.arrive(key >> 32, key & 0xFFFFFFFF, int(threads[0]), arrivals=0, come=come)

        grid.asynchronous.later(instruction, asked, work)

    return Step(run)


def mbarrier(instruction: Instruction) -> Step:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode[1] in ("test_wait", "try_wait"):
        return _wait(instruction)
    if opcode[1] not in ("init", "arrive"):
        raise UnknownError
    place, *last = operands[0 if isinstance(operands[0], Address) else 1 :]
    where, numbers = address(place, "u32"), read_each(last[0] if last else Number(1), "u32")

    def run(grid: Grid, at: At) -> None:
        threads, offsets = grid.ids[at], where(grid, at).astype(np.int64)
        grid.shared.places(grid.block[at], offsets, 8, threads, "has an mbarrier of")
        for thread, block, offset, number in zip(
            threads.tolist(), grid.block[at].tolist(), offsets.tolist(), numbers(grid, at).tolist(), strict=True
        ):
            bell = grid.shared.place(block, offset)
            if opcode[1] == "init":
                grid.onlooker.opened(instruction, thread, bell)
                grid.asynchronous.open(block, offset, number)
                continue
            grid.onlooker.rang(instruction, thread, bell)
            if "expect_tx" in opcode:
                grid.asynchronous.arrive(block, offset, thread, announced=number)
            else:
                grid.asynchronous.arrive(block, offset, thread, arrivals=number)

    return Step(run)


def _wait(instruction: Instruction) -> Step:
    """To try is to wait: a thread goes on when the phase is over. To test is to look."""
    if "parity" not in instruction.opcode:
        raise UnknownError
    target, place, parity = instruction.operands
    put, where, parities = write(target, "pred"), address(place, "u32"), read_each(parity, "u32")

    def over(grid: Grid, at: At) -> Array:
        blocks, offsets, threads = grid.block[at], where(grid, at).astype(np.int64), grid.ids[at]
        done = grid.asynchronous.over(blocks, offsets, parities(grid, at), threads)
        bells = grid.shared.first + blocks * grid.shared.stride + offsets
        grid.onlooker.heard(instruction, threads[done], bells[done])
        return done

    def test(grid: Grid, at: At) -> None:
        put(grid, at, over(grid, at))

    def attempt(grid: Grid, at: At, pc: int) -> None:
        done = over(grid, at)
        put(grid, at, done)
        grid.go(grid.chosen(at, done), pc + 1)
        grid.stay(grid.chosen(at, ~done), pc)

    return Step(attempt, ends=True) if instruction.opcode[1] == "try_wait" else Step(test, polls=True)
