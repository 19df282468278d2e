"""Launching compiled kernels, from Python and in little time.

Outside of a CUDA graph a kernel of ours may be over sooner than Python has launched the next: what the host does is then what one
waits for. So what the driver wants to be told is laid out once for each kernel, and only numbers change from launch to launch.
"""

import ctypes
import functools
import os
import struct
import threading
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

Argument = torch.Tensor | int | ctypes.Structure | None


@functools.cache
def driver() -> Any:
    """CUDA's, as Python has it: to import it anew takes as long as to launch."""
    from cuda.bindings import driver

    return driver


class Kernel:
    """A loaded kernel; calling it launches one on torch's current stream of its device."""

    def __init__(self, function: Any, shared: int, device: torch.device, context: Any) -> None:
        self.function = function
        self.shared = shared
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self.context = context
        self._overlaps = torch.cuda.get_device_capability(device) >= (9, 0) and driver_version() >= 12030
        self._free: dict[tuple[bool, int, bool], list[_Launch]] = {}
        """Those that no thread is using now, by what they are told beside numbers."""

    def __call__(
        self,
        grid: int | tuple[int, int],
        block: int,
        *arguments: Argument,
        early: bool = False,
        begun: bool = False,
        lets: bool = False,
    ) -> Any:
        """Tensors are passed as pointers, None as the null pointer, integers as `long long`, structures by value.

        With `early` it may, where a chip can do that, begin before the kernel launched before it has ended; it waits itself.
        If `begun` is asked for, of a driver that `tells_when_begun`, the answer is an event, to be given to `wait_for`, that
        happens when all thread blocks have begun; or, with `lets`, when all have let the next begin.
        """
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                return self(grid, block, *arguments, early=early, begun=begun, lets=lets)
        use_context(self.context)
        early = early and self._overlaps
        event = _event(self.index) if begun else None
        free = self._free.setdefault((early, 0 if event is None else int(event), lets), [])
        try:
            launch = free.pop()
        except IndexError:  # another thread may have taken the last one just now
            launch = _Launch(self.shared, arguments, attributes(early, event, lets))
        config, stream = launch.config, torch._C._cuda_getCurrentRawStream(self.index)
        config.gridDimX, config.gridDimY = grid = (grid, 1) if isinstance(grid, int) else grid
        config.blockDimX, config.hStream = block, stream
        launch.fill(arguments)
        checked(driver().cuLaunchKernelEx(config, self.function, launch.pointers, 0))
        free.append(launch)
        if thread.witness is not None:
            thread.witness.launched(Launched(self, grid, block, arguments, early, lets), stream, event)
        return event


class _Launch:
    """What the driver is told of a launch, in memory that one launch after the other may use."""

    def __init__(self, shared: int, arguments: tuple[Argument, ...], attributes: list[Any]) -> None:
        self.config = launch_config(shared, attributes)
        self._structures = [index for index, each in enumerate(arguments) if isinstance(each, ctypes.Structure)]
        self._words = struct.Struct(f"{len(arguments)}q")
        self._values = ctypes.create_string_buffer(self._words.size)
        first = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * len(arguments))(*range(first, first + self._words.size, 8))
        self.pointers = ctypes.addressof(self._pointers)

    def fill(self, arguments: tuple[Argument, ...]) -> None:
        """A structure stays where it is, and so has to be there until the kernel has been launched."""
        self._words.pack_into(self._values, 0, *[each if type(each) is int else word(each) for each in arguments])
        for index in self._structures:
            self._pointers[index] = ctypes.addressof(arguments[index])  # type: ignore[arg-type]


def launch_config(shared: int, attributes: list[Any]) -> Any:
    """Of a launch with so many bytes of shared memory for a thread block. Grid, size of a block and stream are to be told."""
    config = driver().CUlaunchConfig()
    config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.sharedMemBytes, config.attrs, config.numAttrs = shared, attributes, len(attributes)
    return config


def word(argument: Argument) -> int:
    """As it is passed: the address of a tensor, nothing for a structure, which has its own place."""
    if argument is None or isinstance(argument, ctypes.Structure):
        return 0
    return argument if isinstance(argument, int) else address(argument)


def address(tensor: torch.Tensor) -> int:
    """Where a tensor begins. Sums of that and other numbers may be given to kernels, too."""
    return tensor.data_ptr() if thread.witness is None else thread.witness.address(tensor)


class Bits(int):
    """A number of another kind, as the integer of the same bits."""


Kind = TypeVar("Kind", bound=ctypes.Structure)


def filled(kind: type[Kind], *numbers: int) -> Kind:
    """A structure for a kernel from its numbers, those of nested ones too, in the order in which it has them. All at once: to set
    field by field takes longer than to launch."""
    found = kind.from_buffer_copy(layout(kind).pack(*numbers))
    if thread.witness is not None:
        found.numbers = numbers
    return found


@functools.cache
def layout(kind: type[ctypes.Structure]) -> struct.Struct:
    """Of a structure, as Python's `struct` has it."""
    found = struct.Struct(_letters(kind))
    assert found.size == ctypes.sizeof(kind), "a structure with gaps at its end"
    return found


def _letters(kind: Any) -> str:
    if issubclass(kind, ctypes.Structure):
        return "".join(_letters(each) for _, each in kind._fields_)
    return kind._length_ * _letters(kind._type_) if issubclass(kind, ctypes.Array) else str(kind._type_)


def attribute(name: str) -> Any:
    """Of a launch."""
    found = driver().CUlaunchAttribute()
    found.id = getattr(driver().CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return found


def attributes(early: bool, event: Any, lets: bool) -> list[Any]:
    """Of a launch that may begin early, and tells by the event, if there is one, when its thread blocks have begun or let."""
    found = []
    if early:
        found.append(attribute("PROGRAMMATIC_STREAM_SERIALIZATION"))
        found[-1].value.programmaticStreamSerializationAllowed = 1
    if event is not None:
        found.append(attribute("PROGRAMMATIC_EVENT" if lets else "LAUNCH_COMPLETION_EVENT"))
        told = found[-1].value
        (told.programmaticEvent if lets else told.launchCompletionEvent).event = event
    return found


@functools.cache
def driver_version() -> int:
    """The CUDA that the driver knows, 12030 for 12.3."""
    return int(checked(driver().cuDriverGetVersion())[0])


def tells_when_begun() -> bool:
    """Whether a launch on the current stream can tell when all its thread blocks have begun."""
    return driver_version() >= (12090 if torch.cuda.is_current_stream_capturing() else 12030)


def use_context(context: Any) -> None:
    """Of the current device, for a thread of autograd's that has not used it yet."""
    if not int(checked(driver().cuCtxGetCurrent())[0]):
        checked(driver().cuCtxSetCurrent(context))


class Launched(NamedTuple):
    """A launch, all but its stream."""

    kernel: Kernel
    grid: tuple[int, int]
    block: int
    arguments: tuple[Argument, ...]
    early: bool
    lets: bool


class Witness(Protocol):
    """Who writes down what is launched, and in which order streams wait for one another; streams by their handles."""

    def address(self, tensor: torch.Tensor) -> int: ...

    def launched(self, launch: Launched, stream: int, event: Any) -> None: ...

    def marked(self, event: Any, stream: int) -> None: ...

    def waited(self, event: Any, stream: int) -> None: ...


class _Thread(threading.local):
    """This thread's witness, if there is one, and for each GPU, by its number, an event that tells of a kernel's beginning."""

    def __init__(self) -> None:
        self.witness: Witness | None = None
        self.events: dict[int, Any] = {}


thread = _Thread()


def _event(index: int) -> Any:
    """This thread's event for the GPU, which is the current one."""
    if index not in thread.events:
        thread.events[index] = new_event()
    return thread.events[index]


def new_event() -> Any:
    """Of the current GPU."""
    return checked(driver().cuEventCreate(int(driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)))[0]


def forget_events(events: list[Any], process: int) -> None:
    """That nobody will wait for any more; they belong to a process, and not to one that was forked from it."""
    for event in events if os.getpid() == process else ():
        driver().cuEventDestroy(event)


def mark(stream: torch.cuda.Stream) -> Any:
    """An event, for `wait_for`, that happens when all is done that has been launched on the stream."""
    event = stream.record_event()
    if thread.witness is not None:
        thread.witness.marked(event, stream.cuda_stream)
    return event


def wait_for(event: Any, stream: torch.cuda.Stream) -> None:
    """What is launched on the stream from now on begins after the event, as it was last asked for."""
    if isinstance(event, torch.cuda.Event):
        stream.wait_event(event)
    else:
        checked(driver().cuStreamWaitEvent(stream.cuda_stream, event, 0))
    if thread.witness is not None:
        thread.witness.waited(event, stream.cuda_stream)


def checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a CUDA call returned beside its status; a `RuntimeError` if that is not success."""
    if answer[0] != 0:
        raise RuntimeError(f"CUDA answered {answer[0]!r}")
    return answer[1:]
