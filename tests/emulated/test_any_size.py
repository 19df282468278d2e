"""Recurrences of any size and kind, through the operator and its gradient, as a user might call it, in any order of threads."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.functional import long_short_recurrence
from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _engines, _gram, _linked, _product
from tests._record import Recorder
from tests.emulator._chip import Emulated


class Call:
    """Drawn at random: sizes with tails, one matrix or two parts, what is there and what is not, how tensors lie in memory."""

    def __init__(self, seed: int) -> None:
        self.draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        some = self.draw

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        self.name = some.choice(list(NONLINEARITIES))
        parts = NONLINEARITIES[self.name].parts
        large = some.random() < 0.25
        steps, batch = some.randint(1, 6), some.choice((1, 2, 3, 5, 8, 9, 16, 17, 21))
        q = parts * some.randint(1, 300 // parts if large else 70 // parts)
        s = some.choice((0, some.randint(1, 400 if large else 70))) if parts == 1 else 0
        n = q + s
        self.two_parts = s > 0
        long, short = normal(q, q) / (1.5 * q**0.5), normal(s, s) / (1.5 * s**0.5) if s else None
        coupling = normal(q, s) / n**0.5 if s and some.random() < 0.85 else None
        bias = normal(n // parts) / 4
        inputs, initial, self.upstream = normal(steps, batch, n), normal(batch, n), normal(steps, batch, n)
        self.given = [
            inputs.mT.contiguous().mT if some.random() < 0.3 else inputs,
            long.mT.contiguous().mT if some.random() < 0.3 else long,
            coupling,
            short,
            None if some.random() < 0.2 else -bias.abs() if "modrelu" in self.name else bias,
            initial,
        ]
        self.lengths = torch.randint(0, steps + 1, (batch,), generator=generator) if some.random() < 0.4 else None

    def answers(self, dtype: torch.dtype, backend: str) -> list[Tensor]:
        """States, and the gradients of all that is given."""
        leaves = [each if each is None else each.to(dtype).detach().requires_grad_() for each in self.given]
        call: Any = long_short_recurrence
        states = call(*leaves, self.name, lengths=self.lengths, backend=backend)
        wanted = [each for each in leaves if each is not None]
        return [states.detach(), *torch.autograd.grad(states, wanted, self.upstream.to(dtype))]


def decide(call: Call, emulated: Emulated, patch: pytest.MonkeyPatch) -> int:
    """Ways that are otherwise for larger sizes; and how often it is to be called: from the fourth time on it is replayed."""
    if call.two_parts and call.draw.random() < 0.6:
        linked = call.draw.random() < 0.6
        patch.setattr(_engines, "as_one", lambda *_: False)
        patch.setattr(_linked, "pays", lambda *_: linked)
    if call.draw.random() < 0.5:
        patch.setattr(_product, "LEAST_SIDE", 1)
        patch.setattr(_product, "LEAST_WORK", 1)
    if call.draw.random() < 0.3:
        patch.setattr(_gram, "NARROW", 0)  # torch's products, or `product.cu`
        patch.setattr(_gram, "LITTLE", 2**28 * call.draw.randrange(2))
    if call.draw.random() < 0.4:
        emulated.unfair(call.draw.randrange(1000))
    return 4 if call.draw.random() < 0.3 else 1


@pytest.mark.parametrize("part", range(4))
def test_any_recurrence(part: int, emulated: Emulated, monkeypatch: pytest.MonkeyPatch, full: bool, record: Recorder) -> None:
    """Within a multiple of the float32 loop's own error, or of a few roundings where that happens to have none."""
    for seed in range(part, 400 if full else 16, 4):
        call = Call(seed)
        exact, loop = (call.answers(dtype, "reference") for dtype in (torch.float64, torch.float32))
        with monkeypatch.context() as patch:
            for _ in range(decide(call, emulated, patch)):
                found = call.answers(torch.float32, "cuda")
        for each, right, near in zip(found, exact, loop, strict=True):
            scale = float(right.abs().max()) or 1.0
            error, own = (float((one.double() - right).abs().max()) / scale for one in (each, near))
            record(worst_error=error)
            assert error < max(20 * own, 3e-6), (seed, vars(call))
        record(cases=1)
