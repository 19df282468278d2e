"""The paper's remark (§3.4): the Schur form of T is comparable in cost to a standard RNN when n − q ≤ BL. Is it?

    python benchmarks/schur.py [--threads 1] [--rounds 5] [--json FILE]

At each of the paper's sizes, in one run, with interleaved rounds and medians: the complex Schur form of T by SciPy, which is what
the authors' code takes; the dominant eigenvalue as this package finds it on this device; and a training step (forward and
backward) of `torch.nn.RNN` with as many units and the same batch. On a GPU the step runs there, the Schur form on the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from scipy import linalg
from spectral_radius import trained
from torch import Tensor

from enrnn.spectrum import solve

SIZES = {"adding": (750, 50, 160, 64), "copying": (2020, 20, 192, 20), "TIMIT": (490, 28, 468, 94), "PTB": (50, 32, 1030, 720)}
"""L, B, n and n − q."""


def training_step(steps: int, batch: int, n: int, device: str) -> Callable[[], None]:
    layer = torch.nn.RNN(16, n, nonlinearity="relu", device=device)
    inputs = torch.randn(steps, batch, 16, device=device)

    def step() -> None:
        layer.zero_grad()
        layer(inputs)[0].square().mean().backward()

    return step


def timed(call: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def measure(matrix: Tensor, step: Callable[[], None], device: str, rounds: int) -> dict[str, float]:
    array, there = matrix.numpy(), matrix.to(device)
    contenders: dict[str, Callable[[], object]] = {
        "schur": lambda: linalg.schur(array, output="complex"),
        "ours": lambda: solve(there, "auto"),
        "step": step,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, call in contenders.items():
            times[name].append(timed(call, device))
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{'':10}{'n − q':>7}{'BL':>8}{'Schur, ms':>12}{'ours, ms':>12}{'RNN step, ms':>14}{'Schur/step':>12}{'ours/step':>11}")
    found = {}
    for name, (steps, batch, n, m) in SIZES.items():
        result = measure(trained(m), training_step(steps, batch, n, device), device, options.rounds)
        found[name] = result
        shares = (result["schur"] / result["step"], result["ours"] / result["step"])
        row = f"{name:10}{m:>7}{steps * batch:>8}{result['schur']:>12.2f}{result['ours']:>12.2f}{result['step']:>14.1f}"
        print(f"{row}{shares[0]:>12.3f}{shares[1]:>11.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"device": device, "threads": options.threads, "sizes": found}, indent=1))


if __name__ == "__main__":
    main()
