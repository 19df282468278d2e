"""Launches that come again with the same addresses: from the second time on they are a CUDA graph, one call for the host.

Torch gives out again what was freed, so a training loop's tensors are soon where those of an earlier step were. Where they are
not, kernels are launched one by one.
"""

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _launch
from ._launch import checked

LEAST_DRIVER = 12090
"""The CUDA whose drivers know, in a graph too, what kernels tell one another when they begin."""

MOST = 64
"""Addresses that are kept, with or without a graph; those that did not come for the longest time go first. (In loops that learn,
with Adam or by plain descent, 2 came in turns at the paper's sizes, and at most 26 where tensors were of a few kilobytes.)"""

WORTH, PATIENCE = 8, 64
"""How often a graph has to be launched to have been worth making; and how often, at most, addresses have to have come before one
is made for them, if many were not."""

ENOUGH = 256
"""Graphs of a process, whose memory is the driver's, from which on one waits that long for any other; there are twice as many at
most."""

Addresses = tuple[int, ...]
Launches = Callable[[tuple[int, int]], None]


class _Known:
    """What came with some addresses: a graph, if there is one; how often it was launched, or else how often they came."""

    def __init__(self) -> None:
        self.graph: Any = None
        self.times = 0


class Graphs:
    """Of launches that are always the same, but for addresses. One thread at a time may use it."""

    def __init__(self) -> None:
        self._known: OrderedDict[Addresses, _Known] = OrderedDict()
        self._wait = 1
        """How often addresses have to have come, now."""
        self._possible = _launch.driver_version() >= LEAST_DRIVER
        weakref.finalize(self, _forget, self._known, os.getpid()).atexit = False

    def run(self, addresses: Addresses, stream: int, launch: Launches) -> bool:
        """Launch everything with these addresses on the stream; False if there is no graph for them.

        `launch` does everything on two streams of the current device, whose handles it is given, and brings them together."""
        known = self._known.get(addresses)
        if known is None:
            if self._possible:
                self._remember(addresses)
            return False
        self._known.move_to_end(addresses)
        if known.graph is None:
            known.times += 1
            if known.times < self._wait or not self._possible or not _one_more(known.times):
                return False
            known.graph, known.times = _captured(launch), 0
            self._possible = known.graph is not None
            if not self._possible:
                return False
        checked(_launch.driver().cuGraphLaunch(known.graph, stream))
        known.times += 1
        if known.times == WORTH:
            self._wait = max(1, self._wait // 2)
        return True

    def _remember(self, addresses: Addresses) -> None:
        self._known[addresses] = _Known()
        if len(self._known) > MOST:
            gone = self._known.popitem(last=False)[1]
            if gone.graph is not None:
                _destroy(gone.graph)
                if gone.times < WORTH:
                    self._wait = min(2 * self._wait, PATIENCE)


def _captured(launch: Launches) -> Any:
    """All launches, which are not made, as a graph; None if the driver will not have it."""
    cuda = _launch.driver()
    with _relaxed(), _streams() as (main, side):
        checked(cuda.cuStreamBeginCapture(main, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            launch((int(main), int(side)))
        except BaseException as error:
            cuda.cuGraphDestroy(cuda.cuStreamEndCapture(main)[1])
            if isinstance(error, RuntimeError):  # made one by one, they will say so too, if that is not for the capture's sake
                return None
            raise
        status, graph = cuda.cuStreamEndCapture(main)
        if status != 0:
            return None
        status, found = cuda.cuGraphInstantiate(graph, 0)
        checked(cuda.cuGraphDestroy(graph))
        if status != 0:
            return None
        _alive.add(int(found))
        return found


@contextmanager
def _streams() -> Iterator[tuple[Any, Any]]:
    """Two, on which nothing else can be."""
    cuda = _launch.driver()
    found: list[Any] = []
    try:
        for _ in range(2):
            found += checked(cuda.cuStreamCreate(int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        yield found[0], found[1]
    finally:
        for stream in found:
            cuda.cuStreamDestroy(stream)


@contextmanager
def _relaxed() -> Iterator[None]:
    """Whatever other threads are capturing, this one may do anything."""
    cuda = _launch.driver()
    (before,) = checked(cuda.cuThreadExchangeStreamCaptureMode(cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        yield
    finally:
        checked(cuda.cuThreadExchangeStreamCaptureMode(before))


def _one_more(times: int) -> bool:
    """Whether there is room for the graph of addresses that have come so often."""
    return len(_alive) < ENOUGH or (len(_alive) < 2 * ENOUGH and times >= PATIENCE)


_alive: set[int] = set()
"""Graphs, by their handles."""


def _destroy(graph: Any) -> None:
    """It may still be running."""
    _alive.discard(int(graph))
    _launch.driver().cuGraphExecDestroy(graph)


def _forget(known: OrderedDict[Addresses, _Known], process: int) -> None:
    """They belong to a process, and not to one that was forked from it."""
    for each in known.values() if os.getpid() == process else ():
        if each.graph is not None:
            _destroy(each.graph)
