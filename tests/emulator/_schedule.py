"""Who goes on next. Whatever a kernel computes must not depend on it: one schedule is fast, others look for trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from tests.emulator._machine import Grid
    from tests.emulator._memory import Array

TIRED, BLOCKED = 1 << 24, 1 << 30
"""Added to where a thread stands, if it has looked for what another should do; and the place of one that waits."""

CLASS = 1 << 20
"""What lies between the classes of `Unfair`: more than a program has instructions."""

Each = TypeVar("Each")


class Picked(NamedTuple):
    grid: Grid
    pc: int
    threads: Array
    """Some of those that stand there, in order."""
    tired: bool


class Schedule:
    """All threads at the instruction that comes first in the program: so they come together again after they parted.

    Copies that nobody has waited for yet are made when nobody can go on.
    """

    def pick(self, grids: list[Grid]) -> Picked | None:
        fronts = [self._front(grid) for grid in grids]
        places = [int(front.min()) for front in fronts]
        best = min(range(len(grids)), key=places.__getitem__)
        if places[best] >= BLOCKED:
            return None
        return Picked(grids[best], places[best] % CLASS, np.flatnonzero(fronts[best] == places[best]), places[best] >= TIRED)

    def _front(self, grid: Grid) -> Array:
        return grid.front

    def order(self, given: list[Each]) -> list[Each]:
        """In which grids are looked at, copies are made and atomics are done."""
        return given

    def how_far(self) -> int:
        """How many instructions threads go on for, at most, before others may."""
        return 1 << 30

    def tires(self) -> bool:
        """Whether threads that looked for what others should do let these go on first."""
        return True

    def at_once(self) -> bool:
        """Whether a copy is made as soon as it is asked for; else as late as may be."""
        return False

    def how_many(self, pending: int) -> int:
        """Of so many copies, how many are made now that nobody can go on."""
        return pending


class Unfair(Schedule):
    """Threads are thrown into classes at random, and one class goes as far as it can before the next; now and then anew.

    Blocks stay together, or warps, or none do. Copies are made at once or late, and then in any order.
    """

    CLASSES, STEPS, INSTRUCTIONS = 3, (5, 40, 400), 60

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._classes: dict[Grid, Array] = {}
        self._left = 0

    def pick(self, grids: list[Grid]) -> Picked | None:
        self._left -= 1
        if self._left <= 0:
            self._left = int(self._random.geometric(1 / self._random.choice(self.STEPS)))
            self._classes = {}
            if self.at_once():
                self.order(grids)[0].asynchronous.complete_some()
        return super().pick(self.order(grids))

    def _front(self, grid: Grid) -> Array:
        if grid not in self._classes:
            together = (grid.room, 32, 1)[self._random.choice(3, p=(0.2, 0.5, 0.3))]
            drawn = self._random.integers(0, self.CLASSES, grid.threads // together)
            self._classes[grid] = np.repeat(drawn, together).astype(np.int32) * CLASS
        return grid.front + self._classes[grid]

    def order(self, given: list[Each]) -> list[Each]:
        return [given[i] for i in self._random.permutation(len(given))]

    def how_far(self) -> int:
        return int(self._random.geometric(1 / self.INSTRUCTIONS))

    def tires(self) -> bool:
        return bool(self._random.random() < 0.5)

    def at_once(self) -> bool:
        return bool(self._random.random() < 0.5)

    def how_many(self, pending: int) -> int:
        return int(self._random.integers(1, pending + 1))
