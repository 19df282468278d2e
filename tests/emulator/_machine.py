"""Kernels run by numpy: all threads of a launch that stand at the same instruction take it at once.

A register is an array, with a number for every thread; a thread is where it is in the program, or waits. Over and over the
schedule picks an instruction and threads that stand there, and these go on to the next label or to where they have to wait for
others. Memory is one and the same for all threads at any time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.emulator._asynchronous import Asynchronous
from tests.emulator._memory import POISON, Allocations, Array, Host, Shared, ThreadError
from tests.emulator._onlooker import Onlooker
from tests.emulator._ptx import Instruction, Kernel, Register
from tests.emulator._schedule import BLOCKED, TIRED, Schedule

At = slice | Array
"""Which threads, by their numbers: in order, and a slice where they are neighbours."""


class EmulationError(Exception):
    """A kernel did what it must not do, or cannot go on."""


class Step(NamedTuple):
    """An instruction, made ready to be run."""

    run: Callable[..., None]
    """By a grid and for threads of it; if it `ends`, its place in the program comes third, and it says where they go."""
    ends: bool = False
    together: Callable[[Grid, At], Array] | None = None
    """The lanes of a warp, as bits, that take it together: none goes on before all have come. None: each for itself."""
    polls: bool = False
    """Whether it looks for what another thread may do: whoever takes it lets others go first."""


class Program(NamedTuple):
    kernel: Kernel
    steps: list[Step]
    leads: list[bool]
    """Whether there is a label before a step, and one more at the end."""


@dataclass
class Progress:
    """How far a launch has come."""

    begun: bool = False
    lets: bool = False
    """Whether all its thread blocks have let the next kernel begin."""
    done: bool = False


class Launch(NamedTuple):
    program: Program
    grid: tuple[int, int, int]
    block: int
    shared: int
    """Bytes of shared memory beside the kernel's own."""
    parameters: bytes
    progress: Progress
    after: list[tuple[Progress, str]]
    """It begins when all these have come as far as that."""
    before: Progress | None
    """The launch that it waits for by `griddepcontrol.wait`, if it may begin while that is still running."""


class Grid:
    """All threads of a launch, numbered block by block. A block has whole warps: what fills up its last one never runs."""

    def __init__(self, launch: Launch, host: Host, allocations: Allocations, schedule: Schedule) -> None:
        self.launch, self.program, self.host, self.allocations = launch, launch.program, host, allocations
        self.schedule, kernel = schedule, self.program.kernel
        blocks, room = int(np.prod(launch.grid)), -(-launch.block // 32) * 32
        self.blocks, self.room, self.threads = blocks, room, blocks * room
        self.ids = np.arange(self.threads)
        self.block, self.thread = self.ids // room, self.ids % room
        self.cluster = self.block // kernel.cluster
        self.first_of_cluster = self.cluster * kernel.cluster
        self.parameters = np.frombuffer(launch.parameters, np.uint8)
        self.shared = Shared(blocks, kernel.shared + launch.shared)
        self.onlooker = Onlooker()
        self.asynchronous = Asynchronous(self)
        self._registers()
        self.special = self._special()

        self.alive = self.thread < launch.block
        self.pc = np.zeros(self.threads, np.int32)
        self.front = np.where(self.alive, 0, BLOCKED).astype(np.int32)
        """Where a thread stands, if it can go on, as the schedule is told of it."""
        self.changes = 0
        """Counts whatever one thread could see of another."""
        self._let = np.zeros(blocks, bool)
        self._waiting, self._gathering = np.zeros(self.threads, bool), np.zeros(self.threads, bool)
        self._at_barrier, self._expected = np.full(self.threads, -1, np.int64), np.zeros(self.threads, np.int64)
        self._voted = np.zeros(self.threads, bool)
        self._arrived = np.zeros(self.threads, bool)
        self._generation, self._generation_of = np.zeros(blocks, np.int64), np.zeros(self.threads, np.int64)
        launch.progress.begun = True

    def _registers(self) -> None:
        """By its number in the program each one as an array of unsigned integers (or bools), of integers, and of floats."""
        sizes = self.program.kernel.registers
        self.u, self.s, self.f = ([np.empty(0)] * len(sizes) for _ in range(3))
        for size in set(sizes):
            numbers = [number for number, each in enumerate(sizes) if each == size]
            whole = np.full((len(numbers), self.threads * size), 1 if size == 1 else POISON, np.uint8)
            for letter, registers in (("u", self.u), ("i", self.s), ("f", self.f)):
                for number, row in zip(numbers, whole.view(bool if size == 1 else f"{letter}{size}"), strict=True):
                    registers[number] = row

    def _special(self) -> dict[str, Array]:
        (x, y, _), number = self.launch.grid, self.block
        found = {"%tid.x": self.thread, "%ctaid.x": number % x, "%ctaid.y": number // x % y, "%ctaid.z": number // (x * y)}
        found |= {"%laneid": self.thread % 32, "%cluster_ctarank": number - self.first_of_cluster}
        found |= {f"%nctaid.{axis}": np.full(self.threads, size) for axis, size in zip("xyz", self.launch.grid, strict=True)}
        found |= {"%ntid.x": np.full(self.threads, self.launch.block)}
        return {name: values.astype(np.uint32) for name, values in found.items()}

    # Going on, and waiting.

    def run(self, at: At, pc: int) -> None:
        """Threads that stand at an instruction go on until the next label or until they wait, or as far as the schedule says."""
        steps, leads = self.program.steps, self.program.leads
        try:
            for _ in range(self.schedule.how_far()):
                step = steps[pc]
                if step.together is not None:
                    gathered = self._gather(at, pc, step.together)
                    if gathered is None:
                        return
                    at = gathered
                    self.onlooker.exchanged(self.ids[at])
                if step.ends:
                    step.run(self, at, pc)
                    return
                step.run(self, at)
                pc += 1
                if step.polls or leads[pc]:
                    break
            self.go(at, pc, tired=step.polls and self.schedule.tires())
        except ThreadError as error:
            raise self.blamed(self.program.kernel.instructions[pc], error) from None

    def go(self, at: At, pc: int, tired: bool = False) -> None:
        """These threads stand there now, and can go on."""
        self.pc[at] = pc
        self.front[at] = pc + TIRED * tired

    def stay(self, at: At, pc: int) -> None:
        """These threads wait there until they are woken, and then try again."""
        self.pc[at] = pc
        self.front[at] = BLOCKED
        self._waiting[at] = True

    def wake(self, blocks: Iterable[int]) -> None:
        """Whoever waits in these blocks tries again."""
        self.changes += 1
        for block in blocks:
            here = slice(block * self.room, (block + 1) * self.room)
            woken = self._waiting[here]
            if woken.any():
                self.front[here][woken] = self.pc[here][woken]
                woken[:] = False

    def rested(self) -> None:
        """Whoever was tired looks again."""
        tired = (self.front >= TIRED) & (self.front < BLOCKED)
        self.front[tired] -= TIRED

    def exit(self, at: At) -> None:
        self.changes += 1
        self.asynchronous.wait(self.ids[at], -1)  # nobody has, and yet they are made
        self.alive[at] = False
        self.front[at] = BLOCKED
        again = self._gathering & np.isin(self.block, self.block[at])  # whom they wait for may be all there now
        self.front[again] = self.pc[again]
        self._gathering[again] = False
        self._release()
        ended = ~self.alive.reshape(self.blocks, self.room).any(1)
        for block in np.unique(self.block[at]).tolist():
            if ended[block]:
                self.onlooker.left(block)
        self._let_begin(ended)
        self.launch.progress.done = bool(ended.all())
        if self.launch.progress.done:
            while self.asynchronous.complete_some():
                """Whose mbarrier nobody has waited for, and which finds no shared memory any more."""
            self.onlooker.ended()

    def let(self, at: At) -> None:
        """The next kernel begin, as far as blocks go: a thread speaks for its whole block."""
        self.onlooker.let(self.ids[at])
        self._let_begin(np.unique(self.block[at]))

    def _let_begin(self, blocks: Array) -> None:
        self._let[blocks] = True
        self.launch.progress.lets = bool(self._let.all())

    def chosen(self, at: At, which: Array) -> At:
        """Those of the threads for which it is true."""
        return at if which.all() else self.ids[at][which]

    # What threads do together.

    def _gather(self, at: At, pc: int, members: Callable[[Grid, At], Array]) -> At | None:
        """Of the threads that stand here, those whose warp has all come that it waits for."""
        if _whole_warps(at):
            return at
        self.pc[at] = pc
        self.front[at] = BLOCKED
        self._gathering[at] = True
        here = self._gathering & (self.pc == pc)
        bits = np.uint32(1) << (self.thread % 32).astype(np.uint32)
        come, alive = (np.where(which, bits, 0).reshape(-1, 32).sum(1, np.uint32) for which in (here, self.alive))
        ids = np.flatnonzero(here)
        wanted = members(self, ids) & alive[ids // 32]
        ready = ids[come[ids // 32] & wanted == wanted]
        if not len(ready):
            return None
        self._gathering[ready] = False
        return neighbours(ready)

    def at_barrier(self, at: At, pc: int, number: Array, expected: Array | None, vote: Array | None = None) -> None:
        """Threads come to a barrier of their block. `expected`: for how many it waits, if not for all."""
        self.pc[at] = pc
        self.front[at] = BLOCKED
        self._at_barrier[at] = self.block[at] * 16 + number
        self._expected[at] = -1 if expected is None else expected
        if vote is not None:
            self._voted[at] = vote
        self._release()

    def _release(self) -> None:
        """Barriers that all have come to."""
        waiting = np.flatnonzero(self._at_barrier >= 0)
        if not len(waiting):
            return
        slots, expected = self._at_barrier[waiting], self._expected[waiting]
        come = np.bincount(slots, minlength=16 * self.blocks)[slots]
        alive = np.bincount(self.block[self.alive], minlength=self.blocks)[self.block[waiting]]
        ids = waiting[come == np.where(expected < 0, alive, expected)]
        if not len(ids):
            return
        self.changes += 1
        self.onlooker.met(ids, self._at_barrier[ids])
        self._at_barrier[ids] = -1
        for pc in np.unique(self.pc[ids]):
            here, instruction = ids[self.pc[ids] == pc], self.program.kernel.instructions[pc]
            if instruction.opcode[1] == "red":
                self._tell_the_vote(here, instruction)
            self.go(neighbours(here), int(pc) + 1)

    def _tell_the_vote(self, ids: Array, instruction: Instruction) -> None:
        target = instruction.operands[0]
        assert isinstance(target, Register)
        how = {"or": np.logical_or, "and": np.logical_and}[instruction.opcode[2]]
        for block in np.unique(self.block[ids]):
            these = ids[self.block[ids] == block]
            self.u[target.index][these] = how.reduce(self._voted[these])

    def arrive_at_cluster(self, at: At) -> None:
        self._arrived[at] = True
        self.onlooker.arrived(self.ids[at])
        self._generation_of[at] = self._generation[self.cluster[at]]
        for cluster in np.unique(self.cluster[at]):
            here = self.cluster == cluster
            if self._arrived[here & self.alive].all():
                self._arrived[here] = False
                self._generation[cluster] += 1
                self.onlooker.all_arrived(int(cluster))
                self.wake(np.unique(self.block[here]))

    def wait_for_cluster(self, at: At, pc: int) -> None:
        over = self._generation[self.cluster[at]] > self._generation_of[at]
        self.onlooker.went_on(self.ids[at][over])
        self.go(self.chosen(at, over), pc + 1)
        self.stay(self.chosen(at, ~over), pc)

    def wait_for_the_one_before(self, at: At, pc: int) -> None:
        before = self.launch.before
        if before is None or before.done:
            self.onlooker.waited_for_the_one_before(self.ids[at])
            self.go(at, pc + 1)
        else:
            self.stay(at, pc)

    # What is said of it.

    def blamed(self, instruction: Instruction, error: ThreadError) -> EmulationError:
        where = f"{self.program.kernel.name}, line {instruction.line} of its PTX ({instruction.text})"
        return EmulationError(f"{where}: {self.named(error.thread)} {error.what}")

    def named(self, thread: int) -> str:
        (x, y, _), block = self.launch.grid, thread // self.room
        return f"thread {thread % self.room} of block {(block % x, block // x % y, block // (x * y))}"

    def named_place(self, place: int) -> str:
        if place < Shared.FIRST:
            return f"memory at {place:#x}"
        block, offset = divmod(place - self.shared.first, self.shared.stride)
        return f"shared memory at {offset:#x} of block {block}"

    def standing(self) -> str:
        """Where threads wait, and how many of them."""
        lines = [f"{self.program.kernel.name} cannot go on:"]
        for pc, many in sorted(collections.Counter(self.pc[self.alive].tolist()).items()):
            instruction, first = self.program.kernel.instructions[pc], np.flatnonzero(self.alive & (self.pc == pc))[0]
            lines.append(f"    line {instruction.line}: {many} threads at {instruction.text}, {self.named(int(first))} first")
        return "\n".join(lines)


def neighbours(ids: Array) -> At:
    """The same threads, as a slice if they have no others between them."""
    first, end = int(ids[0]), int(ids[-1]) + 1
    return slice(first, end) if end - first == len(ids) else ids


def _whole_warps(at: At) -> bool:
    if isinstance(at, slice):
        return bool(at.start % 32 == 0 and at.stop % 32 == 0)
    return len(at) % 32 == 0 and bool((at[::32] % 32 == 0).all() and (at[31::32] - at[::32] == 31).all())


STALE, STEPS = 100, 200_000
"""How often all threads may look for something in vain, and how many times some may go on at all, with nothing done that others
could see, before they are taken to go on for ever."""


def run(
    launches: list[Launch], host: Host, allocations: Allocations, schedule: Schedule, watch: Callable[[Grid], Onlooker]
) -> None:
    """Kernels to their end, at the same time where they may be; and somebody is told of each one."""
    allocations.look()
    grids: list[Grid] = []
    waiting, stale, steps, changes = list(launches), 0, 0, -1
    with np.errstate(all="ignore"):
        while waiting or grids:
            for launch in [each for each in waiting if all(getattr(progress, how) for progress, how in each.after)]:
                grids.append(Grid(launch, host, allocations, schedule))
                grids[-1].onlooker = watch(grids[-1])
            waiting = [each for each in waiting if not each.progress.begun]
            picked = schedule.pick(grids) if grids else None
            if picked is not None and not picked.tired:
                picked.grid.run(neighbours(picked.threads), picked.pc)
                steps += 1
            elif any(grid.asynchronous.complete_some() for grid in schedule.order(grids)):
                continue
            elif picked is not None:
                stale += 1
                for grid in grids:
                    grid.rested()
            now = sum(grid.changes for grid in grids)
            if now != changes:
                stale, steps, changes = 0, 0, now
            if picked is None or stale > STALE or steps > STEPS:
                names = ", ".join(each.program.kernel.name for each in waiting)
                told = [grid.standing() for grid in grids] + ([f"not begun yet: {names}"] if waiting else [])
                raise EmulationError("\n".join(told))
            grids = _left(grids)


def _left(grids: list[Grid]) -> list[Grid]:
    left = [grid for grid in grids if not grid.launch.progress.done]
    if len(left) < len(grids):
        for grid in left:
            grid.wake(range(grid.blocks))
    return left
