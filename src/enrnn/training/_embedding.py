"""An embedding whose gradient, on a GPU, is a kernel: `embedding.cu`.

torch's takes 49 µs on an H200 for the 1,600 characters and 50 symbols of a step of the PTB.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._kernels import KernelsFor
from .._launch import Kernel
from .._precision import recording

SOURCE = Path(__file__).with_name("embedding.cu")
THREADS, COLUMNS = 512, 128
"""As in the source: of a thread block."""

MOST_LOOKS = 2**20
"""Places times symbols: every symbol's thread blocks look through all places."""


class Kernels(NamedTuple):
    gradient: Kernel


kernels_for = KernelsFor(SOURCE, Kernels, ("embedding_gradient",))


class Embedding(nn.Embedding):
    """torch's, with a gradient of our own where that is the faster one."""

    def forward(self, input: Tensor) -> Tensor:
        plain = self.padding_idx is None and self.max_norm is None and not self.scale_grad_by_freq and not self.sparse
        if plain and _pays(input, self.weight):
            rows: Tensor = _Rows.apply(self.weight, input)  # type: ignore[no-untyped-call]
            return rows
        return super().forward(input)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor, symbols: Tensor) -> Tensor:
        return F.embedding(symbols, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        weight, symbols = inputs
        ctx.save_for_backward(symbols)
        ctx.count = len(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (symbols,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            zeros = gradient.new_zeros(ctx.count, gradient.shape[-1])
            return zeros.index_add(0, symbols.flatten(), gradient.flatten(0, -2)), None
        return embedding_gradient(gradient, symbols, ctx.count), None


def embedding_gradient(gradient: Tensor, symbols: Tensor, count: int) -> Tensor:
    """Row i of [count, k]: the sum of the rows of `gradient` […, k] where `symbols` […] is i. On a GPU, in float32."""
    rows = gradient.flatten(0, -2)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = rows.new_empty(count, rows.shape[1])
    kernels = kernels_for(rows)
    assert kernels is not None
    grid = count, -(-rows.shape[1] // COLUMNS)
    kernels.gradient(grid, THREADS, symbols.flatten().contiguous(), rows, out, *rows.shape, rows.stride(0))
    return out


def _pays(symbols: Tensor, weight: Tensor) -> bool:
    if not weight.is_cuda or weight.dtype != torch.float32 or symbols.dtype != torch.int64 or recording(weight):
        return False
    return 0 < symbols.numel() * len(weight) <= MOST_LOOKS and symbols.dim() > 0 and kernels_for(weight) is not None
