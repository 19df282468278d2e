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
            lookout = Lookout(self._step.stopped)
            for number in range(1, missing + 1):
                self._replay()
                if number % BETWEEN_GLANCES == 0 and lookout.seen():
                    break
            if self._step.stopped:
                self._step.clear()
                self._step.plain()


BETWEEN_GLANCES = 8
"""Steps between two glances at the flag. What is replayed after a step that was taken back changes nothing, and is time lost."""


class Lookout:
    """Glances at a flag on the device without waiting for it: `seen()` tells what it was at the call before.

    (So the device never stands still, and is at most two glances ahead.)
    """

    def __init__(self, flag: torch.Tensor) -> None:
        self._flag, self._on_gpu = flag, flag.is_cuda
        self._copies = [torch.zeros((), dtype=torch.bool, pin_memory=True) for _ in range(2)] if self._on_gpu else []
        self._event: torch.cuda.Event | None = None

    def seen(self) -> bool:
        if not self._on_gpu:
            return bool(self._flag)
        before, event = self._copies[0], self._event
        self._copies.reverse()
        self._copies[0].copy_(self._flag, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()
        if event is None:
            return False
        event.synchronize()
        return bool(before)


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
    try:
        with torch.cuda.graph(graph):
            step.guarded()
    except RuntimeError as error:  # a network that looks at a value, or an operation that needs the host
        step.forget_gradients()
        raise CaptureError(str(error).splitlines()[0]) from error
    finally:
        torch.cuda.synchronize()
        _restore(step, beginning)
    return graph.replay


class CaptureError(RuntimeError):
    """A step cannot be captured. The run is as it was."""


@torch.no_grad()
def _restore(step: Step, beginning: dict[str, torch.Tensor]) -> None:
    for name, tensor in step.tensors.items():
        tensor.copy_(beginning[name])
    step.clear()
