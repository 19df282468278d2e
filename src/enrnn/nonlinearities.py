"""The pointwise nonlinearities, with their derivatives written in the output alone.

The reverse sweep keeps the states `h = σ(z, b)` and nothing else, so every derivative below is a function of `h`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Nonlinearity(NamedTuple):
    """`h = σ(z, b)`, with `dz = slope(h)·g` and `db = bias_slope(h)·slope(h)·g` for an upstream gradient `g`."""

    function: Callable[[Tensor, Tensor | None], Tensor]
    slope: Callable[[Tensor], Tensor]
    bias_slope: Callable[[Tensor], Tensor] | None
    """None where the bias is simply added to z, so that db = dz."""


def modrelu(z: Tensor, bias: Tensor | None = None) -> Tensor:
    """`sign(z)·relu(|z| + b)` (§4), with `sign(0) = 0`; the bias is the threshold and is not added to `z`.

    Without a bias it is the identity. With a positive bias it jumps at zero.
    """
    return z if bias is None else torch.sign(z) * torch.relu(z.abs() + bias)


def _biased(z: Tensor, bias: Tensor | None) -> Tensor:
    return z if bias is None else z + bias


NONLINEARITIES: dict[str, Nonlinearity] = {
    "modrelu": Nonlinearity(modrelu, lambda h: (h != 0).to(h.dtype), torch.sign),
    "relu": Nonlinearity(lambda z, b: torch.relu(_biased(z, b)), lambda h: (h > 0).to(h.dtype), None),
    "tanh": Nonlinearity(lambda z, b: torch.tanh(_biased(z, b)), lambda h: 1 - h * h, None),
    "identity": Nonlinearity(_biased, torch.ones_like, None),
}


def pointwise(nonlinearity: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """`σ(z, b)` for a name above, or `f(z + b)` for any callable `f`."""
    if isinstance(nonlinearity, str):
        return NONLINEARITIES[nonlinearity].function
    return lambda z, b: nonlinearity(_biased(z, b))
