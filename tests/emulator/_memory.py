"""The memory that emulated kernels read and write, by address: the host's own, in the place of a GPU's, and shared memory.

Nothing is read or written that is not known to be there: an address from which a kernel must not read raises a `ThreadError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

Array = np.ndarray

POISON, OTHER_POISON = 0xFF, 0x7F
"""The bytes of whatever was not written yet: NaN as any kind of float, and -1 as an integer; and of memory for anything."""

GENERIC_SHARED = 1 << 56
"""Where shared memory begins among addresses that may be of any kind."""

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class ThreadError(Exception):
    """What a thread must not do: the number of the thread, and what it is."""

    def __init__(self, thread: int, what: str) -> None:
        super().__init__(what)
        self.thread, self.what = thread, what


class Allocations:
    """Tensors whose address somebody asked for: a kernel may use their memory for as long as it is theirs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._starts = self._ends = np.empty(0, np.uint64)
        self._kept: list[torch.UntypedStorage] | None = None

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        known = self._known.get(start)
        if start and (known is None or known[0].expired() or known[1] != storage.nbytes()):
            self._known[start] = StorageWeakRef(storage), storage.nbytes()
        if self._kept is not None:
            self._kept.append(storage)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Memory whose address is asked for now is not given back before this ends, as a GPU's is not while kernels use it."""
        self._kept = []
        try:
            yield
        finally:
            self._kept = None

    def look(self) -> None:
        """Which of them are there now."""
        self._known = {start: each for start, each in self._known.items() if not each[0].expired()}
        starts = sorted(self._known)
        self._starts = np.array(starts, np.uint64)
        self._ends = np.array([start + self._known[start][1] for start in starts], np.uint64)

    def check(self, addresses: Array, size: int, threads: Array, what: str) -> None:
        """That so many bytes from each of the addresses on are in one of them, and aligned as an access of that size must be."""
        if not len(addresses):
            return
        place = np.searchsorted(self._starts, np.array((addresses.min(), addresses.max())), "right") - 1
        if place[0] < 0 or place[0] != place[1] or int(addresses.max()) + size > int(self._ends[place[0]]):
            places = np.searchsorted(self._starts, addresses, "right")
            ends = np.concatenate((np.zeros(1, np.uint64), self._ends))[places]
            wrong = (ends < size) | (addresses > ends - np.uint64(size))
            refuse(wrong, threads, lambda i: f"{what} {size} bytes at {self._where(int(addresses[i]))}")
        if size in UNSIGNED or size == 16:
            check_aligned(addresses, size, threads, what)

    def _where(self, address: int) -> str:
        place = int(np.searchsorted(self._starts, np.uint64(address), "right")) - 1
        if place < 0:
            return f"{address:#x}, where no tensor is"
        start, end = int(self._starts[place]), int(self._ends[place])
        return f"{address:#x}, {address - start} bytes from the beginning of a tensor's memory, which has {end - start}"


def check_aligned(addresses: Array, size: int, threads: Array, what: str) -> None:
    told = lambda i: f"{what} {size} bytes at {int(addresses[i]):#x}, which is not a multiple of that"  # noqa: E731
    refuse(addresses % size != 0, threads, told)


def refuse(wrong: Array, threads: Array, what: Callable[[int], str]) -> None:
    """What the first thread does for which it is wrong, if there is any."""
    if wrong.any():
        found = int(np.flatnonzero(wrong)[0])
        raise ThreadError(int(threads[found]), what(found))


class Host:
    """The process's whole address space as one array, but for its first page: what is read of it must have been checked."""

    FIRST = 4096

    def __init__(self) -> None:
        everything = (ctypes.c_uint8 * 2**47).from_address(self.FIRST)
        whole = np.frombuffer(everything, np.uint8)
        self.words = {size: whole.view(kind) for size, kind in UNSIGNED.items()}

    def places(self, addresses: Array, size: int) -> Array:
        """Of words of that size, in `words`."""
        return (addresses.view(np.int64) - self.FIRST) // size


class Shared:
    """The shared memory of all thread blocks of a launch: blocks lie one after the other."""

    RANK = 24
    """The bit of an address from which on it says which block of a cluster is meant: 0 for the thread's own, else one more than
    the block's number there."""

    FIRST, ROOM, LAUNCHES = 1 << 60, 1 << 40, itertools.count()
    """Where that of the first launch is among all places, and how far from it that of the next."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size, self.stride = size, -(-size // 128) * 128
        self.first = self.FIRST + next(self.LAUNCHES) * self.ROOM
        whole = np.full(blocks * self.stride, POISON, np.uint8)
        self.words = {size: whole.view(kind) for size, kind in UNSIGNED.items()}

    def places(self, blocks: Array, offsets: Array, size: int, threads: Array, what: str) -> Array:
        """Where `size` bytes at the offsets in these blocks are, in bytes from the beginning of all."""
        told = lambda i: f"{what} {size} bytes at {int(offsets[i]):#x} of shared memory, which has {self.size}"  # noqa: E731
        refuse(offsets + size > self.size, threads, told)
        if size & (size - 1) == 0:
            check_aligned(offsets, size, threads, what)
        return blocks * self.stride + offsets

    def place(self, block: int, offset: int) -> int:
        """Among all there are."""
        return self.first + block * self.stride + offset


def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function that gives out memory, but with nothing in it that anybody could have meant. (Bytes are other ones than those of
    NaN: by these linked sweeps know what is not there yet, and they are to say so themselves.)"""

    def made(*given: object, **named: object) -> torch.Tensor:
        tensor = make(*given, **named)
        if tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            ctypes.memset(storage.data_ptr(), OTHER_POISON if tensor.dtype is torch.uint8 else POISON, storage.nbytes())
        return tensor

    return made
