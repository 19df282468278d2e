"""CUDA C++ compiled at run time: no compiler and no headers at the user's site, compiled kernels kept on disk.

It needs `cuda-bindings` (the extra `enrnn[cuda]`) and NVRTC, which a CUDA build of torch brings along.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

PORTABLE_CLUSTER = 8
"""Thread blocks in a cluster that every chip with clusters takes; more have to be asked for."""

OVERLAP = Path(__file__).with_name("overlap.cu")


def text(*files: Path) -> str:
    """The kernels of these files, one after the other, and before them how kernels overlap, which any of them may use."""
    return "\n".join(file.read_text(encoding="utf-8") for file in (OVERLAP, *files))


class Kernel:
    """A loaded kernel; calling it launches one on torch's current stream of its device."""

    def __init__(self, function: Any, shared: int, device: torch.device, context: Any) -> None:
        self._function = function
        self._shared = shared
        self._device = device
        self._context = context
        self._overlaps = torch.cuda.get_device_capability(device) >= (9, 0) and driver_version() >= 12030

    def __call__(
        self,
        grid: int | tuple[int, int],
        block: int,
        *arguments: torch.Tensor | int | ctypes.Structure | None,
        early: bool = False,
        begun: bool = False,
        lets: bool = False,
    ) -> Any:
        """Tensors are passed as pointers, None as the null pointer, integers as `long long`, structures by value.

        With `early` it may, where a chip can do that, begin before the kernel launched before it has ended; it waits itself.
        If `begun` is asked for, of a driver that `tells_when_begun`, the answer is an event, to be given to `wait_for`, that
        happens when all thread blocks have begun; or, with `lets`, when all have let the next begin.
        """
        from cuda.bindings import driver

        values = tuple(each.data_ptr() if isinstance(each, torch.Tensor) else each or 0 for each in arguments)
        types = tuple(_type(each) for each in arguments)
        across, down = (grid, 1) if isinstance(grid, int) else grid
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream().cuda_stream
            if int(_checked(driver.cuCtxGetCurrent())[0]) == 0:  # a thread of autograd's that has not used the device yet
                _checked(driver.cuCtxSetCurrent(self._context))
            attributes, event = [_early()] if early and self._overlaps else [], _event(self._device) if begun else None
            if begun:
                attributes.append(_attribute("PROGRAMMATIC_EVENT" if lets else "LAUNCH_COMPLETION_EVENT"))
                told = attributes[-1].value
                (told.programmaticEvent if lets else told.launchCompletionEvent).event = event
            launch = driver.CUlaunchConfig()
            launch.gridDimX, launch.gridDimY, launch.gridDimZ = across, down, 1
            launch.blockDimX, launch.blockDimY, launch.blockDimZ = block, 1, 1
            launch.sharedMemBytes, launch.hStream = self._shared, stream
            launch.attrs, launch.numAttrs = attributes, len(attributes)
            _checked(driver.cuLaunchKernelEx(launch, self._function, (values, types), 0))
        return event


def _attribute(name: str) -> Any:
    """Of a launch."""
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return attribute


@functools.cache
def _early() -> Any:
    attribute = _attribute("PROGRAMMATIC_STREAM_SERIALIZATION")
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


@functools.cache
def driver_version() -> int:
    """The CUDA that the driver knows, 12030 for 12.3."""
    from cuda.bindings import driver

    return int(_checked(driver.cuDriverGetVersion())[0])


def tells_when_begun() -> bool:
    """Whether a launch on the current stream can tell when all its thread blocks have begun."""
    return driver_version() >= (12090 if torch.cuda.is_current_stream_capturing() else 12030)


class _Events(threading.local):
    """This thread's, one for each device."""

    def __init__(self) -> None:
        self.of: dict[torch.device, Any] = {}


_events = _Events()


def _event(device: torch.device) -> Any:
    """This thread's event for the device, which is the current one."""
    from cuda.bindings import driver

    if device not in _events.of:
        (_events.of[device],) = _checked(driver.cuEventCreate(int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)))
    return _events.of[device]


def wait_for(event: Any, stream: torch.cuda.Stream) -> None:
    """What is launched on the stream from now on begins after the event, as it was last asked for."""
    from cuda.bindings import driver

    _checked(driver.cuStreamWaitEvent(stream.cuda_stream, event, 0))


def unavailable() -> str | None:
    """Why kernels cannot be compiled here, or None if they can."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return "cuda-bindings is not installed (pip install enrnn[cuda])"
    try:
        _checked(nvrtc.nvrtcVersion())
    except (RuntimeError, OSError) as error:
        return f"NVRTC cannot be loaded: {error}"
    return None


def compile_cubin(source: str, arch: str, defines: dict[str, int]) -> bytes:
    """Machine code for a chip (`sm_90`, …), from the cache on disk or from the compiler; no GPU is needed."""
    from cuda.bindings import nvrtc

    version = _checked(nvrtc.nvrtcVersion())
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--device-as-default-execution-space"]
    options += [f"-D{name}={value}" for name, value in sorted(defines.items())]
    key = hashlib.sha256("\0".join([source, str(version), *options]).encode()).hexdigest()
    file = _cache_folder() / f"{key}.cubin"
    with contextlib.suppress(OSError):
        return file.read_bytes()

    (program,) = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program))[0])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"a CUDA kernel did not compile for {arch}:\n{log.decode()}")
    cubin = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program))[0])
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to fail
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
            temporary.write(cubin)
        os.replace(temporary.name, file)
    return bytes(cubin)


def load(source: str, kernels: dict[str, int], device: torch.device, **defines: int) -> list[Kernel]:
    """Kernels of a source text for the given CUDA device, each with so many bytes of shared memory for a thread block."""
    from cuda.bindings import driver

    major, minor = torch.cuda.get_device_capability(device)
    cubin = compile_cubin(source, f"sm_{major}{minor}", defines)
    loaded = []
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes torch's context the current one
        (module,) = _checked(driver.cuModuleLoadData(cubin))
        (context,) = _checked(driver.cuCtxGetCurrent())
        kinds = driver.CUfunction_attribute
        for name, shared in kernels.items():
            (function,) = _checked(driver.cuModuleGetFunction(module, name.encode()))
            _checked(driver.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared))
            if defines.get("CLUSTER", 1) > PORTABLE_CLUSTER:
                _checked(driver.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
            loaded.append(Kernel(function, shared, device, context))
    return loaded


def room_of(device: torch.device) -> tuple[int, int]:
    """The 32-bit registers of a multiprocessor, and the bytes of shared memory that one thread block may ask for."""
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute
    registers = kinds.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR
    shared = kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    number = torch.cuda.current_device() if device.index is None else device.index
    _checked(driver.cuInit(0))
    (handle,) = _checked(driver.cuDeviceGet(number))
    found = [int(_checked(driver.cuDeviceGetAttribute(kind, handle))[0]) for kind in (registers, shared)]
    return found[0], found[1]


def clusters_at_once(device: torch.device) -> tuple[int, ...]:
    """How many clusters of 2, 3, … 16 thread blocks run at once, a block to a multiprocessor; needs compute capability 9.0."""
    from cuda.bindings import driver

    shared = room_of(device)[1] // 2 + 1024
    found = []
    for size in range(2, 2 * PORTABLE_CLUSTER + 1):
        (kernel,) = load('extern "C" __global__ void nothing() {}', {"nothing": shared}, device, CLUSTER=size)
        extent = _attribute("CLUSTER_DIMENSION")
        extent.value.clusterDim.x, extent.value.clusterDim.y, extent.value.clusterDim.z = size, 1, 1
        launch = driver.CUlaunchConfig()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = size, 1, 1
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = 256, 1, 1
        launch.sharedMemBytes, launch.attrs, launch.numAttrs = shared, [extent], 1
        status, count = driver.cuOccupancyMaxActiveClusters(kernel._function, launch)
        found.append(int(count) if int(status) == 0 else 0)
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


def _type(argument: torch.Tensor | int | ctypes.Structure | None) -> type[Any] | None:
    """As `cuLaunchKernelEx` wants to be told of it; a structure says itself how large it is."""
    if isinstance(argument, ctypes.Structure):
        return None
    return ctypes.c_longlong if isinstance(argument, int) else ctypes.c_void_p


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enrnn"


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a CUDA call returned beside its status; a `RuntimeError` if that is not success."""
    status, *rest = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA answered {status!r}")
    return tuple(rest)
