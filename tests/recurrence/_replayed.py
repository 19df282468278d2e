"""The recurrence as an operator, on tensors that are new each time: for tests of calls that are replayed."""

from __future__ import annotations

import torch
from torch import Tensor

from enrnn import _graphs, _launch, _replay
from enrnn.functional import long_short_recurrence


def leaves(steps: int, batch: int, q: int, s: int, seed: int, device: str = "cpu") -> tuple[list[Tensor | None], Tensor]:
    """Inputs, matrices, bias and initial state, and a gradient that comes from above. Where s is 0 there is one matrix."""
    generator, n = torch.Generator().manual_seed(seed), q + s

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    matrices = [normal(q, q) / (1.2 * q**0.5), normal(q, s) / n**0.5 if s else None, normal(s, s) / (1.2 * s**0.5) if s else None]
    given = [normal(steps, batch, n), *matrices, -normal(n).abs() / 9, normal(batch, n)]
    return [each if each is None else each.requires_grad_() for each in given], normal(steps, batch, n)


def answers(given: list[Tensor | None], upstream: Tensor, name: str, backend: str = "cuda") -> list[Tensor]:
    """States, and the gradients of everything."""
    states = long_short_recurrence(*given, name, backend=backend)  # type: ignore[arg-type]
    wanted = [each for each in given if each is not None]
    return [states.detach(), *torch.autograd.grad(states, wanted, upstream)]


def programs() -> list[object]:
    """What is known now of calls."""
    return [each for known in _replay._known.values() for each in known.values()]


def at_first(graphs: object, addresses: object, stream: int, launch: _graphs.Launches) -> bool:
    """A graph for addresses that have never come before."""
    graph = _graphs._captured(launch)
    _launch.checked(_launch.driver().cuGraphLaunch(graph, stream))
    return True
