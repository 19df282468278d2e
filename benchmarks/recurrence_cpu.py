"""What a recurrence costs on a CPU, forward and backward, beside PyTorch's own recurrent layers at the same number of units.

    python benchmarks/recurrence_cpu.py [--threads 1 2] [--sizes 750,50,96/64 …] [--growth] [--json FILE]

A size is T,B,q/s: steps, sequences, long-term and short-term units; n = q + s. Contenders: this package's `cpu` engine on ENRNN's
block matrix in one sweep that leaves out its zero block (`enrnn`), in the order of the GPU (`s-then-l`: short part, one product
for the coupling, long part) and on a dense n×n matrix (`dense`); `nn.RNN` with ReLU, `nn.LSTM`, and the specification, a loop in
plain torch under autograd. The gradients of weights, biases and initial states are included for all; the projection of the
input is not ours to time, and PyTorch's layers get an input of one feature. Each contender is a process of its own,
and they take turns, so that a busy machine slows all alike and none meets another's threads. A ratio is the median of the
ratios round by round; times are the least. Before anything is reported, the engine is checked against the specification in
float64.
"""

from __future__ import annotations

import argparse
import functools
import itertools
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

from enrnn.recurrence import _cpu, reference

SIZES = ["750,50,96/64", "2020,20,172/20", "490,28,374/94", "50,32,310/720"]
CONTENDERS = ("enrnn", "s-then-l", "dense", "nn.RNN", "nn.LSTM", "loop")


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


class Dense:
    """One recurrence, with the gradients that a layer needs of it."""

    def __init__(self, steps: int, batch: int, n: int, nonlinearity: str) -> None:
        self.nonlinearity = nonlinearity
        self.inputs, self.initial = normal(steps, batch, n), torch.zeros(batch, n)
        self.weight, self.bias = torch.linalg.qr(normal(n, n))[0] * 0.99, -0.1 * torch.rand(n)
        self.gradient = normal(steps, batch, n)

    def forward(self) -> None:
        self.states, final = torch.empty_like(self.inputs), torch.empty_like(self.initial)
        _cpu.forward(self.inputs, self.weight, self.bias, self.initial, self.nonlinearity, None, self.states, final)

    def backward(self) -> tuple[Tensor, ...]:
        grad_z, grad_initial = torch.empty_like(self.states), torch.empty_like(self.initial)
        _cpu.backward(self.gradient, self.states, self.weight, self.bias, self.nonlinearity, None, grad_z, grad_initial)
        grad_weight = weight_gradient(grad_z, self.initial, self.states)
        return grad_weight, bias_gradient(grad_z, self.states, self.nonlinearity), grad_initial, grad_z


class LongShort:
    """`W = [[W_L, W_C], [0, W_S]]`, in one sweep that leaves out the zero block."""

    def __init__(self, steps: int, batch: int, long: int, short: int, nonlinearity: str) -> None:
        self.parts = [long, short]
        self.nonlinearity = nonlinearity
        n = long + short
        self.inputs, self.initial = normal(steps, batch, n), torch.zeros(batch, n)
        self.long, self.short = (torch.linalg.qr(normal(k, k))[0] * 0.99 for k in self.parts)
        self.coupling, self.bias = normal(long, short, scale=0.5 / max(long, short) ** 0.5), -0.1 * torch.rand(n)
        self.gradient = normal(steps, batch, n)

    def split(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        long, short = torch.split(tensor, self.parts, dim=-1)
        return long, short

    def forward(self) -> None:
        self.states, final = torch.empty_like(self.inputs), torch.empty_like(self.initial)
        weight = reference.block_matrix(self.long, self.coupling, self.short)
        arguments = self.bias, self.initial, self.nonlinearity, None
        _cpu.forward(self.inputs, weight, *arguments, self.states, final, self.parts[0])

    def backward(self) -> tuple[Tensor, ...]:
        grad_z, grad_initial = torch.empty_like(self.states), torch.empty_like(self.initial)
        weight = reference.block_matrix(self.long, self.coupling, self.short)
        arguments = self.bias, self.nonlinearity, None
        _cpu.backward(self.gradient, self.states, weight, *arguments, grad_z, grad_initial, self.parts[0])
        return *self.weight_gradients(grad_z), grad_initial, grad_z

    def weight_gradients(self, grad_z: Tensor) -> tuple[Tensor, ...]:
        dz_long, dz_short = self.split(grad_z)
        grad_upper = weight_gradient(dz_long, self.initial, self.states)  # of W_L and W_C at once
        grad_lower = weight_gradient(dz_short, self.split(self.initial)[1], self.split(self.states)[1])
        return grad_upper, grad_lower, bias_gradient(grad_z, self.states, self.nonlinearity)


class ShortThenLong(LongShort):
    """All of the short part, then the coupling, then all of the long part; backward the other way round."""

    def forward(self) -> None:
        self.states, final = torch.empty_like(self.inputs), torch.empty_like(self.initial)
        (inputs_long, inputs_short), (bias_long, bias_short) = self.split(self.inputs), self.split(self.bias)
        (initial_long, initial_short), (states_long, states_short) = self.split(self.initial), self.split(self.states)
        final_long, final_short = self.split(final)
        _cpu.forward(inputs_short, self.short, bias_short, initial_short, self.nonlinearity, None, states_short, final_short)
        driven = torch.empty(inputs_long.shape)
        torch.addmm(inputs_long[0], initial_short, self.coupling.mT, out=driven[0])
        drive = inputs_long[1:].flatten(0, 1), states_short[:-1].flatten(0, 1)
        torch.addmm(*drive, self.coupling.mT, out=driven[1:].flatten(0, 1))
        _cpu.forward(driven, self.long, bias_long, initial_long, self.nonlinearity, None, states_long, final_long)

    def backward(self) -> tuple[Tensor, ...]:
        grad_z, grad_initial = torch.empty_like(self.states), torch.empty_like(self.initial)
        (grad_long, grad_short), (bias_long, bias_short) = self.split(self.gradient), self.split(self.bias)
        (states_long, states_short), (dz_long, dz_short) = self.split(self.states), self.split(grad_z)
        initial_long, initial_short = self.split(grad_initial)
        _cpu.backward(grad_long, states_long, self.long, bias_long, self.nonlinearity, None, dz_long, initial_long)
        driven = torch.empty(grad_short.shape)
        driven[-1] = grad_short[-1]
        drive = grad_short[:-1].flatten(0, 1), dz_long[1:].flatten(0, 1)
        torch.addmm(*drive, self.coupling, out=driven[:-1].flatten(0, 1))
        _cpu.backward(driven, states_short, self.short, bias_short, self.nonlinearity, None, dz_short, initial_short)
        initial_short += dz_long[0] @ self.coupling
        return *self.weight_gradients(grad_z), grad_initial, grad_z


def weight_gradient(grad_z: Tensor, initial: Tensor, states: Tensor) -> Tensor:
    """`Σ_t dz_t h_{t−1}ᵀ`, without a copy of the states."""
    return torch.addmm(grad_z[0].mT @ initial, grad_z[1:].flatten(0, 1).mT, states[:-1].flatten(0, 1))


def bias_gradient(grad_z: Tensor, states: Tensor, nonlinearity: str) -> Tensor:
    return (torch.sign(states).mul_(grad_z) if nonlinearity == "modrelu" else grad_z).sum((0, 1))


class Layer:
    """A recurrent layer of PyTorch's, fed one feature."""

    def __init__(self, layer: nn.RNN | nn.LSTM, steps: int, batch: int, n: int) -> None:
        self.layer = layer
        self.inputs, self.gradient = normal(steps, batch, 1), normal(steps, batch, n)

    def forward(self) -> None:
        self.outputs = self.layer(self.inputs)[0]

    def backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.outputs, list(self.layer.parameters()), self.gradient)


class Loop(Dense):
    """The specification, under autograd."""

    def forward(self) -> None:
        self.parts = [part.requires_grad_() for part in (self.inputs, self.weight, self.bias, self.initial)]
        self.states = reference.recurrence(*self.parts, self.nonlinearity)

    def backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.states, self.parts, self.gradient)


def contender(name: str, size: Size, nonlinearity: str) -> Any:
    torch.manual_seed(0)
    steps, batch, long, short = size
    n = long + short
    if name in ("enrnn", "s-then-l"):
        return {"enrnn": LongShort, "s-then-l": ShortThenLong}[name](steps, batch, long, short, nonlinearity)
    if name in ("dense", "loop"):
        return {"dense": Dense, "loop": Loop}[name](steps, batch, n, nonlinearity)
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


def check() -> None:
    """Refuse to time what is wrong: ours against the specification in float64, no worse than that is itself in float32."""
    for form, nonlinearity in itertools.product((LongShort, ShortThenLong), ("modrelu", "relu")):
        torch.manual_seed(1)
        ours = form(30, 7, 33, 18, nonlinearity)
        ours.forward()
        upper, lower, bias, initial, dz = ours.backward()
        found = [ours.states, upper[:, :33], upper[:, 33:], lower, bias, initial, dz]
        answers = []
        for dtype in (torch.float64, torch.float32):
            names = (ours.long, ours.coupling, ours.short, ours.bias, ours.initial, ours.inputs)
            parts = [part.to(dtype).requires_grad_() for part in names]
            *blocks, b, h, x = parts
            states = reference.long_short_recurrence(x, *blocks, b, h, nonlinearity)
            answers.append([states.detach(), *torch.autograd.grad(states, parts, ours.gradient.to(dtype))])
        for mine, exact, single in zip(found, *answers, strict=True):
            error, own = (float((other - exact).abs().max()) for other in (mine, single))
            floor = 100 * torch.finfo(torch.float32).eps * float(exact.abs().max())
            if not error <= 4 * own + floor:
                raise SystemExit(f"{nonlinearity}: off by {error:.1e}: nothing is reported until it is right")


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
    names = ("enrnn", "dense", "nn.RNN")
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
        grown = "".join(f"{row[name]:>9.2f}" for name in names)
        print(f"{base!s:>16} {threads:3d} {letter:>8} {row['arithmetic']:>11}{grown}", flush=True)
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
    parser.add_argument("--growth", action="store_true", help="how cost grows when T, B or n is doubled")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.threads[0])
        return
    reason = _cpu.unavailable()
    if reason is not None:
        raise SystemExit(f"the cpu engine cannot run here: {reason}")
    check()
    rows = []
    if options.growth:
        print("forward and backward of a whole sequence: times what it was, when T, B or n is doubled")
        print(f"{'T,B,q/s':>16} thr  doubled  arithmetic    enrnn    dense   nn.RNN", flush=True)
        for threads in options.threads:
            for one in options.sizes:
                rows += growth(threads, one, options.nonlinearities[0], options.rounds)
    else:
        names = tuple(options.contenders)
        heading(names)
        for threads in options.threads:
            rows += race(names, threads, options.sizes, options.nonlinearities, options.rounds)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
