"""Gated recurrences, their equations in plain torch, and how far a sweep over them may be from the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _gated
from tests.recurrence._problems import floating, moved, worst_excess


class Case(NamedTuple):
    """Sizes of a problem."""

    units: int
    steps: int = 5
    batch: int = 3
    nonlinearity: str = "modrelu"
    lengths: bool = False


class Problem(NamedTuple):
    """The operator's arguments, in float64, and an upstream gradient."""

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    initial: Tensor
    nonlinearity: str
    lengths: Tensor | None
    keep: bool
    upstream: Tensor

    def arguments(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Any]:
        return [moved(each, dtype, device) for each in self[:-1]]

    def leaves(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Any]:
        """The arguments, those with a gradient asked for one; as they lie in memory."""
        given = self.arguments(dtype, device)
        return [each.detach().requires_grad_() if floating(each) else each for each in given]


def problem(case: Case, seed: int = 0) -> Problem:
    """A threshold b ≤ 0: with b > 0 modReLU jumps at zero, where no two roundings need agree."""
    units, steps, batch, nonlinearity, lengths = case
    generator = torch.Generator().manual_seed(seed + 7 * units + 1000 * steps + 77 * batch)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    matrix = torch.linalg.qr(normal(units, units))[0]
    ends = torch.randint(0, steps + 1, (batch,), generator=generator)
    return Problem(
        normal(steps, batch, 3 * units),
        torch.cat([matrix, normal(2 * units, units) / units**0.5]),
        -normal(units).abs() / 4 if nonlinearity == "modrelu" else None,
        normal(batch, units),
        nonlinearity,
        ends if lengths else None,
        True,
        normal(steps, batch, units),
    )


def plain(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    keep: bool,
) -> tuple[Tensor, None]:
    """The equations, under autograd."""
    Q, W_r, W_z = weight.chunk(3)
    h, states = initial, []
    for t, x in enumerate(inputs):
        x_r, x_z, x_c = x.chunk(3, dim=-1)
        r, z = torch.sigmoid(x_r + h @ W_r.mT), torch.sigmoid(x_z + h @ W_z.mT)
        step = z * h + (1 - z) * NONLINEARITIES[nonlinearity].function(x_c + r * (h @ Q.mT), bias)
        h = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
        states.append(h)
    return torch.stack(states), None


def sweeps(operator: Callable[..., Any], given: Problem, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    """States, and the gradients of inputs, weight, bias if there is one, and initial state."""
    arguments = given.leaves(dtype, device)
    leaves = [each for each in arguments if floating(each)]
    states = operator(*arguments)[0]
    return [states.detach(), *torch.autograd.grad(states, leaves, moved(given.upstream, dtype, device))]


def excess(given: Problem, device: str) -> float:
    """The error in float32 on a device, as a multiple of the CPU's own (or of a few roundings, where that is luckier).

    The reverse sweep is given the exact states, rounded: near a threshold no two roundings need agree on the derivative.
    """
    arguments = given.arguments(torch.float32)
    known = _gated.gated(*(moved(each, torch.float64, "cpu") for each in arguments))

    def both(dtype: torch.dtype, device: str) -> list[Tensor]:
        inputs, *others, keep = (moved(each, dtype, device) for each in arguments)
        upstream, *there = (moved(each.float(), dtype, device) for each in (given.upstream, *known))
        return [*_gated.gated(inputs, *others, keep), *_gated.gated_backward(upstream, *there, *others, True)]

    truth, single, found = both(torch.float64, "cpu"), both(torch.float32, "cpu"), both(torch.float32, device)
    return worst_excess(truth, single, found)
