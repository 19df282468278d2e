"""What is asked for now and done later: copies to shared memory, and the barriers in shared memory that count what has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tests.emulator._memory import Array, ThreadError
from tests.emulator._onlooker import READS, WRITES, Asked
from tests.emulator._ptx import Instruction

if TYPE_CHECKING:
    from tests.emulator._machine import Grid


@dataclass
class Barrier:
    """An mbarrier: a phase is over when all have arrived, and as many bytes as were announced."""

    count: int
    left: int
    bytes: int = 0
    phase: int = 0

    def over(self) -> bool:
        if self.left or self.bytes:
            return False
        self.left, self.phase = self.count, self.phase + 1
        return True


@dataclass
class Copy:
    """A `cp.async` of several threads: into shared memory, of which some bytes are read and the others zero."""

    threads: Array
    to: Array
    """In bytes from the beginning of all shared memory."""
    start: Array
    size: int
    read: Array
    instruction: Instruction
    asked: Asked
    groups: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Of each thread, which of its groups this belongs to."""


class Asynchronous:
    """Of a grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._barriers: dict[tuple[int, int], Barrier] = {}
        self._groups = np.zeros(grid.threads, np.int64)
        self._copies: list[Copy] = []
        self._pending: list[tuple[Instruction, Asked, Callable[[], None]]] = []

    # cp.async: waited for by the thread that asked.

    def copy(self, copy: Copy) -> None:
        copy.groups = self._groups[copy.threads]
        if self._grid.schedule.at_once():
            self._make(copy)
        else:
            self._copies.append(copy)

    def commit(self, threads: Array) -> None:
        self._groups[threads] += 1

    def wait(self, threads: Array, but: int) -> None:
        """For all groups that were committed, but for the last few; if for less than none, for what was not committed, too."""
        if but < 0:
            self.commit(threads)
            but = 0
        needed = np.full(self._grid.threads, -1, np.int64)
        needed[threads] = self._groups[threads] - but
        self._grid.onlooker.waited(threads, needed[threads])
        left = []
        for copy in self._copies:
            now = copy.groups < needed[copy.threads]
            if now.any():
                self._make(_some(copy, now))
            if not now.all():
                left.append(_some(copy, ~now))
        self._copies = left

    def _make(self, copy: Copy) -> None:
        grid, host, shared = self._grid, self._grid.host, self._grid.shared
        for word in range(0, copy.size, 4):
            some = _some(copy, copy.read > word)
            value = np.zeros(len(copy.to), np.uint32)
            value[copy.read > word] = host.words[4][host.places(some.start + np.uint64(word), 4)]
            shared.words[4][(copy.to + word) // 4] = value
            grid.onlooker.copied(copy.instruction, READS, some.asked, some.start.view(np.int64) + word, 4, some.groups)
        grid.onlooker.copied(copy.instruction, WRITES, copy.asked, shared.first + copy.to, copy.size, copy.groups)
        self._grid.changes += 1

    # What an mbarrier counts.

    def later(self, instruction: Instruction, asked: Asked, work: Callable[[], None]) -> None:
        if self._grid.schedule.at_once():
            work()
        else:
            self._pending.append((instruction, asked, work))

    def asked(self) -> list[Asked]:
        """For what has not been done yet."""
        return [each.asked for each in self._copies] + [asked for _, asked, _ in self._pending]

    def complete_some(self) -> bool:
        """Do what has not been done yet, or some of it; and whether there was anything."""
        schedule = self._grid.schedule
        pending = schedule.order(self._pending)
        if not pending:
            return False
        many = schedule.how_many(len(pending))
        self._pending = pending[many:]
        for instruction, _, work in pending[:many]:
            try:
                work()
            except ThreadError as error:
                raise self._grid.blamed(instruction, error) from None
        return True

    def check_running(self, blocks: Array, thread: int) -> None:
        """Shared memory is there for as long as its block runs."""
        for block in np.unique(blocks):
            if not self._grid.alive[block * self._grid.room : (block + 1) * self._grid.room].any():
                raise ThreadError(thread, f"uses the shared memory of block {block}, which has ended")

    def open(self, block: int, offset: int, count: int) -> None:
        self._barriers[block, offset] = Barrier(count, count)

    def _barrier(self, block: int, offset: int, thread: int) -> Barrier:
        try:
            return self._barriers[block, offset]
        except KeyError:
            raise ThreadError(thread, f"uses an mbarrier at {offset:#x} of shared memory, where none was made") from None

    def arrive(self, block: int, offset: int, thread: int, announced: int = 0, arrivals: int = 1, come: int = 0) -> None:
        """So many bytes are announced or have come, and somebody arrives, or nobody does."""
        barrier = self._barrier(block, offset, thread)
        barrier.bytes += announced - come
        barrier.left -= arrivals
        if barrier.left < 0:
            raise ThreadError(thread, f"arrives at an mbarrier at {offset:#x} of shared memory that all had arrived at")
        if barrier.over():
            self._grid.onlooker.rung_out(self._grid.shared.place(block, offset))
            self._grid.wake([block])
        self._grid.changes += 1

    def over(self, blocks: Array, offsets: Array, parities: Array, threads: Array) -> Array:
        """Whether the phase of that parity is over, for each."""
        _, some, of = np.unique(blocks << 32 | offsets, return_index=True, return_inverse=True)
        found = [self._barrier(int(blocks[i]), int(offsets[i]), int(threads[i])).phase for i in some]
        over: Array = np.array(found)[of] & 1 != parities
        return over


def _some(copy: Copy, which: Array) -> Copy:
    return Copy(
        *(copy.threads[which], copy.to[which], copy.start[which], copy.size, copy.read[which]),
        *(copy.instruction, copy.asked.some(which), copy.groups[which]),
    )
