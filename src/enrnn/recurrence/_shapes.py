"""How a recurrence is laid out on a GPU: the shapes of `recurrence.cu`, and which one to take.

Whatever the chip, the choice follows from four numbers that are asked of it: registers and shared memory of a multiprocessor,
the size of a cluster, and how many clusters of each size run at once.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

from ._wide import Wide, wide_for

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
    groups: int = 1
    short_rows: int = 0
    """Of `rows`, those of the short part; where there are any, the zeros of `[[W_L, W_C], [0, W_S]]` are left out."""
    long_chunks: int = 0
    """Of `chunks`, those that hold the long part, if `short_rows`."""

    @property
    def columns_a_chunk(self) -> int:
        return 1 if self.groups > 1 or self.batch > 2 else 4 // self.batch

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sequences of each group."""
        return (math.ceil(self.batch / self.groups), self.batch // self.groups)[: self.groups]

    @property
    def quads(self) -> int:
        """A thread's weights of one chunk, in 16-byte words."""
        return math.ceil(self.rows * self.columns_a_chunk / 4)

    def weights(self, backward: bool) -> int:
        """What a thread holds of the matrix in registers."""
        pairs = self.rows * self.chunks
        if self.short_rows:
            long_rows, short_chunks = self.rows - self.short_rows, self.chunks - self.long_chunks
            pairs -= long_rows * short_chunks if backward else self.short_rows * self.long_chunks
        return pairs * self.columns_a_chunk

    def resident(self, backward: bool) -> int:
        """Blocks that a multiprocessor should have registers for, if need be at the cost of a few instructions.

        Of 256 threads two have 128 registers each. Told so, the forward kernel of 96 + 64 units took 0.303 µs a step instead of
        0.280, and untold it takes 128 as well.
        """
        return 2 if backward and self.short_rows and self.threads == 256 and self.weights(True) <= 84 else 1

    def blocks(self, sequences: int) -> int:
        return self.cluster * math.ceil(sequences / self.batch)

    def block(self, backward: bool) -> int:
        """Threads of a block."""
        return self.threads

    def defines(self, parts: int, backward: bool, lengths: bool, limits: Limits) -> dict[str, int]:
        """What the compiler has to be told: the same with and without lengths, on any chip."""
        given = {name.upper(): value for name, value in self._asdict().items()}
        given |= {"RESIDENT": self.resident(backward), "UNROLL": self.unroll}
        return given | {"SHARED_BYTES": self.shared_bytes(parts, backward)}

    @property
    def packing(self) -> tuple[int, int, int]:
        """Thread blocks that lay out the matrix, their threads, and the floats that it takes then."""
        blocks = self.cluster * (self.chunks + self.shared_chunks) * self.quads
        return blocks, self.threads, blocks * self.threads * 4

    @property
    def unroll(self) -> int:
        """Steps written out in a row; four pay where a step is short."""
        return 4 if self.cluster == 1 and self.rows <= 6 and not self.short_rows else 2

    def owned(self, parts: int, sequences: int) -> int:
        """The most (unit, sequence) pairs that one thread owns of so many sequences, after sums over the lanes are folded."""
        count, lanes = self.rows // parts * sequences, self.lanes
        while lanes > 1:
            count, lanes = (count + 1) // 2, lanes // 2
        return count

    def shared_bytes(self, parts: int, backward: bool) -> int:
        """The size of the kernel's `Shared`, which checks it."""
        columns = (self.chunks + self.shared_chunks) * self.lanes * self.columns_a_chunk
        warps, warp_rows = self.threads // 32, 32 // self.lanes * self.rows
        slots = _up(max(columns, self.cluster * warps * warp_rows), 4)
        weights = self.shared_chunks * self.quads * 4 * self.threads if self.shared_chunks else 4
        total = weights
        for size in self.sizes:
            room = size + (size % 4 == 3)  # three sequences lie in a plane of four
            staging = warps * _up(warp_rows * room, 4) if self.cluster > 1 else 4
            ahead = 2 * self.unroll * (2 if backward else 1) * self.owned(parts, size) * parts * self.threads
            total += 2 * slots * room + staging + ahead + 4
        return 4 * total

    def registers(self, parts: int) -> int:
        """An estimate, from what the compiler was seen to need beside weights and sums."""
        if self.resident(backward=True) > 1:
            return 128
        weights = max(self.weights(False), self.weights(True))
        ahead = 16 * (self.batch - 1) if self.cluster == 1 else 0
        return weights + (self.rows + self.columns_a_chunk) * self.sizes[0] + 48 * self.groups + 20 * (parts - 1) + ahead

    def cycles(self, n: int, parts: int) -> float:
        """A step's cost, by a model fitted to 703 measured shapes with one group and 72 with two on an H200: off by some 20 %.

        The constant of the exchange is lower than the fit's 640, which the many poor shapes of clusters had raised. Where two
        groups take turns, one's products hide half of the other's exchange.
        """
        warps, chunks = self.threads // 32, self.chunks + self.shared_chunks
        in_registers = (self.weights(False) + self.weights(True)) / 2
        products = math.ceil(warps / 4) * (in_registers + self.rows * self.columns_a_chunk * self.shared_chunks) * self.batch
        state, weights = sum(max(4, size) for size in self.sizes), 4 * self.quads * self.groups
        loads = warps * (chunks * state + self.shared_chunks * weights)
        owned, shuffles = 0, 0
        for size in self.sizes:
            count, lanes = self.rows * size, self.lanes
            while lanes > 1:
                count, lanes = (count + 1) // 2, lanes // 2
                shuffles += count
            owned += self.owned(parts, size)
        message = 0.37 * n * self.batch * (self.cluster - 1) / self.cluster
        alone = 150 * owned + 17 * self.groups * math.log2(self.lanes) + 0.44 * warps * shuffles + 1.29 * products + 0.67 * loads
        if self.cluster == 1:
            return alone
        return alone + 250 + message if self.groups == 1 else 0.76 * alone + 617 + 0.47 * message


@functools.lru_cache(maxsize=1024)
def shape_for(n: int, sequences: int, parts: int, limits: Limits, q: int | None = None) -> Shape | None:
    """The fastest shape for n units and so many sequences, or None if the chip cannot hold the matrix.

    With q, the matrix is `[[W_L, W_C], [0, W_S]]` with so many long units.
    """
    one = one_block(n, parts, limits)
    candidates = [one] if one else []
    split = split_block(q, n - q, limits) if one and q and parts == 1 else None
    candidates += [split] if split else []
    if one and sequences > limits.clusters[0]:  # more than can be spread over the chip
        candidates += [shape for batch in (2, 4, 8) if (shape := one_block(n, parts, limits, batch)) and shape.shared_chunks == 0]
    if one is None or (one.shared_chunks > 0 and len(limits.clusters) > 1):
        candidates += _clusters(n, parts, limits)
    return min(candidates, key=lambda shape: _cost(shape, n, sequences, parts, limits), default=None)


@functools.lru_cache(maxsize=1024)
def layout_for(
    n: int, sequences: int, parts: int, limits: Limits, q: int | None = None, backward: bool = False, lower: bool = False
) -> Shape | Wide | None:
    """The same, or one for the tensor cores where there are so many sequences that these are faster."""
    shape, wide = shape_for(n, sequences, parts, limits, q), wide_for(n, sequences, parts, limits, q, backward, lower)
    if shape is None or wide is None:
        return shape or wide
    return wide if wide.cost(sequences, backward, limits) < _cost(shape, n, sequences, parts, limits) else shape


BETWEEN = 350
"""Cycles a step that two more launches cost, as measured over some 500 steps."""


@functools.lru_cache(maxsize=1024)
def as_one(q: int, s: int, sequences: int, limits: Limits) -> bool:
    """Whether `[[W_L, W_C], [0, W_S]]` is faster as one matrix than as two, one sweep after the other.

    Two have fewer products in a row, but pay the latency of a step twice, and small matrices are all latency. With many sequences
    the coupling is what counts: its products, at 128 a cycle of a multiprocessor, and its reads and writes, measured at 8 bytes.
    """
    whole = layout_for(q + s, sequences, 1, limits, q)
    return (_cost(whole, q + s, sequences, 1, limits) if whole else math.inf) < in_turn(q, s, sequences, limits)


def in_turn(q: int, s: int, sequences: int, limits: Limits) -> float:
    """Cycles a step of two sweeps, one after the other, and of the coupling between them."""
    shapes = [(size, layout_for(size, sequences, 1, limits)) for size in (q, s)]
    long, short = (_cost(shape, size, sequences, 1, limits) if shape else math.inf for size, shape in shapes)
    coupling = sequences * (q * s / 128 + 4 * (4 * q + s) / 8) / limits.clusters[0]
    return long + short + BETWEEN + coupling


def _cost(shape: Shape | Wide, n: int, sequences: int, parts: int, limits: Limits) -> float:
    """Cycles a step, counting clusters that have to wait for others to finish.

    Small blocks share a multiprocessor: each of three more took 0.3 of the time of one, with 64 units and with 96.
    """
    if isinstance(shape, Wide):
        return shape.cost(sequences, False, limits)
    clusters, at_once = math.ceil(sequences / shape.batch), limits.clusters[shape.cluster - 1]
    if shape.cluster == 1:
        room = limits.registers // (_up(shape.registers(parts), 8) * shape.threads)
        together = max(1, min(room, math.ceil(clusters / at_once)))
    else:
        together = 1
    return math.ceil(clusters / (at_once * together)) * (1 + 0.3 * (together - 1)) * shape.cycles(n, parts)


def one_block(n: int, parts: int, limits: Limits, batch: int = 1) -> Shape | None:
    """A sequence (or a few) to a thread block, if the matrix has room in its registers and its shared memory."""
    lanes, threads = (1, 32) if n <= 32 else (8, 128) if n <= 128 else (8, 256)
    return _fitted(Shape(1, threads, lanes, _up(math.ceil(n * lanes / threads), parts), 0, 0, batch), n, parts, limits)


def split_block(q: int, s: int, limits: Limits) -> Shape | None:
    """As `one_block` with a sequence, the zeros left out; None where that does not pay.

    What fills up rows and chunks may take more than is saved. And with an even number of rows it was slower by 3 to 10 % than the
    plain block, whose threads then hold them in an order that makes the fold cheaper.
    """
    lanes, threads = 8, 128 if q + s <= 128 else 256
    long_rows, short_rows = (math.ceil(size * lanes / threads) for size in (q, s))
    long_chunks, short_chunks = (math.ceil(size / (4 * lanes)) for size in (q, s))
    shape = Shape(1, threads, lanes, long_rows + short_rows, long_chunks + short_chunks, 0, 1, 1, short_rows, long_chunks)
    plain = one_block(q + s, 1, limits)
    if not (plain and q and s) or shape.rows % 2 == 0 or max(shape.weights(False), shape.weights(True)) >= plain.weights(False):
        return None
    fits = shape.registers(1) <= min(REGISTERS_A_THREAD, limits.registers // threads // 8 * 8)
    return shape if fits and shape.shared_bytes(1, backward=True) <= limits.shared else None


def _clusters(n: int, parts: int, limits: Limits) -> Iterator[Shape]:
    for cluster in range(2, len(limits.clusters) + 1):
        if limits.clusters[cluster - 1] == 0:
            continue
        for batch, groups in [(batch, 1) for batch in BATCHES] + [(batch, 2) for batch in BATCHES if batch >= 4]:
            lanes = 16 if batch < 4 else 32
            for rows in (8, 6, 4) if batch < 4 else (8, 6, 4, 2):
                threads = _up(math.ceil(math.ceil(n / cluster) / rows) * lanes, 32)
                shape = Shape(cluster, threads, lanes, rows, 0, 0, batch, groups)
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
