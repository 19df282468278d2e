"""How a recurrence over many sequences is laid out on a GPU: the shapes of `wide.cu`."""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ._shapes import Limits

FEWEST_TILES = 4
"""From 49 units on. With 64 it is faster than `recurrence.cu` by a fifth; with 32 its first version was slower."""
MOST_WARPS = 8
"""Of a thread block: with two in each quarter of a multiprocessor, a thread has as many registers as can be."""


class Wide(NamedTuple):
    """The compile-time numbers of `wide.cu`."""

    long_tiles: int
    short_tiles: int
    """Where there are any, the zeros of `[[W_L, W_C], [0, W_S]]` are left out."""
    spans: int
    """Eights of sequences that a thread block carries."""
    pieces: int = 3
    """Numbers of 8 bits that a float is taken for the sum of; two are a lower precision."""

    @property
    def products(self) -> int:
        """Of pieces, that are taken for one of floats."""
        return self.pieces * (self.pieces + 1) // 2

    @property
    def tiles(self) -> int:
        return self.long_tiles + self.short_tiles

    @property
    def each(self) -> int:
        """Rows of light tiles that a warp has; see `wide.cu`."""
        return 1 if self.tiles <= MOST_WARPS else 2

    def jobs(self, backward: bool) -> list[int]:
        """Of each warp, how many tiles it multiplies with: the heavy ones first."""
        if not self.short_tiles:
            return [self.tiles] * self.tiles
        light = self.long_tiles if backward else self.short_tiles
        shared = [min(self.each, light - begun) * light for begun in range(0, light, self.each)]
        return [self.tiles] * (self.tiles - light) + shared

    def block(self, backward: bool) -> int:
        """Threads of a block."""
        return 32 * len(self.jobs(backward))

    def registers(self, backward: bool) -> int:
        """What a thread takes, at most: weights, and what the compiler was seen to need beside them."""
        return (4 * self.pieces * max(self.jobs(backward)) + 124 + 7) // 8 * 8

    def shared_bytes(self, backward: bool) -> int:
        """The size of the kernel's `Shared`: two copies of the state, and what is fetched ahead."""
        state, ahead = self.pieces * math.ceil(self.tiles / 2) * 512, self.tiles * 640 * (2 if backward else 1)
        return self.spans * (2 * state + ahead)

    def blocks(self, sequences: int) -> int:
        return math.ceil(sequences / (8 * self.spans))

    @property
    def packing(self) -> tuple[int, int, int]:
        """Thread blocks that lay out the matrix, their threads, and the floats that it takes then."""
        return self.tiles**2, 32, self.tiles**2 * self.pieces * 128

    def resident(self, backward: bool, limits: "Limits") -> int:
        """Thread blocks that a multiprocessor should have registers for."""
        threads = math.ceil(self.block(backward) / 128) * 128  # whole rounds of the four quarters
        by_registers = limits.registers // (threads * self.registers(backward))
        return max(1, min(by_registers, limits.shared // self.shared_bytes(backward)))

    def order(self, backward: bool) -> tuple[int, ...]:
        """Which job each warp has. Warps w, w + 4, … are of the same quarter of a multiprocessor."""
        jobs = self.jobs(backward)
        room = [len(range(quarter, len(jobs), 4)) for quarter in range(4)]
        quarters: list[list[int]] = [[] for _ in room]
        for job in sorted(range(len(jobs)), key=lambda job: -jobs[job]):
            # As if those to come were of the lightest kind: a quarter with fewer warps may have heavier ones.
            def load(quarter: int) -> int:
                has = quarters[quarter]
                return sum(jobs[each] for each in has) + (room[quarter] - len(has)) * min(jobs)

            quarters[min((quarter for quarter in range(4) if len(quarters[quarter]) < room[quarter]), key=load)].append(job)
        return tuple(quarters[warp % 4][warp // 4] for warp in range(len(jobs)))

    def busiest(self, backward: bool) -> int:
        """Tiles that the busiest quarter of a multiprocessor multiplies with, of eight sequences."""
        order, jobs = self.order(backward), self.jobs(backward)
        return max(sum(jobs[job] for job in order[quarter::4]) for quarter in range(4))

    def cost(self, sequences: int, backward: bool, limits: "Limits") -> float:
        """Cycles a step, counting blocks that have to wait for others to finish."""
        blocks, at_once = self.blocks(sequences), limits.clusters[0]
        together = max(1, min(self.resident(backward, limits), math.ceil(blocks / at_once)))
        waves = math.ceil(blocks / (at_once * together))
        return waves * ((together * self.products * PRODUCT * self.busiest(backward) + SPAN) * self.spans + STEP)

    def defines(self, parts: int, backward: bool, lengths: bool, limits: "Limits") -> dict[str, int]:
        """What the compiler has to be told; the parts of a unit it knows by the nonlinearity."""
        order = sum(job << 4 * warp for warp, job in enumerate(self.order(backward)))
        given = {name.upper(): value for name, value in self._asdict().items()}
        given |= {"EACH": self.each, "ORDER": order, "RESIDENT": self.resident(backward, limits), "LENGTHS": int(lengths)}
        return given | {"SHARED_BYTES": self.shared_bytes(backward)}


PRODUCT, SPAN, STEP = 9.1, 260, 1600
"""Cycles of a product of 16 × 16 by 16 × 8, of the rest of a span, and of the rest of a step, fitted to 12 times on an H200."""


@functools.lru_cache(maxsize=1024)
def wide_for(
    n: int, sequences: int, parts: int, limits: "Limits", q: int | None = None, backward: bool = False, lower: bool = False
) -> Wide | None:
    """The fastest, or None where the matrix has no room; in a `lower` precision if that is allowed."""
    long, short = (q, n - q) if q and n > q and parts == 1 else (n, 0)
    tiles = math.ceil(long / parts / (16 // parts)), math.ceil(short / 16)
    pieces = 2 if lower else 3
    small = Wide(*tiles, 1, pieces)
    if small.tiles < FEWEST_TILES or small.block(backward) > 32 * MOST_WARPS or small.registers(backward) > 255:
        return None
    fitting = [wide for spans in range(1, 13) if (wide := Wide(*tiles, spans, pieces)).shared_bytes(backward) <= limits.shared]
    return min(fitting, key=lambda wide: wide.cost(sequences, backward, limits), default=None)
