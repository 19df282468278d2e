"""The same layer run in two ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def answers_of(layer: nn.Module, x: object, hx: Tensor | None = None) -> dict[str, Tensor]:
    """Outputs, the final state, and the gradients of all parameters."""
    layer.zero_grad()
    output, final = layer(x, hx)
    output = output if isinstance(output, Tensor) else output.data
    (output.square().sum() + final.sum()).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    return {"output": output.detach(), "final": final.detach(), **gradients}


def assert_alike(layer: nn.Module, slow: nn.Module, x: object, hx: Tensor | None) -> None:
    """In float64."""
    found, expected = answers_of(layer, x, hx), answers_of(slow, x, hx)
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        torch.testing.assert_close(found[name], exact, rtol=1e-10, atol=1e-12 * float(exact.abs().max()))


def assert_compiles_in_one_graph(layer: nn.Module, x: Tensor) -> None:
    """With the same bits as without the compiler."""
    compiled = answers_of(torch.compile(layer, fullgraph=True, backend="aot_eager"), x)
    for one, other in zip(compiled.values(), answers_of(layer, x).values(), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
