"""Who is told what threads do to memory and to each other. This one does not listen; for one that does see `_order.py`."""

from __future__ import annotations

from typing import NamedTuple

from tests.emulator._memory import Array
from tests.emulator._ptx import Instruction

READS, WRITES, CHANGES = "reads", "writes", "changes"
"""What an access does: the last one is an atomic's."""


class Asked(NamedTuple):
    """Threads that do something, or ask for what is done later, and what they know at that time."""

    threads: Array
    clocks: Array
    """How often they have told anybody anything."""
    groups: Array
    """Of their own copies, how many they have waited for."""
    rows: Array
    """What they know of others."""
    lanes: Array
    """What they know of their warp beside that."""

    def some(self, which: Array | slice) -> Asked:
        return Asked(*(each[which] for each in self))


class Onlooker:
    """Of one grid. Threads are told by their numbers there, places in bytes from wherever all memory begins."""

    def accessed(self, instruction: Instruction, how: str, threads: Array, places: Array, many: int) -> None:
        """So many bytes from each of the places on, each by one of the threads."""

    def changed(self, instruction: Instruction, thread: Array, place: Array) -> None:
        """By an atomic, one thread after the other."""

    def fenced(self, instruction: Instruction, threads: Array) -> None: ...

    def met(self, threads: Array, groups: Array) -> None:
        """Threads of one group have waited for each other, each for all."""

    def exchanged(self, threads: Array) -> None:
        """Lanes have taken an instruction together."""

    # A cluster's barrier.

    def arrived(self, threads: Array) -> None: ...

    def all_arrived(self, cluster: int) -> None: ...

    def went_on(self, threads: Array) -> None:
        """After all had arrived."""

    # mbarriers, by their places.

    def opened(self, instruction: Instruction, thread: int, bell: int) -> None: ...

    def rang(self, instruction: Instruction, thread: int, bell: int) -> None:
        """A thread arrived."""

    def rung_out(self, bell: int) -> None:
        """A phase is over."""

    def heard(self, instruction: Instruction, threads: Array, bells: Array) -> None:
        """Threads know that the last phase is over."""

    # What is asked for now and done later.

    def asked(self, threads: Array) -> Asked:
        """Threads ask for something: what is to be given back when it is done."""
        return Asked(threads, threads, threads, threads, threads)

    def copied(self, instruction: Instruction, how: str, asked: Asked, places: Array, many: int, groups: Array) -> None:
        """By `cp.async`, in these groups of the threads that asked."""

    def waited(self, threads: Array, groups: Array) -> None:
        """For so many groups of their own copies."""

    def carried(self, instruction: Instruction, how: str, asked: Asked, places: Array, many: int, bells: Array) -> None:
        """By a copy or a letter that these mbarriers will count."""

    def counted(self, instruction: Instruction, asked: Asked, bells: Array) -> None:
        """What was carried, by these mbarriers."""

    # Blocks and kernels.

    def left(self, block: int) -> None:
        """All its threads have ended, and its shared memory with them."""

    def waited_for_the_one_before(self, threads: Array) -> None: ...

    def let(self, threads: Array) -> None:
        """The next kernel begin, as far as these are concerned."""

    def ended(self) -> None: ...
