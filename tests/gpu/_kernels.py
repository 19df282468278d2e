"""What every kernel is put through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enrnn.recurrence import _cuda, _linked
from enrnn.recurrence._eights import eights_for
from enrnn.recurrence._pack import pack
from enrnn.recurrence._shapes import Shape
from enrnn.recurrence._wide import Wide
from tests.recurrence._layers import answers_of


def in_poison(tensor: Tensor) -> Tensor:
    """The same values, as a view into memory full of NaN."""
    wide = torch.full([extent + 4 for extent in tensor.shape], float("nan"), device="cuda")
    view = wide[tuple(slice(2, 2 + extent) for extent in tensor.shape)]
    return view.copy_(tensor)


def captured(step: Callable[[], Sequence[Tensor]]) -> tuple[torch.cuda.CUDAGraph, Sequence[Tensor]]:
    """A graph of a step, which may form gradients, and what its replays write to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = step()
    torch.cuda.synchronize()
    return graph, found


def replayed(step: Callable[[], Sequence[Tensor]], leaves: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """What a captured step gives when it is replayed twice on new data, which `leaves` have then."""
    graph, found = captured(step)
    with torch.no_grad():
        for leaf in leaves:
            leaf.sub_(0.1)
    answers = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        answers.append(tuple(each.clone() for each in found))
    return answers


def assert_the_same_in_a_graph(multiply: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> None:
    """A product that is captured and replayed on other numbers."""
    expected = multiply(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = multiply(a, b)
    for sign in (1, -1):
        a.copy_(sign * a)
        graph.replay()
        expected = sign * expected
        assert torch.equal(found, expected)


def assert_near_the_float64_reference(layer: nn.Module, exact: nn.Module, x: Tensor) -> None:
    """Outputs and all gradients of a layer in float32 on the GPU."""
    expected, found = answers_of(exact, x.double()), answers_of(layer, x.cuda())
    for name, value in expected.items():
        near = found[name].double().cpu()
        torch.testing.assert_close(near, value, rtol=1e-4, atol=2e-5 * float(value.abs().max()), msg=name)


class Forced:
    """The CUDA engine by a layout of one's choice; with q, it is given a matrix as its blocks."""

    def __init__(self, layout: Callable[..., Shape | Wide | None], q: int | None = None, coupled: bool = True) -> None:
        self.layout, self.q, self.coupled = layout, q, coupled

    def __getattr__(self, name: str) -> Callable[..., None]:
        def run(*given: Any) -> None:
            place, q = (1 if name == "forward" else 2), self.q
            weight = given[place]
            if q is not None:
                weight = weight[:q, :q], weight[:q, q:] if self.coupled else None, weight[q:, q:]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_cuda, "layout_for", self.layout)
                getattr(_cuda, name)(*given[:place], weight, *given[place + 1 :])

        return run


class Alone:
    """The engine that runs a matrix by `eights.cu`, with no other sweep beside it."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Any, initial: Tensor, nonlinearity: str, *others: Any) -> None:
        link = self._link(inputs, weight, nonlinearity, backward=False)
        _cuda.forward(inputs, weight, bias, initial, nonlinearity, *others, link)

    def backward(self, grad_states: Tensor, states: Tensor, weight: Tensor, bias: Any, nonlinearity: str, *others: Any) -> None:
        link = self._link(states, weight, nonlinearity, backward=True)
        _cuda.backward(grad_states, states, weight, bias, nonlinearity, *others, None, link)

    def _link(self, like: Tensor, weight: Tensor, nonlinearity: str, backward: bool) -> _cuda.Link:
        layout = eights_for(len(weight), like.shape[1], nonlinearity, _cuda.limits_of(like.device))
        assert layout is not None
        packed = like.new_empty(layout.packed.floats)
        pack([(layout.packed, weight, packed)], backward)
        letters = torch.empty(layout.letters(like.shape[1], 2), dtype=torch.uint8, device=like.device)
        return _cuda.Link(layout, packed, letters)


class Both:
    """The engine that runs a matrix `[[W_L, W_C], [0, W_S]]` with q long units as two linked sweeps."""

    def __init__(self, q: int) -> None:
        self.q = q

    def forward(
        self, inputs: Tensor, weight: Tensor, bias: Any, initial: Tensor, name: str, lengths: Any, *found: Tensor
    ) -> None:
        layouts = linked(len(weight) - self.q, self.q, inputs.shape[1])
        _linked.forward(layouts, inputs, self._blocks(weight), bias, initial, name, lengths, *found)

    def backward(
        self, upstream: Tensor, states: Tensor, weight: Tensor, bias: Any, name: str, lengths: Any, *found: Tensor
    ) -> None:
        layouts = linked(self.q, len(weight) - self.q, states.shape[1])
        _linked.backward(layouts, upstream, states, self._blocks(weight), bias, name, lengths, *found)

    def _blocks(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q
        return weight[:q, :q], weight[:q, q:], weight[q:, q:]


def linked(leads: int, follows: int, sequences: int) -> _linked.Linked:
    """Layouts that there are."""
    found = _linked.linked(leads, follows, sequences, "relu", _cuda.limits_of(torch.device("cuda", 0)))
    assert found is not None
    return found
