"""Which kernels may be used on a GPU: on a chip that the test suite has passed on, all; on any other, those that prove right."""

import threading
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .._precision import exact_products
from . import _cuda


class Trusted:
    """Whether one kernel may be used on a device. On a chip never tested it has to show that it is right, once.

    `run` is given a source of float64 tensors, and gives pairs of what torch finds and what the kernel finds.
    """

    def __init__(self, name: str, run: Callable[["Noise"], list[tuple[Tensor, Tensor]]]) -> None:
        self._name, self._run = name, run
        self._known: dict[torch.device, bool] = {}
        self._lock = threading.RLock()

    def __call__(self, device: torch.device) -> bool:
        """While a graph is captured nothing can be tried out: what is not known then is not trusted, for now."""
        with self._lock:
            if device not in self._known:
                tested = torch.cuda.get_device_capability(device) in _cuda.TESTED
                if torch.cuda.is_current_stream_capturing() and not tested:
                    return False
                try:
                    self._known[device] = _cuda.unavailable(device) is None  # what is run now asks, too
                except RuntimeError:  # it was never asked before, and cannot be answered in a graph
                    return False
                if self._known[device] and not tested:
                    self._known[device] = self.agrees(device)
                    if not self._known[device]:
                        reason = "is not right on this GPU, which it was never tested on: it is not used"
                        warnings.warn(f"{self._name} {reason}", stacklevel=2)
            return self._known[device]

    def agrees(self, device: torch.device) -> bool:
        try:
            with torch.no_grad(), exact_products():
                return all(_near(found, exact) for exact, found in self._run(Noise(device)))
        except RuntimeError:  # it does not even run
            return False


class Noise:
    """Normal numbers in float64, always the same."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)

    def __call__(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator, device=self._generator.device, dtype=torch.float64)


def _near(found: Tensor, exact: Tensor) -> bool:
    return torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))
