"""What each family of recurrent matrices costs, side by side in one run, with a solve of the same size beside it.

    python benchmarks/zoo.py [--threads 1] [--sizes 128 512] [--rounds 15]

For each family: to form `W` from its free tensors; that and the gradient; and what it does after a step of the optimiser or in
its place, on average over a hundred steps. All are formed in float64 and rounded to float32, as in a layer. Rounds are
interleaved, so that a busy machine slows all alike; the best of each is taken, and its ratio to `torch.linalg.solve` in float64.
Before anything is reported, each family's constraint is checked. The tables are those in docs/zoo.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from enrnn.matrices import (
    SVD,
    Cayley,
    EigenvalueNormalized,
    Exponential,
    Givens,
    Householder,
    Matrix,
    Renormalized,
    Schur,
    SoftMargin,
    SpectralNorm,
    UnitaryGivens,
)

FAMILIES: dict[str, Callable[[int], Matrix]] = {
    "Cayley": lambda size: Cayley(),
    "Exponential": lambda size: Exponential(),
    "Exponential, dtriv_100": lambda size: Exponential(rebase_every=100),
    "Householder, m = n": lambda size: Householder(),
    "Householder, m = 16": lambda size: Householder(16),
    "Givens, L = n": lambda size: Givens(),
    "Givens, L = 2": lambda size: Givens(2),
    "Givens, FFT": lambda size: Givens(style="fft"),
    "UnitaryGivens, n/2 complex units, L = n/2": lambda size: UnitaryGivens(),
    "SVD, r = n/4": lambda size: SVD(),
    "SoftMargin": lambda size: SoftMargin(),
    "Schur": lambda size: Schur(),
    "EigenvalueNormalized": lambda size: EigenvalueNormalized(normalizing=True),
    "Renormalized": lambda size: Renormalized(normalizing=True),
    "SpectralNorm": lambda size: SpectralNorm(),
}
STEPS = 100
"""Over which the work after a step is averaged: some of it is done once in that many."""


class Contender:
    """One family at one size, some way from its start."""

    def __init__(self, name: str, size: int) -> None:
        torch.manual_seed(0)
        self.matrix = FAMILIES[name](size)
        self.originals = [part.requires_grad_() for part in self.matrix.originals(size, torch.empty(0))]
        self.matrix.initialize_(*self.originals)
        self.moving = [self.originals[place] for place in self.matrix.on_manifold] if self._has("manifold_update") else []
        with torch.no_grad():
            for part in self.originals:
                if all(part is not other for other in self.moving):
                    part.add_(0.1 * torch.randn_like(part) / size**0.5)
        self.cotangent = torch.randn(size, size)
        if self._has("after_step"):
            self._after_step()
        error = self.matrix.constraint_error(self.matrix(*self.originals)).item()
        if error > 1e-4:
            raise SystemExit(f"{name} misses its constraint by {error:.1e}: nothing is reported until it is right")

    def form(self) -> None:
        with torch.no_grad():
            self.matrix(*self.originals)

    def form_and_differentiate(self) -> None:
        torch.autograd.grad(self.matrix(*self.originals), self.originals, self.cotangent)

    def after_steps(self, count: int) -> None:
        for _ in range(count):
            for part in self.moving:
                part.grad = self.cotangent / 1e6
                self.matrix.manifold_update(part, 1e-3)  # type: ignore[operator]
            if self._has("after_step"):
                self._after_step()

    def _after_step(self) -> None:
        with torch.no_grad():
            self.matrix.after_step(*self.originals)  # type: ignore[operator]

    def _has(self, method: str) -> bool:
        return hasattr(self.matrix, method)


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(size: int, rounds: int) -> None:
    """Print a table for one size."""
    contenders = {name: Contender(name, size) for name in FAMILIES}
    generator = torch.Generator().manual_seed(0)
    A, B, G = (torch.randn(size, size, dtype=torch.float64, generator=generator) for _ in range(3))
    leaves = [A.clone().requires_grad_(), B.clone().requires_grad_()]
    calls: dict[tuple[str, str], Callable[[], object]] = {
        ("solve", "form"): lambda: torch.linalg.solve(A, B),
        ("solve", "both"): lambda: torch.autograd.grad(torch.linalg.solve(*leaves), leaves, G),
    }
    for name, contender in contenders.items():
        calls[name, "form"] = contender.form
        calls[name, "both"] = contender.form_and_differentiate
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for round_ in range(rounds + 1):
        for key, call in calls.items():
            spent = seconds(call)
            if round_ > 0:  # the first is a warm-up
                times[key].append(1e3 * spent)
    best = {key: min(values) for key, values in times.items()}
    few = {name: STEPS if "dtriv" in name or name == "SoftMargin" else 5 for name in contenders}
    after = {
        name: min(1e3 * seconds(lambda c=c, n=few[name]: c.after_steps(n)) / few[name] for _ in range(3))
        for name, c in contenders.items()
    }

    print(f"\nn = {size}: a solve takes {best['solve', 'form']:.2f} ms, with its gradient {best['solve', 'both']:.2f} ms\n")
    print("| family | form W, ms | in solves | and its gradient, ms | in solves with gradient | after a step, ms |")
    print("|---|---|---|---|---|---|")
    for name in contenders:
        form, both = best[name, "form"], best[name, "both"]
        acts = hasattr(contenders[name].matrix, "after_step") and after[name] > 0.02
        print(
            f"| {name} | {form:.2f} | {form / best['solve', 'form']:.1f} | {both:.2f} | {both / best['solve', 'both']:.1f} "
            f"| {f'{after[name]:.2f}' if acts else '–'} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s)")
    for size in options.sizes:
        measure(size, options.rounds)


if __name__ == "__main__":
    main()
