"""What a step that nobody looks at finds out about itself, and what it counts: on a GPU two kernels, `ledger.cu`, where torch's
operations would be some thirty, each over as soon as it has begun."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .._kernels import KernelsFor
from .._launch import Kernel

SOURCE = Path(__file__).with_name("ledger.cu")
THREADS, EACH, TENSORS, FLAGS = 256, 16, 64, 32
"""As in the source: threads of a block, entries of a thread, tensors and flags of a launch."""


class Kernels(NamedTuple):
    judge: Kernel
    count_step: Kernel


class Table(ctypes.Structure):
    """The kernels' argument, as in the source."""

    _fields_ = (
        ("values", ctypes.c_longlong * 3 * TENSORS),
        ("flags", ctypes.c_void_p * FLAGS),
        ("count", ctypes.c_longlong),
    )


kernels_for = KernelsFor(SOURCE, Kernels, Kernels._fields)


class Ledger:
    """Where a run stands: tensors on the device, of which a step changes all."""

    def __init__(self, device: torch.device, switches: int) -> None:
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        """In the order of the epoch."""
        self.done = torch.zeros((), dtype=torch.int64, device=device)
        """Steps that count."""
        self.losses = torch.zeros(2, dtype=torch.float64, device=device)
        """Their sum and their number."""
        self.switched_at = torch.full((switches,), -1, dtype=torch.int64, device=device)
        """For each switch, the step that turned it on, or -1."""
        self.stopped = torch.zeros((), dtype=torch.bool, device=device)
        """Whether a step was taken back."""
        self._seen = torch.zeros(2, dtype=torch.int32, device=device)
        kernels_for(torch.empty(1, dtype=torch.float32, device=device))  # while it may still be loaded

    def judge(self, values: Sequence[Tensor], flags: Sequence[Tensor]) -> Tensor:
        """Whether all values are finite, no flag is up and nothing had stopped before; if not, it has stopped now."""
        kernels = self._kernels(values, flags)
        if kernels is None:
            wrong = torch.stack([self.stopped, ~all_finite(values), *flags]).any()
            self.stopped.copy_(wrong)
            return ~wrong
        table, blocks = _table(values, flags)
        fine = torch.empty_like(self.stopped)
        kernels.judge(blocks, THREADS, table, self._seen, fine, self.stopped)
        return fine

    def count(self, loss: Tensor, switches: Sequence[Tensor]) -> None:
        """One more step with this loss; `switches`: whether each is on."""
        kernels = self._kernels([loss], switches)
        if kernels is not None:
            written = self.place, self.done, self.losses, self.switched_at
            kernels.count_step(1, FLAGS, _table([], switches)[0], loss, *written)
            return
        self.place.add_(1)
        self.done.add_(1)
        self.losses[0] += loss
        self.losses[1] += 1
        if switches:
            new = torch.stack(list(switches)) & (self.switched_at < 0)
            torch.where(new, self.done, self.switched_at, out=self.switched_at)

    def _kernels(self, values: Sequence[Tensor], flags: Sequence[Tensor]) -> Kernels | None:
        """None as well for what the kernels are not meant for."""
        device = self.stopped.device
        if len(values) > TENSORS or len(flags) > FLAGS or any(each.device != device for each in (*values, *flags)):
            return None
        if any(each.dtype != torch.float32 or not each.is_contiguous() for each in values):
            return None
        return kernels_for(values[0])


def all_finite(values: Sequence[Tensor]) -> Tensor:
    """(The largest entry of a tensor is NaN if any entry is.)"""
    largest = torch._foreach_norm(list(values), float("inf"))
    return torch.isfinite(torch.stack([each.to(torch.float32) for each in largest])).all()


def _table(values: Sequence[Tensor], flags: Sequence[Tensor]) -> tuple[Table, int]:
    """And the number of thread blocks."""
    table, blocks = Table(count=len(flags)), 0
    for row, each in zip(table.values, values, strict=False):
        row[:] = each.data_ptr(), each.numel(), blocks
        blocks += -(-each.numel() // (THREADS * EACH))
    for row in table.values[len(values) :]:
        row[-1] = blocks
    table.flags[: len(flags)] = [flag.data_ptr() for flag in flags]
    return table, blocks
