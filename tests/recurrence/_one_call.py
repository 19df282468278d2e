"""Layers that are trained outside of a graph, where their matrices and the recurrence are one operator: for tests of that."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import enrnn
from enrnn import _replay
from enrnn.layers import _long_short
from enrnn.recurrence import _projection


class Case(NamedTuple):
    options: dict[str, Any]
    """Beside how many units there are."""
    parts: str = "long and short"
    frozen: tuple[str, ...] = ()
    """The beginnings of names of parameters that do not learn."""
    lengths: tuple[int, ...] | None = None


CASES = {
    "modrelu": Case({}),
    "relu": Case({"nonlinearity": "relu"}),
    "no bias": Case({"bias": False}),
    "no coupling": Case({"coupling": False, "epsilon": 0.1}),
    "long": Case({"negative_ones": 4}, parts="long"),
    "short": Case({}, parts="short"),
    "two layers, both directions": Case({"num_layers": 2, "bidirectional": True, "nonlinearity": "tanh"}),
    "lengths": Case({}, lengths=(4, 4, 1)),
    "sequences first": Case({"batch_first": True, "nonlinearity": "relu"}),
    "some do not learn": Case({}, frozen=("weight_coupling", "parametrizations.weight_long", "bias")),
    "others do not learn": Case({}, frozen=("parametrizations.weight_short", "weight_ih")),
    "none of them learns": Case({}, frozen=("parametrizations", "weight_coupling", "bias")),
}


def layer_for(case: Case, q: int = 6, s: int = 5, device: str = "cpu") -> tuple[enrnn.ENRNN, Any, Tensor]:
    """A layer with ρ(T) above 1, its input and its first state."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(1)
    q, s = q * ("long" in case.parts), s * ("short" in case.parts)
    layer = enrnn.ENRNN(3, q + s, short_size=s, backend="cuda", **case.options)
    for name, parameter in layer.named_parameters():
        if "weight_short" in name:
            parameter.detach().copy_(torch.randn(parameter.shape, generator=generator))
        if name.startswith("bias"):
            parameter.detach().copy_(-0.1 * torch.rand(parameter.shape, generator=generator))
        parameter.requires_grad_(not name.startswith(case.frozen or ("none",)))
    x: Any = torch.randn(4, 3, 3, generator=generator).to(device)
    x = x.transpose(0, 1).contiguous() if layer.batch_first else x
    if case.lengths is not None:
        x = pack_padded_sequence(x, torch.tensor(case.lengths))
    first = torch.randn(layer.num_layers * layer.num_directions, 3, q + s, generator=generator)
    return layer.to(device), x, first.to(device).requires_grad_()


def projected_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one call projects its inputs, however few they are."""
    for module in (_long_short, _projection):
        monkeypatch.setattr(module, "meant_for", lambda x, weight, bias: torch.is_grad_enabled())


def answers(layer: enrnn.ENRNN, x: Any, first: Tensor) -> list[Tensor]:
    """Output, gradients, and what the matrices noted."""
    output, last = layer(x, first)
    output = output.data if isinstance(output, PackedSequence) else output
    learning = [first, *(each for each in layer.parameters() if each.requires_grad)]
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).view(output.shape)
    gradients = torch.autograd.grad((output * weights).sum() + last.square().sum(), learning)
    return [output.detach(), *gradients, layer.normalizing, layer.nearly_defective, layer.fallbacks, layer.spectral_radius]


def alike(found: list[Tensor], right: list[Tensor], name: str) -> bool:
    """Bit for bit; but where inputs of a reverse direction are reversed before they are projected and not after, as within the
    call, sums over steps have another order."""
    if CASES[name].options.get("bidirectional"):
        return all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(found, right, strict=True))
    return all(torch.equal(*pair) for pair in zip(found, right, strict=True))


def second(layer: enrnn.ENRNN, x: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    """Of a gradient's square, the gradient."""
    learning = [first, *layer.parameters()]
    gradients = torch.autograd.grad(layer(x, first)[0].square().sum(), learning, create_graph=True)
    return torch.autograd.grad(sum(each.square().sum() for each in gradients), learning)


def called(name: str) -> list[type]:
    """For each kind of calls of such a function what is known of them: whether they are replayed by now."""
    return [type(each) for function, known in _replay._known.items() if function.__name__ == name for each in known.values()]
