"""A CUDA driver that runs kernels by the emulator: as much of one as `enrnn` asks for, in the place of `cuda.bindings.driver`'s.

Modules are PTX here. A launch is told as the real one is: sizes in a `CUlaunchConfig`, parameters at addresses, which are read at
once. A kernel has ended when its launch returns; but for those that are `held`, which run together, as far as streams and events
let them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests import _captures
from tests.emulator import _machine, _races
from tests.emulator._instructions import program
from tests.emulator._machine import Launch, Program, Progress
from tests.emulator._memory import Allocations, Host
from tests.emulator._onlooker import Onlooker
from tests.emulator._order import Knowledge, Order
from tests.emulator._ptx import kernels
from tests.emulator._schedule import Schedule

SHARED, SHARED_UNASKED = 232448, 48 * 1024
"""Bytes of shared memory that a thread block of an H200 may have, and without asking."""

CLUSTER, CLUSTER_UNASKED = 16, 8
"""Blocks of a cluster, likewise."""

CALLS = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventRecord",
    "cuFuncSetAttribute",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuStreamWaitEvent",
    *_captures.CALLS,
)
"""What it answers; the rest of the module stays as it is."""

Conditions = list[tuple[Progress, str]]


@dataclass
class Function:
    """A kernel of a module, with what was asked for it."""

    program: Program
    attributes: dict[int, int] = field(default_factory=dict)


_functions: list[Function] = []
"""By their handles: of all drivers, for whoever keeps a kernel from one to the next."""

_handles = itertools.count(1)
"""Of events, likewise."""


@dataclass
class Stream:
    last: Progress | None = None
    waits: Conditions = field(default_factory=list)

    @property
    def done(self) -> Conditions:
        """When all that was launched on it is."""
        return [*self.waits, *([(self.last, "done")] if self.last else [])]


class Driver(_captures.Captures):
    def __init__(self, allocations: Allocations, schedule: Schedule) -> None:
        from cuda.bindings import driver

        super().__init__(driver, 0)
        self._names, self._allocations, self.schedule = driver, allocations, schedule
        self._host = Host()
        self._modules: list[dict[str, Program]] = []
        self._streams: dict[int, Stream] = {}
        self._events: dict[int, Conditions] = {}
        self._held: list[Launch] | None = None
        self._order = Order(_races.check)
        self.watches = False
        """Whether races are looked for."""
        self.launched: list[str] = []
        """The kernels, in their order."""

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """What is launched now runs when this ends, all of it together."""
        self._held = []
        try:
            with self._allocations.kept():
                yield
                self._run(self._held)
        finally:
            self._held = None

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, 1

    def cuCtxSetCurrent(self, context: Any) -> tuple[int]:
        return (0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def cuEventCreate(self, flags: int) -> tuple[int, Any]:
        return 0, self._names.CUevent(next(_handles))

    def cuEventDestroy(self, event: Any) -> tuple[int]:
        self._events.pop(int(event), None)
        return (0,)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[int]:
        if self._keeps(lambda: self.cuEventRecord(event, stream)):
            return (0,)
        self._events[int(event)] = self._stream(stream).done
        return (0,)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[int]:
        if self._keeps(lambda: self.cuStreamWaitEvent(stream, event, flags)):
            return (0,)
        self._stream(stream).waits += self._events.get(int(event), [])
        return (0,)

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        self._modules.append(_programs(image.decode()))
        return 0, len(self._modules) - 1

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[Any, ...]:
        found = self._modules[module].get(name.decode())
        if found is None:
            return self._names.CUresult.CUDA_ERROR_NOT_FOUND, None
        _functions.append(Function(found))
        return 0, len(_functions) - 1

    def cuFuncSetAttribute(self, function: int, kind: Any, value: int) -> tuple[int]:
        _functions[function].attributes[int(kind)] = value
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> tuple[Any]:
        called = _functions[int(function)]
        kernel = called.program.kernel
        assert (config.blockDimY, config.blockDimZ, extra, config.numAttrs) == (1, 1, 0, len(config.attrs))
        if not self._fits(config, called):
            return (self._names.CUresult.CUDA_ERROR_INVALID_VALUE,)
        sizes = called.program, (config.gridDimX, config.gridDimY, config.gridDimZ), config.blockDimX, config.sharedMemBytes
        told = sizes, _given(kernel.parameters, parameters), int(config.hStream), self._told(config.attrs)
        events = list(self._tells(config.attrs))
        if not self._keeps(lambda: self._launch(*told, events)):
            self._launch(*told, events)
        return (self._names.CUresult.CUDA_SUCCESS,)

    def _launch(self, sizes: tuple[Any, ...], given: bytes, on: int, early: bool, events: list[tuple[int, str]]) -> None:
        stream, progress = self._stream(on), Progress()
        after = [*stream.waits, *([(stream.last, "lets" if early else "done")] if stream.last else [])]
        launch = Launch(*sizes, given, progress, after, stream.last if early else None)
        stream.last, stream.waits = progress, []
        for event, how in events:
            self._events[event] = [(progress, how)]
        self.launched.append(launch.program.kernel.name)
        if self._held is None:
            self._run([launch])
        else:
            self._held.append(launch)

    def _run(self, launches: list[Launch]) -> None:
        if not self.watches:
            _machine.run(launches, self._host, self._allocations, self.schedule, lambda grid: Onlooker())
            return
        if launches and launches[0].before is None:  # else it might run beside those before, although it does not here
            self._forget()
        _machine.run(launches, self._host, self._allocations, self.schedule, functools.partial(Knowledge, self._order))
        self._order.look()
        if self._held is not None:
            self._forget()

    def _forget(self) -> None:
        self._order.end()
        self._order = Order(_races.check)

    def _stream(self, handle: Any) -> Stream:
        return self._streams.setdefault(self._now_on(handle), Stream())

    def _fits(self, config: Any, called: Function) -> bool:
        """As far as the chip's limits go that a launch can be refused for."""
        kernel, kinds = called.program.kernel, self._names.CUfunction_attribute
        shared = called.attributes.get(int(kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 0)
        asked = called.attributes.get(int(kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED), 0)
        allowed = min(max(shared + kernel.shared, SHARED_UNASKED), SHARED)
        return (
            config.sharedMemBytes + kernel.shared <= allowed
            and 0 < config.blockDimX <= kernel.most_threads
            and min(config.gridDimX, config.gridDimY, config.gridDimZ) > 0
            and max(config.gridDimY, config.gridDimZ) <= 65535
            and config.gridDimX % kernel.cluster == 0
            and kernel.cluster <= (CLUSTER if asked else CLUSTER_UNASKED)
        )

    def _told(self, attributes: list[Any]) -> bool:
        """Whether it may begin before the one before it has ended."""
        early = self._names.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        return any(each.id == early and each.value.programmaticStreamSerializationAllowed for each in attributes)

    def _tells(self, attributes: list[Any]) -> Iterator[tuple[int, str]]:
        """Events that happen when it has come so far."""
        kinds = self._names.CUlaunchAttributeID
        for each in attributes:
            if each.id == kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
                yield int(each.value.programmaticEvent.event), "lets"
            if each.id == kinds.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
                yield int(each.value.launchCompletionEvent.event), "begun"


@functools.lru_cache(maxsize=256)
def _programs(text: str) -> dict[str, Program]:
    return {name: program(kernel) for name, kernel in kernels(text).items()}


def _given(places: list[tuple[int, int]], pointers: int) -> bytes:
    """Parameters, one after the other as the kernel has them, each from where a pointer says that it is."""
    whole = bytearray(max((at + size for at, size in places), default=0))
    for (at, size), pointer in zip(places, (ctypes.c_void_p * len(places)).from_address(pointers), strict=True):
        whole[at : at + size] = ctypes.string_at(pointer, size)
    return bytes(whole)
