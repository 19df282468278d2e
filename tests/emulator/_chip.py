"""CPU tensors that pass for those of an H200, and the emulator for the GPU: what `enrnn` asks of torch and of CUDA."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from enrnn import _launch, _nvrtc, _replay
from enrnn._kernels import KernelsFor
from enrnn.recurrence import _beside, _cuda, _dispatch, _engines
from enrnn.recurrence._trust import Trusted
from tests.emulator._compiler import Compiler
from tests.emulator._driver import CALLS, Driver
from tests.emulator._memory import Allocations, poisoned
from tests.emulator._schedule import Schedule, Unfair
from tests.emulator._streams import Streams
from tests.recurrence.test_kernel import H200


class Emulated:
    """What a test is told of the chip that it runs on."""

    def __init__(self, driver: Driver, compiler: Compiler, streams: Streams) -> None:
        self._driver, self._compiler, self._streams = driver, compiler, streams

    @property
    def launched(self) -> list[str]:
        """The names of kernels, in the order of their launches."""
        return self._driver.launched

    @property
    def graphs_launched(self) -> int:
        return self._driver.graphs_launched

    def unfair(self, seed: int) -> None:
        """From now on threads go on in whatever order."""
        self._driver.schedule = Unfair(seed)

    def watch(self) -> None:
        """From now on a race is an error, whether it does harm or not."""
        self._driver.watches = True

    def change(self, text: str, to: str) -> None:
        """From now on kernels are compiled from other sources."""
        self._compiler.change(text, to)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Kernels that are launched now run when this ends, at the same time where they may. So nothing may be done with what
        they find before; and work is done on two streams where it would be on a GPU."""
        with pytest.MonkeyPatch.context() as patch, self._driver.holding():
            patch.setattr(_beside, "another", lambda device, number: self._streams.side)
            yield


@contextlib.contextmanager
def emulated_chip() -> Iterator[Emulated]:
    """As long as it lasts, all tensors are the GPU's."""
    from cuda.bindings import driver

    allocations, compiler = Allocations(), Compiler()
    stand_in = Driver(allocations, Schedule())
    streams = Streams(stand_in)
    address = Tensor.data_ptr

    def known(tensor: Tensor) -> int:
        allocations.add(tensor)
        return address(tensor)

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(driver, name, getattr(stand_in, name))
        patch.setattr(_replay, "CAPTURED", set())  # torch's operations are done at once, and not when a graph is launched
        patch.setattr(_nvrtc, "compile_cubin", compiler)
        patch.setattr(_nvrtc, "room_of", lambda device: (H200.registers, H200.shared))
        patch.setattr(_nvrtc, "clusters_at_once", lambda device: H200.clusters[1:])
        for place in (_engines, _dispatch):
            patch.setattr(place, "choose", lambda backend, *_: "cuda" if backend == "auto" else backend)
        patch.setattr(Tensor, "data_ptr", known)
        patch.setattr(Tensor, "get_device", lambda tensor: 0)
        patch.setattr(Tensor, "is_cuda", property(lambda tensor: True))
        for place, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            patch.setattr(place, name, poisoned(getattr(place, name)))
        _stand_in_for_cuda(patch, streams)
        _forget_kernels(patch)
        _forget_answers()
        try:
            yield Emulated(stand_in, compiler, streams)
        finally:
            _forget_answers()
    assert not compiler.unmade()


def _stand_in_for_cuda(patch: pytest.MonkeyPatch, streams: Streams) -> None:
    properties = SimpleNamespace(major=9, multi_processor_count=H200.clusters[0], shared_memory_per_block_optin=H200.shared)
    for name, answer in {
        "current_device": lambda: 0,
        "current_stream": lambda device=None: streams.current,
        "device": lambda device: contextlib.nullcontext(),
        "Event": streams.Event,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "is_current_stream_capturing": lambda: False,
        "Stream": streams.Stream,
        "stream": streams.on,
    }.items():
        patch.setattr(torch.cuda, name, answer)
    patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: streams.current.cuda_stream, raising=False)


def _forget_kernels(patch: pytest.MonkeyPatch) -> None:
    """Those that were loaded before; what is loaded now is forgotten in its turn."""
    for module in [each for name, each in sys.modules.items() if name.startswith("enrnn.")]:
        for name, value in list(vars(module).items()):
            if name in ("_chips", "_kernels", "_loaded") and isinstance(value, dict):
                patch.setattr(module, name, {})
            elif isinstance(value, KernelsFor):
                patch.setattr(value, "_loaded", {})
            elif isinstance(value, Trusted):
                patch.setattr(value, "_known", {})


def _forget_answers() -> None:
    """What was said of the chip, and calls that are replayed."""
    for asked in (_cuda.limits_of, _cuda.unavailable, _launch.driver_version):
        asked.cache_clear()
    for known in _replay._known.values():
        known.clear()
