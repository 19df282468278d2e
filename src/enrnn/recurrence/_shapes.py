"""How a recurrence is laid out on a GPU: the shapes of `recurrence.cu`, and which one to take.

Whatever the chip, the choice follows from four numbers that are asked of it: registers and shared memory of a multiprocessor,
the size of a cluster, and how many clusters of each size run at once.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

REGISTERS_A_THREAD = 255
BATCHES = (1, 2, 4, 5, 6, 8)
"""Sequences that one cluster may carry: the state is held in planes of four, and at most one of one or two."""


class Limits(NamedTuple):
    """What a chip allows."""

    registers: int
    """32-bit registers of a multiprocessor."""
    shared: int
    """Bytes of shared memory that one thread block may have."""
    clusters: tuple[int, ...]
    """How many clusters of 1, 2, 3, … blocks run at once, a block to a multiprocessor; as long as the largest cluster."""


class Shape(NamedTuple):
    """The compile-time numbers of `recurrence.cu`."""

    cluster: int
    threads: int
    lanes: int
    rows: int
    chunks: int
    shared_chunks: int
    batch: int

    @property
    def columns_a_chunk(self) -> int:
        return 1 if self.batch >= 4 else 4 // self.batch

    @property
    def quads(self) -> int:
        """A thread's weights of one chunk, in 16-byte words."""
        return math.ceil(self.rows * self.columns_a_chunk / 4)

    @property
    def unroll(self) -> int:
        """Steps written out in a row; four pay where a step is short."""
        return 4 if self.cluster == 1 and self.rows <= 6 else 2

    def owned(self, parts: int) -> int:
        """The most (unit, sequence) pairs that one thread owns, after sums over the lanes have been folded."""
        count, lanes = self.rows // parts * self.batch, self.lanes
        while lanes > 1:
            count, lanes = (count + 1) // 2, lanes // 2
        return count

    def shared_bytes(self, parts: int, backward: bool) -> int:
        """The size of the kernel's `Shared`, which checks it."""
        columns = (self.chunks + self.shared_chunks) * self.lanes * self.columns_a_chunk
        warps, warp_rows = self.threads // 32, 32 // self.lanes * self.rows
        slots = _up(max(columns, self.cluster * warps * warp_rows), 4)
        state = 2 * slots * self.batch
        staging = warps * _up(warp_rows * self.batch, 4) if self.cluster > 1 else 4
        ahead = 2 * self.unroll * (2 if backward else 1) * self.owned(parts) * parts * self.threads
        weights = self.shared_chunks * self.quads * 4 * self.threads if self.shared_chunks else 4
        return 4 * (state + staging + ahead + weights) + 16

    def registers(self, parts: int) -> int:
        """An estimate, from what the compiler was seen to need beside weights and sums."""
        weights = self.rows * self.columns_a_chunk * self.chunks
        return weights + (self.rows + self.columns_a_chunk) * self.batch + 46 + 20 * (parts - 1)

    def cycles(self, n: int, parts: int) -> float:
        """A step's cost, by a model fitted to 703 measured shapes on an H200, from which it is off by some 20 %.

        The constant of the exchange is lower than the fit's 640, which the many poor shapes of clusters had raised.
        """
        warps, chunks = self.threads // 32, self.chunks + self.shared_chunks
        products = math.ceil(warps / 4) * self.rows * self.columns_a_chunk * chunks * self.batch
        loads = warps * (chunks * max(4, self.batch) + self.shared_chunks * 4 * self.quads)
        count, lanes, shuffles = self.rows * self.batch, self.lanes, 0
        while lanes > 1:
            count, lanes = (count + 1) // 2, lanes // 2
            shuffles += count
        exchange = 250 + 0.37 * n * self.batch * (self.cluster - 1) / self.cluster if self.cluster > 1 else 0
        alone = 150 * self.owned(parts) + 17 * math.log2(self.lanes) + 0.44 * warps * shuffles
        return alone + 1.29 * products + 0.67 * loads + exchange


@functools.lru_cache(maxsize=1024)
def shape_for(n: int, sequences: int, parts: int, limits: Limits) -> Shape | None:
    """The fastest shape for n units and so many sequences, or None if the chip cannot hold the matrix."""
    alone = one_block(n, parts, limits)
    if alone is not None and (alone.shared_chunks == 0 or len(limits.clusters) == 1):
        return alone
    candidates = list(_clusters(n, parts, limits)) + ([alone] if alone else [])
    return min(candidates, key=lambda shape: _cost(shape, n, sequences, parts, limits), default=None)


BETWEEN = 350
"""Cycles a step that the product for the coupling and two more launches cost, as measured over some 500 steps."""


@functools.lru_cache(maxsize=1024)
def as_one(q: int, s: int, sequences: int, limits: Limits) -> bool:
    """Whether `[[W_L, W_C], [0, W_S]]` is faster as one matrix than as two, one sweep after the other.

    Two have fewer products in a row, but pay the latency of a step twice, and small matrices are all latency.
    """
    shapes = [(size, shape_for(size, sequences, 1, limits)) for size in (q + s, q, s)]
    whole, long, short = (_cost(shape, size, sequences, 1, limits) if shape else math.inf for size, shape in shapes)
    return whole < long + short + BETWEEN


def _cost(shape: Shape, n: int, sequences: int, parts: int, limits: Limits) -> float:
    """Cycles a step, counting clusters that have to wait for others to finish."""
    return math.ceil(math.ceil(sequences / shape.batch) / limits.clusters[shape.cluster - 1]) * shape.cycles(n, parts)


def one_block(n: int, parts: int, limits: Limits) -> Shape | None:
    """A sequence to a thread block, if the matrix has room in its registers and its shared memory."""
    lanes, threads = (1, 32) if n <= 32 else (8, 128) if n <= 128 else (8, 256)
    return _fitted(Shape(1, threads, lanes, _up(math.ceil(n * lanes / threads), parts), 0, 0, 1), n, parts, limits)


def _clusters(n: int, parts: int, limits: Limits) -> Iterator[Shape]:
    for cluster in range(2, len(limits.clusters) + 1):
        if limits.clusters[cluster - 1] == 0:
            continue
        for batch in BATCHES:
            lanes = 16 if batch < 4 else 32
            for rows in (8, 6, 4) if batch < 4 else (8, 6, 4, 2):
                threads = _up(math.ceil(math.ceil(n / cluster) / rows) * lanes, 32)
                shape = Shape(cluster, threads, lanes, rows, 0, 0, batch)
                if threads > 512 or (cluster - 1) * (threads // lanes) * rows >= n:  # every block has rows of its own
                    continue
                fitted = _fitted(shape, n, parts, limits)
                if fitted is not None:
                    yield fitted


def _fitted(shape: Shape, n: int, parts: int, limits: Limits) -> Shape | None:
    """The shape with as many chunks as n columns take: in registers, and what has no room there in shared memory."""
    chunks = math.ceil(n / (shape.lanes * shape.columns_a_chunk))
    warps = _up(shape.threads // 32, 4)  # a multiprocessor is four, each with a quarter of the registers
    most = min(REGISTERS_A_THREAD, limits.registers // (32 * warps) // 8 * 8)
    beside = shape.registers(parts)
    in_registers = min(chunks, (most - beside) // (shape.rows * shape.columns_a_chunk))
    if in_registers < 1:
        return None
    shape = shape._replace(chunks=in_registers, shared_chunks=chunks - in_registers)
    return shape if shape.shared_bytes(parts, backward=True) <= limits.shared else None


def _up(n: int, multiple: int) -> int:
    return math.ceil(n / multiple) * multiple
