"""What every kernel is put through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tests.recurrence._layers import answers_of


def in_poison(tensor: Tensor) -> Tensor:
    """The same values, as a view into memory full of NaN."""
    wide = torch.full([extent + 4 for extent in tensor.shape], float("nan"), device="cuda")
    view = wide[tuple(slice(2, 2 + extent) for extent in tensor.shape)]
    return view.copy_(tensor)


def replayed(step: Callable[[], tuple[Tensor, ...]], leaves: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """What a captured step gives when it is replayed twice on new data, which `leaves` have then."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
    torch.cuda.synchronize()
    with torch.no_grad():
        for leaf in leaves:
            leaf.sub_(0.1)
    answers = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        answers.append(tuple(each.clone() for each in captured))
    return answers


def assert_near_the_float64_reference(layer: nn.Module, exact: nn.Module, x: Tensor) -> None:
    """Outputs and all gradients of a layer in float32 on the GPU."""
    expected, found = answers_of(exact, x.double()), answers_of(layer, x.cuda())
    for name, value in expected.items():
        near = found[name].double().cpu()
        torch.testing.assert_close(near, value, rtol=1e-4, atol=2e-5 * float(value.abs().max()), msg=name)
