"""The recurrence as an operator, forward and by autograd: the kernels that run, and what they find together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.recurrence import _gram, _op, _product, reference
from tests.emulator._chip import Emulated
from tests.recurrence._problems import worst_excess

ONE, IN_TURN, LINKED = ["pack", "sweep"], ["pack", "sweep"] * 2, ["pack", "sweep", "couple", "sweep"]

CASES = {
    "one matrix": (96, 64, 3, 4, ONE, ONE),
    "in turn": (310, 720, 4, 2, IN_TURN, IN_TURN),
    "linked": (300, 670, 8, 3, LINKED, LINKED),
}
"""Long and short units, sequences and steps; what sweeps forward, and back."""


def answers(run: Any, given: list[Any], upstream: Tensor, dtype: torch.dtype, twice: bool = False) -> list[Tensor]:
    """States, and the gradients of everything; or the gradients of a sum of all these, each times its tensor."""
    there = [each.to(dtype).requires_grad_() if isinstance(each, Tensor) and each.is_floating_point() else each for each in given]
    states = run(*there)
    leaves = [each for each in there if isinstance(each, Tensor) and each.requires_grad]
    first = torch.autograd.grad(states, leaves, upstream.to(dtype), create_graph=twice)
    if not twice:
        return [states.detach(), *first]
    total = sum(((each * leaf.detach()).sum() for each, leaf in zip(first, leaves, strict=True)), torch.zeros(()))
    return [*torch.autograd.grad(total, leaves)]


def problem(q: int, s: int, batch: int, steps: int, nonlinearity: str = "modrelu") -> tuple[list[Any], Tensor]:
    """What a recurrence with lengths is given, and a gradient at its states; numbers that float32 has."""
    generator = torch.Generator().manual_seed(q)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    long, short = (torch.linalg.qr(normal(size, size))[0] for size in (q, s))
    bias, lengths = -normal(q + s).abs() / 4, torch.randint(1, steps + 1, (batch,), generator=generator)
    given = [normal(steps, batch, q + s), long, normal(q, s) / s**0.5, short, bias, normal(batch, q + s), nonlinearity, lengths]
    given = [each.float().double() if isinstance(each, Tensor) and each.is_floating_point() else each for each in given]
    return given, normal(steps, batch, q + s)


def by_kernels(*given: Any) -> Tensor:
    states: Tensor = _op.recurrence(*given, "auto")
    return states


@pytest.mark.parametrize(("q", "s", "batch", "steps", "forward", "back"), CASES.values(), ids=CASES)
def test_states_and_gradients(
    q: int,
    s: int,
    batch: int,
    steps: int,
    forward: list[str],
    back: list[str],
    emulated: Emulated,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_product, "LEAST_SIDE", 1)  # products by our kernel, however small
    monkeypatch.setattr(_product, "LEAST_WORK", 0)
    monkeypatch.setattr(_gram, "FEWEST", 1)
    monkeypatch.setattr(_gram, "NARROW", 0)
    given, upstream = problem(q, s, batch, steps)
    truth, loop = (answers(reference.long_short_recurrence, given, upstream, dtype) for dtype in (torch.float64, torch.float32))
    assert not emulated.launched
    found = answers(by_kernels, given, upstream, torch.float32)
    assert worst_excess(truth, loop, found) < 4
    assert [name for name in emulated.launched if name in LINKED] == forward + back
    assert {"bias_gradient", "product"} <= {*emulated.launched}


SWEEPS = {"one matrix": (40, 23, 3, 5, ["sweep"]), "linked": (300, 670, 8, 3, ["sweep", "couple", "sweep"])}


@pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu"])
@pytest.mark.parametrize(("q", "s", "batch", "steps", "kernels"), SWEEPS.values(), ids=SWEEPS)
def test_second_derivatives(
    q: int, s: int, batch: int, steps: int, kernels: list[str], nonlinearity: str, emulated: Emulated
) -> None:
    """One sweep forwards and one back for the gradient; from there a linear one forwards, along the states, with the parts in
    the other order, and one back for what the states have to do with it."""
    given, upstream = problem(q, s, batch, steps, nonlinearity)
    truth, loop = (
        answers(reference.long_short_recurrence, given, upstream, dtype, twice=True) for dtype in (torch.float64, torch.float32)
    )
    found = answers(by_kernels, given, upstream, torch.float32, twice=True)
    assert worst_excess(truth, loop, found) < 4
    assert [name for name in emulated.launched if name in ("sweep", "couple")] == 4 * kernels
