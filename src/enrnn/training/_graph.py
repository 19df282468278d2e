"""Steps as they are run between two looks at the device: one by one, or replayed from a CUDA graph."""

from collections.abc import Callable

import torch

from ._step import Step

WARM_UP = 3
"""Steps before the capture, in which libraries set up what they cannot set up while a graph is recorded."""


class OneByOne:
    """Each step by itself, each looked at before it updates anything."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def advance(self, count: int) -> None:
        for _ in range(count):
            self._step.plain()


class Replayed:
    """Guarded steps without a look, then one look; a step that was taken back is done over by `plain`.

    `replay` does one guarded step: a captured graph, or for tests, `step.guarded` itself.
    """

    def __init__(self, step: Step, replay: Callable[[], None]) -> None:
        self._step, self._replay = step, replay

    def advance(self, count: int) -> None:
        goal = self._step.done + count
        while (missing := goal - self._step.done) > 0:
            for _ in range(missing):
                self._replay()
            if self._step.stopped:
                self._step.clear()
                self._step.plain()


def captured(step: Step) -> Callable[[], None]:
    """A guarded step as a CUDA graph. The run is as it was before: the warm-up is undone."""
    beginning = {name: tensor.clone() for name, tensor in step.tensors.items()}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step.guarded()
            _restore(step, beginning)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    step.forget_gradients()
    with torch.cuda.graph(graph):
        step.guarded()
    _restore(step, beginning)
    return graph.replay


@torch.no_grad()
def _restore(step: Step, beginning: dict[str, torch.Tensor]) -> None:
    for name, tensor in step.tensors.items():
        tensor.copy_(beginning[name])
    step.clear()
