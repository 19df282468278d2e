"""What a call of the CUDA engine costs the host: Python's and torch's part of it. No GPU is needed.

    python benchmarks/host.py [--sizes 50,32,310/720 …] [--json FILE]

A size is T,B,q/s: steps, sequences, long-term and short-term units. Tensors are on the CPU and pass for an H200's; the driver
does nothing, so that launches cost what it takes to tell of them. (A real driver adds a few microseconds for each, and torch's
memory on a GPU is found in about the time that it takes here.) What is timed is the recurrence as one calls it, without a
gradient, and with one of everything, and a layer with its gradients, whose inputs have as many features as the paper's: each once
as it is, which is to say replayed, and once with every decision made anew, in turns. Times are the least of many.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from recurrence_cuda import INPUTS, SIZES
from torch import Tensor

import enrnn
from enrnn import _launch, _nvrtc, _replay, _tape
from enrnn.functional import long_short_recurrence
from enrnn.recurrence import _beside, _cuda, _dispatch, _engines
from enrnn.recurrence._shapes import Limits

H200 = Limits(65536, 232448, (132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7))


class Stream:
    device = torch.device("cpu")

    def __init__(self, cuda_stream: int) -> None:
        self.cuda_stream = self.stream_id = cuda_stream

    def record_event(self) -> Event:
        return Event()

    def wait_event(self, event: Event) -> None:
        pass


class Event:
    def synchronize(self) -> None:
        pass


class On:
    """What torch calls the current stream."""

    main, side = Stream(1), Stream(2)
    now = main

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.before, On.now = On.now, self.stream

    def __exit__(self, *_: object) -> None:
        On.now = self.before


def pretend() -> None:
    """That there is an H200."""
    from cuda.bindings import driver

    nothing = (0,)
    event = driver.CUevent(1)
    stand_in = SimpleNamespace(
        CUlaunchConfig=driver.CUlaunchConfig,
        CUlaunchAttribute=driver.CUlaunchAttribute,
        CUlaunchAttributeID=driver.CUlaunchAttributeID,
        CUevent_flags=driver.CUevent_flags,
        CUstream_flags=driver.CUstream_flags,
        CUstreamCaptureMode=driver.CUstreamCaptureMode,
        cuCtxGetCurrent=lambda: (0, 1),
        cuEventCreate=lambda flags: (0, event),
        cuEventDestroy=lambda event: nothing,
        cuEventRecord=lambda event, stream: nothing,
        cuStreamWaitEvent=lambda stream, event, flags: nothing,
        cuLaunchKernelEx=lambda config, function, pointers, extra: nothing,
        cuThreadExchangeStreamCaptureMode=lambda mode: (0, mode),
        cuStreamCreate=lambda flags: (0, driver.CUstream(3)),
        cuStreamDestroy=lambda stream: nothing,
        cuStreamBeginCapture=lambda stream, mode: nothing,
        cuStreamEndCapture=lambda stream: (0, driver.CUgraph(1)),
        cuGraphInstantiate=lambda graph, flags: (0, driver.CUgraphExec(1)),
        cuGraphDestroy=lambda graph: nothing,
        cuGraphExecDestroy=lambda graph: nothing,
        cuGraphLaunch=lambda graph, stream: nothing,
    )
    chip = SimpleNamespace(multi_processor_count=H200.clusters[0], shared_memory_per_block_optin=H200.shared, major=9, minor=0)
    for place, replaced in {
        _launch: {"driver": lambda: stand_in, "driver_version": lambda: 13000},
        _nvrtc: {"load": loaded, "room_of": lambda device: (H200.registers, H200.shared)},
        _cuda: {"limits_of": lambda device: H200, "unavailable": lambda device: None},
        _engines: {"why_not": lambda *_: None},
        _beside: {"another": lambda device, number: On.side, "index_of": lambda device: 0},
        _dispatch: {"choose": lambda backend, *_: backend},
        _replay: {"another": lambda device, number: On.side},
        _tape: {"another": lambda device, number: On.side},
        Tensor: {
            "is_cuda": property(lambda tensor: True),
            "get_device": lambda tensor: 0,
            "__bool__": lambda tensor: True,  # what one looks at is whether a solver's result is certified
        },
        torch._C: {"_cuda_getCurrentRawStream": lambda index: On.now.cuda_stream},
        torch.cuda: {
            "current_device": lambda: 0,
            "current_stream": lambda device=None: On.now,
            "Event": Event,
            "ExternalStream": lambda handle: On.main,
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_properties": lambda device=None: chip,
            "is_current_stream_capturing": lambda: False,
            "stream": On,
        },
    }.items():
        for name, instead in replaced.items():
            setattr(place, name, instead)


def keep_memory() -> None:
    """As torch does on a GPU: what was freed is given out again, and not back to the system. (Of the C library of Linux.)"""
    most_mapped, least_given_back = -4, -1
    options = ctypes.CDLL(None).mallopt
    options(most_mapped, 0)
    options(least_given_back, 2**31 - 1)


def loaded(source: str, kernels: dict[str, int], device: torch.device, **defines: int) -> list[_launch.Kernel]:
    return [_launch.Kernel(name, shared, torch.device("cuda", 0), 1) for name, shared in kernels.items()]


mm, addmm = torch.mm, torch.addmm


def one_entry(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """In place of a product: a call of torch's too, but what is timed is not how a CPU multiplies."""
    mm(a[:1, :1], b[:1, :1], out=out[:1, :1])
    return out


def one_entry_added(added: Tensor, a: Tensor, b: Tensor, *, alpha: int = 1, out: Tensor) -> Tensor:
    addmm(added[:1, :1], a[:1, :1], b[:1, :1], out=out[:1, :1])
    return out


def calls(text: str) -> dict[str, Callable[[], object]]:
    """The recurrence of a size, without a gradient and with it; and a layer."""
    steps, batch, units = text.split(",")
    T, B, (q, s) = int(steps), int(batch), map(int, units.split("/"))
    sizes = [(T, B, q + s), (q, q), (q, s), (s, s), (q + s,), (B, q + s)]
    leaves = [torch.randn(size).requires_grad_() for size in sizes]
    upstream = torch.randn(T, B, q + s)

    def forward() -> object:
        with torch.no_grad():
            return long_short_recurrence(*leaves, "modrelu", backend="cuda")

    def train() -> object:
        return torch.autograd.grad(long_short_recurrence(*leaves, "modrelu", backend="cuda"), leaves, upstream)

    features = INPUTS.get(text, 1)
    layer = enrnn.ENRNN(features, q + s, short_size=s, backend="cuda")
    parameters, x = list(layer.parameters()), torch.randn(T, B, features)

    def step() -> object:
        return torch.autograd.grad(layer(x)[0], parameters, upstream)

    return {"forward": forward, "forward and backward": train, "a layer's step": step}


def measure(works: dict[str, Callable[[], object]], rounds: int = 40, times: int = 50) -> dict[str, float]:
    """Microseconds of each, in turns, the least of all rounds."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            begin = time.perf_counter()
            for _ in range(times):
                work()
            least[name] = min(least[name], 1e6 * (time.perf_counter() - begin) / times)
    return least


def anew(work: Callable[[], object]) -> Callable[[], object]:
    """With nothing replayed."""
    usual = _replay.replayable

    def run() -> object:
        _replay.replayable = lambda like: False
        try:
            return work()
        finally:
            _replay.replayable = usual

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    pretend()
    torch.addmm, torch.mm = one_entry_added, one_entry  # type: ignore[assignment]
    rows = []
    print(f"{'us of the host':>16}" + "".join(f" {name:>22} {'anew':>7}" for name in calls("1,1,2/2")))
    for text in options.sizes:
        works = calls(text)
        found = measure({**works, **{f"{name}, anew": anew(work) for name, work in works.items()}})
        rows.append({"size": text, **found})
        print(f"{text:>16}" + "".join(f" {found[name]:22.0f} {found[f'{name}, anew']:7.0f}" for name in works), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
