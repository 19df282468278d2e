"""A second copy of everything that a step changes, to take the step back without a look at whether it must be."""

from pathlib import Path

import torch
from torch import Tensor

from .. import _nvrtc

SOURCE = Path(__file__).with_name("keep.cu")
SLICES, THREADS = 32, 256
"""Thread blocks for each tensor, and threads in a block."""


class Kept:
    """Copies of tensors that stay where they are.

    On a GPU all are copied by one kernel, which reads a flag on the device to know whether to. A step of the paper's PTB network
    changes 55 tensors: copied one by one, there and back, they cost as much as its recurrence.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors, self._copies = tensors, [torch.empty_like(tensor) for tensor in tensors]
        self._kernel = None
        device = tensors[0].device
        alike = all(tensor.device == device and tensor.is_contiguous() for tensor in tensors)
        if device.type == "cuda" and alike and _nvrtc.unavailable() is None:
            (self._kernel,) = _nvrtc.load(_nvrtc.text(SOURCE), {"copy": 0}, device)
            self._there, self._back = _table(self._copies, tensors), _table(tensors, self._copies)

    def keep(self) -> None:
        """Copy the tensors as they are now."""
        if self._kernel is None:
            torch._foreach_copy_(self._copies, self._tensors)
        else:
            self._kernel((len(self._there), SLICES), THREADS, self._there, None)

    def restore_unless(self, fine: Tensor) -> None:
        """Make the tensors what they were at `keep`, but for a `fine` that is true."""
        if self._kernel is None:
            for tensor, copy in zip(self._tensors, self._copies, strict=True):
                torch.where(fine, tensor, copy, out=tensor)
        else:
            self._kernel((len(self._back), SLICES), THREADS, self._back, fine)


def _table(to: list[Tensor], source: list[Tensor]) -> Tensor:
    """As the kernel reads it. Only tensors that hold something are in it."""
    rows = [(a.data_ptr(), b.data_ptr(), a.nbytes) for a, b in zip(to, source, strict=True) if a.nbytes]
    return torch.tensor(rows, dtype=torch.int64).to(to[0].device)
