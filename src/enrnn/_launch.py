"""Launching compiled kernels, from Python and in little time.

Outside of a CUDA graph a kernel of ours may be over sooner than Python has launched the next: what the host does is then what one
waits for. So what the driver wants to be told is laid out once for each kernel, and only numbers change from launch to launch.
"""

import ctypes
import functools
import struct
import threading
from typing import Any, TypeVar

import torch

Argument = torch.Tensor | int | ctypes.Structure | None


class Kernel:
    """A loaded kernel; calling it launches one on torch's current stream of its device."""

    def __init__(self, function: Any, shared: int, device: torch.device, context: Any) -> None:
        from cuda.bindings import driver

        self._driver = driver  # to import it anew takes as long as to launch
        self._function = function
        self._shared = shared
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._context = context
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
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self(grid, block, *arguments, early=early, begun=begun, lets=lets)
        driver = self._driver
        if not int(checked(driver.cuCtxGetCurrent())[0]):  # a thread of autograd's that has not used the device yet
            checked(driver.cuCtxSetCurrent(self._context))
        early = early and self._overlaps
        event = _event(self._index) if begun else None
        free = self._free.setdefault((early, 0 if event is None else int(event), lets), [])
        try:
            launch = free.pop()
        except IndexError:  # another thread may have taken the last one just now
            launch = _Launch(self._shared, arguments, _attributes(early, event, lets))
        config = launch.config
        config.gridDimX, config.gridDimY = (grid, 1) if isinstance(grid, int) else grid
        config.blockDimX, config.hStream = block, torch._C._cuda_getCurrentRawStream(self._index)
        launch.fill(arguments)
        checked(driver.cuLaunchKernelEx(config, self._function, launch.pointers, 0))
        free.append(launch)
        return event


class _Launch:
    """What the driver is told of a launch, in memory that one launch after the other may use."""

    def __init__(self, shared: int, arguments: tuple[Argument, ...], attributes: list[Any]) -> None:
        from cuda.bindings import driver

        self.config = driver.CUlaunchConfig()
        self.config.gridDimZ = self.config.blockDimY = self.config.blockDimZ = 1
        self.config.sharedMemBytes = shared
        self.config.attrs, self.config.numAttrs = attributes, len(attributes)
        self._structures = [index for index, each in enumerate(arguments) if isinstance(each, ctypes.Structure)]
        self._words = struct.Struct(f"{len(arguments)}q")
        self._values = ctypes.create_string_buffer(self._words.size)
        first = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * len(arguments))(*range(first, first + self._words.size, 8))
        self.pointers = ctypes.addressof(self._pointers)

    def fill(self, arguments: tuple[Argument, ...]) -> None:
        """A structure stays where it is, and so has to be there until the kernel has been launched."""
        self._words.pack_into(self._values, 0, *[each if type(each) is int else _word(each) for each in arguments])
        for index in self._structures:
            self._pointers[index] = ctypes.addressof(arguments[index])  # type: ignore[arg-type]


def _word(argument: Argument) -> int:
    if argument is None or isinstance(argument, ctypes.Structure):
        return 0
    return argument if isinstance(argument, int) else argument.data_ptr()


Kind = TypeVar("Kind", bound=ctypes.Structure)


def filled(kind: type[Kind], *numbers: int) -> Kind:
    """A structure for a kernel from its numbers, those of nested ones too, in the order in which it has them. All at once: to set
    field by field takes longer than to launch."""
    return kind.from_buffer_copy(_format(kind).pack(*numbers))


@functools.cache
def _format(kind: type[ctypes.Structure]) -> struct.Struct:
    found = struct.Struct(_letters(kind))
    assert found.size == ctypes.sizeof(kind), "a structure with gaps at its end"
    return found


def _letters(kind: Any) -> str:
    """As `struct` has it."""
    if issubclass(kind, ctypes.Structure):
        return "".join(_letters(each) for _, each in kind._fields_)
    return kind._length_ * _letters(kind._type_) if issubclass(kind, ctypes.Array) else str(kind._type_)


def attribute(name: str) -> Any:
    """Of a launch."""
    from cuda.bindings import driver

    found = driver.CUlaunchAttribute()
    found.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return found


def _attributes(early: bool, event: Any, lets: bool) -> list[Any]:
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
    from cuda.bindings import driver

    return int(checked(driver.cuDriverGetVersion())[0])


def tells_when_begun() -> bool:
    """Whether a launch on the current stream can tell when all its thread blocks have begun."""
    return driver_version() >= (12090 if torch.cuda.is_current_stream_capturing() else 12030)


class _Events(threading.local):
    """This thread's, one for each GPU by its number."""

    def __init__(self) -> None:
        self.of: dict[int, Any] = {}


_events = _Events()


def _event(index: int) -> Any:
    """This thread's event for the GPU, which is the current one."""
    from cuda.bindings import driver

    if index not in _events.of:
        (_events.of[index],) = checked(driver.cuEventCreate(int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)))
    return _events.of[index]


def wait_for(event: Any, stream: torch.cuda.Stream) -> None:
    """What is launched on the stream from now on begins after the event, as it was last asked for."""
    from cuda.bindings import driver

    checked(driver.cuStreamWaitEvent(stream.cuda_stream, event, 0))


def checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a CUDA call returned beside its status; a `RuntimeError` if that is not success."""
    if answer[0] != 0:
        raise RuntimeError(f"CUDA answered {answer[0]!r}")
    return answer[1:]
