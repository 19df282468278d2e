"""Recurrences to run on every engine, and how far each may be from the truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _torch


@dataclass(frozen=True)
class Problem:
    """What the two sweeps are given, in float64."""

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    initial: Tensor
    nonlinearity: str
    lengths: Tensor | None
    upstream: Tensor


def problem(
    steps: int, batch: int, n: int, nonlinearity: str, *, bias: bool = True, lengths: bool = False, seed: int = 0
) -> Problem:
    """‖W‖ = 1, and for modReLU b ≤ 0: with b > 0 it jumps at zero, where no two roundings need agree."""
    generator = torch.Generator().manual_seed(seed + 7 * n + 1000 * steps + 77 * batch)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    weight = torch.linalg.qr(normal(n, n))[0]
    threshold = normal(n // NONLINEARITIES[nonlinearity].parts) / 4
    ends = torch.randint(0, steps + 1, (batch,), generator=generator)
    return Problem(
        normal(steps, batch, n),
        weight,
        (-threshold.abs() if "modrelu" in nonlinearity else threshold) if bias else None,
        normal(batch, n),
        nonlinearity if bias or "modrelu" not in nonlinearity else "identity",  # as the dispatch has it
        ends if lengths else None,
        normal(steps, batch, n),
    )


class Sweeps:
    """The outputs of both sweeps; the reverse sweep starts from given states, so that it is compared on its own."""

    def __init__(self, engine: object, given: Problem, dtype: torch.dtype, device: str, states: Tensor | None = None) -> None:
        def there(tensor: Tensor | None) -> Any:
            return moved(tensor, dtype, device)

        self.states, self.final, self.grad_z, self.grad_initial = (
            torch.full_like(like, float("nan"), dtype=dtype, device=device)
            for like in (given.inputs, given.initial, given.inputs, given.initial)
        )
        weight, bias, lengths = there(given.weight), there(given.bias), there(given.lengths)
        engine.forward(  # type: ignore[attr-defined]
            there(given.inputs), weight, bias, there(given.initial), given.nonlinearity, lengths, self.states, self.final
        )
        known = self.states if states is None else there(states)
        engine.backward(  # type: ignore[attr-defined]
            there(given.upstream), known, weight, bias, given.nonlinearity, lengths, self.grad_z, self.grad_initial
        )

    def outputs(self) -> dict[str, Tensor]:
        return {name: value.double().cpu() for name, value in vars(self).items()}


def excess(engine: object, given: Problem, device: str) -> float:
    """The engine's error in float32, as a multiple of the float32 loop's own."""
    exact = Sweeps(_torch, given, torch.float64, "cpu")
    truth = exact.outputs()
    loop = Sweeps(_torch, given, torch.float32, "cpu", exact.states).outputs()
    found = Sweeps(engine, given, torch.float32, device, exact.states).outputs()
    return worst_excess(truth.values(), loop.values(), found.values())


def worst_excess(truth: Iterable[Tensor], loop: Iterable[Tensor], found: Iterable[Tensor]) -> float:
    """The largest error of what was found over that of the loop in float32, or over a few roundings, where that is luckier."""
    worst = 0.0
    for exact, single, answer in zip(truth, loop, found, strict=True):
        assert answer.shape == exact.shape
        if exact.numel() == 0:
            continue
        rounding = 4 * torch.finfo(torch.float32).eps * float(exact.abs().max().clamp_min(1))
        allowed = max(float((single.double() - exact).abs().max()), rounding)
        error = float((answer.double().cpu() - exact).abs().max())
        worst = max(worst, float("inf") if error != error else error / allowed)
    return worst


def floating(each: object) -> bool:
    return isinstance(each, Tensor) and each.is_floating_point()


def moved(each: Any, dtype: torch.dtype, device: str) -> Any:
    """A tensor there, in that dtype if its numbers are real; anything else as it is."""
    return each.to(device, dtype if floating(each) else None) if isinstance(each, Tensor) else each
