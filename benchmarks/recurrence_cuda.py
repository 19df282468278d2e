"""What a recurrence costs on a GPU, forward and backward, beside cuDNN's recurrent layers, in one run.

    python benchmarks/recurrence_cuda.py [--sizes 750,50,96/64 …] [--growth] [--json FILE]

A size is T,B,q/s: steps, sequences, long-term and short-term units; n = q + s. Contenders: ENRNN's recurrence with the coupling
(`enrnn`), one dense matrix of n units (`dense`), cuDNN's ReLU RNN and LSTM of n units, cuDNN's LSTM with as many parameters as
the ENRNN layer has, and the same recurrence as a loop of torch operations. All in float32 with TF32 off, on random data.
Forward is without gradients; training is forward and backward with the gradients of everything. All are timed twice, in
interleaved rounds: replayed from a CUDA graph, which times the device, and called from Python, call after call, where the host
may be what one waits for. (The loop is only called: that is how it is used.)
Projecting the inputs and forming the matrices is timed apart, at the layer; a whole layer's step of training has a program of its
own (`layer_step.py`). Before anything is reported, the kernel is checked against the loop in float64 at every size.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import enrnn
from enrnn.functional import long_short_recurrence, recurrence
from enrnn.recurrence import _cuda
from enrnn.recurrence._engines import why_not

SIZES = ["750,50,96/64", "2020,20,172/20", "490,28,374/94", "50,32,310/720"]
INPUTS = {"750,50,96/64": 2, "2020,20,172/20": 10, "490,28,374/94": 129, "50,32,310/720": 1030}
"""Features of the paper's inputs, for the projection and for the LSTM of equal parameters."""


class Size(NamedTuple):
    steps: int
    batch: int
    long: int
    short: int

    @property
    def n(self) -> int:
        return self.long + self.short

    def __str__(self) -> str:
        return f"{self.steps},{self.batch},{self.long}/{self.short}"


def size(text: str) -> Size:
    steps, batch, units = text.split(",")
    return Size(int(steps), int(batch), *map(int, units.split("/")))


class Contender(NamedTuple):
    forward: Callable[[], object]
    train: Callable[[], object]
    captured: bool = True


def fused(
    at: Size, backend: str, dense: bool, dtype: torch.dtype = torch.float32, nonlinearity: str = "modrelu"
) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """Leaves and the recurrence over them; the bias is below zero."""
    q, s, n = at.long, at.short, at.n
    generator = torch.Generator("cuda").manual_seed(n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    inputs, initial, bias = normal(at.steps, at.batch, n) / 2, normal(at.batch, n), -normal(n).abs() / 10
    long, short = torch.linalg.qr(normal(q, q))[0], normal(s, s) / (1.5 * s**0.5)
    if dense:
        leaves = [inputs, torch.linalg.qr(normal(n, n))[0], bias, initial]
    else:
        leaves = [inputs, long, normal(q, s) / n**0.5, short, bias, initial]
    leaves = [leaf.to(dtype).contiguous().requires_grad_() for leaf in leaves]  # as the layers' matrices are
    run = recurrence if dense else long_short_recurrence
    return leaves, lambda: run(*leaves, nonlinearity, backend=backend)


def ours(at: Size, backend: str = "cuda", dense: bool = False) -> Contender:
    leaves, run = fused(at, backend, dense)
    upstream = torch.randn(at.steps, at.batch, at.n, device="cuda")

    def forward() -> object:
        with torch.no_grad():
            return run()

    return Contender(forward, lambda: torch.autograd.grad(run(), leaves, upstream), captured=backend == "cuda")


def cudnn(at: Size, kind: type[nn.RNNBase], hidden: int, features: int = 1) -> Contender:
    layer = kind(features, hidden, **({"nonlinearity": "relu"} if kind is nn.RNN else {})).cuda()
    x = torch.randn(at.steps, at.batch, features, device="cuda", requires_grad=True)
    upstream = torch.randn(at.steps, at.batch, hidden, device="cuda")
    wanted = [x, *layer.parameters()]

    def forward() -> object:
        with torch.no_grad():
            return layer(x)

    return Contender(forward, lambda: torch.autograd.grad(layer(x)[0], wanted, upstream))


def equal_parameters(at: Size, features: int) -> int:
    """Units of an LSTM with as many parameters as the ENRNN layer."""
    q, s, n = at.long, at.short, at.n
    target = q * (q - 1) // 2 + q * s + s * s + n * features + n
    units = 1
    while 4 * (units * (units + features) + 2 * units) < target:
        units += 1
    return units


def capture(work: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
    torch.cuda.synchronize()
    return graph.replay


def microseconds(work: Callable[[], object], times: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / times


def measure(works: dict[str, Callable[[], object]], slow: set[str], rounds: int = 7, repeats: int = 5) -> dict[str, float]:
    """Median microseconds of each, over interleaved rounds; repeated so that the launch is not what is timed."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds):
        for name, work in works.items():
            if name in slow and round_ > 2:
                continue
            found = microseconds(work, 1 if name in slow else repeats)
            if round_ > 0:
                times[name].append(found)
    return {name: statistics.median(found) for name, found in times.items()}


def check(at: Size) -> None:
    """Refuse to time what is wrong: outputs and gradients of both forms, against the loop in float64. With tanh: at the kinks of
    modReLU two roundings need not agree, and the gradient jumps."""
    short = at._replace(steps=min(at.steps, 60))
    upstream = torch.randn(short.steps, short.batch, short.n, device="cuda")
    for dense in (False, True):
        answers = []
        for backend, dtype in (("cuda", torch.float32), ("torch", torch.float64)):
            leaves, run = fused(short, backend, dense, dtype, "tanh")
            states = run()
            answers.append([states.detach(), *torch.autograd.grad(states, leaves, upstream.to(dtype))])
        for found, truth in zip(*answers, strict=True):
            error = float((found.double() - truth).norm() / truth.norm())
            if not error < 1e-4:
                raise SystemExit(f"{at}: off by {error:.1e}. Nothing is reported until it is right.")


def contenders(at: Size, features: int) -> dict[str, Contender]:
    return {
        "enrnn": ours(at),
        "dense": ours(at, dense=True),
        "cuDNN RNN": cudnn(at, nn.RNN, at.n),
        "cuDNN LSTM": cudnn(at, nn.LSTM, at.n),
        "cuDNN LSTM, equal parameters": cudnn(at, nn.LSTM, equal_parameters(at, features), features),
        "torch loop": ours(at, "torch"),
    }


def bound(at: Size) -> tuple[float, float]:
    """Microseconds for the multiply-adds at 132·128 a cycle of 1.98 GHz, and for inputs and states to pass at 4.8 TB/s."""
    products = at.steps * at.batch * (at.long * at.n + at.short * at.short)
    return products / (132 * 128 * 1980), 8 * at.steps * at.batch * at.n / 4.8e6


def run(at: Size, features: int) -> dict[str, object]:
    check(at)
    row: dict[str, object] = {"size": str(at), "bound": bound(at)}
    found = contenders(at, features)
    slow = {name for name, each in found.items() if not each.captured}
    for kind in ("forward", "train"):
        works = {name: getattr(each, kind) for name, each in found.items()}
        captured = {name: work if name in slow else capture(work) for name, work in works.items()}
        row[kind] = measure(captured, slow)
        row[f"{kind}, called"] = measure({name: work for name, work in works.items() if name not in slow}, set(), repeats=20)
    return row


def show(row: dict[str, object], steps: int) -> None:
    forward = row["forward"]
    assert isinstance(forward, dict)
    print(f"\n{row['size']}: at least {row['bound'][0]:.0f} us of arithmetic, {row['bound'][1]:.0f} us of memory, forward")  # type: ignore[index]
    columns = f"{'us a step':>10} {'ratio':>7}   {'train, ms':>10} {'ratio':>7}"
    print(f"{'':30} {columns}   called: {columns}")
    for name in forward:
        shown = [_columns(row, name, steps, kind) for kind in ("", ", called")]
        print(f"{name:30} {shown[0]}           {shown[1]}".rstrip(), flush=True)


def _columns(row: dict[str, object], name: str, steps: int, kind: str) -> str:
    forward, train = row[f"forward{kind}"], row[f"train{kind}"]
    assert isinstance(forward, dict)
    assert isinstance(train, dict)
    if name not in forward:
        return ""
    return (
        f"{forward[name] / steps:10.3f} {forward[name] / forward['enrnn']:7.2f}   "
        f"{train[name] / 1e3:10.3f} {train[name] / train['enrnn']:7.2f}"
    )


def around(at: Size, features: int) -> dict[str, float]:
    """What a layer does beside the recurrence: forming its matrices with their gradients, and projecting its inputs."""
    layer = enrnn.ENRNN(features, at.n, short_size=at.short, device="cuda")
    x = torch.randn(at.steps, at.batch, features, device="cuda")
    upstream = {name: torch.randn(size, size, device="cuda") for name, size in (("long", at.long), ("short", at.short))}
    works: dict[str, Callable[[], object]] = {"projection": lambda: nn.functional.linear(x, layer.weight_ih_l0.detach())}
    for name in upstream:
        original = layer.parametrizations[f"weight_{name}_l0"].original  # type: ignore[index, union-attr]
        works[f"W_{name}"] = lambda name=name: getattr(layer, f"weight_{name}_l0")  # type: ignore[misc]
        works[f"W_{name} and its gradient"] = lambda name=name, original=original: torch.autograd.grad(  # type: ignore[misc]
            getattr(layer, f"weight_{name}_l0"), original, upstream[name]
        )
    return measure({name: capture(work) for name, work in works.items()}, set())


def refuse_without_a_gpu() -> None:
    if reason := "no CUDA device" if not torch.cuda.is_available() else _cuda.unavailable(torch.device("cuda", 0)):
        raise SystemExit(f"the cuda engine cannot run here: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--growth", action="store_true", help="also with T, B and n doubled")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    refuse_without_a_gpu()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; float32, TF32 off")
    rows = []
    for text in options.sizes:
        at, features = size(text), INPUTS.get(text, 1)
        row = run(at, features)
        show(row, at.steps)
        row["around"] = around(at, features)
        print("beside it, us: " + ", ".join(f"{name} {value:.0f}" for name, value in row["around"].items()), flush=True)  # type: ignore[attr-defined]
        rows.append(row)
        for changed in (
            [at._replace(steps=2 * at.steps), at._replace(batch=2 * at.batch), at._replace(long=2 * at.long, short=2 * at.short)]
            if options.growth
            else []
        ):
            if why_not("cuda", torch.device("cuda", 0), torch.float32, max(changed.long, changed.short), "modrelu"):
                print(f"{changed}: no room for this matrix")
                continue
            grown = measure({k: capture(getattr(ours(changed), k)) for k in ("forward", "train")}, set())
            usual = {kind: row[kind]["enrnn"] for kind in ("forward", "train")}  # type: ignore[index]
            print(f"{changed}: " + ", ".join(f"{kind} x {grown[kind] / usual[kind]:.2f}" for kind in grown), flush=True)
            rows.append({"size": str(changed), "grown from": text, **grown})
    if options.json:
        facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
