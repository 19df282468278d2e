"""CUDA C++ compiled at run time: no compiler and no headers at the user's site, compiled kernels kept on disk.

It needs `cuda-bindings` (the extra `enrnn[cuda]`) and NVRTC, which a CUDA build of torch brings along.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
from pathlib import Path

import torch

from ._launch import Kernel, attribute, checked

PORTABLE_CLUSTER = 8
"""Thread blocks in a cluster that every chip with clusters takes; more have to be asked for."""

OVERLAP = Path(__file__).with_name("overlap.cu")


@functools.cache
def text(*files: Path) -> str:
    """The kernels of these files, one after the other, and before them how kernels overlap, which any of them may use."""
    return "\n".join(file.read_text(encoding="utf-8") for file in (OVERLAP, *files))


def unavailable() -> str | None:
    """Why kernels cannot be compiled here, or None if they can."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return "cuda-bindings is not installed (the extra enrnn[cuda] brings it)"
    try:
        checked(nvrtc.nvrtcVersion())
    except (RuntimeError, OSError) as error:
        return f"NVRTC cannot be loaded: {error}"
    return None


def compile_cubin(source: str, arch: str, defines: dict[str, int]) -> bytes:
    """Machine code for a chip (`sm_90`, …), from the cache on disk or from the compiler; no GPU is needed."""
    from cuda.bindings import nvrtc

    version = checked(nvrtc.nvrtcVersion())
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--device-as-default-execution-space"]
    options += [f"-D{name}={value}" for name, value in sorted(defines.items())]
    key = hashlib.sha256("\0".join([source, str(version), *options]).encode()).hexdigest()
    file = _cache_folder() / f"{key}.cubin"
    with contextlib.suppress(OSError):
        return file.read_bytes()

    (program,) = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program))[0])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"a CUDA kernel did not compile for {arch}:\n{log.decode()}")
    cubin = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program))[0])
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
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
        (module,) = checked(driver.cuModuleLoadData(cubin))
        (context,) = checked(driver.cuCtxGetCurrent())
        kinds = driver.CUfunction_attribute
        for name, shared in kernels.items():
            (function,) = checked(driver.cuModuleGetFunction(module, name.encode()))
            checked(driver.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared))
            if defines.get("CLUSTER", 1) > PORTABLE_CLUSTER:
                checked(driver.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
            loaded.append(Kernel(function, shared, device, context))
    return loaded


def room_of(device: torch.device) -> tuple[int, int]:
    """The 32-bit registers of a multiprocessor, and the bytes of shared memory that one thread block may ask for."""
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute
    registers = kinds.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR
    shared = kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    number = torch.cuda.current_device() if device.index is None else device.index
    checked(driver.cuInit(0))
    (handle,) = checked(driver.cuDeviceGet(number))
    found = [int(checked(driver.cuDeviceGetAttribute(kind, handle))[0]) for kind in (registers, shared)]
    return found[0], found[1]


def clusters_at_once(device: torch.device) -> tuple[int, ...]:
    """How many clusters of 2, 3, … 16 thread blocks run at once, a block to a multiprocessor; needs compute capability 9.0."""
    from cuda.bindings import driver

    shared = room_of(device)[1] // 2 + 1024
    found = []
    for size in range(2, 2 * PORTABLE_CLUSTER + 1):
        (kernel,) = load('extern "C" __global__ void nothing() {}', {"nothing": shared}, device, CLUSTER=size)
        extent = attribute("CLUSTER_DIMENSION")
        extent.value.clusterDim.x, extent.value.clusterDim.y, extent.value.clusterDim.z = size, 1, 1
        launch = driver.CUlaunchConfig()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = size, 1, 1
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = 256, 1, 1
        launch.sharedMemBytes, launch.attrs, launch.numAttrs = shared, [extent], 1
        status, count = driver.cuOccupancyMaxActiveClusters(kernel.function, launch)
        found.append(int(count) if int(status) == 0 else 0)
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enrnn"
