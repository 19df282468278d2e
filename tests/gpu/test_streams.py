"""`W_S` and `W_L` formed on streams of their own inside a CUDA graph: the same digits, however late these are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import enrnn
from enrnn import _streams
from enrnn.matrices import Cayley, _eigenvalue_normalized

pytestmark = pytest.mark.gpu

LATE = 3_000_000
"""Cycles that a stream sleeps: longer than everything else takes."""


def network(**settings: Any) -> nn.Module:
    """Its short-term matrices are divided by their spectral radius, which is above 1 from the start."""
    torch.manual_seed(0)
    dtype = settings.pop("then", torch.float32)
    layer = enrnn.ENRNN(60, 300, **{"short_size": 180, "num_layers": 2, **settings}).cuda().to(dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "weight_short" in name:
                parameter.mul_(1.5).add_(0.02 * torch.randn_like(parameter))
    return layer


def replayed(layer: nn.Module) -> list[dict[str, Tensor]]:
    """Gradients and buffers after each of three replays of one captured step, with other parameters each time."""
    torch.manual_seed(1)
    x = torch.randn(40, 30, 60, device="cuda", dtype=next(layer.parameters()).dtype, requires_grad=True)

    def step() -> None:
        output, final = layer(x * 1.0)
        (output.square().mean() + final.square().mean()).backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    layer.zero_grad()
    x.grad = None
    with torch.cuda.graph(graph):
        step()
    trained, found = {"x": x, **dict(layer.named_parameters())}, []
    for _ in range(3):
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.mul_(1.01 if name != "x" else 1)
                assert parameter.grad is not None
                parameter.grad.zero_()
        graph.replay()
        gradients = {name: parameter.grad.clone() for name, parameter in trained.items() if parameter.grad is not None}
        found.append(gradients | {name: buffer.clone() for name, buffer in layer.named_buffers()})
    return found


def different(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> list[str]:
    pairs = zip(one, other, strict=True)
    return [name for a, b in pairs for name in a if not torch.equal(a[name], b[name])]


def around(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """`before` at the beginning of forming `W_S`, on the stream where that happens, and again at its end."""

    def slow(real: Callable[..., Any], *arguments: Any) -> Any:
        before()
        result = real(*arguments)
        before()
        return result

    for name in ("_normalized", "_on_device"):  # in a graph, and outside of it
        monkeypatch.setattr(_eigenvalue_normalized, name, partial(slow, getattr(_eigenvalue_normalized, name)))


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small": {"short_size": 60},
    "both ways": {"bidirectional": True},
    "relu": {"nonlinearity": "relu"},
    "plainly normalized": {"short": "plainly_normalized"},
    "bfloat16": {"dtype": torch.bfloat16},
    "bfloat16 later": {"then": torch.bfloat16},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_stream_that_is_late_changes_no_digit(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as in_order:
        in_order.setattr(_streams, "capturing", lambda like: False)
        exact = replayed(network(**settings))
    assert exact[0]["parametrizations.weight_short_l0.0.normalizing"]
    assert different(exact[:1], exact[1:2]), "or a step would be no different from the one before"
    assert different(exact, replayed(network(**settings))) == []
    around(monkeypatch, lambda: torch.cuda._sleep(LATE))
    assert different(exact, replayed(network(**settings))) == []
    monkeypatch.undo()
    real = Cayley.forward

    def slow(*arguments: Any) -> Any:
        torch.cuda._sleep(LATE)
        result = real(*arguments)
        torch.cuda._sleep(LATE)
        result.register_hook(lambda gradient: torch.cuda._sleep(LATE))
        return result

    monkeypatch.setattr(Cayley, "forward", slow)
    assert different(exact, replayed(network(**settings))) == []


def test_only_in_a_graph_is_it_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    around(monkeypatch, lambda: seen.append(torch.cuda.current_stream().stream_id))
    layer, x = network(), torch.randn(4, 3, 60, device="cuda")
    layer(x)[0].sum().backward()
    assert set(seen) == {torch.cuda.current_stream().stream_id}
    seen.clear()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        layer(x)
    assert seen
    assert stream.stream_id not in seen


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # of the warm-up, with torch's own layers too
def test_a_layer_that_torch_makes_a_graph_of() -> None:
    layer, plain = network(), network()
    x = torch.randn(20, 30, 60, device="cuda", requires_grad=True)
    graphed: Any = torch.cuda.make_graphed_callables(layer, (x,))
    for _ in range(2):
        fresh = torch.randn(20, 30, 60, device="cuda")
        results = []
        for module in (graphed, plain):
            given = fresh.clone().requires_grad_()
            module.zero_grad()
            output, _ = module(given)
            output.square().mean().backward()
            results.append([output.detach(), given.grad, *(parameter.grad for parameter in module.parameters())])
        for found, exact in zip(*results, strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
