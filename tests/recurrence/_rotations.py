"""Recurrences under layers of rotations, and how far a sweep over them may be from the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from enrnn.recurrence import _rotations_torch
from tests.recurrence._problems import floating, moved, worst_excess


class Case(NamedTuple):
    """n complex units, L layers; sizes of the problem."""

    units: int
    layers: int
    butterfly: bool = False
    steps: int = 5
    batch: int = 3
    nonlinearity: str = "paired_modrelu"
    lengths: bool = False


class Problem(NamedTuple):
    """The operator's arguments, in float64, and an upstream gradient."""

    inputs: Tensor
    angles: Tensor
    phases: Tensor
    bias: Tensor | None
    initial: Tensor
    nonlinearity: str
    lengths: Tensor | None
    layers: int
    butterfly: bool
    upstream: Tensor

    def arguments(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Any]:
        return [moved(each, dtype, device) for each in self[:-1]]

    def leaves(self) -> list[Any]:
        """The arguments, those with a gradient asked for one."""
        return [each.clone().requires_grad_() if floating(each) else each for each in self[:-1]]


def problem(case: Case, seed: int = 0) -> Problem:
    """A threshold b ≤ 0: with b > 0 modReLU jumps at zero, where no two roundings need agree."""
    units, layers, butterfly, steps, batch, nonlinearity, lengths = case
    generator = torch.Generator().manual_seed(seed + 7 * units + 100 * layers + 1000 * steps + 77 * batch)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    ends = torch.randint(0, steps + 1, (batch,), generator=generator)
    return Problem(
        normal(steps, batch, 2 * units),
        torch.pi * normal(2 * units, -(-layers // 2)),
        torch.pi * normal(units),
        -normal(units).abs() / 4 if nonlinearity == "paired_modrelu" else None,
        normal(batch, 2 * units),
        nonlinearity,
        ends if lengths else None,
        layers,
        butterfly,
        normal(steps, batch, 2 * units),
    )


def excess(forward: Callable[..., Tensor], backward: Callable[..., tuple[Tensor, ...]], given: Problem, device: str) -> float:
    """The sweeps' error in float32, as a multiple of the float32 loop's own (or of a few roundings, where that is luckier)."""
    arguments = given.arguments(torch.float32)
    exact = [each.double() if floating(each) else each for each in arguments]
    states = _rotations_torch.reference(*exact).float()

    def swept(forward: Callable[..., Tensor], backward: Callable[..., Any], dtype: torch.dtype, device: str) -> list[Tensor]:
        there = [moved(each, dtype, device) for each in arguments]
        upstream, known = (moved(each, dtype, device) for each in (given.upstream, states))
        return [forward(*there), *backward(upstream, known, *there[1:])]

    plain = _rotations_torch.reference, _rotations_torch.backward
    truth, loop = (swept(*plain, dtype, "cpu") for dtype in (torch.float64, torch.float32))
    return worst_excess(truth, loop, swept(forward, backward, torch.float32, device))
