"""The eigenvalue normalisation around its solver on a GPU: a few kernels in place of some fifty small operations."""

import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .._kernels import KernelsFor
from .._launch import Bits, Kernel
from .._replay import gapless
from ..spectrum import Dominant

SOURCE = Path(__file__).with_name("normalize.cu")
THREADS, SHARES = 256, 64
"""As in the source."""

MOST_BLOCKS = 264
"""Each begins with a sum over the eigenvectors, so that there should be no more than run at once."""

Normalized = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""`W`, ρ, ∂ρ/∂T; the switch; whether T was divided, whether λ is simple, whether T is finite."""


class Kernels(NamedTuple):
    largest: Kernel
    normalize: Kernel
    share: Kernel
    pull_back: Kernel
    note: Kernel


kernels_for = KernelsFor(SOURCE, Kernels, Kernels._fields)


def largest(kernels: Kernels, T: Tensor) -> Tensor:
    """|entries| of `T`, one of which is the largest; not finite if T is not."""
    shares = T.new_empty(SHARES)
    kernels.largest(SHARES, THREADS, gapless(T), shares, T.numel())
    return shares


class Said(NamedTuple):
    """What there is to say of a normalisation, beside matrices."""

    radius: Tensor
    switched: Tensor
    applied: Tensor
    simple: Tensor
    finite: Tensor

    @classmethod
    def of(cls, said: Tensor, dtype: torch.dtype) -> "Said":
        """In one piece of memory, SAID bytes: ρ, and a byte for each flag."""
        return cls(said[: dtype.itemsize].view(dtype)[0], *said[8:12].view(torch.bool))


SAID = 16


def normalized(
    kernels: Kernels,
    T: Tensor,
    largest: Tensor,
    pair: Dominant,
    certified: Tensor,
    normalizing: Tensor,
    epsilon: float,
    said: Said | None = None,
) -> Normalized:
    """From the dominant pair of `T`, and `largest` of it; and where what is said of it goes."""
    T, m = gapless(T), T.shape[0]
    W, derivative = torch.empty_like(T), torch.empty_like(T)
    if said is None:
        said = Said(T.new_empty(()), *(torch.empty_like(normalizing) for _ in range(4)))
    rho, switched, applied, simple, finite = said
    found = (pair.radius, pair.eigenvalue, pair.right.contiguous(), pair.left.contiguous(), pair.condition)
    outputs = (W, rho, derivative, switched, applied, simple, finite)
    given = T, largest, *found, certified, normalizing
    kernels.normalize(min(m, MOST_BLOCKS), THREADS, *given, _bits(epsilon), m, *outputs, early=True)
    return outputs


def pulled_back(
    kernels: Kernels, gradient: Tensor, W: Tensor, derivative: Tensor, radius: Tensor, applied: Tensor, epsilon: float
) -> Tensor:
    """∂L/∂T from ∂L/∂W, by Proposition 3.2."""
    gradient, result = gapless(gradient), torch.empty_like(W)
    shares = W.new_empty(SHARES, dtype=torch.float64)
    kernels.share(SHARES, THREADS, gradient, W, shares, W.numel())
    kernels.pull_back(_blocks(W), THREADS, gradient, shares, derivative, radius, applied, _bits(epsilon), result, W.numel())
    return result


def _blocks(matrix: Tensor) -> int:
    """Four entries to a thread."""
    return -(-matrix.numel() // (4 * THREADS))


def _bits(number: float) -> Bits:
    """A float64: a kernel's arguments are integers and tensors here."""
    return Bits(struct.unpack("<q", struct.pack("<d", number))[0])
