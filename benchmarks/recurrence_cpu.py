"""What a recurrence costs on a CPU, forward and backward, beside PyTorch's own recurrent layers at the same number of units.

    python benchmarks/recurrence_cpu.py [--threads 1 2] [--sizes 750,50,96/64 …] [--growth] [--json FILE]

A size is T,B,q/s: steps, sequences, long-term and short-term units; n = q + s. Contenders: this package's recurrence on ENRNN's
block matrix (`enrnn`) and on a dense n×n matrix (`dense`), a whole layer, which forms its matrices first (`ENRNN`), `nn.RNN` with
ReLU, `nn.LSTM`, and the specification, a loop in plain torch under autograd. All run under autograd, with the gradients of their
weights and biases, and of initial states but for layers. The projection of the input is not ours to time: layers get an input of
one feature. Each contender is a process of its own, and they take turns, so that a busy machine slows all alike and none meets
another's threads. A ratio is the median of the ratios round by round; times are the least. With `--growth` a size's rows are
followed by what T, B and n cost doubled. Before anything is reported, all that is ours is checked against the specification in
float64: at every size that is timed, for a few steps, and at a small one with every nonlinearity and sequences that end early.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from enrnn import ENRNN
from enrnn.functional import long_short_recurrence, recurrence
from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence._engines import why_not

SIZES = ["750,50,96/64", "2020,20,172/20", "490,28,374/94", "50,32,310/720"]
CONTENDERS = ("enrnn", "dense", "ENRNN", "nn.RNN", "nn.LSTM", "loop")


class Size(NamedTuple):
    steps: int
    batch: int
    long: int
    short: int

    def __str__(self) -> str:
        return f"{self.steps},{self.batch},{self.long}/{self.short}"


def size(text: str) -> Size:
    steps, batch, units = text.split(",")
    return Size(int(steps), int(batch), *map(int, units.split("/")))


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape)


class Recurrence:
    """A recurrence as a user runs it: the public function, under autograd, with the gradients of everything.

    `blocks` are one matrix, or `W_L`, `W_C` and `W_S`.
    """

    def __init__(self, function: Callable[..., Tensor], blocks: list[Tensor], at: Size, nonlinearity: str, backend: str) -> None:
        n = at.long + at.short
        self.parts = [normal(at.steps, at.batch, n), *blocks, -0.1 * torch.rand(n), torch.zeros(at.batch, n)]
        self.gradient = normal(at.steps, at.batch, n)
        self.run = functools.partial(function, *self.parts, nonlinearity, backend=backend)
        for part in self.parts:
            part.requires_grad_()

    def forward(self) -> None:
        self.states = self.run()

    def backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.states, self.parts, self.gradient)


def recurrence_of(name: str, at: Size, nonlinearity: str) -> Recurrence:
    def orthogonal(size: int) -> Tensor:
        return torch.linalg.qr(normal(size, size))[0] * 0.99

    if name == "enrnn":
        coupling = normal(at.long, at.short, scale=0.5 / max(at.long, at.short) ** 0.5)
        blocks = [orthogonal(at.long), coupling, orthogonal(at.short)]
        return Recurrence(long_short_recurrence, blocks, at, nonlinearity, "cpu")
    backend = "cpu" if name == "dense" else "reference"
    return Recurrence(recurrence, [orthogonal(at.long + at.short)], at, nonlinearity, backend)


class Layer:
    """A recurrent layer, fed one feature."""

    def __init__(self, layer: ENRNN | nn.RNN | nn.LSTM, steps: int, batch: int, n: int) -> None:
        self.layer = layer
        self.inputs, self.gradient = normal(steps, batch, 1), normal(steps, batch, n)

    def forward(self) -> None:
        self.outputs = self.layer(self.inputs)[0]

    def backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.outputs, list(self.layer.parameters()), self.gradient)


def contender(name: str, size: Size, nonlinearity: str) -> Any:
    torch.manual_seed(0)
    steps, batch, long, short = size
    n = long + short
    if name in ("enrnn", "dense", "loop"):
        return recurrence_of(name, size, nonlinearity)
    layer: ENRNN | nn.RNN | nn.LSTM
    if name == "ENRNN":
        layer = ENRNN(1, n, short_size=short, nonlinearity=nonlinearity, backend="cpu")
    else:
        layer = nn.LSTM(1, n) if name == "nn.LSTM" else nn.RNN(1, n, nonlinearity="relu")
    return Layer(layer, steps, batch, n)


def work(name: str, threads: int) -> None:
    """Answer each request on standard input, `size nonlinearity`, with the seconds of forward, and of forward and backward."""
    torch.set_num_threads(threads)

    @functools.lru_cache(maxsize=2)
    def ready(request: str) -> Any:
        text, nonlinearity = request.split()
        one = contender(name, size(text), nonlinearity)
        for _ in range(2):  # the first may compile, and none has its memory yet
            one.forward()
            one.backward()
        return one

    for request in sys.stdin:
        one = ready(request)
        begin = time.perf_counter()
        one.forward()
        between = time.perf_counter()
        one.backward()
        print(json.dumps([between - begin, time.perf_counter() - begin]), flush=True)


class Worker:
    """A process that runs one contender when it is asked to."""

    def __init__(self, name: str, threads: int) -> None:
        limits = {variable: str(threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, __file__, "--work", name, "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **limits}
        )

    def time(self, size: Size, nonlinearity: str) -> tuple[float, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{size} {nonlinearity}\n")
        self.process.stdin.flush()
        forward, both = json.loads(self.process.stdout.readline())
        return forward, both

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def check(sizes: list[Size], nonlinearities: list[str]) -> None:
    """Refuse to time what is wrong."""
    torch.manual_seed(1)
    small = Size(30, 7, 33, 19)
    for nonlinearity in NONLINEARITIES:
        for lengths in (None, torch.randint(0, 32, (small.batch,))):
            check_recurrence("dense", small, nonlinearity, lengths)
            if NONLINEARITIES[nonlinearity].parts == 1:
                check_recurrence("enrnn", small, nonlinearity, lengths)
    for at in sizes:
        for nonlinearity in nonlinearities:
            for name in ("enrnn", "dense"):
                check_recurrence(name, at._replace(steps=min(at.steps, 6)), nonlinearity)
            check_layer(at._replace(steps=min(at.steps, 6)), nonlinearity)


def check_recurrence(name: str, at: Size, nonlinearity: str, lengths: Tensor | None = None) -> None:
    ours = recurrence_of(name, at, nonlinearity)
    if NONLINEARITIES[nonlinearity].parts == 2:
        bias = ours.parts[-2]
        ours.parts[-2] = bias.detach()[: len(bias) // 2].requires_grad_()
    function = ours.run.func

    def answer(dtype: torch.dtype, backend: str) -> list[Tensor]:
        parts = [part.detach().to(dtype).requires_grad_() for part in ours.parts]
        states = function(*parts, nonlinearity, lengths=lengths, backend=backend)
        return [states.detach(), *torch.autograd.grad(states, parts, ours.gradient.to(dtype))]

    compare(f"{name} at {at}, {nonlinearity}", answer)


def check_layer(at: Size, nonlinearity: str) -> None:
    ours = contender("ENRNN", at, nonlinearity)

    def answer(dtype: torch.dtype, backend: str) -> list[Tensor]:
        layer = copy.deepcopy(ours.layer).to(dtype)
        layer.backend = backend
        outputs = layer(ours.inputs.to(dtype))[0]
        return [outputs.detach(), *torch.autograd.grad(outputs, list(layer.parameters()), ours.gradient.to(dtype))]

    compare(f"ENRNN at {at}, {nonlinearity}", answer)


def compare(what: str, answer: Callable[[torch.dtype, str], list[Tensor]]) -> None:
    """Ours against the specification in float64, no worse than that is itself in float32."""
    found, exact, single = (
        answer(dtype, backend)
        for dtype, backend in ((torch.float32, "cpu"), (torch.float64, "reference"), (torch.float32, "reference"))
    )
    for mine, true, plain in zip(found, exact, single, strict=True):
        error, own = (float((other - true).abs().max()) for other in (mine, plain))
        floor = 100 * torch.finfo(torch.float32).eps * float(true.abs().max())
        if not error <= 4 * own + floor:
            raise SystemExit(f"{what}: off by {error:.1e}: nothing is reported until it is right")


def race(names: tuple[str, ...], threads: int, sizes: list[Size], nonlinearities: list[str], rounds: int) -> list[dict[str, Any]]:
    """Each contender's least times, and the median of its times over those of the first, round by round."""
    workers = {name: Worker(name, threads) for name in names}
    rows = []
    for one in sizes:
        for nonlinearity in nonlinearities:
            times = [{name: worker.time(one, nonlinearity) for name, worker in workers.items()} for _ in range(rounds)]
            row: dict[str, Any] = {"size": str(one), "threads": threads, "nonlinearity": nonlinearity}
            for name in names:
                row[name] = {
                    "forward_us_a_step": 1e6 / one.steps * min(round_[name][0] for round_ in times),
                    "both_us_a_step": 1e6 / one.steps * min(round_[name][1] for round_ in times),
                    "forward_ratio": statistics.median(round_[name][0] / round_[names[0]][0] for round_ in times),
                    "both_ratio": statistics.median(round_[name][1] / round_[names[0]][1] for round_ in times),
                }
            rows.append(row)
            show(row, names)
    for worker in workers.values():
        worker.close()
    return rows


def show(row: dict[str, Any], names: tuple[str, ...]) -> None:
    def cell(name: str, form: Callable[[float], str], key: str) -> str:
        return form(row[name][f"forward_{key}"]) + "/" + form(row[name][f"both_{key}"])

    times = "".join(f"{cell(name, lambda x: f'{x:.1f}', 'us_a_step'):>14}" for name in names)
    ratios = "".join(f"{cell(name, lambda x: f'{x:.2f}', 'ratio'):>13}" for name in names[1:])
    print(f"{row['size']:>16} {row['threads']:3d} {row['nonlinearity']:>8}{times}  |{ratios}", flush=True)


def heading(names: tuple[str, ...]) -> None:
    print("forward / forward and backward: µs a step, the least of all rounds | times over enrnn's, the median of all rounds")
    times, ratios = "".join(f"{name:>14}" for name in names), "".join(f"{name:>13}" for name in names[1:])
    print(f"{'T,B,q/s':>16} thr {'':>8}{times}  |{ratios}", flush=True)


def growth(threads: int, base: Size, nonlinearity: str, rounds: int) -> list[dict[str, Any]]:
    """How the time of a whole sequence grows when one of T, B and n is doubled, beside what arithmetic says."""
    doubled = {
        "T": base._replace(steps=2 * base.steps),
        "B": base._replace(batch=2 * base.batch),
        "n": base._replace(long=2 * base.long, short=2 * base.short),
    }
    names = ("enrnn", "nn.RNN")
    workers = {name: Worker(name, threads) for name in names}
    rows = []
    for letter, larger in doubled.items():
        row: dict[str, Any] = {"size": str(base), "threads": threads, "doubled": letter, "arithmetic": 4 if letter == "n" else 2}
        for name, worker in workers.items():
            ratios = []
            for _ in range(rounds):
                before, after = (worker.time(one, nonlinearity)[1] for one in (base, larger))
                ratios.append(after / before)
            row[name] = statistics.median(ratios)
        rows.append(row)
        grown = ", ".join(f"{name} × {row[name]:.2f}" for name in names)
        print(f"{larger!s:>16} {threads:3d} {nonlinearity:>8}  {letter} doubled: forward and backward {grown}", flush=True)
    for worker in workers.values():
        worker.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", type=size, nargs="+", default=[size(text) for text in SIZES])
    parser.add_argument("--nonlinearities", nargs="+", default=["modrelu", "relu"], choices=["modrelu", "relu"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--growth", action="store_true", help="and what it costs with T, B or n doubled")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.threads[0])
        return
    reason = why_not("cpu", torch.device("cpu"), torch.float32, 1, "relu")
    if reason is not None:
        raise SystemExit(f"the cpu engine cannot run here: {reason}")
    check(options.sizes, options.nonlinearities)
    rows = []
    names = tuple(options.contenders)
    heading(names)
    for threads in options.threads:
        for one in options.sizes:
            rows += race(names, threads, [one], options.nonlinearities, options.rounds)
            if options.growth:
                rows += growth(threads, one, options.nonlinearities[0], min(3, options.rounds))
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
